"""Runs a plan: the job, everything that goes wrong with it, a plain retry, and then the zombies wake."""

from __future__ import annotations

import contextlib
import json
import logging
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.identity import fingerprint
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.storage.errors import StorageError
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.job_directory import JobDirectory
from airflow_llmengine.storage.launch import Launch, LaunchRefusedError, job_input_identity, launch_job
from airflow_llmengine.storage.status import NoSuchJobError, cancel_job
from airflow_llmengine.worker.attempt import (
    AttemptOptions,
    AttemptOutcome,
    JobMismatchError,
    collect_job,
    given_back,
    join_job,
    run_attempt,
    storage_exit_code,
)
from airflow_llmengine.worker.engines.base import Engine
from airflow_llmengine.worker.readers.errors import InputChangedError, InputInvalidError
from airflow_llmengine.worker.timing import Timing
from tests.faults.faulty_engine import FaultyEngine
from tests.faults.faulty_storage import QUICK, FaultyStorage
from tests.faults.plan import AttemptPlan, Event, EventKind, Plan, Stage, StorageFault
from tests.faults.world import POLL_SECONDS, Killed, Process, World

OWNER = "dag/task"
ENGINE = FaultyEngine.name
HANG_SECONDS = 60.0
SWAP_SECONDS = 0.1
"""How long an input stays replaced that is put back."""
CANCEL_REASON = "by the fault harness"

HEARTBEAT_SECONDS, SILENCE_SECONDS, LOOK_SECONDS, WAIT_SECONDS, SAVE_SECONDS = 0.05, 0.8, 0.2, 0.05, 0.1


class HangError(Exception):
    """Attempts did not come to an end; the message is where they were."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One job that a run launches at its output path: what its output must hold."""

    prompts: tuple[str, ...]
    model: str


@dataclass(slots=True)
class Attempt:
    """One attempt, launch or collect, while it runs and after."""

    name: str
    process: Process
    thread: threading.Thread
    outcome: AttemptOutcome | None = None
    error: str | None = None
    """What it raised that it should not."""

    @property
    def ended(self) -> str:
        """How it ended, in a word or two."""
        if self.error is not None:
            return f"raised {self.error.splitlines()[-1]}"
        if self.process.exit_code is not None:
            return f"{self.process.exit_code.name} (ended its own process)"
        if self.process.is_killed:
            return "killed"
        if self.outcome is None:
            return "frozen"
        return f"{self.outcome.exit_code.name}: {self.outcome.message}"


@dataclass(slots=True)
class Run:
    """What a plan led to."""

    plan: Plan
    folder: str
    """URL of the folder of the job."""
    storage: Storage
    """Without faults."""
    world: World = field(default_factory=World)
    variants: dict[str, Variant] = field(default_factory=dict)
    """By fingerprint."""
    attempts: list[Attempt] = field(default_factory=list)
    last: Attempt | None = None
    """The one whose outcome is that of the plain retry."""
    zombies: int = 0
    """Attempts that were woken after everything was over."""
    late: int = 0
    """Records that were answered for a generation that was done already."""
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def output(self) -> str:
        return f"{self.folder}/output.{'jsonl' if self.plan.output_lines else 'json'}"

    @property
    def directory(self) -> JobDirectory:
        return JobDirectory(self.storage, self.output)

    @property
    def generated(self) -> int:
        """Records that engines have answered."""
        return self.world.answers

    @property
    def least(self) -> int:
        """Records that had to be answered: each once in each generation in which it was."""
        scratch = scratch_names(self.world)
        return len(
            {
                (scratch.get(generation.attempt), generation.record)
                for generation in self.world.generations
                if generation.answered
            }
        )


def scratch_names(world: World) -> dict[str, str]:
    """By attempt, the folder of the generation that it worked on."""
    found: dict[str, str] = {}
    for effect in world.effects:
        if "/claims/" in effect.path:
            found.setdefault(effect.attempt, effect.path.partition(".job/")[2].partition("/")[0])
    return found


