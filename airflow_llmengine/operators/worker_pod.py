"""A worker in a pod, by way of KubernetesPodOperator: how it is made, found again, waited for, and brought to an end.

Whether the pod did its work is never told by the pod operator's return: ``_conclude`` looks at storage.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from airflow.sdk.configuration import conf

from airflow_llmengine.exceptions import (
    KEPT,
    ConnectionUnusableError,
    DeadlineExceededError,
    LLMEngineError,
    NodeLostError,
    PodQuotaError,
    RequestRefusedError,
    TaskKilledError,
)
from airflow_llmengine.hooks.cluster_errors import cluster_errors
from airflow_llmengine.hooks.llmengine import LLMEngineHook
from airflow_llmengine.operators.batch_task import BatchTaskMixin

if TYPE_CHECKING:
    from datetime import timedelta

    from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
    from airflow.sdk import Context
    from kubernetes.client import V1Pod

    from airflow_llmengine.hooks.connection_settings import ConnectionSettings
    from airflow_llmengine.hooks.worker_attempt import WorkerAttempt
    from airflow_llmengine.hooks.worker_pod_manager import WorkerPodManager
    from airflow_llmengine.kube.diagnosis import Diagnosis
    from airflow_llmengine.operators.pod_launch import PodLaunch
    from airflow_llmengine.spec.job_state import HandedOverPod
    from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
    from airflow_llmengine.storage.status import JobStatus

    class _Base(BatchTaskMixin, KubernetesPodOperator):
        pass
else:
    _Base = BatchTaskMixin

DEFAULTS: dict[str, Any] = {
    # A node with a GPU must come first, and then an image of many gigabytes.
    "schedule_timeout_seconds": 3600,
    "startup_timeout_seconds": 1800,
    "startup_check_interval_seconds": 10,
    "poll_interval": 15,
    "on_finish_action": "delete_succeeded_pod",
    "termination_message_policy": "FallbackToLogsOnError",
    "log_events_on_failure": True,
    # It holds the whole environment of the pod.
    "log_pod_spec_on_failure": False,
}
"""What the pod operator is given unless the DAG says otherwise: its own defaults are for short jobs without GPUs."""

GONE_POLL_SECONDS = 2.0
REMINDER_SECONDS = 300.0

BACKSTOP_SECONDS = 600.0
"""So long after the deadline and the pod's grace a task is not left deferred: its trigger would have fired."""


class WorkerEnd(Protocol):
    """How a worker ended, wherever it ran."""

    @property
    def done(self) -> bool:
        """Whether it said that nothing is left to do for it."""

    @property
    def said(self) -> str:
        """The worker's last word on why it failed; may be empty."""

    def failure(
        self, attempt: WorkerAttempt, status: JobStatus, *, series: str | None, launched_by: str
    ) -> LLMEngineError:
        """The exception for a worker that ended without a result."""


