"""Whole attempts with code_evaluator: nobody waits for another record's code, and nothing of it is left behind.

The engine is the stand-in, and the code prints what a stand-in prints; both count, and nothing is timed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker import attempt
from airflow_llmengine.worker.attempt import AttemptOptions, AttemptOutcome, run_attempt
from airflow_llmengine.worker.engines.base import Answer, EngineDiedError
from airflow_llmengine.worker.engines.echo import EchoEngine
from airflow_llmengine.worker.records import Record
from airflow_llmengine.worker.stopping import Stop, StopReason
from airflow_llmengine.worker.tools.code_runner import CodeOutput, SandboxUnavailableError
from airflow_llmengine.worker.tools.interpreters import Interpreters
from tests.worker.jobs import Job
from tests.worker.tools.authors import block, ran

CAPACITY = 2
WINDOW = 2 * CAPACITY + 8
"""What the replica keeps in flight for an engine of this capacity."""

PATIENCE = 60.0
"""How long is waited for what ought to come about at once, before the test fails."""


class Counting(EchoEngine):
    """Echoes, and counts the records that it has begun."""

    begun: set[int]
    plain_begun: asyncio.Event

    def __init__(self, request: CreateBatchCompletionsV1Request) -> None:
        super().__init__(request)
        self._capacity = CAPACITY

    async def _work(self, record: Record, is_first: bool) -> None:
        await super()._work(record, is_first)
        self.begun.add(record.index)


class Runner:
    """Prints the code back, in capitals, once it may."""

    def __init__(self, told: Told) -> None:
        self._told = told
        told.made += 1

    async def run(self, code: str, timeout_seconds: float) -> CodeOutput:
        told = self._told
        told.running += 1
        told.most = max(told.most, told.running)
        told.runs.append(code)
        try:
            await asyncio.wait_for(told.wait(), PATIENCE)
        finally:
            told.running -= 1
        return CodeOutput(code.upper() + "\n", failed=False)

    async def forget(self) -> None:
        """Nothing: it has no names."""

    async def close(self) -> None:
        self._told.closed += 1


class Told:
    """What the code of one attempt was seen to do."""

    def __init__(self, may_go_on: Callable[[], bool] = lambda: True) -> None:
        self._may_go_on = may_go_on
        self.runs: list[str] = []
        self.made = self.closed = self.running = self.most = 0

    async def wait(self) -> None:
        while not self._may_go_on():  # noqa: ASYNC110 - the counters of others have no event
            await asyncio.sleep(0.001)


def v1_job(folder: Path, prompts: Iterable[str], **tool: Any) -> Job:
    content = {"prompts": list(prompts), "max_new_tokens": 1000, "temperature": 0}
    return Job(folder, [], content=content, input_data_path=None, tool_config={"name": "code_evaluator", **tool})


def run(
    monkeypatch: pytest.MonkeyPatch,
    job: Job,
    told: Told,
    *,
    engine: type[EchoEngine] = Counting,
    most: int = 64,
    stop: Stop | None = None,
    require_sandbox: Callable[[], None] = lambda: None,
) -> AttemptOutcome:
    monkeypatch.setattr(attempt, "require_sandbox", require_sandbox)
    monkeypatch.setattr(attempt, "Interpreters", partial(Interpreters, most, make=partial(Runner, told)))
    monkeypatch.setattr(Counting, "begun", set(), raising=False)
    return run_attempt(
        Storage(),
        validate_request(job.request),
        AttemptOptions(owner="test", series="1", if_done="reuse"),
        stop or Stop(),
        make_engine=engine,
    )


def texts(job: Job) -> list[str]:
    return [result["text"] for result in job.results()]


def test_records_whose_code_is_slow_hold_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, plain = WINDOW + 5, 3 * WINDOW
    job = v1_job(tmp_path, [*(block(f"c{index}") + "end" for index in range(slow)), *["just text"] * plain])
    # No code ends before the last record of all was begun.
    told = Told(lambda: len(Counting.begun) == slow + plain)
    assert run(monkeypatch, job, told).exit_code is ExitCode.DONE
    assert texts(job) == [*(ran(f"c{index}", f"C{index}") + "end" for index in range(slow)), *["just text"] * plain]
    assert told.most == slow
    assert told.made == told.closed == slow + plain


def test_records_that_wait_for_an_interpreter_keep_their_place_so_that_not_all_of_the_input_is_in_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, records = 3, 60
    job = v1_job(tmp_path, [block(f"c{index}") + "end" for index in range(records)])
    ahead = 0

    def may_go_on() -> bool:
        nonlocal ahead
        ahead = max(ahead, len(Counting.begun) - told.closed)
        return len(Counting.begun) == min(records, told.closed + WINDOW + most)

    told = Told(may_go_on)
    assert run(monkeypatch, job, told, most=most).exit_code is ExitCode.DONE
    assert ahead == WINDOW + most
    assert told.most == most
    assert told.runs == [f"c{index}" for index in range(records)], "first come, first served"


@pytest.mark.parametrize("keeps", [True, False])
def test_a_place_is_held_as_long_as_names_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, keeps: bool
) -> None:
    job = v1_job(tmp_path, [block(f"{name}1") + block(f"{name}2") + "." for name in "ab"], should_retry_on_error=keeps)
    told = Told()
    assert run(monkeypatch, job, told, most=1).exit_code is ExitCode.DONE
    assert told.runs == (["a1", "a2", "b1", "b2"] if keeps else ["a1", "b1", "a2", "b2"])


def test_an_engine_that_dies_between_two_rounds_costs_no_run_of_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mortal(Counting):
        """The first one dies of the first record that comes back from its code."""

        died = False

        async def _work(self, record: Record, is_first: bool) -> None:
            if not is_first and not Mortal.died:
                Mortal.died = self._dead = True
                raise EngineDiedError("it died")
            await super()._work(record, is_first)

    job = v1_job(tmp_path, [block(f"c{index}") + "end" for index in range(20)])
    assert run(monkeypatch, job, told := Told(), engine=Mortal).exit_code is ExitCode.DONE
    assert texts(job) == [ran(f"c{index}", f"C{index}") + "end" for index in range(20)]
    assert Mortal.died
    assert sorted(told.runs) == sorted(f"c{index}" for index in range(20))


@pytest.mark.parametrize("reason", [StopReason.CANCELLED, StopReason.TERMINATED, StopReason.DEADLINE])
def test_code_that_runs_on_holds_up_no_stop_and_what_is_finished_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: StopReason
) -> None:
    prompts = [block(f"c{index}") + "end" if index % 2 else f"text {index}" for index in range(8)]
    job = v1_job(tmp_path, prompts)
    ended: list[ExitCode] = []
    stop = Stop(ended.append)

    def may_go_on() -> bool:
        if told.running == 4 and not stop.is_requested():
            stop.request(reason, "no more of it", seconds=10 if reason is StopReason.CANCELLED else 3)
        return False

    told = Told(may_go_on)
    outcome = run(monkeypatch, job, told, stop=stop)
    assert (outcome.exit_code, ended) == (ExitCode.PARTIAL, [])
    assert (told.running, told.closed) == (0, told.made)
    (part,) = tmp_path.glob("output.json.job/*/chunks/*/*.part-*")
    assert [f"text {index}" in part.read_text() for index in range(0, 8, 2)] == [True] * 4

    told = Told()
    assert run(monkeypatch, job, told).exit_code is ExitCode.DONE
    assert Counting.begun == {1, 3, 5, 7}, "what was finished is not made again"
    assert texts(job) == [ran(f"c{index}", f"C{index}") + "end" if index % 2 else f"text {index}" for index in range(8)]


def test_without_a_sandbox_no_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unloaded(Counting):
        async def start(self) -> None:
            raise AssertionError

    def refuse() -> None:
        raise SandboxUnavailableError("The kernel has no Landlock: use a newer one.")

    job = v1_job(tmp_path, [block("c")])
    outcome = run(monkeypatch, job, Told(), engine=Unloaded, require_sandbox=refuse)
    assert (outcome.exit_code, outcome.message) == (
        ExitCode.BAD_REQUEST,
        "The kernel has no Landlock: use a newer one.",
    )


def test_an_engine_that_can_not_write_on_is_refused_with_a_tool_and_only_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Simple:
        name = "simple"
        version = "1"
        capacity = 2
        model_identity = None

        def __init__(self, _request: CreateBatchCompletionsV1Request) -> None:
            pass

        async def start(self) -> None:
            pass

        async def stop(self) -> None:
            pass

        async def complete(self, record: Record) -> Answer:
            return Answer({"text": "", "num_prompt_tokens": 1, "num_completion_tokens": 1, "tokens": None}, 1, 1)

    job = v1_job(tmp_path, ["a"])
    outcome = run(monkeypatch, job, Told(), engine=Simple)  # type: ignore[arg-type]
    assert outcome.exit_code is ExitCode.BAD_REQUEST
    assert outcome.message == (
        "the engine simple can't write on after a tool: leave tool_config out, or use another engine"
    )
    del job.fields["tool_config"]
    assert run(monkeypatch, job, Told(), engine=Simple).exit_code is ExitCode.DONE  # type: ignore[arg-type]


V2 = '{"prompt": "a", "max_tokens": 1}\n'
V1_WITH_STOP = '{"prompts": ["a"], "max_new_tokens": 1, "temperature": 0, "stop_sequences": ["END", "```"]}'


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (V2, "The input is not a V1 content object, and tool_config is for V1 alone: leave tool_config out, or write"),
        (f"[{V2}]", "The input is not a V1 content object, and tool_config is for V1 alone: leave tool_config out"),
        (V1_WITH_STOP, "The input's stop_sequences[1] is part of the form of a block of code, so that code_evaluator"),
    ],
)
def test_an_input_for_which_the_tool_has_no_effect_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str, said: str
) -> None:
    job = Job(tmp_path, [], tool_config={"name": "code_evaluator"})
    job.input.write_text(data)
    outcome = run(monkeypatch, job, Told())
    assert outcome.exit_code is ExitCode.BAD_REQUEST
    assert outcome.message.startswith(said)
    assert not (tmp_path / "output.json.job").exists(), "nothing was launched"
