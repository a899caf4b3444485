"""When to try a task of this provider again, by what went wrong: a ``RetryPolicy`` of Airflow's.

Retries are what a task has against a cluster in which pods die: a preempted pod wants another at once, a full cluster
wants patience, and neither is served well by the task's one ``retry_delay``. Given many ``retries``, a batch that runs
on spare GPUs goes on by itself::

    LLMEngineBatchCompletionsOperator(
        task_id="completions",
        ...,
        retries=20,
        retry_policy=LLMEngineRetryPolicy(),
    )

Airflow asks the policy in the process of the task, with the exception that failed it. It does not ask after an
exception that fails at once (those marked ``*`` in ``airflow_llmengine.exceptions``), nor when the process itself was
killed; and ``retries`` stays the most that there will be.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from airflow.sdk import RetryDecision, RetryPolicy

from airflow_llmengine.exceptions import (
    ClusterUnavailableError,
    EngineDiedError,
    ImagePullError,
    JobInterruptedError,
    LLMEngineError,
    ModelSizeUnknownError,
    NodeLostError,
    PodDeletedError,
    PodEvictedError,
    PodPreemptedError,
    PodQuotaError,
    PodStartError,
    PodUnschedulableError,
    StorageFailedError,
    WorkerDiedError,
    WorkerOutOfMemoryError,
    WorkerOutOfStorageError,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

_ENDED_BY_OTHERS = (PodPreemptedError, PodEvictedError, NodeLostError, PodDeletedError, JobInterruptedError)
_NO_ROOM = (PodQuotaError, PodUnschedulableError, ImagePullError)
_BROKEN = (
    ModelSizeUnknownError,
    EngineDiedError,
    StorageFailedError,
    ClusterUnavailableError,
    PodStartError,
    WorkerDiedError,
    WorkerOutOfMemoryError,
    WorkerOutOfStorageError,
)


class LLMEngineRetryPolicy(RetryPolicy):
    """Waits as long as what went wrong deserves.

    ================================================  ==========================================================
    What went wrong                                   The wait before the next try
    ================================================  ==========================================================
    preempted, evicted, deleted, node lost, stopped   ``after_disruption``, always the same
    no room in quota or cluster, image not pulled     ``for_room``, twice as long after each try
    hub, engine, storage, API or worker failed        ``after_fault``, twice as long after each try
    any error after which a retry does not help       none: the task fails
    anything else                                     the task's own ``retry_delay``
    ================================================  ==========================================================

    The tries that count are the task's, whatever ended them. A job's ``max_runtime_sec`` goes on through all waits.

    Args:
        after_disruption: By default 15 seconds.
        for_room: By default 5 minutes.
        after_fault: By default 1 minute.
        longest: No wait is longer; by default 1 hour.

    Raises:
        ValueError: A wait is negative.
    """

    def __init__(
        self,
        *,
        after_disruption: timedelta = timedelta(seconds=15),
        for_room: timedelta = timedelta(minutes=5),
        after_fault: timedelta = timedelta(minutes=1),
        longest: timedelta = timedelta(hours=1),
    ) -> None:
        self.after_disruption = after_disruption
        self.for_room = for_room
        self.after_fault = after_fault
        self.longest = longest
        for name, wait in self._waits().items():
            if wait < timedelta(0):
                raise ValueError(f"{name} of LLMEngineRetryPolicy is negative: give a timedelta of zero or more")

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Decide about a task that failed.

        Args:
            exception: What failed it.
            try_number: Which try that was, from 1.
            max_tries: How many there may be; Airflow itself keeps to it.
            context: The task's; not used.
        """
        name = type(exception).__name__
        if isinstance(exception, LLMEngineError) and not exception.retry_helps:
            return RetryDecision.fail(f"{name}: trying again without a change does not help")
        if isinstance(exception, _ENDED_BY_OTHERS):
            return self._retry(self.after_disruption, name, "nothing is wrong with the job")
        if isinstance(exception, _NO_ROOM):
            return self._retry(self._grown(self.for_room, try_number), name, "others have to make room first")
        if isinstance(exception, _BROKEN):
            return self._retry(self._grown(self.after_fault, try_number), name, "it may be over by then")
        return RetryDecision.default()

    def _retry(self, wait: timedelta, name: str, why: str) -> RetryDecision:
        wait = min(wait, self.longest)
        return RetryDecision.retry(wait, f"{name}: the next try in {wait}; {why}")

    def _grown(self, wait: timedelta, try_number: int) -> timedelta:
        # Doubled no further than any wait is worth: timedelta has an end.
        doubled: int = 2 ** min(max(try_number - 1, 0), 16)
        return min(wait, self.longest) * doubled

    def _waits(self) -> dict[str, timedelta]:
        return {
            "after_disruption": self.after_disruption,
            "for_room": self.for_room,
            "after_fault": self.after_fault,
            "longest": self.longest,
        }

    def serialize(self) -> dict[str, Any]:
        """The policy as JSON; waits in seconds."""
        return {name: wait.total_seconds() for name, wait in self._waits().items()}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        """The policy from what ``serialize`` gave."""
        return cls(**{name: timedelta(seconds=seconds) for name, seconds in data.items()})
