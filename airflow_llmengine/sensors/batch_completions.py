"""The sensor: waits for a batch completion job that something else launched."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast, get_args

from airflow.sdk import BaseSensorOperator, PokeReturnValue, XComArg
from airflow.sdk.configuration import conf
from airflow.sdk.definitions.xcom_arg import PlainXComArg
from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException

from airflow_llmengine import exceptions
from airflow_llmengine.exceptions import (
    KEPT,
    DeadlineExceededError,
    JobCancelledError,
    JobSupersededError,
    LLMEngineError,
    PodFailedError,
    RequestRefusedError,
    ResultMissingError,
    TaskKilledError,
)
from airflow_llmengine.hooks.asset_events import fill_asset_events
from airflow_llmengine.hooks.job_decision import OnTimeout
from airflow_llmengine.hooks.job_summary import accepted_summary
from airflow_llmengine.hooks.job_watch import JobWatch, Look, Memory, done_of, job_of, moment, seconds_of, terms_of
from airflow_llmengine.hooks.llmengine import LLMEngineHook, progress_of
from airflow_llmengine.operators.attempt_options import parse_max_error_rate
from airflow_llmengine.operators.request_arguments import has_template

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

    from airflow_llmengine.spec.manifest import Manifest

TRIGGER = "airflow_llmengine.triggers.batch_completions.LLMEngineBatchCompletionsTrigger"

NO_LIMIT = timedelta(days=3650)
"""For Airflow's own timeouts where the job's deadline is the one that counts."""

MEMORY_KEY = "llmengine_sensor"


class LLMEngineBatchCompletionsSensor(BaseSensorOperator):
    """Waits until a batch completion job has succeeded, whoever launched it and wherever it runs.

    It succeeds when a valid manifest of the job stands beside the output, and hands on exactly what the operator does::

        wait = LLMEngineBatchCompletionsSensor(
            task_id="wait",
            job="{{ dag_run.conf['job'] }}",  # or a path: "s3://bucket/answers.jsonl"
            on_timeout="leave",
            deferrable=True,
        )
        load(wait.output["output_data_path"])

    A job whose workers have all stopped is waited for until its deadline, since its launcher may start them again; a
    job that was cancelled, or whose output another launch took over, fails the task at once. The sensor does not own
    the job: ending the sensor ends nothing else.

    Of a job that was launched with ``wait_for_completion=False`` it owns the pod, if its connection is the one that the
    job was launched with, or leads to the same cluster:

    - When the job has finished, it deletes the pod.
    - Past the deadline (with ``on_timeout="cancel"``), and when somebody cancelled the job or another launch took the
      output over, it deletes the pod, whose worker saves its work within the pod's grace period.
    - When the pod has died, is gone, or can never start, while the job has not finished, it fails at once, with the
      exception that says what happened to the pod, and says which tasks to clear. A retry of the sensor does not make a
      new pod. A pod that has failed is kept to be looked at, as long as ``[llmengine] finished_pod_ttl_seconds`` says,
      unless the launching task's ``on_finish_action`` says otherwise.
    - When the sensor itself is killed, cleared, or ends by its ``timeout``, it leaves the pod alone: a retry waits on.
      What bounds the pod then is the job's deadline, at which Kubernetes ends it. One that has not started by then is
      deleted by the next task that makes a pod in the namespace.

    Pods of a task that waits itself are that task's business. Where the cluster can't be reached, or its pods may not
    be listed, the sensor says so once and goes by the job's files alone.

    Args:
        job: The job: a handle, as the ``job`` of the operator's XCom, or the whole of that XCom; or an
            ``output_data_path``, which means whatever is current there. A path that is used again by each run is
            "done" by what the last run left there: give the handle then.
        llmengine_conn_id: Connection of type ``llmengine``: how storage is reached. Read when the task runs.
        max_runtime_sec: Seconds that the job has, counted from its launch; as long as nothing was launched, from the
            sensor's first look. By default the job's own deadline holds, from when there is a job.
        on_timeout: What happens to a job past its deadline: ``cancel``, its workers save what they have and stop, and a
            pod that the sensor owns is deleted; or ``leave``. The task fails either way.
        max_error_rate: Failed records, as a share of all, from 0 to 1, above which the task fails. By default it fails
            only when every record failed.
        deferrable: Wait in the triggerer, without a worker slot. It goes before ``mode``. By default as
            ``[operators] default_deferrable`` says.
        start_from_trigger: Begin in the triggerer, without a worker slot before either. The sensor is deferrable then.
            ``job`` must be a handle, a path, a template, or the output of one task, and neither task may be mapped.
        poke_interval: Seconds, or a timedelta, between two looks.
        timeout: Seconds, or a timedelta, that the sensor waits from its first look on, whatever the job does; past it
            the job is left alone. By default it waits as long as the job may run, and for a job that was not launched
            yet as long as ``[sensors] default_timeout`` says, unless ``max_runtime_sec`` says less or more.
        soft_fail: Skip the task where it would fail, in every mode; not so when Airflow itself ends it.
        multiple_outputs: Whether each field of the result is pushed under its own key, too.
        kwargs: What BaseSensorOperator takes.

    Raises:
        RequestRefusedError: An argument is not what it can be; when the DAG is parsed, as far as it is known then.
    """

    template_fields: Sequence[str] = ("job", "llmengine_conn_id", "max_runtime_sec", "max_error_rate")
    # A path may end in anything: it is never the name of a template's file.
    template_ext: Sequence[str] = ()
    ui_color = "#e8f0e4"

    @classmethod
    def partial(cls, **kwargs: Any) -> OperatorPartial:
        """Begin a dynamic task mapping: the arguments that all mapped tasks share."""
        if kwargs.get("start_from_trigger"):
            raise RequestRefusedError(
                "start_from_trigger does not go with dynamic task mapping: leave it out, and set deferrable=True."
            )
        return super().partial(**kwargs)

    def __init__(
        self,
        *,
        job: Mapping[str, Any] | str | XComArg,
        llmengine_conn_id: str = LLMEngineHook.default_conn_name,
        max_runtime_sec: float | str | XComArg | None = None,
        on_timeout: OnTimeout = "cancel",
        max_error_rate: float | str | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        start_from_trigger: bool = False,
        poke_interval: timedelta | float = 30,
        timeout: timedelta | float | None = None,
        multiple_outputs: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            poke_interval=poke_interval,
            timeout=NO_LIMIT if timeout is None else timeout,
            multiple_outputs=multiple_outputs,
            **kwargs,
        )
        self.job = job
        self.llmengine_conn_id = llmengine_conn_id
        self.max_runtime_sec = max_runtime_sec
        self.on_timeout = on_timeout
        self.max_error_rate = max_error_rate
        self.deferrable = deferrable or start_from_trigger
        self.start_from_trigger = start_from_trigger
        self._has_timeout = timeout is not None
        self._watch: JobWatch | None = None
        self._hook: LLMEngineHook | None = None
        self._ended_by_airflow = False
        self._told: str | None = None
        self._manifest: Manifest | None = None
        self._refuse_early()
        if start_from_trigger:
            self.start_trigger_args = self._start_trigger_args()

    def execute(self, context: Context) -> Any:
        """Wait for the job, and give its summary.

        Raises:
            LLMEngineError: The job did not succeed, or can't be looked at; see ``airflow_llmengine.exceptions``.
            AirflowSensorTimeout: ``timeout`` is over.
        """
        return self._look_or_defer(context) if self.deferrable else super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any] | None = None) -> Any:
        """Go on when the trigger has fired: by what storage says, and not by what the trigger saw."""
        event = event or {}
        if "error" in event:
            with self._soft_fail():
                raise getattr(exceptions, event["error"], LLMEngineError)(event["message"])
        self._told = event.get("outcome")
        return self._look_or_defer(context, first_look=event.get("first_look"), not_before=event.get("now", 0.0))

    def poke(self, context: Context) -> bool | PokeReturnValue:
        """Look at the job once."""
        summary = self._look(context)
        return False if summary is None else PokeReturnValue(is_done=True, xcom_value=summary)

    def on_kill(self) -> None:
        """Succeed no more. Nothing is stopped, pods included: a retry waits on, and the deadline bounds them."""
        self._ended_by_airflow = True

    def _look_or_defer(self, context: Context, first_look: float | None = None, not_before: float = 0.0) -> Any:
        summary = self._look(context, first_look, not_before)
        if summary is not None:
            return summary
        from airflow_llmengine.triggers.batch_completions import LLMEngineBatchCompletionsTrigger

        watch = self._watching(context)
        # A backstop, for a triggerer that is away: the trigger itself looks at the clock.
        left = None if watch.terms.timeout is None else watch.terms.first_look + watch.terms.timeout - time.time()
        return self.defer(
            trigger=LLMEngineBatchCompletionsTrigger(
                **{**self._trigger_arguments(), "job": watch.job}, first_look=watch.terms.first_look
            ),
            method_name="execute_complete",
            timeout=None if left is None else timedelta(seconds=max(0.0, left) + self._slack),
        )

    def _look(
        self, context: Context, first_look: float | None = None, not_before: float = 0.0
    ) -> dict[str, Any] | None:
        """Look at the job; give its summary, or None if it must be waited for.

        Args:
            context: The task's.
            first_look: When the trigger looked first, if the task was started by it.
            not_before: What the trigger's clock said, which may be ahead of this one.
        """
        self._refuse_if_ended()
        with self._soft_fail():
            watch = self._watching(context, first_look)
            if self._hook is None or watch.wants_new_hook:
                self._hook = LLMEngineHook(self.llmengine_conn_id)
            try:
                look = watch.look(self._hook, now=max(time.time(), not_before))
            finally:
                if self.reschedule:
                    _Kept(_series(context), watch.terms.first_look, asdict(watch.memory)).write(context)
            summary = self._conclude(self._hook, watch, look)
        # It may have come while the output was compared with its manifest.
        self._refuse_if_ended()
        if self._manifest is not None:
            fill_asset_events(context, self.outlets, self._manifest)
        return summary

    def _refuse_if_ended(self) -> None:
        if self._ended_by_airflow:
            raise TaskKilledError("Airflow ended the task while it waited. The job goes on; a retry waits on.")

    def _conclude(self, hook: LLMEngineHook, watch: JobWatch, look: Look) -> dict[str, Any] | None:
        decision, status = look.decision, look.status
        if decision.outcome == "wait" and self._told == "pods_ended" and look.pods.fault and status is not None:
            # Deferred again, the trigger would say the same at once.
            owner = "the task that launches it" if status.job is None else status.job.owner
            raise PodFailedError(
                "The triggerer found that all pods of the job have ended, and the job is not done. What became of them "
                f"can't be told here: {look.pods.fault} {KEPT}; to go on, clear {owner}, and this task."
            )
        if decision.outcome == "wait" or status is None:
            return None
        path = watch.job if isinstance(watch.job, str) else watch.job["path"]
        if decision.outcome == "finished":
            return self._finish(hook, look)
        if decision.outcome == "superseded":
            raise JobSupersededError(
                f"Another launch took over {path}, so the job that was waited for will not be finished. Give each job "
                "an output of its own, or wait for the path instead of the handle."
            )
        if decision.outcome == "cancelled":
            reason = "" if status.cancelled is None else f" ({status.cancelled.reason})"
            raise JobCancelledError(
                f"The job of {path} was cancelled{reason}. {KEPT}. To go on, clear the task that launches it, and this "
                "one."
            )
        if decision.outcome == "pods_ended":
            status = hook.get(cast("Any", status.handle))
            if status.state == "done":
                return self._finish(hook, Look(decision, status))
            raise watch.pods_failure(look, status)
        if decision.outcome == "timeout":
            raise AirflowSensorTimeout(self._timed_out(path, watch, look))
        return self._fail_by_deadline(hook, watch, look, path)

    def _finish(self, hook: LLMEngineHook, look: Look) -> dict[str, Any] | None:
        """Compare the output with the manifest that stands: once, since it may take reading it."""
        handle = cast("Any", look.status).handle
        manifest = hook.read_manifest(handle)
        if manifest is not None:
            self._manifest = manifest
            return accepted_summary(manifest, parse_max_error_rate(self.max_error_rate))
        if hook.glance(handle).state != "done":
            # It is being replaced just now.
            return None
        raise ResultMissingError(
            f"The job finished, and {handle.path} is not what it wrote any more: somebody changed or deleted it. To "
            "have it made again, delete it and its manifest, and clear the task that launches the job, and this one."
        )

    def _fail_by_deadline(self, hook: LLMEngineHook, watch: JobWatch, look: Look, path: str) -> dict[str, Any] | None:
        when = "" if look.decision.deadline is None else f" ({moment(look.decision.deadline)})"
        if look.status is None or look.status.job is None:
            raise DeadlineExceededError(
                f"Nothing was launched for {path} within the {watch.terms.max_runtime_sec:g} s of max_runtime_sec"
                f"{when}: look at the task that launches it, or correct the path."
            )
        status = hook.get(cast("Any", look.status.handle))
        if status.state == "done":
            return self._finish(hook, Look(look.decision, status))
        chunks = "?" if status.end is None else status.end.chunks
        fate = (
            "It was cancelled: its workers save what they have, and stop."
            if status.cancelled is not None
            else "It was left alone, and may go on (on_timeout='leave')."
        )
        raise DeadlineExceededError(
            f"The job of {path} did not end by its deadline{when}: {done_of(progress_of(status))} and "
            f"{status.chunks_committed} of {chunks} chunks are done. {fate} {KEPT}. To go on, clear the task that "
            "launches it, with a larger max_runtime_sec or more replicas, and this one."
        )

    def _timed_out(self, path: str, watch: JobWatch, look: Look) -> str:
        waited = round(time.time() - watch.terms.first_look)
        if look.status is None or look.status.job is None:
            return (
                f"Nothing was launched for {path} in {waited} s, which is the sensor's timeout: look at the task that "
                "launches it, or correct the path."
            )
        return (
            f"The job of {path} did not end in {waited} s, which is the sensor's timeout. It was left alone, with "
            f"{done_of(progress_of(look.status))} done. Clear this task to wait on."
        )

    def _watching(self, context: Context, first_look: float | None = None) -> JobWatch:
        """The watch of this series of attempts: what it must not forget is kept in the task's state store."""
        if self._watch is not None:
            return self._watch
        ti = context["ti"]
        kept = _Kept.read(context)
        if kept is None:
            kept = _Kept(_series(context), time.time() if first_look is None else first_look)
            kept.write(context)
        self._watch = JobWatch(
            job_of(self.job),
            terms_of(
                kept.first_look,
                max_runtime_sec=seconds_of(self.max_runtime_sec),
                timeout=self.timeout if self._has_timeout else None,
            ),
            on_timeout=self.on_timeout,
            who=f"{ti.dag_id}/{ti.task_id}",
            log=self.log,
            memory=Memory(**kept.memory) if self.reschedule else None,
        )
        return self._watch

    @contextmanager
    def _soft_fail(self) -> Iterator[None]:
        """Skip where ``soft_fail`` or ``never_fail`` says so, with the reason; Airflow does it in some places only."""
        try:
            yield
        except (LLMEngineError, AirflowSensorTimeout) as failure:
            if not (self.soft_fail or self.never_fail):
                raise
            self.log.warning("%s", failure)
            raise AirflowSkipException(f"{failure} Skipped, as soft_fail or never_fail is set.") from failure

    @property
    def _slack(self) -> float:
        return self.poke_interval + 60.0

    def _trigger_arguments(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "llmengine_conn_id": self.llmengine_conn_id,
            "max_runtime_sec": self.max_runtime_sec,
            "on_timeout": self.on_timeout,
            "timeout": self.timeout if self._has_timeout else None,
            "poke_interval": self.poke_interval,
        }

    def _start_trigger_args(self) -> Any:
        from airflow.triggers.base import StartTriggerArgs

        if self.get_closest_mapped_task_group() is not None:
            raise RequestRefusedError(
                "start_from_trigger does not go with a mapped task group: leave it out, and set deferrable=True."
            )
        arguments = self._trigger_arguments()
        for name in ("job", "llmengine_conn_id", "max_runtime_sec"):
            arguments[name] = _for_triggerer(name, arguments[name])
        timeout = timedelta(seconds=self.timeout + (self._slack if self._has_timeout else 0))
        if self.execution_timeout is not None:
            timeout = min(timeout, self.execution_timeout)
        return StartTriggerArgs(
            trigger_cls=TRIGGER,
            trigger_kwargs={**arguments, "trigger_timeout": timeout.total_seconds()},
            next_method="execute_complete",
            timeout=timeout,
        )

    def _refuse_early(self) -> None:
        if self.on_timeout not in get_args(OnTimeout):
            raise RequestRefusedError(f"on_timeout is {self.on_timeout!r}; it must be one of cancel, leave.")
        if not has_template(self.max_runtime_sec):
            seconds_of(self.max_runtime_sec)
        if not has_template(self.max_error_rate):
            parse_max_error_rate(self.max_error_rate)
        leaves = self.job.values() if isinstance(self.job, Mapping) else (self.job,)
        if not any(has_template(leaf) for leaf in leaves):
            job_of(self.job)


