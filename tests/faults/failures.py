"""What people read when something goes wrong: each kind of fault is made to happen, and the page is made of it."""

from __future__ import annotations

import re
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from airflow_llmengine.exceptions import LaunchForbiddenError, LLMEngineError
from airflow_llmengine.hooks.job_failure import job_failure
from airflow_llmengine.hooks.llmengine import storage_errors
from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.job_state import JobHandle
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.launch import LaunchRefusedError, launch_job
from airflow_llmengine.storage.status import job_status
from airflow_llmengine.worker.engines.base import EngineDiedError, ModelNotFoundError
from tests.faults.faulty_engine import FaultyEngine
from tests.faults.faulty_storage import QUICK, FaultyStorage
from tests.faults.invariants import check
from tests.faults.plan import (
    MANY,
    AttemptPlan,
    EngineFault,
    EngineFaultKind,
    Event,
    FileKind,
    Operation,
    Plan,
    ProcessFault,
    Stage,
    StorageFault,
    StorageFaultKind,
    Trigger,
    make_plan,
)
from tests.faults.pod_failures import pods
from tests.faults.runner import ENGINE, OWNER, Attempt, Run, Runner
from tests.faults.world import Process, World

JOB = replace(
    make_plan(0),
    records=24,
    input_format="lines",
    bad=frozenset(),
    chunk_records=4,
    output_lines=False,
    capacity=2,
    seconds_per_record=0.01,
    max_runtime_sec=None,
    engine=(),
    engine_dies_after=None,
    stages=(),
    last_replicas=1,
)


@dataclass(frozen=True, slots=True)
class Told:
    """What a task says of one fault."""

    exit_code: str
    """How the worker ended; a dash where there was none yet."""
    exception: LLMEngineError


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the page."""

    what: str
    run: Callable[[Path], Told]


@dataclass(frozen=True, slots=True)
class Harmless:
    """A fault that the job outlives in one go."""

    what: str
    stage: Stage
    plan: Plan = field(default=JOB)


def run_stages(plan: Plan, folder: Path, engine: type[FaultyEngine] = FaultyEngine) -> Run:
    """Run a plan without its plain retry; no invariant is broken by it."""
    folder.mkdir(parents=True, exist_ok=True)
    runner = Runner(
        plan,
        str(folder),
        Storage(retry=QUICK),
        check,
        engine=lambda process, calm: engine(plan, process, calm=calm),
    )
    run = runner(retry=False)
    assert not run.broken, run.broken
    return run


def alone(attempt: AttemptPlan = AttemptPlan(0), event: Event | None = None) -> Stage:  # noqa: B008 - it is frozen
    """A single operator's try."""
    return Stage(1, (attempt,), launched=True, event=event)


def storing(
    operation: Operation, file: FileKind, kind: StorageFaultKind, nth: int = 0, times: int = MANY
) -> AttemptPlan:
    """An attempt with one kind of storage fault."""
    return AttemptPlan(0, storage=(StorageFault(operation, file, kind, nth=nth, times=times),))


def at_answer(number: int, kind: str, **more: float) -> AttemptPlan:
    """An attempt to whose process something happens at an answer of its engine."""
    fault = ProcessFault("SIGKILL", Trigger("answers", number))
    return AttemptPlan(0, process=replace(fault, kind=kind, **more))  # type: ignore[arg-type]


# How a worker's end is told


def worker(
    stage: Stage, plan: Plan = JOB, *, name: str = "replica 0", engine: type[FaultyEngine] = FaultyEngine
) -> Callable[[Path], Told]:
    """A worker that the operator has launched ends without a result."""

    def happen(folder: Path) -> Told:
        run = run_stages(replace(plan, stages=(stage,)), folder, engine)
        return told_of(run, next(attempt for attempt in run.attempts if attempt.name.startswith(name)))

    return happen


