"""A replica's progress in the log of a task that waits for it elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_llmengine.hooks.llmengine import progress_of

if TYPE_CHECKING:
    from airflow_llmengine.hooks.llmengine import LLMEngineHook
    from airflow_llmengine.hooks.worker_attempt import WorkerAttempt
    from airflow_llmengine.spec.job_state import Heartbeat
    from airflow_llmengine.storage.status import JobStatus


class ProgressTeller:
    """Tells how far a replica and its job are, when there is news.

    Args:
        attempt: The attempt whose replica it is.
        log: The logger of the trigger or the task.
    """

    def __init__(self, attempt: WorkerAttempt, *, log: Any) -> None:
        self._attempt = attempt
        self._log = log
        self._told: str | None = None

    def tell(self, hook: LLMEngineHook) -> None:
        """Look once, and log a line if it says something new. Blocks.

        Raises:
            StorageFailedError, ConnectionUnusableError: Storage can't be read.
        """
        line = progress_line(hook.glance(self._attempt.handle), self._attempt)
        if line != self._told:
            self._log.info("%s", line)
            self._told = line


def progress_line(status: JobStatus, attempt: WorkerAttempt) -> str:
    """One line for people on a job and one of its replicas."""
    beat = next((beat for beat in status.heartbeats if beat.replica == attempt.replica), None)
    progress = progress_of(status)
    total = "?" if progress.records_total is None else str(progress.records_total)
    parts = [f"{progress.records_done} of {total} records done"]
    if progress.records_failed:
        parts.append(f"{progress.records_failed} failed")
    if progress.records_per_second > 0:
        parts.append(f"{progress.records_per_second:.1f} records/s, {progress.tokens_per_second:.0f} tokens/s")
        if progress.records_total is not None:
            left = max(0, progress.records_total - progress.records_done) / progress.records_per_second
            parts.append(f"about {_duration(left)} left")
    return ", ".join(parts) + (f"; {_replica(beat, attempt)}" if attempt.replica is not None else "")


def _replica(beat: Heartbeat | None, attempt: WorkerAttempt) -> str:
    name = "the worker" if attempt.replicas == 1 else f"replica {attempt.replica} of {attempt.replicas}"
    return f"{name} has not shown up yet" if beat is None else f"{name} is {beat.phase}"


def _duration(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"