def _for_triggerer(name: str, value: Any) -> Any:
    """An argument as the triggerer of Airflow 3.3 can render it.

    It renders templates and no XComArgs; and of XComs it can ask for one by its map index only: it would wait for ever
    for the answer to anything else.

    Raises:
        RequestRefusedError: There is no such form.
    """
    if isinstance(value, PlainXComArg) and not value.operator.is_mapped:
        operator = value.operator
        if operator.get_closest_mapped_task_group() is None:
            return (
                f"{{{{ task_instance.xcom_pull(task_ids={operator.task_id!r}, dag_id={operator.dag_id!r}, "
                f"key={value.key!r}, map_indexes=-1) }}}}"
            )
    if any(True for _ in XComArg.iter_xcom_references(value)):
        raise RequestRefusedError(
            f"start_from_trigger does not go with a {name} that comes from mapped tasks, or is put together of other "
            "tasks' outputs: give the output of one task that is not mapped, or set deferrable=True instead."
        )
    leaves = value.values() if isinstance(value, Mapping) else (value,)
    if any(isinstance(leaf, str) and "macros.llmengine" in leaf for leaf in leaves):
        raise RequestRefusedError(
            f"start_from_trigger does not go with macros.llmengine in {name}: Airflow's triggerer knows no macros of "
            "plugins. Give the launching task's job, or set deferrable=True instead."
        )
    if any(isinstance(leaf, str) and "xcom_pull(" in leaf and "map_indexes" not in leaf for leaf in leaves):
        raise RequestRefusedError(
            f"start_from_trigger does not go with xcom_pull() without map_indexes in {name}, which Airflow's triggerer "
            "can't answer: add map_indexes=-1, or set deferrable=True instead."
        )
    return value


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is kept from one process of the task to the next, through reschedules, deferrals and retries."""

    series: int
    """Names the series of attempts: a clear begins a new one, and waits anew."""
    first_look: float
    memory: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, context: Context) -> _Kept | None:
        found: Any = context["task_state_store"].get(MEMORY_KEY)
        return cls(**found) if found and found["series"] == _series(context) else None

    def write(self, context: Context) -> None:
        context["task_state_store"].set(MEMORY_KEY, asdict(self))


def _series(context: Context) -> int:
    # It grows when the task is cleared, and stays when it is retried.
    return int(context["ti"].max_tries)