class Runner:
    """Runs one plan in a folder of its own.

    Args:
        plan: The plan.
        folder: URL of an empty folder, or a path.
        storage: The real storage.
        check: Called after each stage and at the end, for invariants; gives what is broken.
        below: Where storage faults are made below the storage itself: called before each stage with those of its
            attempts, and with none before the retry.
        below_storage: The storage that attempts then use; by default ``storage`` too.
        engine: Makes an engine for an attempt; the second argument says whether it is spared all but what records do.
    """

    def __init__(
        self,
        plan: Plan,
        folder: str,
        storage: Storage,
        check: Callable[[Run, str], list[str]],
        *,
        below: Callable[[Run, Sequence[StorageFault]], None] | None = None,
        below_storage: Storage | None = None,
        engine: Callable[[Process, bool], Engine] | None = None,
    ) -> None:
        self._plan = plan
        self._below = below
        self._below_storage = below_storage or storage
        self._engine = engine or (lambda process, calm: FaultyEngine(plan, process, calm=calm))
        self._check = check
        self.run = Run(plan, folder, storage)
        self._chance = random.Random(plan.seed)
        self._series = 1
        self._model = "stand-in"
        self._prompts = self._new_prompts("first")
        self._swapped: tuple[float, tuple[str, ...]] | None = None
        self._calm = False
        self._running: list[Attempt] = []
        self._names: Counter[str] = Counter()
        for fault in plan.engine:
            self.run.world.engine_faults_left[fault.record] = fault.times

    def __call__(self, *, retry: bool = True) -> Run:
        """Run it all, or without the plain retry at the end."""
        began = time.monotonic()
        with _quiet():
            try:
                self._write_input()
                self._note_variant()
                for number, stage in enumerate(self._plan.stages):
                    self._make_faults(stage.storage_faults)
                    self._stage(stage)
                    self._make_faults(())
                    self._look(f"after stage {number + 1}")
                if retry:
                    self._retry()
                    self._look("after the retry")
                self._wake_zombies()
                self._look("at the end")
            except HangError as error:
                self.run.broken.append(f"an attempt hangs: {error}")
                for attempt in self._running:
                    attempt.process.kill()
        self.run.seconds = time.monotonic() - began
        return self.run

    def _make_faults(self, faults: Sequence[StorageFault]) -> None:
        if self._below is not None:
            self._below(self.run, faults)

    def _look(self, when: str) -> None:
        # What broke in one stage is still broken in the next: it is told once.
        told = {broken.partition(": ")[2] for broken in self.run.broken}
        self.run.broken.extend(f"{when}: {broken}" for broken in self._check(self.run, when) if broken not in told)

    # The job

    def _new_prompts(self, version: str) -> tuple[str, ...]:
        # The nonce is in the prompt, which the engine echoes: so each answer can be told from all others.
        nonces = [f"{version} {index} {self._chance.getrandbits(64):016x}" for index in range(self._plan.records)]
        return tuple(nonces[self._plan.first_like(index)] for index in range(self._plan.records))

    def _write_input(self) -> None:
        plan = self._plan
        if plan.input_format == "content":
            return
        if plan.input_format == "content file":
            data = json.dumps({"prompts": self._prompts, "max_new_tokens": 4, "temperature": 0.0})
        else:
            records = [self._record(index) for index in range(plan.records)]
            data = f"[{','.join(records)}]" if plan.input_format == "array" else "".join(f"{r}\n" for r in records)
        self.run.storage.location(self._input).replace(data.encode())

    def _record(self, index: int) -> str:
        if index in self._plan.bad:
            # Only in lines can a record be no JSON at all.
            return "{broken" if self._plan.input_format != "array" and index % 2 else '{"prompt": 7}'
        body: dict[str, Any] = {"prompt": self._prompts[index], "max_tokens": 4}
        if self._plan.distinct is not None:
            # Greedy, so that one answer is that of all that ask the same.
            body["temperature"] = 0
        if self._plan.asks_for_echo:
            body |= {"echo": True, "temperature": 0}
        if self._plan.input_format != "batch lines":
            return json.dumps(body)
        return json.dumps({"custom_id": f"c{index}", "method": "POST", "url": "/v1/completions", "body": body})

    @property
    def _input(self) -> str:
        return f"{self.run.folder}/input.json"

    def request(self) -> CreateBatchCompletionsV1Request:
        """The job as it is launched now."""
        return self._request()

    def _request(self, *, with_deadline: bool = True, model: str | None = None) -> CreateBatchCompletionsV1Request:
        request: dict[str, Any] = {
            "output_data_path": self.run.output,
            "model_config": {"model": model or self._model},
        }
        if self._plan.input_format == "content":
            request["content"] = {"prompts": list(self._prompts), "max_new_tokens": 4, "temperature": 0.0}
        else:
            request["input_data_path"] = self._input
        if with_deadline and self._plan.max_runtime_sec is not None:
            request["max_runtime_sec"] = self._plan.max_runtime_sec
        return validate_request(request)

    def _note_variant(self, model: str | None = None) -> None:
        request = self._request(model=model)
        identity = job_input_identity(self.run.storage, request)
        self.run.variants[fingerprint(request, input_identity=identity, engine=ENGINE)] = Variant(
            self._prompts, request.model_cfg.model
        )

    # Stages

    def _stage(self, stage: Stage) -> None:
        if stage.new_series or self._plan.max_runtime_sec is not None:
            self._series += 1
        started = self._start_all(stage)
        if not started:
            return
        began, event = self.run.world.answers, stage.event
        while self._tick():
            self._put_back(SWAP_SECONDS)
            if event is not None and self.run.world.answers - began >= event.after_answers:
                self._happens(event, stage)
                event = None
        self._put_back(0.0)
        if stage.replicas > 1:
            self._start("collect", stage.collector, self._collector(with_deadline=True))
            while self._tick():
                pass

    def _start_all(self, stage: Stage, *, name: str = "replica", with_deadline: bool = True) -> bool:
        """Launch, and start the attempts; False if the launch failed or nothing is left to do."""
        generation = None
        if_done = "regenerate" if stage.regenerate else "reuse"
        series = f"series {self._series}"
        if stage.launched:
            launches: list[Launch] = []
            self._start("launch", stage.launcher, self._launcher(launches, series, stage.regenerate, with_deadline))
            while self._tick():
                pass
            if not launches or launches[0].manifest is not None:
                return False
            generation = launches[0].handle.generation
        for attempt in stage.attempts:
            options = AttemptOptions(
                owner=OWNER,
                series=series,
                replica=attempt.replica,
                replicas=stage.replicas,
                launched=stage.launched,
                generation=generation,
                if_done="regenerate" if if_done == "regenerate" else "reuse",
                chunk_records=self._plan.chunk_records,
                max_error_rate=self._plan.max_error_rate,
            )
            self._start(f"{name} {attempt.replica}", attempt, self._worker(options, attempt, with_deadline))
        return True

    def _happens(self, event: Event, stage: Stage) -> None:
        self.run.world.fire(event.kind)
        kind: EventKind = event.kind
        if kind in ("replace input", "swap input") and self._plan.input_format == "content":
            kind = "other job"
        if kind == "cancel":
            with contextlib.suppress(NoSuchJobError):
                cancel_job(self.run.storage, self.run.output, CANCEL_REASON)
            # Go on as the message says: clear the task, or start a new run.
            self._series += 1
        elif kind in ("replace input", "swap input"):
            if kind == "swap input":
                self._swapped = (time.monotonic(), self._prompts)
            self._prompts = self._new_prompts("second")
            self._write_input()
            self._note_variant()
        elif kind == "clear":
            self._series += 1
            plain = Stage(
                replicas=stage.replicas,
                attempts=tuple(AttemptPlan(replica) for replica in range(stage.replicas)),
                launched=stage.launched,
                regenerate=stage.regenerate,
            )
            self._start_all(plain, name="cleared replica")
        else:
            self._note_variant("other")
            options = AttemptOptions(OWNER, "another series", chunk_records=self._plan.chunk_records)
            self._start("other job", AttemptPlan(0), self._worker(options, AttemptPlan(0), True, model="other"))

    def _put_back(self, after_seconds: float) -> None:
        if self._swapped is not None and time.monotonic() - self._swapped[0] >= after_seconds:
            self._prompts, self._swapped = self._swapped[1], None
            self._write_input()

    def _retry(self) -> None:
        """Try again without faults, as Airflow does, or as the last message said."""
        self._calm = True
        # Records that kill each engine or process that works on them take a few attempts until they are found out.
        tries = 1 + sum({"kills process": 5, "kills engine": 1}.get(fault.kind, 0) for fault in self._plan.engine)
        for _attempt in range(tries):
            if self._needs_new_series():
                self._series += 1
            replicas = self._plan.last_replicas
            stage = Stage(
                replicas=replicas,
                attempts=tuple(AttemptPlan(replica) for replica in range(replicas)),
                launched=replicas > 1,
            )
            before = len(self.run.attempts)
            started = self._start_all(stage, with_deadline=False)
            while self._tick():
                pass
            if replicas > 1 and started:
                self._start("collect", AttemptPlan(0), self._collector(with_deadline=False))
                while self._tick():
                    pass
            self.run.last = self.run.attempts[-1]
            if not any(_died(attempt) for attempt in self.run.attempts[before:]):
                return

    def _needs_new_series(self) -> bool:
        """Whether the same series can't go on: its deadline or a cancel stands, or a clock was wrong."""
        plan = self._plan
        return (
            plan.max_runtime_sec is not None
            or any(self.run.world.fired[kind] for kind in ("cancel", "other job"))
            or any(a.clock_offset or a.clock_jump for stage in plan.stages for a in (*stage.attempts, stage.launcher))
        )

    def _wake_zombies(self) -> None:
        frozen = [attempt for attempt in self._running if attempt.process.is_frozen]
        self.run.zombies = len(frozen)
        for attempt in frozen:
            attempt.process.wake()
        while self._tick():
            pass

    # Attempts

    def _start(self, name: str, plan: AttemptPlan, function: Callable[[Process, Storage], AttemptOutcome]) -> None:
        self._names[name] += 1
        name = f"{name} #{self._names[name]}"
        process = Process(name, plan, self.run.world)
        faults = plan.storage if self._below is None else ()
        storage = FaultyStorage(self._below_storage, process, faults, plan.listing_lag)

        def target() -> None:
            try:
                time.sleep(plan.starts_after)
                process.started = time.monotonic()
                attempt.outcome = function(process, storage)
            except Killed:
                pass
            except BaseException:  # noqa: BLE001 - nothing may come out of an attempt; what does is told
                attempt.error = traceback.format_exc()
            finally:
                process.stop.close()

        attempt = Attempt(name, process, threading.Thread(target=target, name=name, daemon=True))
        self.run.attempts.append(attempt)
        self._running.append(attempt)
        attempt.thread.start()

    def _tick(self) -> bool:
        """Let happen what is due; False once every attempt has ended or is frozen until the job is over."""
        alive = False
        for attempt in list(self._running):
            attempt.process.tick()
            if not attempt.thread.is_alive():
                self._running.remove(attempt)
                continue
            fault = attempt.process.fault
            if not attempt.process.is_frozen or (fault is not None and fault.wakes_after is not None):
                alive = True
                if time.monotonic() - attempt.process.started > HANG_SECONDS:
                    raise HangError(f"{attempt.name}\n{_stacks()}")
        if alive:
            time.sleep(POLL_SECONDS)
        return alive

    def _worker(
        self, options: AttemptOptions, plan: AttemptPlan, with_deadline: bool, model: str | None = None
    ) -> Callable[[Process, Storage], AttemptOutcome]:
        request = self._request(with_deadline=with_deadline, model=model)
        calm = self._calm

        def work(process: Process, storage: Storage) -> AttemptOutcome:
            return run_attempt(
                storage,
                request,
                options,
                process.stop,
                make_engine=lambda _request: self._engine(process, calm),
                timing=_timing(plan),
            )

        return work

    def _launcher(
        self, launches: list[Launch], series: str, regenerate: bool, with_deadline: bool
    ) -> Callable[[Process, Storage], AttemptOutcome]:
        request = self._request(with_deadline=with_deadline)

        def work(_process: Process, storage: Storage) -> AttemptOutcome:
            try:
                launch = launch_job(
                    storage,
                    request,
                    owner=OWNER,
                    series=series,
                    if_done="regenerate" if regenerate else "reuse",
                    engine=ENGINE,
                )
            except LaunchRefusedError as error:
                return AttemptOutcome(ExitCode.BAD_REQUEST, str(error))
            except StorageError as error:
                return AttemptOutcome(storage_exit_code(error), str(error))
            launches.append(launch)
            return AttemptOutcome(ExitCode.DONE, "the job is launched", launch.manifest)

        return work

    def _collector(self, *, with_deadline: bool) -> Callable[[Process, Storage], AttemptOutcome]:
        request = self._request(with_deadline=with_deadline)

        def work(_process: Process, storage: Storage) -> AttemptOutcome:
            options = AttemptOptions(OWNER, f"series {self._series}")
            try:
                launch = join_job(storage, request, input_identity=job_input_identity(storage, request), engine=ENGINE)
                if launch.manifest is not None:
                    return given_back(launch.manifest, options)
                return collect_job(JobDirectory(storage, request.output_data_path), launch, request, ENGINE, options)
            except (JobMismatchError, InputInvalidError, InputChangedError) as error:
                return AttemptOutcome(ExitCode.BAD_REQUEST, str(error))
            except StorageError as error:
                return AttemptOutcome(storage_exit_code(error), str(error))

        return work


