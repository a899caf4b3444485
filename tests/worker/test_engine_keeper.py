"""Engines that die, and the records that make them: with an engine that dies to order, as real ones do of their own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping

import pytest

from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.worker.engine_keeper import MAX_RESTARTS, MAX_RESTARTS_IN_ALL, EngineKeeper
from airflow_llmengine.worker.engines.base import Answer, Engine, EngineDiedError, RecordRejectedError
from airflow_llmengine.worker.records import Record


def record(index: int) -> Record:
    return Record(index=index, location=f"line {index + 1}", request=CompletionV2Request(prompt="x", max_tokens=1))


def completed(one: Record) -> Callable[[Engine], Awaitable[Answer]]:
    return lambda engine: engine.complete(one)


class MortalEngine:
    """Dies of certain records, with all that is in work; and notes what was in work together."""

    name = "mortal"
    version = "1"
    capacity = 8
    model_identity = None

    def __init__(self, deadly: set[int], tried: list[frozenset[int]], *, starts: bool = True) -> None:
        self.deadly = deadly
        self.tried = tried
        self.starts = starts
        self.dead = False
        self.stopped = False
        self.in_work: set[int] = set()

    async def start(self) -> None:
        if not self.starts:
            raise EngineDiedError("no memory")

    async def complete(self, one: Record) -> Answer:
        self.in_work.add(one.index)
        self.tried.append(frozenset(self.in_work))
        try:
            for _turn in range(3):
                await asyncio.sleep(0)
                if self.dead:
                    raise EngineDiedError("it died")
            if one.index in self.deadly:
                self.dead = True
                raise EngineDiedError("it died")
            return Answer({}, 1, 1)
        finally:
            self.in_work.discard(one.index)

    async def stop(self) -> None:
        self.stopped = True


class Trial:
    """Sends records through a keeper, all at once."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        self.engines: list[Engine] = []
        self.started = 0
        self.deaths: list[str] = []
        self.alone: list[int] = []
        self._make_engine = make

    def make(self) -> Engine:
        self.engines.append(self._make_engine())
        return self.engines[-1]

    async def note_start(self, _engine: Engine) -> None:
        self.started += 1

    async def note_death(self, message: str) -> None:
        self.deaths.append(message)

    def run(self, indices: Iterable[int], deaths: int | Mapping[int, int] = 0) -> dict[int, str]:
        async def main() -> dict[int, str]:
            keeper = EngineKeeper(self.make, started=self.note_start, died=self.note_death)
            await keeper.start()
            try:
                outcomes = await asyncio.wait_for(
                    asyncio.gather(
                        *(
                            self.ask(keeper, index, deaths if isinstance(deaths, int) else deaths.get(index, 0))
                            for index in indices
                        )
                    ),
                    20,
                )
            finally:
                await keeper.stop()
            return dict(zip(indices, outcomes, strict=True))

        return asyncio.run(main())

    async def ask(self, keeper: EngineKeeper, index: int, deaths: int) -> str:
        async def before_alone() -> None:
            self.alone.append(index)

        try:
            await keeper.ask(completed(record(index)), deaths=deaths, before_alone=before_alone)
        except RecordRejectedError as error:
            return error.error_type.value
        except EngineDiedError as error:
            return str(error)
        return "answered"


def test_as_long_as_the_engine_lives_all_records_are_in_work_together() -> None:
    tried: list[frozenset[int]] = []
    trial = Trial(lambda: MortalEngine(set(), tried))
    assert set(trial.run(range(50)).values()) == {"answered"}
    assert max(map(len, tried)) == 50
    assert (trial.started, trial.deaths, trial.alone) == (1, [], [])


@pytest.mark.parametrize("deadly", [{0}, {31}, {63}, {3, 40}, {10, 11, 12}])
def test_the_deadly_records_are_found_and_only_they(deadly: set[int]) -> None:
    tried: list[frozenset[int]] = []
    trial = Trial(lambda: MortalEngine(deadly, tried))
    outcomes = trial.run(range(64))
    assert {index for index, outcome in outcomes.items() if outcome == "engine_crash"} == deadly
    assert {outcome for index, outcome in outcomes.items() if index not in deadly} == {"answered"}
    assert trial.started <= 1 + 3 * len(deadly)
    assert deadly <= set(trial.alone)
    assert len(trial.alone) <= 8 * len(deadly), "after the first death few are in work together"
    assert all(isinstance(engine, MortalEngine) and engine.stopped for engine in trial.engines)
    for alone in deadly:
        assert frozenset({alone}) in tried