class WorkerPodMixin(_Base):
    """The side of a task that runs its worker in a pod, in front of a pod operator."""

    def __init__(self, **kwargs: Any) -> None:
        given = {**(kwargs.get("default_args") or {}), **kwargs}
        super().__init__(**kwargs, **{name: value for name, value in self._pod_defaults().items() if name not in given})
        self._has_pods = False
        self._attempt: WorkerAttempt | None = None
        self._pod_launch: PodLaunch | None = None
        self._diagnosis: Diagnosis | None = None
        self._resumed: tuple[str, str] | None = None

    @classmethod
    def _pod_defaults(cls) -> dict[str, Any]:
        """The defaults that the pod operator behind this class takes; there may be none behind it."""
        from airflow_llmengine.operators.request_arguments import known_arguments

        known = known_arguments(cls)
        return {name: value for name, value in DEFAULTS.items() if name in known}

    @abstractmethod
    def _conclude(self, hook: LLMEngineHook, attempt: WorkerAttempt, end: WorkerEnd) -> Any:
        """The task's result, by what stands on storage; raises if there is none."""

    def trigger_reentry(self, context: Context, event: dict[str, Any], attempt: Mapping[str, Any] | None = None) -> Any:
        """Go on when the trigger has fired.

        Raises:
            TaskDeferred: The pod still runs.
            LLMEngineError: The worker ended without a result.
        """
        from airflow_llmengine.hooks.worker_attempt import WorkerAttempt
        from airflow_llmengine.operators.pod_launch import PodEnd

        if attempt is None and self._attempt is not None:
            # The pod operator itself calls this where the pod has ended before it could be waited for.
            return super().trigger_reentry(context, event)
        if attempt is None:
            raise RequestRefusedError("The task was deferred by another version of this package: clear it.")
        hook = LLMEngineHook(self.llmengine_conn_id)
        self._apply_connection(hook.settings)
        self._attempt = WorkerAttempt.decode(attempt)
        self._resumed = (event["name"], event["namespace"])
        resume = super().trigger_reentry
        end = self._watch(lambda: resume(context, event))
        if event["status"] == "success" and self.pod is None:
            # It was seen to succeed, and something has deleted it since.
            end = PodEnd.succeeded()
        return self._conclude(hook, self._attempt, end)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Go on after a deferral. Without a trigger's event nobody watches the pod: it is brought to an end."""
        from airflow.sdk.bases.operator import TRIGGER_FAIL_REPR

        from airflow_llmengine.kube.reattach import is_active

        if next_method == TRIGGER_FAIL_REPR:
            self._apply_connection(LLMEngineHook(self.llmengine_conn_id).settings)
            with cluster_errors():
                for pod in self._own_pods(context):
                    if is_active(pod):
                        self.log.warning("Nobody watches the pod %s any more: it is ended.", _name(pod))
                        self._delete(pod)
        return super().resume_execution(next_method, next_kwargs, context)

    def defer(
        self,
        *,
        trigger: Any,
        method_name: str,
        kwargs: dict[str, Any] | None = None,
        timeout: timedelta | float | None = None,
    ) -> NoReturn:
        """Defer with a trigger that tells the job's progress and holds it to its deadline."""
        from airflow_llmengine.triggers.worker_pod import watching

        attempt = self._attempt
        if attempt is not None:
            grace = self._pod_grace()
            trigger = watching(trigger, llmengine_conn_id=self.llmengine_conn_id, attempt=attempt, grace_seconds=grace)
            kwargs = {**(kwargs or {}), "attempt": attempt.encode()}
            # Where no triggerer lives to hold the deadline, the scheduler does.
            timeout = timeout or max(0.0, attempt.deadline - time.time()) + grace + BACKSTOP_SECONDS
        super().defer(trigger=trigger, method_name=method_name, kwargs=kwargs, timeout=timeout)

    def build_pod_request_obj(self, context: Context | None = None, *, dry_run: bool = False) -> V1Pod:
        """The pod as the pod operator builds it, with the worker in it."""
        # By do_xcom_push the pod operator means a container beside the worker's, which would never end.
        wish, self.do_xcom_push = self.do_xcom_push, False
        try:
            pod = super().build_pod_request_obj(context, dry_run=dry_run)
        finally:
            self.do_xcom_push = wish
        return pod if self._pod_launch is None else self._pod_launch.complete(pod, container=self.base_container_name)

    def find_pod(self, namespace: str, context: Context, *, exclude_checked: bool = True) -> V1Pod | None:
        """The pod that this attempt made or took over; others with its labels are none of its business."""
        if self.pod is None:
            return super().find_pod(namespace, context, exclude_checked=exclude_checked)
        return self.pod_manager.read_pod(self.pod)

    def get_or_create_pod(self, pod_request_obj: V1Pod, context: Context) -> V1Pod:
        """Take over the pod of an earlier attempt, or make one when all others of this task are gone.

        Raises:
            LLMEngineError: It can't be made, or Airflow ended the task.
        """
        from airflow_llmengine.kube.reattach import fate_of

        launch = self._pod_launch
        if launch is None:
            raise RequestRefusedError("The pod operator was asked for a pod before the job was launched.")
        pods = self._own_pods(context, pod_request_obj.metadata.namespace)
        fates = [(fate_of(pod, launch.identity, durable=self.reattach_on_restart), pod) for pod in pods]
        # Set at once, here and below: on_kill may come at any time.
        self.pod = adopted = next((pod for fate, pod in fates if fate == "adopt"), None)
        for fate, pod in fates:
            if fate in ("adopt", "replace") and pod is not adopted:
                self.log.info("The pod %s of an earlier attempt is at work on something else: it is ended.", _name(pod))
                self._delete(pod)
            elif fate in ("finished", "ended"):
                self.process_pod_deletion(pod, reraise=False)
        self._await_gone([pod for fate, pod in fates if fate in ("going", "adopt", "replace") and pod is not adopted])
        if adopted is not None:
            self.log.info("Taking over the pod %s of an earlier attempt: it does this very job.", _name(adopted))
        else:
            self._delete_expired(pod_request_obj.metadata.namespace)
        self.pod = adopted or self._create(pod_request_obj)
        self._end_if_killed()
        launch.add_secret(self.client, self.pod)
        return self.pod

    def cleanup(
        self,
        pod: V1Pod,
        remote_pod: V1Pod,
        xcom_result: dict[str, Any] | None = None,
        context: Context | None = None,
    ) -> None:
        """Find out how the pod ended, and leave nothing of it that runs. Does not raise for a pod that failed."""
        from airflow_llmengine.kube.reattach import is_active

        # Between its making and the first look at it something may have failed.
        remote_pod = remote_pod or self.pod
        if self._killed or not remote_pod:
            return
        found = self._look(remote_pod)
        self._diagnosis = self._diagnose(found, remote_pod)
        if found is None:
            return
        if is_active(found):
            # Whatever on_finish_action says: nobody waits for it any more.
            self._delete(found)
        elif not self.process_pod_deletion(found, reraise=False):
            # It stays, and a later attempt must not take it for one that nobody has seen the end of.
            self.patch_already_checked(found, reraise=False)
        if self._diagnosis.exit_code is not None and self._diagnosis.exit_code in self.skip_on_exit_code:
            from airflow.sdk.exceptions import AirflowSkipException

            raise AirflowSkipException(
                f"The worker ended with the exit code {self._diagnosis.exit_code}, which is one of skip_on_exit_code."
            )

    def on_kill(self) -> None:
        """Delete the pod, which saves its work within its grace period, when Airflow ends the task."""
        self._ended_by_airflow = True
        if self.pod is None and self._resumed is not None:
            self.pod = _named(*self._resumed)
        super().on_kill()

    @cached_property
    def pod_manager(self) -> WorkerPodManager:
        """What reads the pod's state and log."""
        from airflow_llmengine.hooks.worker_pod_manager import WorkerPodManager

        manager = WorkerPodManager(kube_client=self.client, callbacks=self.callbacks)
        manager.deadline = None if self._attempt is None else self._attempt.deadline
        manager.is_ended = lambda: self._ended_by_airflow
        return manager

    def _write_logs(self, pod: V1Pod, follow: bool = False, since_time: Any = None) -> None:  # type: ignore[override]
        """The end of the worker's log, once the pod has ended: what came before was told as progress.

        Raises:
            NodeLostError: There is nobody to ask for it.
        """
        from airflow_llmengine.hooks.pods import log_tail
        from airflow_llmengine.hooks.worker_pod_manager import refuse_lost

        refuse_lost(pod, self.pod_manager.deadline)
        log_tail(
            self.client,
            pod,
            container=self.base_container_name,
            log=self.log.log,
            formatter=self.log_formatter,
            since=since_time if isinstance(since_time, datetime) else None,
        )

    def _read_pod_container_states(self, pod: V1Pod, *, reraise: bool = True) -> None:
        """Nothing: ``_diagnose`` tells it, and a container's last words may quote prompts."""

    def _read_pod_events(self, pod: V1Pod, *, reraise: bool = True) -> None:
        """Nothing: ``_diagnose`` tells them."""

    def _apply_connection(self, settings: ConnectionSettings) -> None:
        """Take from the connection what the DAG leaves open. Called whenever the task begins, or goes on.

        Raises:
            ConnectionUnusableError: There is no image.
        """
        from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook

        if settings.kubernetes_conn_id and self.kubernetes_conn_id in (None, KubernetesHook.default_conn_name):
            self.kubernetes_conn_id = settings.kubernetes_conn_id
        self._has_pods = True
        # Pods are looked for there, too, and not only made.
        self.namespace = self.namespace or self._template_namespace() or settings.namespace
        if settings.pod_template and not (self.pod_template_file or self.pod_template_dict or self.full_pod_spec):
            self.pod_template_dict = settings.pod_template
            self.namespace = self.namespace or self._template_namespace()
        if not (self.image or settings.image or self.pod_template_file or self.pod_template_dict or self.full_pod_spec):
            raise ConnectionUnusableError(
                f"There is no worker image: give it in the field image of the connection {self.llmengine_conn_id}, or "
                "as the argument image."
            )

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

    def _refuse_without_pods(self) -> None:
        """Refuse arguments that only mean something for pods."""

    def _run_pod(
        self,
        context: Context,
        hook: LLMEngineHook,
        attempt: WorkerAttempt,
        request: CreateBatchCompletionsV1Request,
    ) -> WorkerEnd:
        """Run the worker in a pod, to its end unless the task is deferrable.

        Raises:
            TaskDeferred: The trigger waits for it.
            LLMEngineError: It could not be made, or the task was ended.
        """
        from airflow_llmengine.operators.pod_launch import PodEnd

        self._begin_pod(hook, attempt, request)
        if self._has_finished(context):
            self.log.info("A pod of an earlier attempt has done this already, while nobody watched it.")
            return PodEnd.succeeded()
        execute = super().execute
        return self._watch(lambda: execute(context))

    def _start_pod(
        self,
        context: Context,
        hook: LLMEngineHook,
        attempt: WorkerAttempt,
        request: CreateBatchCompletionsV1Request,
    ) -> None:
        """Make the pod, or find that it runs, and leave it to a sensor.

        Raises:
            LLMEngineError: It could not be made, or the task was ended.
        """
        self._begin_pod(hook, attempt, request, handed_over=True)
        try:
            with cluster_errors():
                pod = self.get_or_create_pod(self.build_pod_request_obj(context), context)
            self._end_if_killed()
            hook.hand_over(attempt.handle.path, self._handed_over(attempt, pod))
        except BaseException:
            # Nobody would see to it.
            if self.pod is not None:
                self._delete(self.pod)
            raise
        ti = context["ti"]
        ti.xcom_push(key="pod_name", value=pod.metadata.name)
        ti.xcom_push(key="pod_namespace", value=pod.metadata.namespace)
        self.log.info("The pod %s runs the job from here on; nobody waits for it in this task.", _name(pod))

    def _handed_over(self, attempt: WorkerAttempt, pod: V1Pod) -> HandedOverPod:
        """What a sensor is told of the pod."""
        from airflow_llmengine.spec.job_state import HandedOverPod

        return HandedOverPod(
            fingerprint=attempt.handle.fingerprint,
            generation=attempt.handle.generation,
            series=attempt.series,
            namespace=pod.metadata.namespace,
            pod=pod.metadata.name,
            container=self.base_container_name,
            server=self.client.api_client.configuration.host,
            start_by=time.time() + self.schedule_timeout_seconds + self.startup_timeout_seconds,
            on_finish_action=self.on_finish_action.value,
        )

    def _begin_pod(
        self,
        hook: LLMEngineHook,
        attempt: WorkerAttempt,
        request: CreateBatchCompletionsV1Request,
        *,
        handed_over: bool = False,
    ) -> None:
        from airflow_llmengine.operators.pod_launch import PodLaunch

        left = attempt.deadline - time.time()
        if left <= 0:
            raise DeadlineExceededError(
                f"max_runtime_sec ran out before a pod was made. {KEPT}. Clear {attempt.launched_by} to go on with a "
                "new budget."
            )
        self._attempt = attempt
        self._pod_launch = PodLaunch.of(
            hook,
            attempt,
            request,
            grace_seconds=conf.getint("llmengine", "grace_seconds"),
            handed_over=handed_over,
        )
        # A pod that is still waiting by then could not do anything any more.
        self.schedule_timeout_seconds = min(self.schedule_timeout_seconds, math.ceil(left))
        self.startup_timeout_seconds = min(self.startup_timeout_seconds, math.ceil(left))

    def _pod_grace(self) -> float:
        """Seconds that the pod has to end."""
        spec = None if self.pod is None else self.pod.spec
        given = self.termination_grace_period or (spec and spec.termination_grace_period_seconds)
        return float(given or conf.getint("llmengine", "grace_seconds"))

    def _has_finished(self, context: Context) -> bool:
        """Whether a pod of an earlier attempt has succeeded at this. A job of one replica is judged by its manifest."""
        from airflow_llmengine.kube.reattach import fate_of

        launch, attempt = self._pod_launch, self._attempt
        if launch is None or attempt is None or attempt.replicas == 1 or attempt.replica is None:
            return False
        with cluster_errors():
            pods = self._own_pods(context)
        finished = [pod for pod in pods if fate_of(pod, launch.identity) == "finished"]
        for pod in finished:
            self.process_pod_deletion(pod, reraise=False)
        return bool(finished)

    def _tidy_pods(self, context: Context) -> None:
        """See to what an earlier attempt left, where the job turned out to be done. Never fails the task."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        from airflow_llmengine.kube.reattach import is_active

        if not self._has_pods:
            return
        try:
            for pod in self._own_pods(context):
                if is_active(pod):
                    self._delete(pod)
                else:
                    self.process_pod_deletion(pod, reraise=False)
        except (ApiException, HTTPError) as error:
            self.log.warning("Pods of earlier attempts could not be looked for (%s).", type(error).__name__)

    def _watch(self, wait: Callable[[], Any]) -> WorkerEnd:
        """Let the pod operator wait, and say how the pod ended, whatever the pod operator makes of it."""
        from airflow.sdk.exceptions import AirflowException, AirflowSkipException, TaskDeferred
        from kubernetes.client.exceptions import ApiException
        from kubernetes.config.config_exception import ConfigException
        from urllib3.exceptions import HTTPError

        from airflow_llmengine.operators.pod_launch import PodEnd

        wish, self.do_xcom_push = self.do_xcom_push, False
        try:
            wait()
        except NodeLostError:
            # Should the node come back, the pod ends.
            with cluster_errors():
                if self.pod is not None:
                    self._delete(self.pod)
            self._refuse_if_ended()
            raise
        except (LLMEngineError, AirflowSkipException, TaskDeferred):
            self._refuse_if_ended()
            raise
        except (AirflowException, ApiException, HTTPError, ConfigException) as error:
            if self.pod is None and self._resumed is None:
                self._refuse_if_ended()
                with cluster_errors():
                    raise
            # The pod's state says more, and the texts may quote the pod.
            self.log.debug("The pod operator ended with %s.", type(error).__name__, exc_info=True)
        finally:
            self.do_xcom_push = wish
        self._refuse_if_ended()
        if self._diagnosis is None:
            known = self.pod or (None if self._resumed is None else _named(*self._resumed))
            with cluster_errors():
                self._diagnosis = self._diagnose(None if known is None else self._look(known), known)
        return PodEnd(self._diagnosis)

    def _own_pods(self, context: Context, namespace: str | None = None) -> list[V1Pod]:
        """All pods of this task instance, of whichever attempt, the newest first."""
        from airflow_llmengine.hooks.pods import patiently

        selector = self._build_find_pod_label_selector(context, exclude_checked=False)
        namespace = namespace or self.namespace or self.hook.get_namespace() or self._incluster_namespace or "default"
        found = patiently(self.client.list_namespaced_pod)(namespace, label_selector=selector).items
        return sorted(found, key=lambda pod: pod.metadata.creation_timestamp, reverse=True)

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
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        from airflow_llmengine.hooks.pods import delete_expired

        ttl = conf.getint("llmengine", "finished_pod_ttl_seconds")
        try:
            deleted = delete_expired(self.client, namespace, ttl_seconds=ttl)
        except (ApiException, HTTPError) as error:
            self.log.warning("Pods that ended long ago could not be looked for (%s).", type(error).__name__)
            return
        if deleted:
            self.log.info("Deleted pods that ended more than %d s ago: %s.", ttl, ", ".join(deleted))

    def _await_gone(self, pods: list[V1Pod]) -> None:
        """Wait until pods that are being deleted are gone: two attempts must not work at once."""
        from airflow_llmengine.hooks.worker_pod_manager import refuse_lost

        for pod in pods:
            self.log.info("Waiting for the pod %s of an earlier attempt to end.", _name(pod))
            try:
                while (found := self._look(pod)) is not None:
                    refuse_lost(found, None)
                    self._end_if_killed()
                    self._pause(GONE_POLL_SECONDS)
            except NodeLostError as error:
                # Should it wake up again, the job's files keep it from doing harm.
                self.log.warning("%s Going on without waiting for it.", error)

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
        if self._ended_by_airflow:
            if self.pod is not None:
                self._delete(self.pod)
            raise TaskKilledError(f"Airflow ended the task. {KEPT}; a retry, or clearing the task, goes on from there.")

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._ended_by_airflow:
            time.sleep(min(1.0, seconds))


def _name(pod: V1Pod) -> str:
    return str(pod.metadata.name)


def _named(name: str, namespace: str) -> V1Pod:
    """A pod of which no more is known yet."""
    from kubernetes.client import V1ObjectMeta, V1Pod

    return V1Pod(metadata=V1ObjectMeta(name=name, namespace=namespace))