def _died(attempt: Attempt) -> bool:
    outcome = attempt.outcome
    return attempt.process.is_killed or (outcome is not None and outcome.exit_code is ExitCode.ENGINE_DIED)


def _timing(plan: AttemptPlan) -> Timing:
    began = time.monotonic()

    def wall_clock() -> float:
        now = time.time() + plan.clock_offset
        if plan.clock_jump is not None and time.monotonic() - began >= plan.clock_jump[0]:
            now += plan.clock_jump[1]
        return now

    return Timing(
        heartbeat_seconds=HEARTBEAT_SECONDS,
        silence_seconds=SILENCE_SECONDS,
        look_seconds=LOOK_SECONDS,
        wait_seconds=WAIT_SECONDS,
        save_seconds=SAVE_SECONDS,
        wall_clock=wall_clock,
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what killed attempts leave behind from being shown: log lines, and threads that ended of it."""
    hook = threading.excepthook

    def excepthook(arguments: threading.ExceptHookArgs) -> None:
        if arguments.exc_type is not Killed:
            hook(arguments)

    threading.excepthook = excepthook
    loggers = [logging.getLogger(name) for name in ("asyncio", "airflow_llmengine")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        threading.excepthook = hook
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _stacks() -> str:
    """Where each thread is."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame)[-6:])}"
        for ident, frame in sys._current_frames().items()
    )


def run_locally(plan: Plan, folder: Path, check: Callable[[Run, str], list[str]]) -> Run:
    """Run a plan in a local folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return Runner(plan, str(folder), Storage(retry=QUICK), check)()
