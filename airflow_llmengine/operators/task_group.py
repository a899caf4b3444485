"""The task group: one batch completion job as several replicas, each a mapped task of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
from airflow.sdk import BaseOperator, TaskGroup

from airflow_llmengine.exceptions import RequestRefusedError
from airflow_llmengine.operators.collect_replicas import LLMEngineCollectMixin, LLMEngineCollectOperator
from airflow_llmengine.operators.plan_replicas import LLMEnginePlanOperator
from airflow_llmengine.operators.replica_launch import JOB_KEY
from airflow_llmengine.operators.request_arguments import (
    REQUEST_FIELDS,
    known_arguments,
    pool_slots,
    refuse_misspelt,
)
from airflow_llmengine.operators.run_replica import LLMEngineReplicaOperator

if TYPE_CHECKING:
    from airflow.sdk import XComArg
    from airflow.sdk.definitions.xcom_arg import PlainXComArg

    from airflow_llmengine.operators.run_replica import LLMEngineReplicaMixin

_OF_GROUP = frozenset(field.alias for field in attrs.fields(TaskGroup) if field.init)

_OF_ALL_TASKS = ("retries", "retry_delay", "retry_exponential_backoff", "max_retry_delay", "retry_policy")

_OF_PLAN = ("trigger_rule",)

_OF_COLLECT = ("do_xcom_push", "multiple_outputs", "outlets")

_OF_GPU_PODS = frozenset(
    {
        "affinity",
        "callbacks",
        "container_resources",
        "node_selector",
        "priority_class_name",
        "runtime_class_name",
        "skip_on_exit_code",
        "tolerations",
    }
)
"""Options of the pod operator that are for the replicas' pods only: the pod that collects is small, without GPUs."""


