"""Records that ask the same, in whole jobs: generated once, answered in every place, whatever happens meanwhile.

The stand-in engine answers; it counts what it was asked. What a prompt does beside being answered, its first word says.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.status import job_status
from airflow_llmengine.worker.answers import repeats
from airflow_llmengine.worker.answers.keys import AnswerKeys
from airflow_llmengine.worker.answers.outcomes import Outcome
from airflow_llmengine.worker.answers.repeats import Repeats
from airflow_llmengine.worker.attempt import AttemptOptions, AttemptOutcome, run_attempt
from airflow_llmengine.worker.engines.base import Answer, EngineDiedError
from airflow_llmengine.worker.engines.echo import DIE_MARKER, REJECT_MARKER, EchoEngine
from airflow_llmengine.worker.records import Record
from airflow_llmengine.worker.stopping import Stop, StopReason
from tests.worker.jobs import Job, text_of

PASSING = "passing"
"""First word of a prompt that an engine fails with once, for a reason that is over then."""


class World:
    """What was asked of the engines of a job, over all of its attempts."""

    def __init__(self, *, stop_after: int | None = None, seconds: float = 0.0, capacity: int = 3) -> None:
        self.asked: list[int] = []
        self.prompts: Counter[str] = Counter()
        self.stop_after = stop_after
        """After so many answers a stop is asked for, once."""
        self.seconds = seconds
        self.capacity = capacity
        self.stop: Stop | None = None

    def engine(self, request: CreateBatchCompletionsV1Request) -> EchoEngine:
        world = self

        class Counting(EchoEngine):
            @property
            def capacity(self) -> int:
                return world.capacity

            async def complete(self, record: Record) -> Answer:
                prompt = str(getattr(record.request, "prompt", ""))
                world.asked.append(record.index)
                world.prompts[prompt] += 1
                # Told now: another one with this prompt may be asked while this one waits.
                is_first = world.prompts[prompt] == 1
                try:
                    await asyncio.sleep(world.seconds)
                    if prompt.startswith(PASSING) and is_first:
                        raise RuntimeError("not now")
                    return await super().complete(record)
                finally:
                    if world.stop is not None and world.stop_after is not None:
                        world.stop_after -= 1
                        if not world.stop_after:
                            world.stop.request(StopReason.CANCELLED, "it was to stop")

        return Counting(request)

    def run(self, job: Job, **options: Any) -> AttemptOutcome:
        self.stop = Stop()
        return run_attempt(
            Storage(),
            validate_request(job.request),
            AttemptOptions(owner="o", series="s", **{"chunk_records": 4, **options}),
            self.stop,
            make_engine=self.engine,
        )


def write(job: Job, records: list[dict[str, Any]]) -> None:
    job.input.write_text("".join(json.dumps(record) + "\n" for record in records))


def greedy(prompt: str, **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "temperature": 0, **fields}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path, [])


def test_records_that_ask_the_same_are_generated_once_and_answered_in_every_place(job: Job) -> None:
    names = [f"line-{index}" for index in range(40)]
    records = [
        {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": greedy(f"row {index % 5}", user=name)}
        for index, name in enumerate(names)
    ]
    write(job, records)
    world = World(seconds=0.01)
    outcome = world.run(job)
    assert outcome.exit_code is ExitCode.DONE, outcome.message
    assert sorted(world.prompts.values()) == [1] * 5
    manifest, results = job.manifest(), job.results()
    assert (manifest.records, manifest.repeated, manifest.cached, manifest.failed) == (40, 35, 0, 0)
    # Tokens are those of the answers.
    assert (manifest.prompt_tokens, manifest.completion_tokens) == (80, 80)
    bodies = [result["response"]["body"] for result in results]
    assert [text_of(body) for body in bodies] == [f"row {index % 5}" for index in range(40)]
    # What only its place gives a result is its own.
    assert [result["custom_id"] for result in results] == names
    assert [body["metadata"]["user"] for body in bodies] == names
    assert len({result["id"] for result in results} | {body["id"] for body in bodies}) == 80
    assert "repeated: 35" in job_status(Storage(), str(job.output)).lines()[0]


def test_records_that_are_sampled_are_generated_each_for_itself(job: Job) -> None:
    sampled: list[dict[str, Any]] = [
        {"prompt": "one"},
        {"prompt": "one", "temperature": 0.7},
        {"prompt": "one", "top_k": 1},
    ]
    write(job, sampled * 4)
    world = World()
    assert world.run(job).exit_code is ExitCode.DONE
    assert sorted(world.asked) == list(range(12))
    assert job.manifest().repeated == 0


def test_answers_that_a_tool_helps_to_write_are_each_for_itself(tmp_path: Path) -> None:
    job = Job(tmp_path, [], tool_config={"name": "code_evaluator"})
    content = {"prompts": ["one"] * 6, "max_new_tokens": 5, "temperature": 0}
    job.input.write_text(json.dumps(content))
    done = job.run()
    if done.returncode != ExitCode.DONE:
        pytest.skip("code that a model wrote can't be shut off here")
    assert sum(job.generations().values()) == 6


def test_v1_prompts_are_generated_once(job: Job) -> None:
    job.input.write_text(json.dumps({"prompts": ["a b", "c", "a b", "a b"], "max_new_tokens": 5, "temperature": 0}))
    world = World()
    assert world.run(job).exit_code is ExitCode.DONE
    assert len(world.asked) == 2
    assert [result["text"] for result in job.results()] == ["a b", "c", "a b", "a b"]
    assert job.manifest().repeated == 2


def test_an_error_of_the_record_is_that_of_all_that_ask_the_same(job: Job) -> None:
    write(job, [greedy(f"{REJECT_MARKER} a"), greedy("b")] * 6)
    world = World(seconds=0.01)
    assert world.run(job).exit_code is ExitCode.DONE
    assert len(world.asked) == 2
    manifest, results = job.manifest(), job.results()
    # An error is no answer, so nobody got another one's.
    assert (manifest.failures, manifest.repeated) == ({"rejected_by_engine": 6}, 5)
    messages = [result["error"]["message"] for result in results[::2]]
    assert [result["error"]["index"] for result in results[::2]] == [0, 2, 4, 6, 8, 10]
    assert [message.split(":")[0] for message in messages] == [
        f"line {number} of input.jsonl" for number in range(1, 13, 2)
    ]


def test_after_a_passing_error_one_other_is_tried_and_the_rest_have_its_answer(job: Job) -> None:
    write(job, [greedy(f"{PASSING} a")] * 10)
    world = World(seconds=0.02)
    assert world.run(job).exit_code is ExitCode.DONE
    assert world.asked == [0, 1]
    manifest = job.manifest()
    assert (manifest.failures, manifest.repeated) == ({"internal": 1}, 8)
    assert ["error" in result for result in job.results()] == [True] + [False] * 9


def test_a_record_that_kills_the_engine_is_found_out_once_for_all(job: Job) -> None:
    write(job, [greedy(f"{DIE_MARKER} a"), greedy("b"), greedy("c")] * 8)
    world = World()
    outcome = world.run(job, max_error_rate=0.5)
    assert outcome.exit_code is ExitCode.DONE, outcome.message
    assert world.prompts[f"{DIE_MARKER} a"] == 3
    manifest = job.manifest()
    assert manifest.failures == {"engine_crash": 8}
    assert manifest.repeated == 14


def test_what_is_waited_for_takes_no_place_in_the_engine(job: Job) -> None:
    """All of the window is for records that the engine works on, however many wait for one of them."""
    write(job, [greedy("same")] * 60 + [greedy(f"row {index}") for index in range(60)])

    class Patient(World):
        """Answers the first record when all of the window is at work, and no sooner."""

        def engine(self, request: CreateBatchCompletionsV1Request) -> EchoEngine:
            world = self

            class Waits(EchoEngine):
                @property
                def capacity(self) -> int:
                    return world.capacity

                async def complete(self, record: Record) -> Answer:
                    world.asked.append(record.index)
                    while len(world.asked) <= world.capacity:  # noqa: ASYNC110 - nobody waits for an event here
                        await asyncio.sleep(0.001)
                    return await super().complete(record)

            return Waits(request)

    world = Patient(capacity=8)
    assert world.run(job, max_error_rate=0).exit_code is ExitCode.DONE
    assert len(world.asked) == 61


def test_only_so_many_wait_and_all_are_answered(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "MOST_WAITING", 5)
    waiting: list[int] = []
    settle = repeats.Repeats.settle

    def watched(self: Repeats[Any], key: bytes, outcome: Outcome) -> list[Any]:
        waiting.append(self.waiting)
        return settle(self, key, outcome)

    monkeypatch.setattr(repeats.Repeats, "settle", watched)
    write(job, [greedy("same")] * 60 + [greedy("other")])
    world = World(seconds=0.5)
    assert world.run(job).exit_code is ExitCode.DONE
    assert (world.prompts, job.manifest().repeated) == ({"same": 1, "other": 1}, 59)
    assert max(waiting) == 5


def test_who_waits_when_a_worker_stops_is_left_for_the_next_one(job: Job) -> None:
    write(job, [greedy("same")] * 20)

    class Stopping(World):
        """Stops while the engine works on the first record."""

        def engine(self, request: CreateBatchCompletionsV1Request) -> EchoEngine:
            world = self

            class Waits(EchoEngine):
                async def complete(self, record: Record) -> Answer:
                    world.asked.append(record.index)
                    assert world.stop is not None
                    if len(world.asked) == 1:
                        world.stop.request(StopReason.CANCELLED, "it was to stop")
                        await asyncio.sleep(60)
                    return await super().complete(record)

            return Waits(request)

    world = Stopping()
    assert world.run(job).exit_code is not ExitCode.DONE
    assert not job.committed()
    assert world.run(job).exit_code is ExitCode.DONE
    assert len(world.asked) == 2
    assert (job.manifest().records, job.manifest().repeated) == (20, 19)


def test_who_waits_when_the_engine_is_gone_for_good_is_left_for_the_next_attempt(job: Job) -> None:
    write(job, [greedy("same")] * 6)

    class Gone(EchoEngine):
        async def complete(self, record: Record) -> Answer:
            self._dead = True
            raise EngineDiedError("it is gone")

        async def start(self) -> None:
            if started:
                raise EngineDiedError("it does not start again")
            started.append(True)

    started: list[bool] = []
    outcome = run_attempt(
        Storage(), validate_request(job.request), AttemptOptions(owner="o", series="s"), Stop(), make_engine=Gone
    )
    assert outcome.exit_code is ExitCode.ENGINE_DIED
    world = World()
    assert world.run(job).exit_code is ExitCode.DONE
    assert len(world.asked) == 1


def test_the_counts_outlive_the_attempt_that_made_them(job: Job) -> None:
    write(job, [greedy("same")] * 3 + [greedy(f"row {index}") for index in range(30)])
    world = World(stop_after=8)
    assert world.run(job, chunk_records=64).exit_code is not ExitCode.DONE
    (saved,) = job.folder.glob("output.json.job/*/chunks/*/00000000*")
    assert json.loads(saved.read_bytes().split(b"\n", 1)[0])["repeated"] == [1, 2]
    assert world.run(job, chunk_records=64).exit_code is ExitCode.DONE
    assert job.manifest().repeated == 2


KINDS = st.sampled_from(["plain", REJECT_MARKER, PASSING, DIE_MARKER])
PROMPTS = st.tuples(KINDS, st.integers(0, 2)).map(lambda pair: f"{pair[0]} {pair[1]}")
Asked = tuple[str, float]
RECORDS = st.lists(st.tuples(PROMPTS, st.sampled_from([0, 0, 0, 0.5])), min_size=1, max_size=30)


@pytest.fixture(scope="module")
def _no_disk_syncs() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _descriptor: None)
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("_no_disk_syncs")
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(records=RECORDS, stop_after=st.none() | st.integers(1, 20), capacity=st.integers(1, 6))
def test_the_output_is_that_without_sharing_and_each_key_is_generated_once(
    records: list[Asked], stop_after: int | None, capacity: int
) -> None:
    if sum(prompt.startswith(DIE_MARKER) for prompt, _temperature in records) > 3:
        # More than an attempt's restarts would bear without sharing.
        records = [(prompt.replace(DIE_MARKER, "plain"), temperature) for prompt, temperature in records]
    with TemporaryDirectory() as folder:
        world = World(stop_after=stop_after, capacity=capacity)
        job, attempts = to_the_end(world, Path(folder), records)
        shared = comparable(job, records)
        if attempts == 1 and shared:
            answered = [one for one, result in zip(records, job.results(), strict=True) if "error" not in result]
            determined = [(prompt, temperature) for prompt, temperature in answered if not temperature]
            assert job.manifest().repeated == len(determined) - len(set(determined))
            if not any(prompt.startswith(DIE_MARKER) for prompt, _temperature in records):
                assert world.prompts == questions(records)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(AnswerKeys, "of", lambda _keys, _record: None)
        job, _attempts = to_the_end(World(capacity=capacity), Path(folder), records)
        assert shared == comparable(job, records)


def to_the_end(world: World, folder: Path, records: list[Asked]) -> tuple[Job, int]:
    """A job that was run until nothing is left that another attempt would mend, and the number of attempts."""
    job = Job(folder, [])
    write(job, [{"prompt": prompt, "temperature": temperature} for prompt, temperature in records])
    for attempt in range(1, 9):
        outcome = world.run(job)
        if outcome.exit_code in (ExitCode.DONE, ExitCode.TOO_MANY_FAILED_RECORDS):
            return job, attempt
    raise AssertionError(outcome.message)


def comparable(job: Job, records: list[Asked]) -> list[Any]:
    """What is the same however often, and in which order, the engine is asked; nothing if every record failed.

    Which of those that ask the same meets the engine's passing fault, and whether it is tried again, is left out; that
    an answer is the right one is looked at here.
    """
    found: list[Any] = []
    for (prompt, _temperature), result in zip(records, job.results() if job.output.exists() else (), strict=False):
        if "error" not in result:
            assert text_of(result) == prompt
        passing = prompt.startswith(PASSING) and result.get("error", {}).get("type", "internal") == "internal"
        found.append("answered" if passing or "error" not in result else result)
    return found


def questions(records: list[Asked]) -> Counter[str]:
    """How often the engine is asked for each prompt, if it never dies and nothing stops."""
    asked: Counter[str] = Counter()
    for prompt in {prompt for prompt, _temperature in records}:
        temperatures = [temperature for other, temperature in records if other == prompt]
        determined = temperatures.count(0)
        once_more = prompt.startswith(PASSING) and not temperatures[0] and determined > 1
        asked[prompt] = bool(determined) + once_more + len(temperatures) - determined
    return asked
