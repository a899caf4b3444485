"""KubernetesPodOperator's pod manager, for workers: their log at its own levels, and no wait without an end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.utils.container import container_is_completed
from airflow.providers.cncf.kubernetes.utils.pod_manager import (
    AsyncPodManager,
    PodLaunchTimeoutException,
    PodLoggingStatus,
    PodManager,
    detect_pod_terminate_early_issues,
)
from urllib3.exceptions import HTTPError

from airflow_llmengine.exceptions import ClusterUnavailableError, NodeLostError
from airflow_llmengine.hooks.local_worker import parse_log_line
from airflow_llmengine.kube.reattach import gone_by, is_active, is_ending

if TYPE_CHECKING:
    from kubernetes.client import V1Pod

LOST_AFTER_SECONDS = 120.0
"""So long after its grace, or its deadline, a pod that still shows up is given up: its node is gone."""

AWAY_SECONDS = 15.0
"""Between two calls of an API server that is away; each is several attempts already."""

REMINDER_SECONDS = 300.0

UNSTARTABLE_SECONDS = 10.0
"""So long a container may name what does not exist, a Secret for example, before nobody waits for it any more. The pod
operator would wait for as long as a node may take to pull an image."""

LOOK_SECONDS = 2.0
"""Between two looks at a container whose log can't be followed."""

UNAUTHORIZED = 401
GONE = 404
TOO_MANY_REQUESTS = 429
SERVER_ERROR = 500


POD_END_SECONDS = 10.0
"""So long after the worker's own end its pod may take to show up as ended."""


class PodGivenUp(PodLaunchTimeoutException):
    """There is nothing to wait for any more. The pod trigger takes it for a timeout: it wakes the task at once."""


class _Start:
    """Notices, of a pod that is to start, that it will not."""

    def __init__(self) -> None:
        self._since: float | None = None

    def check(self, pod: V1Pod) -> None:
        """Look at the pod as it is now.

        Raises:
            PodGivenUp: It names what does not exist, and has for a while.
        """
        if not _is_unstartable(pod):
            self._since = None
        elif self._since is None:
            self._since = time.monotonic()
        elif time.monotonic() - self._since >= UNSTARTABLE_SECONDS:
            raise PodGivenUp(f"The pod {pod.metadata.name} can't be started as it is.")


