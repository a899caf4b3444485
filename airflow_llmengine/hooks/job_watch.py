"""Waiting for a job, look by look: what the sensor does in its task, and its trigger in the triggerer."""

from __future__ import annotations

import ast
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow.sdk.configuration import conf

from airflow_llmengine.exceptions import (
    ConnectionUnusableError,
    LLMEngineError,
    RequestRefusedError,
    StorageFailedError,
    StorageRefusedError,
)
from airflow_llmengine.hooks.job_decision import Decision, Observation, OnTimeout, State, Terms, decide, is_news
from airflow_llmengine.hooks.job_pods import NO_PODS, JobPods, SeenPods
from airflow_llmengine.hooks.llmengine import JobProgress, LLMEngineHook, progress_of

if TYPE_CHECKING:
    from airflow_llmengine.storage.status import JobStatus

FAILED_LOOKS = 5
"""So many looks in a row may fail, each after storage's own retries; the last of them is the error."""

TELL_SECONDS = 600.0
"""A line on a job's progress is logged this often, and whenever its state changes."""


@dataclass(slots=True)
class Memory:
    """What must not be forgotten from one look to the next. All of it is JSON."""

    failed_looks: int = 0
    """Looks that failed in a row."""
    has_looked: bool = False
    """Whether a look has ever succeeded: then connection and path are right, and a failure passes."""
    told_state: str | None = None
    told_at: float = 0.0
    told_late: float | None = None
    """The lateness that was warned of last, in seconds."""
    told_of_pods: list[str] = field(default_factory=list)
    """Warnings about the job's pods, each of which is given once."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a look came to."""

    decision: Decision
    status: JobStatus | None = None
    """None if storage could not be reached."""
    pods: SeenPods = NO_PODS


