"""The trigger that waits for a worker's pod: tells its progress, and holds it to the job's deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from functools import cached_property
from http import HTTPStatus
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_llmengine.exceptions import LLMEngineError
from airflow_llmengine.hooks.llmengine import LLMEngineHook

if TYPE_CHECKING:
    from airflow.providers.cncf.kubernetes.triggers.pod import KubernetesPodTrigger
    from kubernetes.client import V1Pod

    from airflow_llmengine.hooks.worker_attempt import WorkerAttempt

PROGRESS_SECONDS = (5.0, 60.0)
"""How soon the job's progress is told in the task's log for the second time, and how often in the end."""

DEADLINE_SLACK_SECONDS = 30.0
"""How long after the deadline the pod may take to end by itself, beyond its grace, before it is given up."""

LOOK_SECONDS = 30.0
"""How long the trigger looks, past the deadline, whether the pod has ended and how, before it is given up."""

DELETE_SECONDS = 30.0
"""How long the trigger tries to delete a pod; the task that it wakes tries again."""


class LLMEngineWorkerPodTrigger(BaseTrigger):
    """Waits for a worker's pod by the pod operator's own trigger, whichever that is.

    While it waits it reads the replica's heartbeat from storage and tells it in the task's log. An API server that is
    away does not end the wait, for the pod works on meanwhile. Past the deadline it has the pod deleted and wakes the
    task. When the task is killed while it is deferred, ``on_kill`` deletes this pod and no other.

    Args:
        pod_trigger: Import path of the pod operator's trigger.
        pod_trigger_kwargs: Its arguments.
        llmengine_conn_id: Connection of type ``llmengine``; read here, when the trigger runs.
        attempt: The worker's attempt, as ``WorkerAttempt.encode`` gives it.
        grace_seconds: How long the pod may take to end.
    """

    def __init__(
        self,
        *,
        pod_trigger: str,
        pod_trigger_kwargs: Mapping[str, Any],
        llmengine_conn_id: str,
        attempt: Mapping[str, Any],
        grace_seconds: float,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pod_trigger = pod_trigger
        self.pod_trigger_kwargs = dict(pod_trigger_kwargs)
        self.llmengine_conn_id = llmengine_conn_id
        self.attempt = dict(attempt)
        self.grace_seconds = grace_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Where the class is, and its arguments; no credentials of storage are among them."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "pod_trigger": self.pod_trigger,
                "pod_trigger_kwargs": self.pod_trigger_kwargs,
                "llmengine_conn_id": self.llmengine_conn_id,
                "attempt": self.attempt,
                "grace_seconds": self.grace_seconds,
            },
        )

    def __repr__(self) -> str:
        """Without the arguments, which may hold a kubeconfig."""
        return f"<{type(self).__qualname__} {self.pod_trigger_kwargs.get('pod_name')}>"

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the pod; fire one event."""
        # The Kubernetes client takes seconds to import.
        await asyncio.to_thread(lambda: self._inner)
        telling = asyncio.create_task(self._tell_progress())
        waiting = asyncio.create_task(_first(self._inner.run()))
        try:
            async with asyncio.timeout(self._seconds_left()):
                event = await asyncio.shield(waiting)
        except TimeoutError:
            event = await self._end_meanwhile(waiting) or await self._hold_to_deadline()
        finally:
            # Without this they would go on when the trigger moves to another triggerer.
            await _end(telling, waiting)
        # With the task's own arguments: `dag.test()` keeps nothing of a deferral but its event.
        yield TriggerEvent({**event.payload, "attempt": self.attempt})  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """Delete the pod, which saves its work within its grace period."""
        await self._inner.on_kill()

    async def cleanup(self) -> None:
        """Leave the pod alone: this is called when the triggerer is restarted, too."""
        await self._inner.cleanup()

    @cached_property
    def _inner(self) -> KubernetesPodTrigger:
        """The pod operator's trigger, which sees pods as ``AsyncWorkerPodManager`` does."""
        from kubernetes.client import V1ObjectMeta, V1Pod

        from airflow_llmengine.hooks.worker_pod_manager import AsyncWorkerPodManager

        inner: KubernetesPodTrigger = resolve_name(self.pod_trigger)(**self.pod_trigger_kwargs)
        manager = AsyncWorkerPodManager(async_hook=inner.hook)
        manager.deadline = float(self.attempt["deadline"])
        pod = V1Pod(metadata=V1ObjectMeta(name=inner.pod_name, namespace=inner.pod_namespace))

        async def get_pod() -> V1Pod:
            return await manager.read_pod(pod)

        inner.pod_manager = manager
        # It would ask the hook itself, and give up after three failures.
        inner._get_pod = get_pod  # type: ignore[assignment]  # noqa: SLF001
        return inner

    def _seconds_left(self) -> float:
        return max(0.0, float(self.attempt["deadline"]) + self.grace_seconds + DEADLINE_SLACK_SECONDS - time.time())

    async def _end_meanwhile(self, waiting: asyncio.Task[TriggerEvent]) -> TriggerEvent | None:
        """The event of a pod that has ended by itself, unseen where no triggerer ran; None: it has not ended."""
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                if await self._has_ended():
                    return await asyncio.shield(waiting)
        except Exception as error:  # noqa: BLE001 - whatever it is, the pod is not known to have ended
            self.log.warning(
                "The pod %s could not be looked at past its deadline (%s).", self._inner.pod_name, type(error).__name__
            )
        return None

    async def _has_ended(self) -> bool:
        """Whether the pod has ended, or is gone."""
        from kubernetes_asyncio.client import ApiException

        try:
            pod = await self._inner.hook.get_pod(self._inner.pod_name, self._inner.pod_namespace)
        except ApiException as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return True
            raise
        return pod.status is not None and pod.status.phase in ("Succeeded", "Failed")

    async def _hold_to_deadline(self) -> TriggerEvent:
        """Delete the pod, here and now: the task may have to wait for a worker slot."""
        inner = self._inner
        self.log.warning("The pod %s has not ended by the job's deadline: it is deleted.", inner.pod_name)
        try:
            async with asyncio.timeout(DELETE_SECONDS):
                await inner.hook.delete_pod(
                    name=inner.pod_name,
                    namespace=inner.pod_namespace,
                    grace_period_seconds=inner.termination_grace_period,
                )
        except Exception as error:  # noqa: BLE001 - whatever it is, the task is told of the deadline
            self.log.warning("The pod %s could not be deleted here (%s).", inner.pod_name, type(error).__name__)
        return TriggerEvent(  # type: ignore[no-untyped-call]
            {
                "status": "timeout",
                "name": inner.pod_name,
                "namespace": inner.pod_namespace,
                "message": "The pod has not ended by the job's deadline.",
                **inner.trigger_kwargs,
            }
        )

    async def _tell_progress(self) -> None:
        """Tell the job's progress now and then. What goes wrong here is no reason to stop waiting."""
        from airflow_llmengine.hooks.worker_attempt import WorkerAttempt
        from airflow_llmengine.hooks.worker_progress import ProgressNews

        news = ProgressNews(WorkerAttempt.decode(self.attempt))
        hook: LLMEngineHook | None = None
        pause, longest = PROGRESS_SECONDS
        while True:
            try:
                if hook is None:
                    hook = LLMEngineHook(self.llmengine_conn_id)
                    await hook.aread_settings()
                # Storage's libraries, and the storage connection's, block.
                line = await asyncio.to_thread(news.look, hook)
                if line is not None:
                    self.log.info("%s", line)
            except Exception as error:  # noqa: BLE001 - it is only telling
                # Credentials may have expired.
                hook = None
                what = str(error) if isinstance(error, LLMEngineError) else type(error).__name__
                self.log.warning("The job's progress could not be read: %s", what)
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)