def told_of(run: Run, attempt: Attempt) -> Told:
    """The exception that the task raises for an attempt that ended."""
    if attempt.process.exit_code is None and attempt.process.is_killed:
        exit_code, message = -signal.SIGKILL, ""
    else:
        code = attempt.process.exit_code if attempt.outcome is None else attempt.outcome.exit_code
        assert code is not None
        exit_code, message = int(code), "" if attempt.outcome is None else attempt.outcome.message
    status = job_status(run.storage, run.output)
    launched = next(iter(run.variants))
    handle = JobHandle(path=run.output, fingerprint=launched, generation=1)
    deadline = status.job.deadline if status.job is not None else time.time() + 60
    exception = job_failure(exit_code, message, handle=handle, deadline=deadline, status=status)
    return Told("killed" if exit_code < 0 else str(exit_code), exception)


def launching(
    prepare: Callable[[Path], None] = lambda _folder: None, *faults: StorageFault, **fields: str
) -> Callable[[Path], Told]:
    """The operator's own part, before there is a worker."""

    def happen(folder: Path) -> Told:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "input.json").write_text('{"prompt": "a"}\n')
        prepare(folder)
        request = validate_request(
            {
                "input_data_path": str(folder / "input.json"),
                "output_data_path": str(folder / "output.json"),
                "model_config": {"model": "another"},
            }
        )
        plan = AttemptPlan(0, storage=faults)
        storage = FaultyStorage(Storage(retry=QUICK), Process("launch", plan, World()), faults, 0.0)
        return Told("-", refusal(lambda: launch(storage, request, **fields)))

    return happen


def launch(storage: Storage, request: object, owner: str = OWNER, series: str = "series 1") -> None:
    with storage_errors():
        launch_job(storage, request, owner=owner, series=series, engine=ENGINE)  # type: ignore[arg-type]


def refusal(function: Callable[[], None]) -> LLMEngineError:
    """What the hook raises."""
    try:
        function()
    except LaunchRefusedError as error:
        return LaunchForbiddenError(str(error))
    except LLMEngineError as error:
        return error
    raise AssertionError("nothing was refused")


def relaunching(stage: Stage, plan: Plan = JOB) -> Callable[[Path], Told]:
    """A retry of the operator after a stage."""

    def happen(folder: Path) -> Told:
        plan_ = replace(plan, stages=(stage,))
        runner = Runner(plan_, str(folder), Storage(retry=QUICK), check)
        folder.mkdir(parents=True, exist_ok=True)
        run = runner(retry=False)
        job = job_status(run.storage, run.output).job
        assert job is not None
        if plan.max_runtime_sec is not None:
            time.sleep(max(0.0, job.deadline - time.time()) + 0.05)
        return Told("-", refusal(lambda: launch(run.storage, runner.request(), series=job.series)))

    return happen


def damaged(pattern: str) -> Callable[[Path], Told]:
    """A file of the job is damaged between two attempts."""

    def happen(folder: Path) -> Told:
        run_stages(replace(JOB, stages=(alone(at_answer(14, "SIGKILL")),)), folder)
        for path in folder.glob(f"output.json.job/*/{pattern}"):
            path.write_bytes(b"\x00 not what it was")
        # With the same plan the same input is written again.
        run = run_stages(replace(JOB, stages=(alone(),)), folder)
        return told_of(run, next(a for a in run.attempts if a.name.startswith("replica")))

    return happen


class EngineThatCannotStart(FaultyEngine):
    async def start(self) -> None:
        raise EngineDiedError("the engine could not be started: the GPU has no memory left")


class EngineWithoutModel(FaultyEngine):
    async def start(self) -> None:
        raise ModelNotFoundError("the model stand-in is not on the hub: correct model_config.model")


def foreign(folder: Path) -> None:
    (folder / "output.json").write_text("somebody's own")


def somebody_elses(folder: Path) -> None:
    run_stages(replace(JOB, stages=(alone(),)), folder)