class JobWatch:
    """Looks at one job again and again, with patience for a storage that is away for a while.

    Args:
        job: A handle or an ``output_data_path``, as ``job_of`` gives it.
        terms: How long to wait.
        on_timeout: What to do with the job past its deadline.
        who: The sensor, for the job's workers and their launcher.
        log: The logger of the task or the trigger.
        memory: Of earlier looks.
    """

    def __init__(
        self,
        job: Mapping[str, Any] | str,
        terms: Terms,
        *,
        on_timeout: OnTimeout,
        who: str,
        log: Any,
        memory: Memory | None = None,
    ) -> None:
        self.job = job
        self.terms = terms
        self.memory = memory or Memory()
        self._on_timeout = on_timeout
        self._who = who
        self._log = log
        self._pods: JobPods | None = None

    @property
    def wants_new_hook(self) -> bool:
        """Whether the next look had better read the connection again: credentials expire while one waits."""
        return self.memory.failed_looks > 0

    def look(self, hook: LLMEngineHook, *, now: float | None = None) -> Look:
        """Look once. Blocks.

        A job that is past its deadline is cancelled, unless it is to be left alone; and when the waiting is over, the
        pods that the job's launching task left to the sensor are deleted as far as there is no use for them.

        Args:
            hook: To look with.
            now: Seconds since the epoch; the clock's time by default.

        Raises:
            StorageFailedError: Too many looks in a row failed.
            StorageRefusedError, ConnectionUnusableError: The very first look was refused.
        """
        try:
            status = hook.glance(self.job)
            progress = progress_of(status)
            now = time.time() if now is None else now
            pods = self._look_at_pods(hook, status, now)
            decision = decide(_observation(status, progress, pods), self.terms, now)
            if decision.outcome == "pods_ended":
                # The manifest is the last that a worker does: it may have come since. So may another launch.
                status = hook.glance(self.job)
                pods = self._look_at_pods(hook, status, now)
                decision = decide(_observation(status, progress, pods), self.terms, now)
            if decision.outcome == "deadline":
                self._cancel(hook, status)
        except (StorageFailedError, StorageRefusedError, ConnectionUnusableError) as error:
            self._endure(error)
            return Look(Decision("wait"))
        self.memory.failed_looks = 0
        self.memory.has_looked = True
        if decision.outcome == "wait":
            self._tell(status, progress, decision, now)
        else:
            self._end_pods(pods, decision)
        return Look(decision, status, pods)

    def pods_failure(self, look: Look, status: JobStatus) -> LLMEngineError:
        """Say what the pods died of, after a look with the outcome ``pods_ended``; and delete those of no more use.

        Args:
            look: What the look came to.
            status: All that storage says of the job.
        """
        if self._pods is None:
            raise RuntimeError("No pods were looked at.")
        failure = self._pods.failure(look.pods, status)
        # Also those that hang on, and those that will never start.
        self._pods.delete(look.pods, "ended")
        return failure

    def _look_at_pods(self, hook: LLMEngineHook, status: JobStatus, now: float) -> SeenPods:
        """Find out how the pods are that were left to the sensor, if there are any."""
        if hook.settings.launcher != "kubernetes" or status.handle is None:
            return NO_PODS
        handed_over = hook.read_handed_over(status.handle)
        if handed_over is None:
            return NO_PODS
        if self._pods is None or self._pods.handed_over != handed_over:
            self._pods = JobPods(
                hook.settings, status.handle, handed_over, log=self._log, told=self.memory.told_of_pods
            )
        series = None if status.state == "done" else "" if status.job is None else status.job.series
        return self._pods.look(series, now)

    def _end_pods(self, pods: SeenPods, decision: Decision) -> None:
        """Delete the pods of a job that is not waited for any more. Those that died are looked into before."""
        if self._pods is None or decision.outcome in ("timeout", "pods_ended"):
            return
        if decision.outcome != "deadline" or self._on_timeout == "cancel":
            self._pods.delete(pods, "ended" if decision.outcome == "finished" else "at_work")

    def _cancel(self, hook: LLMEngineHook, status: JobStatus) -> None:
        if self._on_timeout == "cancel" and status.handle is not None and status.job and status.cancelled is None:
            hook.cancel(status.handle, f"past the deadline of the sensor {self._who}")
            self._log.warning("The job's deadline has passed: it was cancelled, and its workers save what they have.")

    def _endure(self, error: LLMEngineError) -> None:
        if not self.memory.has_looked and not isinstance(error, StorageFailedError):
            raise error
        self.memory.failed_looks += 1
        if self.memory.failed_looks >= FAILED_LOOKS:
            raise StorageFailedError(
                f"{error} {FAILED_LOOKS} looks at the job in a row failed; the job itself may go on. A retry waits on."
            ) from error
        self._log.warning(
            "Look %d of at most %d failed: %s The next one follows.", self.memory.failed_looks, FAILED_LOOKS, error
        )

    def _tell(self, status: JobStatus, progress: JobProgress, decision: Decision, now: float) -> None:
        state = _state(status)
        if state != self.memory.told_state or now - self.memory.told_at >= TELL_SECONDS:
            level = self._log.warning if state == "stopped" else self._log.info
            level("%s", _line(state, status, progress, decision))
            self.memory.told_state, self.memory.told_at = state, now
        if decision.late_seconds is not None and is_news(decision.late_seconds, self.memory.told_late):
            self._log.warning("%s", _warning(status, progress, decision.late_seconds, decision.deadline))
            self.memory.told_late = decision.late_seconds


def job_of(value: Any) -> dict[str, Any] | str:
    """Read the argument ``job`` when its templates are rendered.

    A handle that went through a template is text, in JSON or as Python shows it; the whole result of the task that
    ran the job names its handle.

    Raises:
        RequestRefusedError: It is neither a handle nor a path.
    """
    from pydantic import ValidationError

    from airflow_llmengine.spec.job_state import JobHandle

    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = _parsed(value)
    if isinstance(value, Mapping):
        try:
            handle = JobHandle.model_validate(value.get("job", value))
        except ValidationError:
            raise RequestRefusedError(
                "job is no job handle, which has path, fingerprint and generation: give the `job` of the XCom of the "
                "task that runs the job, or its output_data_path."
            ) from None
        found: dict[str, Any] = handle.model_dump(mode="json")
        return found
    if isinstance(value, str) and value.strip() not in ("", "None"):
        return value
    raise RequestRefusedError(
        f"job is {value!r}; it must be a job handle or an output_data_path. Did the task that runs the job hand one on?"
        if value is None or isinstance(value, str)
        else f"job is a {type(value).__name__}; it must be a job handle or an output_data_path."
    )


