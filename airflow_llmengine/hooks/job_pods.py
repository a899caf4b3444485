"""The pods of a job that its launching task left to a sensor: what becomes of them, and their end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from airflow_llmengine.exceptions import KEPT, LLMEngineError
from airflow_llmengine.hooks.cluster_client import cluster_client
from airflow_llmengine.hooks.job_decision import POD_END_SECONDS
from airflow_llmengine.hooks.pods import CALL_TIMEOUT, delete_pod, events_of
from airflow_llmengine.hooks.replica_nodes import end_followers, with_nodes

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api, V1Pod

    from airflow_llmengine.hooks.connection_settings import ConnectionSettings
    from airflow_llmengine.hooks.job_decision import PodsState
    from airflow_llmengine.kube.diagnosis import Diagnosis
    from airflow_llmengine.spec.job_state import HandedOverPod, JobHandle
    from airflow_llmengine.storage.status import JobStatus

NEVER_STARTS = ("image_unavailable", "misconfigured")
"""Kinds of a diagnosis after which a pod that waits would wait for ever."""

Which = Literal["at_work", "ended"]
"""Which pods are deleted: those at work, or also those that have ended, as the launching task says: by default failed
ones are kept to be looked at."""


@dataclass(frozen=True, slots=True)
class SeenPods:
    """What one look at the cluster found."""

    state: PodsState = "unknown"
    pods: list[V1Pod] = field(default_factory=list)
    """The job's pods that were handed over, of whichever series of attempts."""
    fault: str = ""
    """Why they could not be looked at, as a sentence."""


NO_PODS = SeenPods()
"""Nothing is known of any."""