FAULTS: Sequence[tuple[str, Sequence[Fault]]] = (
    (
        "Before a worker starts",
        (
            Fault("The input does not exist", launching(lambda folder: (folder / "input.json").unlink())),
            Fault(
                "Storage answers 503 for longer than it is tried again",
                launching(lambda _: None, StorageFault("read", "current", "503", times=MANY)),
            ),
            Fault(
                "Storage does not answer", launching(lambda _: None, StorageFault("any", "any", "timeout", times=MANY))
            ),
            Fault(
                "Writing beside the output is not permitted",
                launching(lambda _: None, StorageFault("probe", "any", "denied", times=MANY)),
            ),
            Fault("Something else stands at the output's place", launching(foreign)),
            Fault("The output belongs to another task", launching(somebody_elses, owner="another_dag/task")),
            Fault("A retry after the job was cancelled", relaunching(alone(event=Event("cancel", 4)))),
            Fault(
                "A retry when `max_runtime_sec` is used up",
                relaunching(alone(), replace(JOB, records=160, seconds_per_record=0.05, max_runtime_sec=1)),
            ),
        ),
    ),
    (
        "Storage, while a worker runs",
        (
            Fault("503 for longer than it is tried again", worker(alone(storing("create", "chunk", "503")))),
            Fault("No answer for longer than it is tried again", worker(alone(storing("create", "chunk", "timeout")))),
            Fault("The disk is full", worker(alone(storing("create", "chunk", "disk full")))),
            Fault(
                "The disk is full when the output is put together",
                worker(alone(storing("write", "output", "disk full"))),
            ),
            Fault("Permission is taken away", worker(alone(storing("create", "chunk", "denied")))),
            Fault("The disk fails under the input", worker(alone(storing("read", "source", "io error", nth=8)))),
            Fault("A committed chunk was damaged", damaged("chunks/000/00000000.jsonl")),
            Fault("A document of the job was damaged", damaged("input.json")),
            Fault("The input is replaced in mid-run", worker(alone(event=Event("replace input", 6)))),
        ),
    ),
    (
        "The engine",
        (
            Fault("It can't be started", worker(alone(), engine=EngineThatCannotStart)),
            Fault("There is no such model", worker(alone(), engine=EngineWithoutModel)),
            Fault(
                "It dies again and again for its own reasons",
                worker(alone(), replace(JOB, records=160, engine_dies_after=3)),
            ),
            Fault(
                "Every record fails",
                worker(alone(), replace(JOB, engine=tuple(EngineFault(n, "internal", MANY) for n in range(24)))),
            ),
            Fault(
                "More records fail than `max_error_rate` allows",
                worker(alone(), replace(JOB, bad=frozenset(range(0, 24, 3)), max_error_rate=0.1)),
            ),
        ),
    ),
    (
        "The worker's process",
        (
            Fault(
                "SIGTERM: the node is drained, or somebody stops it",
                worker(alone(at_answer(6, "SIGTERM", grace_seconds=5))),
            ),
            Fault("SIGKILL: memory has run out, or the node is gone", worker(alone(at_answer(6, "SIGKILL")))),
            Fault(
                "`max_runtime_sec` runs out",
                worker(alone(), replace(JOB, records=160, seconds_per_record=0.05, max_runtime_sec=1)),
            ),
            Fault("The job is cancelled", worker(alone(event=Event("cancel", 4)))),
            Fault("Another job is launched for the same output", worker(alone(event=Event("other job", 4)))),
        ),
    ),
)


def group(*attempts: AttemptPlan, event: Event | None = None) -> Stage:
    """A task group's try with three replicas."""
    plans = {attempt.replica: attempt for attempt in attempts}
    return Stage(3, tuple(plans.get(r, AttemptPlan(r)) for r in range(3)), launched=True, event=event)


def engine_fault(kind: EngineFaultKind, times: int = MANY) -> Plan:
    return replace(JOB, engine=(EngineFault(9, kind, times),))


SLOWER = replace(JOB, records=60, seconds_per_record=0.05)

