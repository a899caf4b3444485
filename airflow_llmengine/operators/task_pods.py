"""The pods of a task instance, of whichever attempt: found, made, waited for until they are gone, judged and ended."""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk.configuration import conf

from airflow_llmengine.exceptions import (
    KEPT,
    ConnectionUnusableError,
    NodeLostError,
    PodQuotaError,
    TaskKilledError,
)
from airflow_llmengine.hooks.cluster_errors import only_warned_of
from airflow_llmengine.operators.batch_task import BatchTaskMixin

if TYPE_CHECKING:
    from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
    from airflow.sdk import Context
    from kubernetes.client import V1Pod

    from airflow_llmengine.hooks.connection_settings import ConnectionSettings
    from airflow_llmengine.hooks.eks_access import EksCluster
    from airflow_llmengine.kube.diagnosis import Diagnosis

    class _Base(BatchTaskMixin, KubernetesPodOperator):
        pass
else:
    _Base = BatchTaskMixin

GONE_POLL_SECONDS = 2.0
REMINDER_SECONDS = 300.0


class TaskPodsMixin(_Base):
    """A task's dealings with its pods, by the pod operator's client. Nothing here knows of jobs."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._has_pods = False
        self._eks: EksCluster | None = None

    @cached_property
    def hook(self) -> Any:
        """What the pod operator asks its cluster by."""
        if self._eks is None:
            return super().hook
        from airflow_llmengine.hooks.eks_kubernetes import EksKubernetesHook

        return EksKubernetesHook(self._eks)

    def _apply_connection(self, settings: ConnectionSettings) -> None:
        """Take from the connection what the DAG leaves open. Called whenever the task begins, or goes on.

        Raises:
            ConnectionUnusableError: There is no image, or its template is no pod.
        """
        from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook

        from airflow_llmengine.hooks.pod_template import read_pod_template

        self._eks = self._eks_cluster(settings)
        if settings.kubernetes_conn_id and self.kubernetes_conn_id in (None, KubernetesHook.default_conn_name):
            self.kubernetes_conn_id = settings.kubernetes_conn_id
        self._has_pods = True
        # Pods are looked for there, too, and not only made.
        self.namespace = self.namespace or self._template_namespace() or settings.namespace
        if settings.pod_template and not (self.pod_template_file or self.pod_template_dict or self.full_pod_spec):
            read_pod_template(settings.pod_template)
            self.pod_template_dict = settings.pod_template
            self.namespace = self.namespace or self._template_namespace()
        if not (self.image or settings.image or self.pod_template_file or self.pod_template_dict or self.full_pod_spec):
            raise ConnectionUnusableError(
                f"There is no worker image: give it in the field image of the connection {self.llmengine_conn_id}, or "
                "as the argument image."
            )

    def _eks_cluster(self, settings: ConnectionSettings) -> EksCluster | None:
        """The EKS cluster that the DAG or the connection names; None: a Kubernetes connection leads to the cluster.

        Raises:
            ConnectionUnusableError: It is to be one, and none is named.
        """
        from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook

        from airflow_llmengine.hooks.eks_access import EksCluster

        given: dict[str, str] | None = getattr(self, "eks_arguments", None)
        if given is None:
            other = self.in_cluster or self.config_file or self.cluster_context
            if other or self.kubernetes_conn_id not in (None, KubernetesHook.default_conn_name):
                return None
            return settings.eks
        named = {} if settings.eks is None else settings.eks.model_dump()
        if not {**named, **given}.get("cluster_name"):
            raise ConnectionUnusableError(
                f"There is no EKS cluster: name it in the field eks of the connection {self.llmengine_conn_id}, or as "
                "the argument cluster_name."
            )
        return EksCluster(**{**named, **given})

    def _template_namespace(self) -> str | None:
        """The namespace that the pod's template names."""
        from airflow.providers.cncf.kubernetes.pod_generator import PodGenerator

        templates = [self.full_pod_spec]
        if self.pod_template_file:
            templates.append(PodGenerator.deserialize_model_file(self.pod_template_file))
        elif self.pod_template_dict:
            templates.append(PodGenerator.deserialize_model_dict(self.pod_template_dict))
        named = (pod.metadata.namespace for pod in templates if pod is not None and pod.metadata is not None)
        return next(filter(None, named), None)

    def _tidy_pods(self, context: Context) -> None:
        """See to what an earlier attempt left, where the job turned out to be done. Never fails the task."""
        from airflow_llmengine.kube.reattach import is_active

        if not self._has_pods or not self._reaches_cluster_by_itself:
            return
        with only_warned_of(self.log, "Pods of earlier attempts could not be looked for (%s)."):
            for pod in self._own_pods(context):
                if is_active(pod):
                    self._delete(pod)
                else:
                    self.process_pod_deletion(pod, reraise=False)

    @property
    def _reaches_cluster_by_itself(self) -> bool:
        """Whether the pod operator's client works at any time: that of a cloud's own only within its ``execute``."""
        from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator

        bases = type(self).__mro__
        behind = bases[bases.index(BatchTaskMixin) + 1]
        return behind is KubernetesPodOperator or hasattr(behind, "eks_arguments")

    def _end_what_is_left(self) -> None:
        """End a pod that nobody will wait for, since the task fails. Never raises: another exception is on its way."""
        if self.pod is None:
            return
        with only_warned_of(self.log, "The pod %s could not be ended (%s): delete it by hand.", name_of(self.pod)):
            found = self._look(self.pod)
            if found is not None and found.status.phase not in ("Succeeded", "Failed"):
                self._delete(found)

    def _own_pods(self, context: Context, namespace: str | None = None) -> list[V1Pod]:
        """All pods of this task instance, of whichever attempt, the newest first."""
        from airflow_llmengine.hooks.pods import patiently

        selector = self._build_find_pod_label_selector(context, exclude_checked=False)
        namespace = namespace or self._pods_namespace()
        found = patiently(self.client.list_namespaced_pod)(namespace, label_selector=selector).items
        return sorted(found, key=lambda pod: pod.metadata.creation_timestamp, reverse=True)

    def _pods_namespace(self) -> str:
        """Where pods are made, by the pod operator's own rule, unless a template or a policy says otherwise."""
        return str(self.namespace or self.hook.get_namespace() or self._incluster_namespace or "default")

    def _create(self, pod: V1Pod) -> V1Pod:
        """Make the pod; where a quota is used up, wait for it as for a node."""
        from airflow_llmengine.hooks.pods import create_pod

        until = time.time() + self.schedule_timeout_seconds
        told = float("-inf")
        while True:
            self._end_if_killed()
            try:
                return create_pod(self.client, pod)
            except PodQuotaError as error:
                if time.time() >= until:
                    raise
                if time.monotonic() - told >= REMINDER_SECONDS:
                    told = time.monotonic()
                    self.log.info("Waiting for the quota: %s", error)
            self._pause(min(self.startup_check_interval_seconds, max(0.0, until - time.time())))

    def _delete_expired(self, namespace: str) -> None:
        """See to pods of this package that are kept for evidence, whoever made them. Never fails the task."""
        from airflow_llmengine.hooks.pods import delete_expired

        ttl = conf.getint("llmengine", "finished_pod_ttl_seconds")
        with only_warned_of(self.log, "Pods that ended long ago could not be looked for (%s)."):
            deleted = delete_expired(self.client, namespace, ttl_seconds=ttl)
            if deleted:
                self.log.info(
                    "Deleted pods that ended more than %d s ago, or did not start by their deadline: %s.",
                    ttl,
                    ", ".join(deleted),
                )

    def _await_gone(self, pods: list[V1Pod]) -> None:
        """Wait until pods that are deleted are gone, and others ended: two attempts must not work at once."""
        from airflow_llmengine.hooks.worker_pod_manager import refuse_lost
        from airflow_llmengine.kube.reattach import is_active

        for pod in pods:
            self.log.info("Waiting for the pod %s of an earlier attempt to end.", name_of(pod))
            try:
                while (found := self._look(pod)) is not None:
                    if found.metadata.deletion_timestamp is None and not is_active(found):
                        break
                    refuse_lost(found, None)
                    self._end_if_killed()
                    self._pause(GONE_POLL_SECONDS)
            except NodeLostError as error:
                # Should it wake up again, the job's files keep it from doing harm.
                self.log.warning("%s Going on without waiting for it.", error)

    def _free_name(self, pods: list[V1Pod], name: str) -> None:
        """Delete a kept pod whose name the next one has: without a random suffix all attempts' pods have the same."""
        for pod in pods:
            if name_of(pod) == name and self._look(pod) is not None:
                self.log.info("Deleting the pod %s of an earlier attempt: the next one has its name.", name)
                self._delete(pod)
                self._await_gone([pod])

    def _look(self, pod: V1Pod) -> V1Pod | None:
        """The pod as it is now; None if it is gone, or another one by that name is there."""
        from airflow_llmengine.hooks.pods import read_pod

        found = read_pod(self.client, pod.metadata.name, pod.metadata.namespace)
        return found if found is None or pod.metadata.uid in (None, found.metadata.uid) else None

    def _diagnose(self, found: V1Pod | None, known: V1Pod | None) -> Diagnosis:
        from airflow_llmengine.hooks.pods import events_of
        from airflow_llmengine.kube.diagnosis import diagnose

        pod = found or known
        events = [] if pod is None else events_of(self.client, pod)
        diagnosis = diagnose(found, events, container=self.base_container_name, last_seen=known)
        if diagnosis.kind != "succeeded" and self.log_events_on_failure:
            for event in events:
                if event.type == "Warning":
                    self.log.warning("Event of the pod: %s: %s", event.reason, event.message)
        return diagnosis

    def _delete(self, pod: V1Pod) -> None:
        """Have a pod end; it saves its work within its grace period."""
        from airflow_llmengine.hooks.pods import delete_pod

        delete_pod(self.client, pod, grace_seconds=self.termination_grace_period)

    def _end_if_killed(self) -> None:
        """Stop before there is a pod, or with it, if Airflow ended the task: its signal does not end a loop.

        Raises:
            TaskKilledError: It did.
        """
        from airflow.providers.cncf.kubernetes.utils.pod_manager import OnKillAction

        if self._ended_by_airflow:
            if self.pod is not None and self.on_kill_action != OnKillAction.KEEP_POD:
                self._delete(self.pod)
            raise TaskKilledError(f"Airflow ended the task. {KEPT}; a retry, or clearing the task, goes on from there.")

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._ended_by_airflow:
            time.sleep(min(1.0, seconds))


def name_of(pod: V1Pod) -> str:
    """The pod's name."""
    return str(pod.metadata.name)


def pod_named(name: str, namespace: str) -> V1Pod:
    """A pod of which no more is known yet."""
    from kubernetes.client import V1ObjectMeta, V1Pod

    return V1Pod(metadata=V1ObjectMeta(name=name, namespace=namespace))