def watching(
    trigger: Any, *, llmengine_conn_id: str, attempt: WorkerAttempt, grace_seconds: float
) -> LLMEngineWorkerPodTrigger:
    """The pod operator's trigger as one that knows of the job.

    Args:
        trigger: What the pod operator would have deferred with.
        llmengine_conn_id: Connection of type ``llmengine``.
        attempt: The worker's attempt.
        grace_seconds: How long the pod may take to end.
    """
    path, arguments = trigger.serialize()
    return LLMEngineWorkerPodTrigger(
        pod_trigger=path,
        pod_trigger_kwargs=_without_connection(arguments),
        llmengine_conn_id=llmengine_conn_id,
        attempt=attempt.encode(),
        grace_seconds=grace_seconds,
    )


_CONFIGURATIONS = ("in_cluster", "kube_config", "kube_config_path")
"""Fields of a Kubernetes connection that say how the cluster is reached."""


def _without_connection(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The pod trigger's arguments without what the Kubernetes connection holds, its kubeconfig for one.

    They are kept in the metadata database. The trigger reads the connection itself, as it does the one of this
    package.
    """
    extras = arguments.get("connection_extras") or {}
    if not arguments.get("kubernetes_conn_id") or not extras:
        return dict(arguments)
    arguments = {**arguments, "connection_extras": None}
    if any(extras.get(name) or extras.get(f"extra__kubernetes__{name}") for name in _CONFIGURATIONS):
        # The worker's own KUBECONFIG, which the trigger would refuse beside the connection's.
        arguments["config_dict"] = None
    return arguments


async def _end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks, and wait for their end."""
    pending = set(tasks)
    while pending:
        # Again and again: the pod trigger takes a cancellation for that of a task of its own, at one place.
        for task in pending:
            task.cancel()
        _done, pending = await asyncio.wait(pending, timeout=1.0)
    await asyncio.gather(*tasks, return_exceptions=True)


async def _first(events: AsyncIterator[TriggerEvent]) -> TriggerEvent:
    async with aclosing(events) as closing:  # type: ignore[type-var]
        return await anext(closing)
