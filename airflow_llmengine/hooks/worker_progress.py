"""A replica's progress in the log of a task that waits for it elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_llmengine.hooks.llmengine import progress_of

if TYPE_CHECKING:
    from airflow_llmengine.hooks.llmengine import LLMEngineHook
    from airflow_llmengine.hooks.worker_attempt import WorkerAttempt
    from airflow_llmengine.spec.job_state import Heartbeat
    from airflow_llmengine.storage.status import JobStatus


class ProgressNews:
    """How far a replica and its job are, when there is news.

    Args:
        attempt: The attempt whose replica it is.
    """

    def __init__(self, attempt: WorkerAttempt) -> None:
        self._attempt = attempt
        self._told: str | None = None

    def look(self, hook: LLMEngineHook) -> str | None:
        """Look once; gives a line if it says something new. Blocks.

        Raises:
            StorageFailedError, ConnectionUnusableError: Storage can't be read.
        """
        line = progress_line(hook.glance(self._attempt.handle), self._attempt)
        if line == self._told:
            return None
        self._told = line
        return line


def progress_line(status: JobStatus, attempt: WorkerAttempt) -> str:
    """One line for people on a job and one of its replicas."""
    beat = next((beat for beat in status.heartbeats if beat.replica == attempt.replica), None)
    progress = progress_of(status)
    total = "?" if progress.records_total is None else str(progress.records_total)
    parts = [f"{progress.records_done} of {total} records done"]
    if progress.records_failed:
        parts.append(f"{progress.records_failed} failed")
    if progress.records_truncated:
        parts.append(f"{progress.records_truncated} truncated by max_tokens")
    if progress.records_skipped:
        parts.append(f"{progress.records_skipped} skipped")
    if progress.records_repeated:
        parts.append(f"{progress.records_repeated} repeated")
    if progress.records_cached:
        parts.append(f"{progress.records_cached} cached")
    if progress.records_per_second > 0:
        parts.append(f"{progress.records_per_second:.1f} records/s, {progress.tokens_per_second:.0f} tokens/s")
        if progress.records_total is not None:
            left = max(0, progress.records_total - progress.records_done) / progress.records_per_second
            parts.append(f"about {_duration(left)} left")
    # The heartbeats of a job that is done are gone.
    has_replica = attempt.replica is not None and status.manifest is None
    return ", ".join(parts) + (f"; {_replica(beat, attempt)}" if has_replica else "")


def _replica(beat: Heartbeat | None, attempt: WorkerAttempt) -> str:
    name = "the worker" if attempt.replicas == 1 else f"replica {attempt.replica} of {attempt.replicas}"
    return f"{name} has not shown up yet" if beat is None else f"{name} is {beat.phase}"


def _duration(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"
