"""A place in the engine goes from one record to the next, and gives the rest of the worker its turn."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.attempt import AttemptOptions, AttemptOutcome, run_attempt
from airflow_llmengine.worker.engines.base import Answer
from airflow_llmengine.worker.engines.echo import EchoEngine
from airflow_llmengine.worker.records import Record
from airflow_llmengine.worker.replica import RECORDS_OF_A_PLACE, Replica
from airflow_llmengine.worker.stopping import Stop
from tests.worker.jobs import Job

RECORDS = 900
CAPACITY = 4
PLACES = 2 * CAPACITY + 8


class Loop:
    """Counts what is asked of the engine between two turns of the event loop."""

    def __init__(self, seconds: float, *, lined_up: bool = True) -> None:
        self.seconds = seconds
        """What each answer takes; none: it is there without any wait."""
        self.lined_up = lined_up
        """Whether the engine begins when more is lined up than there are places."""
        self.since_turn = 0
        self.most = 0
        self.tasks: set[object] = set()
        self._turn: asyncio.Handle | None = None

    def engine(self, request: CreateBatchCompletionsV1Request) -> EchoEngine:
        watch = self

        class Watched(EchoEngine):
            @property
            def capacity(self) -> int:
                return CAPACITY

            async def start(self) -> None:
                if watch.lined_up:
                    await asyncio.sleep(0.5)

            async def complete(self, record: Record) -> Answer:
                watch.note()
                if watch.seconds:
                    await asyncio.sleep(watch.seconds)
                return Answer({"choices": [{"text": "a", "logprobs": None}]}, 1, 1)

        return Watched(request)

    def note(self) -> None:
        # Kept, so that no later task is taken for one that has ended.
        self.tasks.add(asyncio.current_task())
        self.since_turn += 1
        self.most = max(self.most, self.since_turn)
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn, self.since_turn = None, 0


def attempt(job: Job, loop: Loop) -> AttemptOutcome:
    return run_attempt(
        Storage(),
        validate_request(json.dumps(job.request)),
        AttemptOptions(owner="o", series="s"),
        Stop(),
        make_engine=loop.engine,
    )


def run(folder: Path, loop: Loop) -> None:
    job = Job(folder, (f"row {index}" for index in range(RECORDS)))
    outcome = attempt(job, loop)
    assert outcome.exit_code is ExitCode.DONE
    assert job.manifest().succeeded == RECORDS


def test_an_engine_that_answers_without_a_wait_does_not_hold_up_the_loop(tmp_path: Path) -> None:
    loop = Loop(seconds=0)
    run(tmp_path, loop)
    # Those of one turn begin in places that were free before it, or became free in it.
    assert loop.most <= 2 * PLACES * RECORDS_OF_A_PLACE


@pytest.mark.parametrize(("seconds", "lined_up"), [(0.001, True), (0, False)])
def test_a_place_is_used_again_without_a_new_task(tmp_path: Path, seconds: float, lined_up: bool) -> None:
    """Also where it was idle in between, as records come more slowly than they are answered."""
    loop = Loop(seconds, lined_up=lined_up)
    run(tmp_path, loop)
    assert len(loop.tasks) <= PLACES


@pytest.mark.parametrize("method", ["_finish", "_commit"])
def test_a_defect_of_ours_ends_the_attempt_and_not_only_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Else its record, or its chunk, would stay open, and the attempt would say that it is done."""
    calls = 0
    original = getattr(Replica, method)

    def broken(replica: Replica, *arguments: Any, **further: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 20:
            raise ZeroDivisionError
        return original(replica, *arguments, **further)

    monkeypatch.setattr(Replica, method, broken)
    job = Job(tmp_path, (f"row {index}" for index in range(RECORDS)))
    with pytest.raises(ZeroDivisionError):
        attempt(job, Loop(seconds=0.001))
    assert job.committed()
    monkeypatch.undo()
    assert attempt(job, Loop(seconds=0.001)).exit_code is ExitCode.DONE
    assert job.manifest().succeeded == RECORDS