HARMLESS: Sequence[Harmless] = (
    Harmless("Storage answers 503 a few times", alone(storing("create", "chunk", "503", times=3))),
    Harmless("Storage does not answer a few times", alone(storing("any", "any", "timeout", nth=20, times=3))),
    Harmless("Storage is slow", alone(storing("any", "any", "delay", nth=20, times=5))),
    Harmless(
        "An answer of storage is lost after it did what it was asked",
        alone(storing("create", "chunk", "answer lost", times=2)),
    ),
    Harmless("Heartbeats can't be written", alone(storing("replace", "heartbeat", "io error", nth=2))),
    Harmless("Scratch can't be deleted after success", alone(storing("delete", "folder", "io error"))),
    Harmless("Listings show new files late", group(*(AttemptPlan(r, listing_lag=1.0) for r in range(3)))),
    Harmless(
        "Clocks are hours wrong, and jump",
        group(AttemptPlan(0, clock_offset=7200.0), AttemptPlan(1, clock_jump=(0.05, -36000.0))),
    ),
    Harmless("The engine dies once", alone(), engine_fault("kills engine", 1)),
    Harmless("A record brings every engine down", alone(), engine_fault("kills engine")),
    Harmless("The engine fails with a record", alone(), engine_fault("internal")),
    Harmless("Some records are broken", alone(), replace(JOB, bad=frozenset({3, 8}))),
    Harmless("One of several replicas never starts", replace(group(), attempts=(AttemptPlan(0), AttemptPlan(2)))),
    Harmless(
        "One of several replicas is killed",
        group(AttemptPlan(1, process=ProcessFault("SIGKILL", Trigger("answers", 4)))),
        SLOWER,
    ),
    Harmless(
        "One of several replicas hangs, and wakes up late",
        group(AttemptPlan(1, process=ProcessFault("freeze", Trigger("answers", 4), wakes_after=2.0))),
        SLOWER,
    ),
)


def harmless_row(harmless: Harmless, folder: Path) -> tuple[str, str]:
    """What stands in the output, once the job is done in spite of the fault."""
    run = run_stages(replace(harmless.plan, stages=(harmless.stage,)), folder)
    manifest = run.directory.valid_manifest()
    assert manifest is not None, [attempt.ended for attempt in run.attempts]
    if not manifest.failed:
        return harmless.what, "every record's answer"
    errors = ", ".join(f"{count} `{kind}`" for kind, count in sorted(manifest.failures.items()))
    return harmless.what, f"every other record's answer, and {errors} in the places of the rest"


# The page

PAGE = Path(__file__).parents[2] / "docs" / "failures.md"

HEAD = """\
# What goes wrong, and what you read then

Made by `tests/faults/test_failures_page.py`, which makes each of these faults happen and compares this page with what
was said; `make docs` writes it anew. Where it says `/data`, you read your own path.

Whatever happens, the output is absent or whole, and what was committed is not generated again: see the rules in
`tests/faults/invariants.py`.

## Faults that fail a task

The exception is what the task raises and what its log ends with. Where a retry helps, Airflow's own retries go on from
what was finished; after the others the task fails at once, whatever `retries` says.
"""

HARMLESS_HEAD = """\
## Faults that a job outlives

The task succeeds, in the same try; the log tells what happened.

| What happens | What stands in the output |
|---|---|
"""


def page(folder: Path) -> str:
    """Make every fault happen, and write the page.

    Args:
        folder: An empty folder.
    """
    lines = [HEAD]
    for title, faults in FAULTS:
        lines.append(f"### {title}\n")
        lines.append(
            "| What happens | Exit code | Exception | Retry helps | What the task says |\n|---|---|---|---|---|"
        )
        for number, fault in enumerate(faults):
            place = folder / f"{title} {number}".replace(" ", "-")
            told = fault.run(place)
            exception = told.exception
            helps = "yes" if exception.retry_helps else "no"
            message = plain(str(exception), place)
            lines.append(f"| {fault.what} | {told.exit_code} | `{type(exception).__name__}` | {helps} | {message} |")
        lines.append("")
    lines.append(pods())
    lines.append(HARMLESS_HEAD.rstrip("\n"))
    for number, harmless in enumerate(HARMLESS):
        what, output = harmless_row(harmless, folder / f"harmless{number}")
        lines.append(f"| {what} | {output} |")
    return "\n".join(lines) + "\n"


def plain(message: str, folder: Path) -> str:
    """A message without what is another in each run, as a table's cell."""
    message = message.replace(str(folder), "/data").replace(socket.gethostname(), "<host>")
    message = re.sub(r"[0-9a-f]{24}-[0-9]+", "<job>", message)
    message = re.sub(r"process [0-9]+", "process <pid>", message)
    # How far it had come when it happened is a matter of moments.
    message = re.sub(r"\b[0-9]+ of ([0-9]+) (chunks|records)", r"<n> of \1 \2", message)
    return message.replace("\n", " ").replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")