def test_a_record_that_is_known_as_dangerous_is_never_in_work_with_another() -> None:
    tried: list[frozenset[int]] = []
    trial = Trial(lambda: MortalEngine({2}, tried))
    outcomes = trial.run(range(5), deaths=2)
    assert Counter(outcomes.values()) == {"answered": 4, "engine_crash": 1}
    assert set(map(len, tried)) == {1}


@pytest.mark.parametrize("dangerous", [0, 2, 9])
def test_nobody_joins_a_dangerous_record_at_the_beginning(dangerous: int) -> None:
    """Else it would be taken for what another one has done."""
    tried: list[frozenset[int]] = []
    trial = Trial(lambda: MortalEngine({1}, tried))
    outcomes = trial.run(range(10), deaths={dangerous: 2})
    assert {index for index, outcome in outcomes.items() if outcome != "answered"} == {1}
    assert {one for one in tried if dangerous in one} == {frozenset({dangerous})}


def test_an_engine_that_can_not_be_started_again_is_given_up() -> None:
    tried: list[frozenset[int]] = []
    first = MortalEngine({0}, tried)
    engines = iter([first])
    trial = Trial(lambda: next(engines, None) or MortalEngine(set(), tried, starts=False))
    outcomes = trial.run(range(10))
    assert set(outcomes.values()) == {f"no memory; it was started again {MAX_RESTARTS} times"}
    assert len(trial.engines) == 1 + MAX_RESTARTS


def test_a_first_start_that_fails_is_told_at_once() -> None:
    trial = Trial(lambda: MortalEngine(set(), [], starts=False))
    with pytest.raises(EngineDiedError, match="no memory"):
        trial.run([0])
    assert len(trial.engines) == 1


def test_what_keeps_it_from_starting_again_is_told() -> None:
    trial = Trial(lambda: MortalEngine({0}, []))

    async def changed(_engine: Engine) -> None:
        trial.started += 1
        if trial.started > 1:
            raise ValueError("the weights have changed")

    trial.note_start = changed  # type: ignore[method-assign]
    assert set(trial.run(range(3)).values()) == {"it died; it can't be started again: the weights have changed"}


def test_there_is_an_end_to_it() -> None:
    tried: list[frozenset[int]] = []
    trial = Trial(lambda: MortalEngine(set(range(100)), tried))
    outcomes = trial.run(range(100))
    assert len(trial.engines) <= 1 + MAX_RESTARTS_IN_ALL
    assert set(outcomes.values()) == {"engine_crash", f"it died; it was started again {MAX_RESTARTS_IN_ALL} times"}


def test_records_that_are_cancelled_leave_room_for_others() -> None:
    async def main() -> None:
        trial = Trial(lambda: MortalEngine({0}, []))
        keeper = EngineKeeper(trial.make, started=trial.note_start, died=trial.note_death)
        await keeper.start()
        tasks = [asyncio.create_task(keeper.ask(completed(record(index)))) for index in range(20)]
        await asyncio.sleep(0.001)
        for task in tasks[1:10]:
            task.cancel()
        outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
        assert isinstance(outcomes[0], RecordRejectedError)
        assert all(isinstance(outcome, Answer) for outcome in outcomes[10:])
        await keeper.stop()

    asyncio.run(main())


def test_records_that_are_to_be_alone_are_so_in_the_order_in_which_they_came() -> None:
    """Also where another one comes in the very moment in which one leaves, as a place in the engine goes on at once."""
    trial = Trial(lambda: MortalEngine(set(), []))
    later = iter(range(8, 16))

    async def place(keeper: EngineKeeper, index: int | None) -> None:
        while index is not None:
            assert await trial.ask(keeper, index, deaths=2) == "answered"
            index = next(later, None)

    async def main() -> None:
        keeper = EngineKeeper(trial.make, started=trial.note_start, died=trial.note_death)
        await keeper.start()
        await asyncio.wait_for(asyncio.gather(*(place(keeper, index) for index in range(8))), 20)
        await keeper.stop()

    asyncio.run(main())
    assert trial.alone == list(range(16))