class JobPods:
    """Looks at the pods of one job that were handed over, and deletes them.

    A cluster that can't be reached, or may not be looked at, is told once, and is no reason to fail: the job's files
    say how it goes.

    Args:
        settings: The connection.
        handle: The job.
        handed_over: The pod that was handed over last.
        log: The logger of the task or the trigger.
        told: What was warned of already; added to.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        handle: JobHandle,
        handed_over: HandedOverPod,
        *,
        log: Any,
        told: list[str],
    ) -> None:
        self.handle = handle
        self.handed_over = handed_over
        self._told = told
        self._settings = settings
        self._log = log
        self._client: CoreV1Api | None = None

    def look(self, series: str | None, now: float) -> SeenPods:
        """Look at the pods once. Never raises; the next look follows soon.

        Args:
            series: Who launched the job last; None: it has finished.
            now: Seconds since the epoch.
        """
        try:
            found = self._list()
        except _CannotLookError as error:
            self._client = None
            self._warn(
                f"The job's pods can't be looked at. {error} Until they can, the job's files alone tell how it goes, "
                "and its pods that run end by themselves at its deadline at the latest."
            )
            return SeenPods(fault=str(error))
        return SeenPods(self._state(found, series, now), found)

    def delete(self, seen: SeenPods, which: Which) -> None:
        """Delete pods, those at work with their grace, within which the worker saves what it has. Never raises."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        from airflow_llmengine.kube.reattach import is_active, is_ending

        for pod in seen.pods:
            wanted = is_active(pod) or (which == "ended" and self._has_had_its_day(pod))
            if pod.metadata.deletion_timestamp is not None or is_ending(pod):
                continue
            try:
                if not wanted:
                    end_followers(self._connected(), pod)
                    continue
                delete_pod(self._connected(), pod)
            except (ApiException, HTTPError, LLMEngineError) as error:
                self._warn(f"The pod {_full_name(pod)} could not be deleted ({_reason(error)}): delete it by hand.")
            else:
                self._log.info("Deleted the pod %s.", _full_name(pod))

    def failure(self, seen: SeenPods, status: JobStatus) -> LLMEngineError:
        """Make the exception for a job that has not finished, and whose pods have all ended.

        Args:
            seen: The pods.
            status: What storage says of the job.
        """
        from airflow_llmengine.hooks.pod_failure import pod_failure

        job = status.job
        owner = "the task that launches it" if job is None else job.owner
        return pod_failure(
            self._diagnosis(seen),
            handle=self.handle,
            deadline=time.time() if job is None else job.deadline,
            status=status,
            series=self.handed_over.series,
            launched_by=f"{owner}, and this task,",
            retried=f"{KEPT}; to go on, clear {owner}, and this task",
        )

    def _list(self) -> list[V1Pod]:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        from airflow_llmengine.kube.labels import WORKER_SELECTOR, handed_over_annotations

        try:
            # Without patience: the next look is the next try.
            pods = self._connected().list_namespaced_pod(
                self.handed_over.namespace, label_selector=WORKER_SELECTOR, _request_timeout=CALL_TIMEOUT
            )
        except (ApiException, HTTPError, LLMEngineError) as error:
            if isinstance(error, ApiException) and error.status == 403:
                raise _CannotLookError(
                    f"Airflow may not list pods in the namespace {self.handed_over.namespace}. Grant it list, get and "
                    "delete of pods there."
                ) from None
            reason = _reason(error)
            raise _CannotLookError(f"{reason[0].upper()}{reason[1:]}.") from None
        wanted = handed_over_annotations(self.handle)
        return [pod for pod in pods.items if _has(pod, wanted)]

    def _state(self, pods: list[V1Pod], series: str | None, now: float) -> PodsState:
        from airflow_llmengine.kube.labels import handed_over_annotations

        if series is None:
            return "at_work" if any(not self._is_over(pod, now) for pod in pods) else "ended"
        if series != self.handed_over.series:
            # The job is being launched again: its pod may not be made yet.
            return "unknown"
        wanted = handed_over_annotations(self.handle, series=series)
        present = [pod for pod in pods if _has(pod, wanted)]
        if any(not self._is_over(pod, now) for pod in present):
            return "at_work"
        if not present and self._connected().api_client.configuration.host != self.handed_over.server:
            self._warn(
                f"The pod {self._name} was made in the cluster at {self.handed_over.server}, and this connection leads "
                "to another, where it is not: the job's files alone tell how it goes. Give the sensor the connection "
                "that the job was launched with."
            )
            return "unknown"
        return "ended"

    def _is_over(self, pod: V1Pod, now: float) -> bool:
        """Whether a pod has ended, or will never begin."""
        from airflow_llmengine.hooks.worker_pod_manager import LOST_AFTER_SECONDS
        from airflow_llmengine.kube.diagnosis import diagnose
        from airflow_llmengine.kube.reattach import gone_by, is_active

        if not is_active(pod, now):
            return True
        until = gone_by(pod, slack_seconds=LOST_AFTER_SECONDS)
        if until is not None:
            return now > until
        ended = _worker_ended(pod, self.handed_over.container)
        if ended is not None:
            # What runs beside the worker keeps the pod alive.
            return now > ended + POD_END_SECONDS
        if pod.status is None or pod.status.phase != "Pending":
            return False
        return now > self.handed_over.start_by or (
            diagnose(pod, (), container=self.handed_over.container).kind in NEVER_STARTS
        )

    def _has_had_its_day(self, pod: V1Pod) -> bool:
        """Whether a pod that has ended is of no use any more, by the launching task's ``on_finish_action``."""
        if pod.status.phase == "Succeeded":
            return self.handed_over.on_finish_action in ("delete_succeeded_pod", "delete_pod")
        return self.handed_over.on_finish_action == "delete_pod"

    def _diagnosis(self, seen: SeenPods) -> Diagnosis:
        from kubernetes.client import V1ObjectMeta, V1Pod

        from airflow_llmengine.kube.diagnosis import diagnose

        name = self.handed_over.pod
        found = next((pod for pod in seen.pods if pod.metadata.name == name), None)
        known = found or V1Pod(metadata=V1ObjectMeta(name=name, namespace=self.handed_over.namespace))
        container = self.handed_over.container
        try:
            client = self._connected()
            diagnosis = diagnose(found, events_of(client, known), container=container, last_seen=known)
            return with_nodes(client, found, diagnosis, container=container)
        except LLMEngineError as error:
            self._log.debug("No events of the pod: %s", error)
        return diagnose(found, [], container=container, last_seen=known)

    def _connected(self) -> CoreV1Api:
        from kubernetes.client import CoreV1Api

        if self._client is None:
            self._client = CoreV1Api(cluster_client(self._settings)[0])
        return self._client

    def _warn(self, text: str) -> None:
        if text not in self._told:
            self._log.warning("%s", text)
            self._told.append(text)

    @property
    def _name(self) -> str:
        return f"{self.handed_over.namespace}/{self.handed_over.pod}"


class _CannotLookError(Exception):
    """Why the pods could not be looked at; a sentence."""


def _has(pod: V1Pod, annotations: Mapping[str, str]) -> bool:
    present = pod.metadata.annotations or {}
    return all(present.get(name) == value for name, value in annotations.items())


def _worker_ended(pod: V1Pod, container: str) -> float | None:
    """Seconds since the epoch at which a pod's container ended; None if it has not."""
    for status in (pod.status.container_statuses or ()) if pod.status else ():
        if status.name == container and status.state is not None and status.state.terminated is not None:
            finished = status.state.terminated.finished_at
            return 0.0 if finished is None else float(finished.timestamp())
    return None


def _reason(error: Exception) -> str:
    """In a clause, without what the client quotes."""
    from kubernetes.client.exceptions import ApiException

    if isinstance(error, ApiException):
        return f"the Kubernetes API answers {error.status} {error.reason}"
    if isinstance(error, LLMEngineError):
        return str(error).rstrip(".")
    return f"the Kubernetes API can't be reached ({type(error).__name__})"


def _full_name(pod: V1Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
