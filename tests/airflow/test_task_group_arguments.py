"""What the task group does with its arguments: which task gets what, early refusals, and what is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, TaskGroup, task
from airflow.serialization.serialized_objects import DagSerialization
from kubernetes.client import V1ResourceRequirements

from airflow_llmengine.exceptions import RequestRefusedError
from airflow_llmengine.operators.request_arguments import unwrap
from airflow_llmengine.operators.task_group import LLMEngineBatchCompletionsTaskGroup
from airflow_llmengine.sensors.batch_completions import LLMEngineBatchCompletionsSensor

MODEL = {"model": "m"}
CONTENT = {"prompts": ["PRIVATE {{ 7*7 }}"] * 3, "max_new_tokens": 4, "temperature": 0}


@pytest.fixture
def dag() -> Iterator[DAG]:
    with DAG("dag", schedule=None) as dag:
        yield dag


def group(**arguments: Any) -> LLMEngineBatchCompletionsTaskGroup:
    return LLMEngineBatchCompletionsTaskGroup(
        **{
            "group_id": "teams",
            "input_data_path": "s3://in/x.jsonl",
            "output_data_path": "s3://out/x.jsonl",
            "model_config": MODEL,
            "data_parallelism": 4,
            **arguments,
        }
    )


def task_of(dag: DAG, task_id: str) -> Any:
    return dag.task_dict[task_id]


def child_of(dag: DAG, group_id: str) -> Any:
    return dag.task_group.children[group_id]


def test_a_group_is_plan_replicas_collect_and_stands_between_its_neighbours(dag: DAG) -> None:
    @task
    def before() -> None: ...

    @task
    def after(path: Any) -> None: ...

    teams = group()
    before() >> teams
    after(teams.output["output_data_path"])
    LLMEngineBatchCompletionsSensor(task_id="watch", job=teams.job)
    tasks: dict[str, Any] = dict(dag.task_dict)
    assert set(tasks) == {"before", "teams.plan", "teams.replicas", "teams.collect", "after", "watch"}
    assert tasks["watch"].upstream_task_ids == {"teams.plan"}
    assert tasks["teams.plan"].upstream_task_ids == {"before"}
    assert tasks["teams.replicas"].upstream_task_ids == {"teams.plan"}
    assert tasks["teams.collect"].upstream_task_ids == {"teams.replicas"}
    assert tasks["after"].upstream_task_ids == {"teams.collect"}
    assert tasks["teams.collect"].trigger_rule == "all_done"
    assert tasks["teams.replicas"].is_mapped
    assert (teams.job.operator.task_id, teams.job.key) == ("teams.plan", "job")
    restored: Any = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert set(restored.task_group.children["teams"].children) == {
        "teams.plan",
        "teams.replicas",
        "teams.collect",
    }


def test_a_copy_of_a_part_of_the_dag_has_the_groups_own_tasks(dag: DAG) -> None:
    group()
    part = dag.partial_subset("teams.collect")
    copied = child_of(part, "teams")
    assert copied.output.operator is part.get_task("teams.collect")
    assert copied.output.operator is not dag.get_task("teams.collect")


def test_it_can_be_in_a_group_and_without_a_context_and_twice(dag: DAG) -> None:
    with TaskGroup("outer"):
        inner = group()
    other = LLMEngineBatchCompletionsTaskGroup(
        "other",
        dag=dag,
        prefix_group_id=False,
        request={"content": CONTENT, "output_data_path": "o", "model_config": MODEL},
    )
    assert inner.output.operator.task_id == "outer.teams.collect"
    assert task_of(dag, "outer.teams.collect").plan_task_id == "outer.teams.plan"
    assert other.output.operator.task_id == "collect"
    assert task_of(dag, "collect").replicas_task_id == "replicas"


def test_each_task_is_given_what_is_meant_for_it(dag: DAG) -> None:
    output = Asset("s3://out/x.jsonl")
    group(
        retries=3,
        pool="gpus",
        namespace="gpu",
        trigger_rule="none_failed",
        outlets=[output],
        max_error_rate=0.5,
        engine_args={"max_logprobs": 40},
        cache_path="s3://cache/answers",
        if_done="regenerate",
        overwrite="{{ params.overwrite }}",
        llmengine_conn_id="other",
        tooltip="all of them",
        default_args={"queue": "big", "labels": {"team": "data"}},
    )
    plan, replicas, collect = (task_of(dag, f"teams.{name}") for name in ("plan", "replicas", "collect"))
    assert child_of(dag, "teams").tooltip == "all of them"
    for one in (plan, replicas, collect):
        assert (one.retries, one.queue) == (3, "big")
        assert one.partial_kwargs["llmengine_conn_id"] if one is replicas else one.llmengine_conn_id == "other"
    assert (plan.trigger_rule, plan.if_done, plan.overwrite) == ("none_failed", "regenerate", "{{ params.overwrite }}")
    assert (plan.pool, replicas.pool, collect.pool) == ("default_pool", "gpus", "default_pool")
    assert (replicas.trigger_rule, replicas.partial_kwargs["namespace"]) == ("all_success", "gpu")
    assert (replicas.partial_kwargs["max_error_rate"], collect.max_error_rate) == (0.5, 0.5)
    assert plan.engine_args == replicas.partial_kwargs["engine_args"] == collect.engine_args == {"max_logprobs": 40}
    assert replicas.partial_kwargs["cache_path"] == "s3://cache/answers"
    assert (plan.outlets, collect.outlets) == ([], [output])
    assert plan.request["labels"] == collect.request["labels"] == {"team": "data"}


@pytest.mark.parametrize(
    ("arguments", "slots"),
    [
        ({"gpus": 4, "pool": "gpus"}, 4),
        ({"gpus": "4", "pool": "gpus"}, 4),
        ({"gpus": 4, "default_args": {"pool": "gpus"}}, 4),
        ({"gpus": 4, "pool": "gpus", "pool_slots": 2}, 2),
        ({"pool": "gpus"}, 1),
        ({"gpus": "{{ params.gpus }}", "pool": "gpus"}, 1),
        ({"gpus": 4}, 1),
    ],
)
def test_only_replicas_are_in_the_pool_each_with_a_slot_for_each_of_its_gpus(
    dag: DAG, arguments: dict[str, Any], slots: int
) -> None:
    group(**arguments)
    assert task_of(dag, "teams.replicas").pool_slots == slots
    assert [task_of(dag, f"teams.{name}").pool_slots for name in ("plan", "collect")] == [1, 1]


def test_a_pool_of_the_whole_dag_counts_gpus_too() -> None:
    with DAG("dag", schedule=None, default_args={"pool": "gpus"}) as dag:
        group(gpus=4)
    assert task_of(dag, "teams.replicas").pool_slots == 4


def test_the_pod_that_collects_has_what_the_replicas_pods_have_but_for_gpus(dag: DAG) -> None:
    both = {
        "annotations": {"a": "b"},
        "env_vars": {"A": "B"},
        "image": "worker:1",
        "image_pull_policy": "Never",
        "kubernetes_conn_id": "cluster",
        "namespace": "batch",
        "on_finish_action": "keep_pod",
        "service_account_name": "worker",
        "startup_timeout_seconds": 7,
        "termination_grace_period": 5,
        "volumes": [],
    }
    of_gpus = {
        "affinity": {"nodeAffinity": {}},
        "container_resources": V1ResourceRequirements(limits={"nvidia.com/gpu": "4"}),
        "node_selector": {"gpu": "h100"},
        "priority_class_name": "high",
        "tolerations": [],
    }
    of_task = {"execution_timeout": timedelta(hours=1), "queue": "big", "max_active_tis_per_dagrun": 3}
    group(**both, **of_gpus, **of_task)
    replicas, collect = task_of(dag, "teams.replicas"), task_of(dag, "teams.collect")
    for name, value in {**both, **of_gpus, **of_task}.items():
        assert replicas.partial_kwargs[name] == value, name
    plain = task_of(dag, "teams.collect").__class__(
        task_id="plain",
        plan_task_id="teams.plan",
        replicas_task_id="teams.replicas",
        output_data_path="o",
        input_data_path="i",
        model_config=MODEL,
    )
    for name in (*of_gpus, *of_task):
        assert getattr(collect, name) == getattr(plain, name), name
    for name, value in both.items():
        assert getattr(collect, name) == value, name


def test_default_args_give_what_is_not_given(dag: DAG) -> None:
    defaults = {
        "llmengine_conn_id": "other",
        "if_done": "regenerate",
        "overwrite": True,
        "max_error_rate": 0.5,
        "max_runtime_sec": 100,
        # What the group's own working depends on is not theirs.
        "do_xcom_push": False,
        "trigger_rule": "none_failed",
        "multiple_outputs": False,
    }
    group(default_args=defaults, max_runtime_sec=7)
    plan, collect = task_of(dag, "teams.plan"), task_of(dag, "teams.collect")
    replica = task_of(dag, "teams.replicas").unmap({"launch": {}})
    assert (plan.if_done, plan.overwrite, plan.do_xcom_push) == ("regenerate", True, True)
    for one in (plan, replica, collect):
        assert (one.llmengine_conn_id, one.max_error_rate) == ("other", 0.5)
        assert one.request["max_runtime_sec"] == 7
    assert (plan.trigger_rule, replica.trigger_rule, collect.trigger_rule) == ("none_failed", "all_success", "all_done")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"data_parallelism": 65}, r"data_parallelism: .*1 to 64"),
        ({"max_runtime_sec": 0}, "max_runtime_sec"),
        ({"input_data_path": None}, "neither input_data_path nor content"),
        ({"if_done": "maybe"}, "if_done is 'maybe'"),
        ({"max_error_rate": 2}, "max_error_rate is 2"),
        ({"engine_args": {"nnodes": 2}}, r"engine_args\.nnodes: can't be set"),
        ({"request": {"labels": {}}}, "request and .* were both given"),
    ],
)
def test_what_can_not_be_run_is_refused_when_the_dag_is_parsed(
    dag: DAG, arguments: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(RequestRefusedError, match=sentence):
        group(**arguments)


def test_a_misspelt_argument_is_told_with_the_right_one(dag: DAG) -> None:
    with pytest.raises(RequestRefusedError, match="did you mean max_runtime_sec"):
        group(max_runtime_secs=60)


def test_what_is_a_template_or_an_xcom_is_not_judged_before_it_is_rendered(dag: DAG) -> None:
    @task
    def made() -> Any: ...

    value: Any = made()
    group(data_parallelism="{{ params.replicas }}", max_runtime_sec="{{ x }}", if_done="{{ x }}")
    group(group_id="xcoms", input_data_path=value["path"], data_parallelism=value["replicas"])
    group(
        group_id="whole",
        request=value,
        **dict.fromkeys(("input_data_path", "output_data_path", "model_config", "data_parallelism")),
    )
    for group_id in ("xcoms", "whole"):
        assert dag.task_dict[f"{group_id}.plan"].upstream_task_ids == {"made"}
        assert dag.task_dict[f"{group_id}.replicas"].upstream_task_ids == {"made", f"{group_id}.plan"}


@pytest.mark.parametrize("whole", [True, False])
def test_two_mebibytes_of_content_do_not_enter_the_serialized_dag(dag: DAG, whole: bool) -> None:
    content = {**CONTENT, "prompts": ["PRIVATE " * 32] * 8192}
    fields = {"content": content, "output_data_path": "{{ ds }}/o.json", "model_config": MODEL, "data_parallelism": 2}
    LLMEngineBatchCompletionsTaskGroup("teams", **({"request": fields} if whole else fields))
    text = json.dumps(DagSerialization.to_dict(dag))
    assert "PRIVATE" not in text
    assert len(text) < 64 * 1024
    assert unwrap(task_of(dag, "teams.plan").request) == unwrap(task_of(dag, "teams.collect").request) == fields
    assert fields["content"] is content


def test_another_pod_operator_takes_two_lines(dag: DAG) -> None:
    from airflow.providers.amazon.aws.operators.eks import EksPodOperator

    from airflow_llmengine.operators.run_replica import LLMEngineReplicaMixin

    class EksReplicaOperator(LLMEngineReplicaMixin, EksPodOperator):
        pass

    class EksGroup(LLMEngineBatchCompletionsTaskGroup):
        replica_operator = EksReplicaOperator

    EksGroup("teams", content=CONTENT, output_data_path="o", model_config=MODEL, cluster_name="c", pod_name="p")
    replicas = task_of(dag, "teams.replicas")
    assert replicas.operator_class is EksReplicaOperator
    assert {"request", "launch", "cluster_name", "image"} <= set(replicas.template_fields)
