"""KubernetesPodOperator's pod manager, for workers: their log at its own levels, and no wait without an end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.utils.pod_manager import AsyncPodManager, PodManager

from airflow_llmengine.exceptions import NodeLostError
from airflow_llmengine.hooks.local_worker import parse_log_line
from airflow_llmengine.kube.reattach import gone_by, is_active

if TYPE_CHECKING:
    from kubernetes.client import V1Pod

LOST_AFTER_SECONDS = 120.0
"""So long after its grace, or its deadline, a pod that still shows up is given up: its node is gone."""


class WorkerPodManager(PodManager):
    """Follows a worker's pod from the task.

    A line that is not the worker's own comes from a library and may quote a prompt: it is logged at DEBUG.
    """

    deadline: float | None = None
    """Seconds since the epoch after which the pod can't be running any more."""

    def read_pod(self, pod: V1Pod) -> V1Pod:
        """Read the pod's state.

        Raises:
            NodeLostError: It should have been gone long ago.
        """
        found: V1Pod = super().read_pod(pod)
        refuse_lost(found, self.deadline)
        return found

    def _log_message(
        self,
        message: str,
        container_name: str,
        container_name_log_prefix_enabled: bool,
        log_formatter: Callable[[str, str], str] | None,
    ) -> None:
        for line in message.splitlines():
            level, text = parse_log_line(line)
            self.log.log(level, "%s", text if log_formatter is None else log_formatter(container_name, text))


class AsyncWorkerPodManager(AsyncPodManager):
    """Follows a worker's pod from the triggerer; see ``WorkerPodManager``."""

    deadline: float | None = None

    async def read_pod(self, pod: V1Pod) -> V1Pod:
        """Read the pod's state; see ``WorkerPodManager.read_pod``."""
        found: V1Pod = await super().read_pod(pod)
        refuse_lost(found, self.deadline)
        return found

    async def watch_pod_events(self, pod: V1Pod, check_interval: float = 30) -> None:
        """As the parent's, which asks as often as it looks at the pod."""
        await super().watch_pod_events(pod, max(check_interval, 10.0))

    def _emit_container_logs(self, logs: list[str], now: Any, container_name: str) -> None:
        from airflow.providers.cncf.kubernetes.utils.pod_manager import parse_log_line as with_time

        second = now.replace(microsecond=0)
        for line in logs:
            moment, message = with_time(line)
            # The next read begins with this second.
            if moment is not None and moment.replace(microsecond=0) == second:
                return
            if message:
                level, text = parse_log_line(message)
                self.log.log(level, "%s", text)


def refuse_lost(pod: V1Pod, deadline: float | None, now: float | None = None) -> None:
    """Give up a pod that should be gone: nobody is there to end it.

    Raises:
        NodeLostError: See above.
    """
    now = time.time() if now is None else now
    until = gone_by(pod, slack_seconds=LOST_AFTER_SECONDS)
    if until is not None and now > until:
        raise NodeLostError(
            f"The pod {pod.metadata.name} was deleted and does not end: its node "
            f"{pod.spec.node_name or ''} does not answer."
        )
    if deadline is not None and is_active(pod):
        grace = pod.spec.termination_grace_period_seconds or 0
        if now > deadline + grace + LOST_AFTER_SECONDS:
            raise NodeLostError(
                f"The pod {pod.metadata.name} shows up as {pod.status.phase} long after its deadline: its node "
                f"{pod.spec.node_name or ''} does not answer."
            )
