"""From how a worker ended to the exception that the task raises."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from airflow_llmengine.exceptions import (
    KEPT,
    DeadlineExceededError,
    EngineDiedError,
    InputRefusedError,
    JobCancelledError,
    JobFailedError,
    JobInterruptedError,
    JobSupersededError,
    ResultMissingError,
    StorageFailedError,
    TooManyFailedRecordsError,
    WorkerDiedError,
)
from airflow_llmengine.spec.exit_codes import ExitCode

if TYPE_CHECKING:
    from airflow_llmengine.exceptions import LLMEngineError
    from airflow_llmengine.spec.job_state import JobHandle
    from airflow_llmengine.storage.status import JobStatus

RETRIED = f"{KEPT}, and a retry goes on from there"


def job_failure(
    exit_code: int,
    message: str,
    *,
    handle: JobHandle,
    deadline: float,
    status: JobStatus,
    series: str | None = None,
    launched_by: str = "the task",
    retried: str = RETRIED,
    now: float | None = None,
) -> LLMEngineError:
    """Make the exception for a worker that ended without a valid manifest.

    Args:
        exit_code: The worker's exit code, or minus the number of the signal that killed it.
        message: What the worker said last about it; may be empty.
        handle: The job.
        deadline: Seconds since the epoch after which nothing of the job may run.
        status: What storage says of whatever is current at the job's output path.
        series: The series of attempts that the worker belonged to.
        launched_by: What to clear for a new launch.
        retried: What to expect where a retry of the task that ran the worker helps: that of a sensor waits only.
        now: Seconds since the epoch, for tests; the clock's time by default.
    """
    said = _sentence(message)
    if exit_code in (ExitCode.PARTIAL, ExitCode.BAD_REQUEST) and status.handle not in (None, handle):
        return JobSupersededError(
            f"Another launch took over {handle.path}, so this one stopped. Give each job an output of its own."
        )
    if exit_code == ExitCode.PARTIAL and status.job is not None and series not in (None, status.job.series):
        # Were this one retried, it would end the other's workers in its turn.
        return JobSupersededError(
            f"Another run launched the same job for {handle.path} and goes on with it, with what was finished here. "
            "Give each run an output of its own, or let only one run be active at a time."
        )
    if exit_code == ExitCode.BAD_REQUEST:
        return InputRefusedError(
            f"The job can't be run: {said or 'the worker refused it.'} {KEPT}. Correct it, and clear {launched_by}."
        )
    if exit_code == ExitCode.TOO_MANY_FAILED_RECORDS:
        return TooManyFailedRecordsError(
            f"Too many records failed: {said or 'see the log.'} {KEPT}. Correct the input or raise max_error_rate, and "
            f"clear {launched_by}."
        )
    if exit_code == ExitCode.ENGINE_DIED:
        return EngineDiedError(f"The engine died: {said or 'see the log.'} {retried}.")
    if exit_code == ExitCode.STORAGE_UNREACHABLE:
        return StorageFailedError(
            f"{said or 'Storage could not be reached.'} {retried.replace(KEPT, 'What was committed is kept')}."
        )
    if exit_code == ExitCode.PARTIAL:
        return _stopped_early(said, deadline, status, launched_by, retried, time.time() if now is None else now)
    if exit_code == ExitCode.DONE:
        return ResultMissingError(
            f"The worker said that the job is done, and no valid manifest stands beside {handle.path}. {retried}."
        )
    return WorkerDiedError(f"{_death(exit_code, said)} {retried}.")


def _stopped_early(
    said: str, deadline: float, status: JobStatus, launched_by: str, retried: str, now: float
) -> JobFailedError:
    if status.cancelled is not None:
        return JobCancelledError(
            f"The job was cancelled ({status.cancelled.reason}). {KEPT}. Clear {launched_by}, or start a new run, to "
            "go on."
        )
    launched = 0.0 if status.job is None else status.job.launched
    if now >= deadline or any(
        beat.stop_reason == "deadline" and beat.updated >= launched for beat in status.heartbeats
    ):
        return DeadlineExceededError(
            f"max_runtime_sec is used up, retries included. {KEPT}. Raise it if it is too short; clear {launched_by}, "
            "or start a new run, to go on with a new budget."
        )
    # It says itself what is kept, for who runs it by hand.
    said = said.removesuffix("; what is finished is kept.").rstrip(".")
    return JobInterruptedError(
        f"The worker stopped early: {said or 'something else than Airflow ended it'}. {retried}."
    )


def _death(exit_code: int, said: str) -> str:
    if exit_code == -signal.SIGKILL:
        return (
            "The worker was killed (SIGKILL), as the system does when memory runs out: look at the machine's memory, "
            "or give the engine less."
        )
    if exit_code < 0:
        return f"The worker was killed by the signal {signal.Signals(-exit_code).name}. {said}".rstrip()
    if exit_code == ExitCode.INTERNAL:
        return f"The worker failed by a defect of its own: {said or 'see the log.'}"
    return (
        f"The worker ended with exit code {exit_code}, and could not say why: press Test on the connection, or look at "
        "the task's log at level DEBUG."
    )


def _sentence(message: str) -> str:
    """A worker's message with a full stop, its first letter as it is."""
    message = message.strip()
    return message if not message or message.endswith((".", "!", "?")) else f"{message}."