def seconds_of(value: Any) -> float | None:
    """Read the argument ``max_runtime_sec``; None if it is not given.

    Raises:
        RequestRefusedError: It is no positive number of seconds.
    """
    if value is None or value in ("", "None"):
        return None
    try:
        seconds = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        seconds = float("nan")
    if not 0 < seconds < float("inf"):
        raise RequestRefusedError(f"max_runtime_sec is {value!r}; it must be a positive number of seconds.")
    return seconds


def terms_of(first_look: float, *, max_runtime_sec: float | None, timeout: float | None) -> Terms:
    """The terms of a sensor: while there is no job and nothing was given, Airflow's default for sensors holds."""
    return Terms(
        first_look=first_look,
        max_runtime_sec=max_runtime_sec,
        timeout=timeout,
        timeout_while_absent=conf.getfloat("sensors", "default_timeout"),
    )


def moment(seconds: float) -> str:
    """A point in time for a person."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def done_of(progress: JobProgress) -> str:
    """How many records are done, for a person."""
    total = "?" if progress.records_total is None else progress.records_total
    return f"{progress.records_done} of {total} records"


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return {}


def _state(status: JobStatus) -> State:
    handle, current = status.handle, status.current
    if status.state == "done":
        return "done"
    if handle is not None and current is not None and current.scratch_name != handle.scratch_name:
        return "superseded"
    return status.state if status.job is not None or status.heartbeats else "absent"


def _observation(status: JobStatus, progress: JobProgress, pods: SeenPods) -> Observation:
    job, cancelled = status.job, status.cancelled
    return Observation(
        state=_state(status),
        pods=pods.state,
        finished=None if status.manifest is None else status.manifest.finished,
        launched=None if job is None else job.launched,
        deadline=None if job is None else job.deadline,
        cancelled=None if cancelled is None else cancelled.requested,
        records_total=progress.records_total,
        records_done=progress.records_done,
        records_per_second=progress.records_per_second,
    )


def _line(state: State, status: JobStatus, progress: JobProgress, decision: Decision) -> str:
    until = "" if decision.deadline is None else f" until {moment(decision.deadline)}"
    if state == "absent":
        return f"Nothing was launched there yet: waiting{until}."
    if state == "done":
        return "The job is done, and its pod is about to end: waiting for that."
    if state == "launched":
        return f"The job is launched, and no worker has shown up yet: waiting{until}."
    if state == "stopped":
        return (
            f"No worker is at the job, with {done_of(progress)} done. Its launcher may start one again: waiting{until}."
        )
    further = f", {progress.records_truncated} truncated by max_tokens" if progress.records_truncated else ""
    further += f", {progress.records_skipped} skipped" if progress.records_skipped else ""
    further += f", {progress.records_repeated} repeated" if progress.records_repeated else ""
    further += f", {progress.records_cached} cached" if progress.records_cached else ""
    return (
        f"{_replicas(status)} at work: {done_of(progress)} done, {progress.records_per_second:.1f} "
        f"records/s, {progress.records_failed} failed{further}; waiting{until}."
    )


def _replicas(status: JobStatus) -> str:
    count = len(status.alive)
    return f"{count} replica{'' if count == 1 else 's'}"


def _warning(status: JobStatus, progress: JobProgress, late_seconds: float, deadline: float | None) -> str:
    hours, rest = divmod(round(late_seconds), 3600)
    return (
        f"The job will be late: at {progress.records_per_second:.1f} records/s of {_replicas(status)}, with "
        f"{done_of(progress)} done, it ends {hours}:{rest // 60:02}:{rest % 60:02} after its deadline"
        f"{'' if deadline is None else ' ' + moment(deadline)}. More replicas (data_parallelism) or a larger "
        "max_runtime_sec help; launched again with either, it keeps what is finished."
    )