class LLMEngineBatchCompletionsTaskGroup(TaskGroup):
    """Runs a batch completion job as ``data_parallelism`` replicas: plan, replicas, collect.

    ``plan`` checks the request and launches the job; ``replicas`` is a mapped task, whose map index is the replica's
    number, with retries, a pool and a log of its own; ``collect`` puts the output together when all of them have ended,
    or fails and says what is missing. A replica that is retried or cleared by itself goes on with the job that ``plan``
    launched; to launch it anew, clear ``plan`` with its downstream tasks. When the output of this very job stands
    already, the replicas end at once, and ``collect`` gives its summary.

    ``group.output`` is the XCom of ``collect``, which is that of ``LLMEngineBatchCompletionsOperator``:
    ``group.output["output_data_path"]`` is the path.

    With the launcher ``local``, replicas beyond the connection's ``local_workers`` wait for their turn, each in a slot
    of Airflow's; ``max_active_tis_per_dagrun`` spares those slots.

    Every task of the group is given the request as it stands in the DAG and renders it itself, so that the user's text
    is in no XCom. It must therefore render the same in all of them: ``{{ run_id }}``, but not ``{{ task.task_id }}``.

    Args:
        group_id: The group's id. The output belongs to it.
        request: The request as one dictionary, or give its fields as arguments; the same as for
            ``LLMEngineBatchCompletionsOperator``, like all arguments that follow. ``data_parallelism`` may be a
            template or an XCom.
        llmengine_conn_id: Connection of type ``llmengine``; by default ``llmengine_default``.
        if_done: ``reuse``, the default, or ``regenerate``: anew once for each run or clear of ``plan``.
        overwrite: Replace an output that something else, or another task, wrote; not so by default.
        max_error_rate: Failed records, as a share of all, above which the job fails.
        engine_args: Further arguments of vLLM.
        cache_path: A folder in which answers are kept for later runs.
        table: The input is a table, and so is the output: how rows become records, and results columns.
        kwargs: The request's fields; what ``TaskGroup`` takes; ``retries`` and its delays, for all three tasks;
            ``trigger_rule`` for ``plan``; ``outlets``, ``do_xcom_push`` and ``multiple_outputs`` for ``collect``; and
            whatever else the replicas' operator takes, such as ``pool``, ``execution_timeout`` or the pod's options,
            which the pod of ``collect`` gets as well, but for those that choose a node with a GPU. In a ``pool`` a
            replica takes as many slots as it has ``gpus``, if that is a number in the DAG, unless ``pool_slots`` says
            otherwise. What ``default_args`` holds counts for all three.

    Raises:
        RequestRefusedError: The request can't be run; when the DAG is parsed.
    """

    replica_operator: ClassVar[type[LLMEngineReplicaMixin]] = LLMEngineReplicaOperator
    """To run the replicas with another pod operator, put ``LLMEngineReplicaMixin`` in front of it, and name that in a
    subclass of the group."""

    collect_operator: ClassVar[type[LLMEngineCollectMixin]] = LLMEngineCollectOperator
    """The same for the task that collects, with ``LLMEngineCollectMixin``."""

    def __init__(
        self,
        group_id: str,
        *,
        request: Mapping[str, Any] | XComArg | None = None,
        llmengine_conn_id: str | None = None,
        if_done: str | None = None,
        overwrite: bool | str | None = None,
        max_error_rate: float | str | None = None,
        engine_args: Mapping[str, Any] | str | XComArg | None = None,
        cache_path: str | XComArg | None = None,
        table: Mapping[str, Any] | str | XComArg | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(group_id, **_taken(kwargs, _OF_GROUP))
        self._refuse_unknown(kwargs)
        # What is not given is not passed on, so that default_args may give it.
        shared = {
            "dag": self.dag,
            "task_group": self,
            **_given(
                request=request,
                llmengine_conn_id=llmengine_conn_id,
                max_error_rate=max_error_rate,
                engine_args=engine_args,
                cache_path=cache_path,
                table=table,
            ),
            **_given(**_taken(kwargs, REQUEST_FIELDS)),
            **_taken(kwargs, _OF_ALL_TASKS),
        }
        of_collect = {**self._pod_options_of_collect(kwargs), **_taken(kwargs, _OF_COLLECT)}
        defaults = {**getattr(self.dag, "default_args", {}), **self.default_args}
        kwargs = {**pool_slots({"default_args": defaults, **kwargs}, shared), **kwargs}
        plan = LLMEnginePlanOperator(
            task_id="plan",
            group=str(self.group_id),
            do_xcom_push=True,
            multiple_outputs=False,
            # Also those of default_args are for the task that has the output.
            outlets=[],
            **_given(if_done=if_done, overwrite=overwrite),
            **_taken(kwargs, _OF_PLAN),
            **shared,
        )
        replicas = self.replica_operator.partial(
            **{
                "map_index_template": "replica {{ task.launch['replica'] }} of {{ task.launch['replicas'] }}",
                **kwargs,
                **shared,
                "task_id": "replicas",
                "plan_task_id": plan.task_id,
                "trigger_rule": "all_success",
                "do_xcom_push": False,
                "multiple_outputs": False,
                "outlets": [],
            }
        ).expand(launch=plan.output)
        collect = self.collect_operator(
            task_id="collect",
            plan_task_id=plan.task_id,
            replicas_task_id=replicas.task_id,
            trigger_rule="all_done",
            **of_collect,
            **shared,
        )
        replicas >> collect

    def _refuse_unknown(self, arguments: Mapping[str, Any]) -> None:
        refuse_misspelt(self.replica_operator, arguments)
        unknown = sorted(arguments.keys() - known_arguments(self.replica_operator))
        if unknown:
            raise RequestRefusedError(
                f"{', '.join(unknown)}: unknown to the group and to its replicas, which are KubernetesPodOperators: "
                "leave it out."
            )
        if "task_id" in arguments:
            raise RequestRefusedError("task_id: the group names its tasks itself; give group_id.")

    def _pod_options_of_collect(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        of_pods = known_arguments(self.collect_operator) - known_arguments(BaseOperator) - _OF_GPU_PODS
        return {name: value for name, value in arguments.items() if name in of_pods}

    @property
    def output(self) -> PlainXComArg:
        """The XCom of ``collect``: where the output is and what is in it."""
        output: PlainXComArg = self._task("collect").output
        return output

    @property
    def job(self) -> PlainXComArg:
        """The job handle, as soon as the job is launched: for a sensor that watches it."""
        job: PlainXComArg = self._task("plan").output[JOB_KEY]
        return job

    def _task(self, name: str) -> Any:
        return self.children[self.child_id(name)]  # type: ignore[no-untyped-call]


def _given(**arguments: Any) -> dict[str, Any]:
    """Those that are not None."""
    return {name: value for name, value in arguments.items() if value is not None}


def _taken(arguments: dict[str, Any], names: Any) -> dict[str, Any]:
    """Take those arguments out that are named, and give them."""
    return {name: arguments.pop(name) for name in list(arguments) if name in names}
