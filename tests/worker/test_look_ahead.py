"""How far ahead chunks are claimed, and when their records are sorted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker import look_ahead
from airflow_llmengine.worker.attempt import AttemptOptions, run_attempt
from airflow_llmengine.worker.engines.base import Answer, PrefixCache
from airflow_llmengine.worker.engines.echo import EchoEngine
from airflow_llmengine.worker.look_ahead import NEAR, LookAhead
from airflow_llmengine.worker.prefix_order import prompt_key
from airflow_llmengine.worker.records import Record
from airflow_llmengine.worker.share import ChunkWork
from airflow_llmengine.worker.stopping import Stop
from tests.worker.jobs import Job, text_of
from tests.worker.prompt_records import prompt_record, work, works
from tests.worker.test_prefix_order import documents


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may need more time to sort than the first records would wait."""
    monkeypatch.setattr(look_ahead, "ARRANGE_SECONDS", 60.0)


class CachingEngine(EchoEngine):
    """Says that it caches prefixes, as vLLM does."""

    def __init__(self, cache: PrefixCache | None) -> None:
        self.cache = cache

    def prefix_cache(self) -> PrefixCache | None:
        return self.cache


SMALL = PrefixCache(tokens=4000, block_tokens=16)


class Claims:
    """Gives chunks, and counts."""

    def __init__(self, chunks: Sequence[ChunkWork]) -> None:
        self.left = list(reversed(chunks))
        self.claimed = 0
        self.at_once: list[int] = []
        self.helping = False
        self.may_hold: int | None = None
        self.ahead = LookAhead(
            self.claim, helping=lambda: self.helping, may_hold=lambda: self.may_hold, changed=lambda: None
        )

    async def claim(self, at_once: int) -> list[ChunkWork]:
        await asyncio.sleep(0)
        given = [self.left.pop() for _ in range(min(at_once, len(self.left)))]
        self.claimed += sum(len(work.todo) for work in given)
        self.at_once.append(len(given))
        return given

    async def settle(self) -> None:
        for _ in range(2000):
            await asyncio.sleep(0)

    async def take_all(self) -> list[Record]:
        taken = []
        while True:
            one = self.ahead.take()
            if one is not None:
                taken.append(one[0])
            elif self.ahead.ended:
                return taken
            await asyncio.sleep(0)


def alike(records: Sequence[Record]) -> int:
    """How many records follow one with the same beginning."""
    beginnings = [prompt_key(record)[1][:40] for record in records]  # type: ignore[index]
    return sum(a == b for a, b in pairwise(beginnings))


def test_what_begins_alike_is_given_together_where_the_engine_caches_it() -> None:
    async def run() -> None:
        claims = Claims(works(documents(100, 8, characters=500), size=16))
        engine = CachingEngine(SMALL)
        claims.ahead.look_far(engine)
        claims.ahead.begin()
        await claims.ahead.arrange(engine)
        taken = await claims.take_all()
        assert sorted(record.index for record in taken) == list(range(800))
        assert alike(taken) == 700

    asyncio.run(run())


def test_what_was_claimed_is_sorted_though_there_is_only_others_work_left_to_claim() -> None:
    async def run() -> None:
        claims = Claims(works(documents(100, 8, characters=500), size=16))
        engine = CachingEngine(SMALL)
        claims.ahead.look_far(engine)
        claims.ahead.begin()
        await claims.settle()
        claims.helping = True
        await claims.ahead.arrange(engine)
        assert alike(await claims.take_all()) == 700

    asyncio.run(run())


@pytest.mark.parametrize(
    "cache", [None, PrefixCache(tokens=10**6, block_tokens=16)], ids=["no cache", "a cache for all of it"]
)
def test_records_stay_as_they_came_where_sorting_would_save_nothing(cache: PrefixCache | None) -> None:
    async def run() -> None:
        claims = Claims(works(documents(100, 8), size=16))
        engine = CachingEngine(cache)
        claims.ahead.look_far(engine)
        claims.ahead.begin()
        await claims.ahead.arrange(engine)
        assert [record.index for record in await claims.take_all()] == list(range(800))

    asyncio.run(run())


def test_an_engine_that_says_nothing_of_a_cache_is_not_looked_far_ahead_for() -> None:
    async def run() -> None:
        claims = Claims(works([f"prompt {index}" for index in range(10_000)], size=16))
        engine: EchoEngine = EchoEngine.__new__(EchoEngine)
        claims.ahead.look_far(engine)
        claims.ahead.begin()
        await claims.settle()
        await claims.ahead.arrange(engine)
        assert claims.claimed == NEAR.records
        assert max(claims.at_once) > 1
        await claims.ahead.end()

    asyncio.run(run())


def test_where_few_wait_the_next_chunk_is_claimed_before_the_last_of_them_is_taken() -> None:
    """Records so large that one is enough: the engine is not to wait for storage after each."""

    async def run() -> None:
        large = [replace(prompt_record(index, "a"), size=NEAR.bytes) for index in range(5)]
        claims = Claims([work(number, [record]) for number, record in enumerate(large)])
        claims.ahead.begin()
        await claims.settle()
        assert (claims.claimed, claims.ahead.waiting) == (2, 2)
        assert claims.ahead.take() is not None
        await claims.settle()
        assert (claims.claimed, claims.ahead.waiting) == (3, 2)
        await claims.ahead.end()

    asyncio.run(run())