class WorkerPodManager(PodManager):
    """Follows a worker's pod from the task.

    A line that is not the worker's own comes from a library and may quote a prompt: it is logged at DEBUG.
    """

    deadline: float | None = None
    """Seconds since the epoch after which the pod can't be running any more."""
    is_ended: Callable[[], bool] = staticmethod(lambda: False)
    """Whether Airflow has ended the task: then nobody waits for an API server."""
    _start: _Start | None = None

    def read_pod(self, pod: V1Pod) -> V1Pod:
        """Read the pod's state. Waits while the API server is away: the pod works on meanwhile.

        Raises:
            NodeLostError: It should have been gone long ago.
            PodGivenUp: It was to start, and will not.
        """
        told = float("-inf")
        while True:
            try:
                found: V1Pod = super().read_pod(pod)
                break
            except Exception as error:
                if not _is_away(error) or self.is_ended():
                    raise
                reason = _reason(error)
            if time.monotonic() - told >= REMINDER_SECONDS:
                told = time.monotonic()
                self.log.warning("The Kubernetes API does not answer (%s): waiting for it.", reason)
            until = time.monotonic() + AWAY_SECONDS
            while time.monotonic() < until and not self.is_ended():
                time.sleep(min(1.0, AWAY_SECONDS))
        refuse_lost(found, self.deadline)
        if self._start is not None:
            self._start.check(found)
        return found

    async def await_pod_start(self, *arguments: Any, **options: Any) -> None:
        """Wait for the pod to start; see ``read_pod``."""
        self._start = _Start()
        try:
            await super().await_pod_start(*arguments, **options)
        finally:
            self._start = None

    def read_pod_logs(self, *arguments: Any, **options: Any) -> Any:
        """Read the log. What can't be read now is read again, when the pod's state can be."""
        try:
            return super().read_pod_logs(*arguments, **options)
        except Exception as error:
            if not _is_away(error):
                raise
            # The parent takes this for a connection that broke.
            raise HTTPError(_reason(error)) from None

    def fetch_container_logs(self, pod: V1Pod, container_name: str, **options: Any) -> PodLoggingStatus:
        """Follow the log until the container ends. Where the log may not be read, wait without it."""
        from kubernetes.client.exceptions import ApiException

        try:
            return super().fetch_container_logs(pod, container_name, **options)
        except ApiException as error:
            # With new credentials the pod operator tries again.
            if error.status == UNAUTHORIZED:
                raise
            reason = _reason(error)
        # Raises if it is the pod that is not there.
        running = self.container_is_running(pod, container_name)
        if running:
            self.log.warning("The log of the pod %s can't be read (%s): waiting without it.", pod.metadata.name, reason)
        while running and not self.is_ended():
            time.sleep(LOOK_SECONDS)
            running = self.container_is_running(pod, container_name)
        return PodLoggingStatus(running=running, last_log_time=None)

    def await_pod_completion(
        self,
        pod: V1Pod,
        istio_enabled: bool = False,
        container_name: str = "base",
        do_xcom_push: bool = False,
    ) -> V1Pod:
        """Wait until the pod has ended, or only other containers of it go on: those would keep the GPU."""
        ended_at: float | None = None
        while True:
            found = self.read_pod(pod)
            if not is_active(found) or detect_pod_terminate_early_issues(found):
                return found
            if container_is_completed(found, container_name):
                ended_at = time.monotonic() if ended_at is None else ended_at
                if time.monotonic() - ended_at >= POD_END_SECONDS:
                    self.log.info("The worker has ended, and other containers of its pod go on: the pod is ended.")
                    return found
            time.sleep(1.0)

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
    _start: _Start | None = None
    _told_until: datetime | None = None
    """The moment of the latest log line that was passed on."""

    async def read_pod(self, pod: V1Pod) -> V1Pod:
        """Read the pod's state. Waits while the API server is away: the pod works on meanwhile.

        Raises:
            PodGivenUp: The pod is gone, or should have been long ago; or it was to start, and will not.
        """
        told = float("-inf")
        while True:
            try:
                found: V1Pod = await super().read_pod(pod)
                refuse_lost(found, self.deadline)
                if self._start is not None:
                    self._start.check(found)
            except PodGivenUp:
                raise
            except NodeLostError as error:
                raise PodGivenUp(str(error)) from None
            except Exception as error:
                if getattr(error, "status", None) == GONE:
                    raise PodGivenUp(f"The pod {pod.metadata.name} is gone.") from None
                if not _is_away(error):
                    raise
                reason = _reason(error)
            else:
                return found
            if time.monotonic() - told >= REMINDER_SECONDS:
                told = time.monotonic()
                self.log.warning("The Kubernetes API does not answer (%s): waiting for it.", reason)
            await asyncio.sleep(AWAY_SECONDS)

    async def await_pod_start(self, *arguments: Any, **options: Any) -> None:
        """Wait for the pod to start; see ``read_pod``."""
        self._start = _Start()
        try:
            await super().await_pod_start(*arguments, **options)
        finally:
            self._start = None

    async def watch_pod_events(self, pod: V1Pod, check_interval: float = 30) -> None:
        """As the parent's, which asks as often as it looks at the pod."""
        await super().watch_pod_events(pod, max(check_interval, 10.0))

    async def fetch_container_logs_before_current_sec(
        self, pod: V1Pod, container_name: str, since_time: Any = None
    ) -> Any:
        """Pass on what the container has logged since the last time. What can't be read now is read the next time."""
        from kubernetes_asyncio.client import ApiException

        try:
            return await super().fetch_container_logs_before_current_sec(pod, container_name, since_time)
        except Exception as error:
            if not isinstance(error, ApiException) and not _is_away(error):
                raise
            self.log.debug("The pod's log can't be read now (%s).", type(error).__name__)
            return since_time

    def _emit_container_logs(self, logs: list[str], now: Any, container_name: str) -> None:
        from airflow.providers.cncf.kubernetes.utils.pod_manager import parse_log_line as with_time

        second = now.replace(microsecond=0)
        told_until = self._told_until
        for line in logs:
            moment, message = with_time(line)
            # The next read begins with this second.
            if moment is not None and moment.replace(microsecond=0) == second:
                return
            # A read begins with a whole second, part of which the last one ended with.
            if moment is not None and told_until is not None and moment <= told_until:
                continue
            self._told_until = moment or self._told_until
            if message:
                level, text = parse_log_line(message)
                self.log.log(level, "%s", text)


def _is_away(error: Exception) -> bool:
    """Whether an API call failed because the server is busy, or could not be reached; with either Python client."""
    from airflow.providers.cncf.kubernetes.exceptions import KubernetesApiError
    from airflow.providers.cncf.kubernetes.kubernetes_helper_functions import TRANSIENT_CONNECTION_ERRORS
    from kubernetes.client.exceptions import ApiException
    from kubernetes_asyncio.client import ApiException as AsyncApiException

    if isinstance(error, ApiException | AsyncApiException):
        return not error.status or error.status == TOO_MANY_REQUESTS or error.status >= SERVER_ERROR
    passing = (*TRANSIENT_CONNECTION_ERRORS, KubernetesApiError, ClusterUnavailableError, ConnectionError, TimeoutError)
    return isinstance(error, passing)


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or type(error).__name__)


def _is_unstartable(pod: V1Pod) -> bool:
    """Whether a container can't be created because of what the pod says."""
    return any(
        status.state is not None
        and status.state.waiting is not None
        and status.state.waiting.reason == "CreateContainerConfigError"
        for status in (*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ()))
    )


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
    if deadline is not None and is_active(pod) and not is_ending(pod):
        grace = pod.spec.termination_grace_period_seconds or 0
        if now > deadline + grace + LOST_AFTER_SECONDS:
            raise NodeLostError(
                f"The pod {pod.metadata.name} shows up as {pod.status.phase} long after its deadline: its node "
                f"{pod.spec.node_name or ''} does not answer."
            )
