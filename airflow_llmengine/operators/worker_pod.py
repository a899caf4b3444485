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
    DeadlineExceededError,
    LLMEngineError,
    RequestRefusedError,
)
from airflow_llmengine.hooks.cluster_errors import cluster_errors
from airflow_llmengine.hooks.llmengine import LLMEngineHook
from airflow_llmengine.operators.follower_pods import FollowerPodsMixin
from airflow_llmengine.operators.task_pods import name_of, pod_named

if TYPE_CHECKING:
    from datetime import timedelta

    from airflow.sdk import Context
    from kubernetes.client import V1Pod

    from airflow_llmengine.hooks.worker_attempt import WorkerAttempt
    from airflow_llmengine.hooks.worker_pod_manager import WorkerPodManager
    from airflow_llmengine.kube.diagnosis import Diagnosis
    from airflow_llmengine.operators.pod_launch import PodLaunch
    from airflow_llmengine.spec.hardware.inference import Hardware, Model
    from airflow_llmengine.spec.job_state import HandedOverPod
    from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
    from airflow_llmengine.storage.status import JobStatus

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


class WorkerPodMixin(FollowerPodsMixin):
    """The side of a task that runs its worker in a pod, in front of a pod operator."""

    def __init__(self, **kwargs: Any) -> None:
        given = {**(kwargs.get("default_args") or {}), **kwargs}
        super().__init__(**kwargs, **{name: value for name, value in self._pod_defaults().items() if name not in given})
        self._attempt: WorkerAttempt | None = None
        self._pod_launch: PodLaunch | None = None
        self._model: Model | None = None
        self._diagnosis: Diagnosis | None = None
        self._resumed: tuple[str, str] | None = None
        self._was_finished = False
        self._listed: tuple[str, list[V1Pod]] | None = None

    @classmethod
    def _pod_defaults(cls) -> dict[str, Any]:
        """The defaults that the pod operator behind this class takes; there may be none behind it."""
        from airflow_llmengine.operators.request_arguments import known_arguments

        known = known_arguments(cls)
        return {name: value for name, value in DEFAULTS.items() if name in known}

    @abstractmethod
    def _conclude(self, context: Context, hook: LLMEngineHook, attempt: WorkerAttempt, end: WorkerEnd) -> Any:
        """The task's result, by what stands on storage; raises if there is none."""

    def trigger_reentry(self, context: Context, event: dict[str, Any], attempt: Mapping[str, Any] | None = None) -> Any:
        """Go on when the trigger has fired.

        Raises:
            TaskDeferred: The pod still runs.
            LLMEngineError: The worker ended without a result.
        """
        from airflow_llmengine.hooks.worker_attempt import WorkerAttempt
        from airflow_llmengine.operators.pod_launch import PodEnd

        attempt = attempt or event.get("attempt")
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
        return self._conclude(context, hook, self._attempt, end)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Go on after a deferral. Without a trigger's event nobody watches the pod: it is brought to an end."""
        from airflow.sdk.bases.operator import TRIGGER_FAIL_REPR

        from airflow_llmengine.kube.reattach import is_active

        if next_method == TRIGGER_FAIL_REPR and self._reaches_cluster_by_itself:
            self._apply_connection(LLMEngineHook(self.llmengine_conn_id).settings)
            with cluster_errors():
                for pod in self._own_pods(context):
                    if is_active(pod):
                        self.log.warning("Nobody watches the pod %s any more: it is ended.", name_of(pod))
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
        if self._eks is not None:
            from airflow_llmengine.triggers.eks import on_eks

            trigger = on_eks(trigger, self._eks)
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
        pods = self._listed_pods(context, pod_request_obj.metadata.namespace)
        fates = [(fate_of(pod, launch.identity, durable=self.reattach_on_restart), pod) for pod in pods]
        fates = [("replace" if fate == "adopt" and self._lacks_followers(pod) else fate, pod) for fate, pod in fates]
        # Set at once, here and below: on_kill may come at any time.
        self.pod = adopted = next((pod for fate, pod in fates if fate == "adopt"), None)
        for fate, pod in fates:
            if fate in ("adopt", "replace") and pod is not adopted:
                self.log.info(
                    "The pod %s of an earlier attempt is at work on something else: it is ended.", name_of(pod)
                )
                self._delete(pod)
            elif fate in ("finished", "ended"):
                self.process_pod_deletion(pod, reraise=False)
        self._await_gone([pod for fate, pod in fates if fate in ("going", "adopt", "replace") and pod is not adopted])
        if adopted is not None:
            self.log.info("Taking over the pod %s of an earlier attempt: it does this very job.", name_of(adopted))
        else:
            self._free_name(pods, name_of(pod_request_obj))
            self._delete_expired(pod_request_obj.metadata.namespace)
        self.pod = adopted or self._create(pod_request_obj)
        self._end_if_killed()
        launch.add_secret(self.client, self.pod)
        if adopted is None:
            self._make_followers(launch, pod_request_obj, self.pod)
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
            self._end_followers(found)
        if self._diagnosis.exit_code is not None and self._diagnosis.exit_code in self.skip_on_exit_code:
            from airflow.sdk.exceptions import AirflowSkipException

            raise AirflowSkipException(
                f"The worker ended with the exit code {self._diagnosis.exit_code}, which is one of skip_on_exit_code."
            )

    def on_kill(self) -> None:
        """Delete the pod, which saves its work within its grace period, when Airflow ends the task."""
        self._ended_by_airflow = True
        if self.pod is None and self._resumed is not None:
            self.pod = pod_named(*self._resumed)
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
        execute = super().execute
        end = self._watch(lambda: execute(context))
        return PodEnd.succeeded() if self._was_finished else end

    def execute_sync(self, context: Context) -> Any:
        """Run the pod to its end, unless one of an earlier attempt has done its work."""
        return None if self._has_finished(context) else super().execute_sync(context)

    def execute_async(self, context: Context) -> None:
        """Make the pod and defer, unless one of an earlier attempt has done its work."""
        if not self._has_finished(context):
            super().execute_async(context)

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
        if not self._reaches_cluster_by_itself:
            raise RequestRefusedError(
                "wait_for_completion=False goes with LLMEngineBatchCompletionsOperator and "
                "LLMEngineEksBatchCompletionsOperator only, not with another cloud's pod operator. Leave it out."
            )
        self._begin_pod(hook, attempt, request, handed_over=True)
        self.name = self._set_name(self.name)
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
        # on_kill has deleted it, if it came in between.
        self._refuse_if_ended()
        self.log.info("The pod %s runs the job from here on; nobody waits for it in this task.", name_of(pod))

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
        request, hardware = self._with_hardware(hook, attempt, request)
        self._attempt = attempt
        self._pod_launch = PodLaunch.of(
            hook,
            attempt,
            request,
            hardware=hardware,
            grace_seconds=conf.getint("llmengine", "grace_seconds"),
            handed_over=handed_over,
            # A follower has as long as the first pod.
            nodes_within=min(self.schedule_timeout_seconds + self.startup_timeout_seconds, math.ceil(left)),
        )
        # A pod that is still waiting by then could not do anything any more.
        self.schedule_timeout_seconds = min(self.schedule_timeout_seconds, math.ceil(left))
        self.startup_timeout_seconds = min(self.startup_timeout_seconds, math.ceil(left))

    def _with_hardware(
        self, hook: LLMEngineHook, attempt: WorkerAttempt, request: CreateBatchCompletionsV1Request
    ) -> tuple[CreateBatchCompletionsV1Request, Hardware | None]:
        """The request as the engine is told, and what its pod gets; None where nothing is worked out."""
        from airflow_llmengine.operators.worker_hardware import find_model, is_worked_out, worked_out

        if attempt.replica is None or not is_worked_out(hook.settings):
            return request, None
        model = self._model or find_model(hook, request)
        if model is None:
            return request, None
        request, hardware = worked_out(hook.settings, request, model)
        self.log.info("The pod gets %s.", hardware.summary(request))
        return request, hardware

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
        namespace = self._pods_namespace()
        with cluster_errors():
            pods = self._own_pods(context, namespace)
        self._listed = namespace, pods
        finished = [pod for pod in pods if fate_of(pod, launch.identity) == "finished"]
        for pod in finished:
            self.process_pod_deletion(pod, reraise=False)
        self._was_finished = bool(finished)
        if self._was_finished:
            self.log.info("A pod of an earlier attempt has done this already, while nobody watched it.")
        return self._was_finished

    def _listed_pods(self, context: Context, namespace: str) -> list[V1Pod]:
        """All pods of this task instance; those that were looked at a moment ago, if they were."""
        listed, self._listed = self._listed, None
        return listed[1] if listed is not None and listed[0] == namespace else self._own_pods(context, namespace)

    def _wait(self, wait: Callable[[], Any]) -> None:
        from airflow.sdk.exceptions import TaskDeferred

        try:
            wait()
        except TaskDeferred:
            raise
        except BaseException:
            self._end_what_is_left()
            raise

    def _watch(self, wait: Callable[[], Any]) -> WorkerEnd:
        """Let the pod operator wait, and say how the pod ended, whatever the pod operator makes of it."""
        from airflow.sdk.exceptions import AirflowException, AirflowSkipException, TaskDeferred
        from kubernetes.client.exceptions import ApiException
        from kubernetes.config.config_exception import ConfigException
        from urllib3.exceptions import HTTPError

        from airflow_llmengine.operators.pod_launch import PodEnd

        wish, self.do_xcom_push = self.do_xcom_push, False
        try:
            self._wait(wait)
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
            known = self.pod or (None if self._resumed is None else pod_named(*self._resumed))
            with cluster_errors():
                self._diagnosis = self._diagnose(None if known is None else self._look(known), known)
        return PodEnd(self._diagnosis)
