"""The trigger that waits for a worker's pod: tells its progress, and holds it to the job's deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.triggers.pod import KubernetesPodTrigger
from airflow.triggers.base import TriggerEvent

from airflow_llmengine.exceptions import LLMEngineError
from airflow_llmengine.hooks.llmengine import LLMEngineHook

if TYPE_CHECKING:
    from airflow_llmengine.hooks.worker_attempt import WorkerAttempt
    from airflow_llmengine.hooks.worker_pod_manager import AsyncWorkerPodManager

PROGRESS_SECONDS = 60.0
"""How often the job's progress is told in the task's log."""

DEADLINE_SLACK_SECONDS = 30.0
"""How long after the deadline the pod may take to end by itself, beyond its grace, before it is given up."""


class LLMEngineWorkerPodTriggerMixin(KubernetesPodTrigger):
    """Waits for a worker's pod, in front of a pod trigger or as one.

    While it waits it reads the replica's heartbeat from storage and tells it in the task's log. Past the deadline it
    wakes the task, which ends the pod. When the task is killed while it is deferred, ``on_kill`` deletes this pod and
    no other.

    Args:
        llmengine_conn_id: Connection of type ``llmengine``; read here, when the trigger runs.
        attempt: The worker's attempt, as ``WorkerAttempt.encode`` gives it.
        kwargs: What the pod trigger takes.
    """

    def __init__(self, *, llmengine_conn_id: str, attempt: Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.llmengine_conn_id = llmengine_conn_id
        self.attempt = dict(attempt)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Where the class is, and its arguments: the pod trigger's, and no credentials of storage."""
        _path, arguments = super().serialize()
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {**arguments, "llmengine_conn_id": self.llmengine_conn_id, "attempt": self.attempt},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the pod; fire one event."""
        telling = asyncio.create_task(self._tell_progress())
        waiting = asyncio.create_task(_first(super().run()))
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + self._seconds_left()):
                event = await asyncio.shield(waiting)
        except TimeoutError:
            event = self._deadline_event()
        finally:
            for task in (telling, waiting):
                task.cancel()
            await asyncio.gather(telling, waiting, return_exceptions=True)
        self._fired_event = True
        yield event

    @cached_property
    def pod_manager(self) -> AsyncWorkerPodManager:
        """What reads the pod's state and log."""
        from airflow_llmengine.hooks.worker_pod_manager import AsyncWorkerPodManager

        manager = AsyncWorkerPodManager(async_hook=self.hook)
        manager.deadline = self.attempt["deadline"]
        return manager

    def _seconds_left(self) -> float:
        grace = self.termination_grace_period or 0
        return max(0.0, float(self.attempt["deadline"]) + grace + DEADLINE_SLACK_SECONDS - time.time())

    def _deadline_event(self) -> TriggerEvent:
        return TriggerEvent(  # type: ignore[no-untyped-call]
            {
                "status": "timeout",
                "name": self.pod_name,
                "namespace": self.pod_namespace,
                "message": "The pod has not ended by the job's deadline.",
                **self.trigger_kwargs,
            }
        )

    async def _tell_progress(self) -> None:
        """Tell the job's progress now and then. What goes wrong here is no reason to stop waiting."""
        from airflow_llmengine.hooks.worker_attempt import WorkerAttempt
        from airflow_llmengine.hooks.worker_progress import ProgressTeller

        teller = ProgressTeller(WorkerAttempt.decode(self.attempt), log=self.log)
        hook: LLMEngineHook | None = None
        while True:
            try:
                if hook is None:
                    hook = LLMEngineHook(self.llmengine_conn_id)
                    await hook.aread_settings()
                # Storage's libraries block.
                await asyncio.to_thread(teller.tell, hook)
            except LLMEngineError as error:
                # Credentials may have expired.
                hook = None
                self.log.warning("The job's progress could not be read: %s", error)
            await asyncio.sleep(PROGRESS_SECONDS)


class LLMEngineWorkerPodTrigger(LLMEngineWorkerPodTriggerMixin):
    """Waits for a worker's pod that KubernetesPodOperator made."""


def watching(trigger: Any, *, llmengine_conn_id: str, attempt: WorkerAttempt) -> LLMEngineWorkerPodTrigger:
    """The pod operator's trigger as one that knows of the job.

    Args:
        trigger: What the pod operator would have deferred with.
        llmengine_conn_id: Connection of type ``llmengine``.
        attempt: The worker's attempt.
    """
    _path, arguments = trigger.serialize()
    return LLMEngineWorkerPodTrigger(llmengine_conn_id=llmengine_conn_id, attempt=attempt.encode(), **arguments)


async def _first(events: AsyncIterator[TriggerEvent]) -> TriggerEvent:
    return await anext(events)