def test_where_nothing_is_shared_the_look_ahead_is_near_again() -> None:
    async def run() -> None:
        claims = Claims(works(documents(6000, 1, characters=80), size=16))
        engine = CachingEngine(SMALL)
        claims.ahead.look_far(engine)
        claims.ahead.begin()
        await claims.settle()
        looked_at = claims.claimed
        assert 2 * NEAR.records < looked_at < 6000
        await claims.ahead.arrange(engine)
        for _ in range(looked_at - NEAR.records):
            assert claims.ahead.take() is not None
        await claims.settle()
        assert claims.claimed == looked_at
        await claims.ahead.end()

    asyncio.run(run())


def test_sharing_that_begins_later_is_found_out() -> None:
    async def run() -> None:
        prompts = documents(2000, 1, characters=80) + documents(500, 8, characters=300)
        claims = Claims(works(prompts[:2000], size=16))
        engine = CachingEngine(SMALL)
        claims.ahead.look_far(engine)
        claims.ahead.begin()
        await claims.settle()
        await claims.ahead.arrange(engine)
        claims.left = list(reversed(works(prompts, size=16)[125:]))
        claims.ahead.begin()
        taken = []
        while (one := claims.ahead.take()) is not None or not claims.ahead.ended:
            if one is not None:
                taken.append(one[0])
            await asyncio.sleep(0)
            while claims.ahead._is_due:  # noqa: ASYNC110 - a thread is waited for
                # An engine takes its time, too.
                await asyncio.sleep(0.001)
        assert sorted(record.index for record in taken) == list(range(6000))
        assert alike(taken) > 2500

    asyncio.run(run())


def test_beside_others_no_more_is_claimed_than_its_part() -> None:
    async def run() -> None:
        claims = Claims(works(documents(100, 8), size=16))
        claims.may_hold = 100
        engine = CachingEngine(SMALL)
        claims.ahead.look_far(engine)
        claims.ahead.begin()
        await claims.settle()
        assert 100 <= claims.claimed < 100 + 16
        claims.may_hold = 0
        for _ in range(100):
            claims.ahead.take()
        await claims.settle()
        # One chunk beside the one that is gone through.
        assert claims.claimed == 112 + 16
        await claims.ahead.end()

    asyncio.run(run())


def test_a_helper_claims_a_chunk_when_a_record_is_asked_for_and_none_waits() -> None:
    async def run() -> None:
        claims = Claims(works([f"prompt {index}" for index in range(64)], size=16))
        claims.helping = True
        claims.ahead.begin()
        await claims.settle()
        assert claims.claimed == 0
        assert claims.ahead.take() is None
        await claims.settle()
        assert claims.claimed == 16
        for _ in range(16):
            assert claims.ahead.take() is not None
        await claims.settle()
        assert claims.claimed == 16
        assert claims.ahead.take() is None
        await claims.settle()
        assert claims.claimed == 32
        await claims.ahead.end()

    asyncio.run(run())


def test_chunks_come_to_their_end_when_their_results_take_too_much() -> None:
    async def run() -> None:
        claims = Claims(works(documents(100, 8), size=16))
        engine = CachingEngine(SMALL)
        claims.ahead.look_far(engine)
        claims.ahead.begin()
        await claims.ahead.arrange(engine)
        first = [claims.ahead.take()[0].index for _ in range(100)]  # type: ignore[index]
        assert first != sorted(first)
        claims.ahead.take_in_turn()
        rest = [record.index for record in await claims.take_all()]
        assert rest == sorted(rest)
        assert sorted(first + rest) == list(range(800))

    asyncio.run(run())


@pytest.fixture
def order() -> list[Record]:
    """Records as an attempt's engine got them."""
    return []


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: list[Record]) -> Callable[[list[str]], list[str]]:
    """Completes prompts with an engine that caches little."""
    monkeypatch.setenv("LLMENGINE_ECHO_CAPACITY", "4")

    class Engine(EchoEngine):
        def prefix_cache(self) -> PrefixCache | None:
            return SMALL

        async def complete(self, record: Record) -> Answer:
            order.append(record)
            return await super().complete(record)

    def run(prompts: list[str]) -> list[str]:
        job = Job(tmp_path, prompts)
        options = AttemptOptions(owner="o", series="s")
        outcome = run_attempt(Storage(), validate_request(json.dumps(job.request)), options, Stop(), make_engine=Engine)
        assert outcome.exit_code is ExitCode.DONE
        return [text_of(result) for result in job.results()]

    return run


def test_an_attempt_sends_alike_records_together_and_writes_all_in_the_order_of_its_input(
    attempt: Callable[[list[str]], list[str]], order: list[Record]
) -> None:
    prompts = documents(20, 8, characters=500)
    assert attempt(prompts) == prompts
    assert alike(order) == 140


def test_an_attempt_finishes_chunks_in_turn_when_results_that_wait_take_much_memory(
    attempt: Callable[[list[str]], list[str]], order: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_llmengine.worker.replica.OPEN_BYTES", 20_000)
    prompts = documents(20, 8, characters=500)
    assert attempt(prompts) == prompts
    indices = [record.index for record in order]
    assert indices[:20] != sorted(indices[:20])
    # A place that is free goes on at once, while one that is new begins in the loop's next turn: a window's worth.
    in_turn = sorted(indices[60:])
    assert all(abs(in_turn.index(index) - position) < 16 for position, index in enumerate(indices[60:]))


def test_what_a_claim_raises_is_told_to_whoever_asks_whether_there_is_more() -> None:
    async def run() -> None:
        async def claim(_at_once: int) -> list[ChunkWork]:
            raise ValueError("the input is damaged")

        ahead = LookAhead(claim, helping=lambda: False, may_hold=lambda: None, changed=lambda: None)
        ahead.begin()
        await asyncio.sleep(0.01)
        assert ahead.take() is None
        with pytest.raises(ValueError, match="damaged"):
            assert ahead.ended

    asyncio.run(run())
