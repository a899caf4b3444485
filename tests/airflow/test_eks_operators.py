"""The operators and the group for EKS: what they take, where they look for the cluster, and what they defer with."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime
from typing import Any

import pytest
from airflow.providers.amazon.aws.operators.eks import EksPodOperator
from airflow.providers.amazon.aws.triggers.eks import EksPodTrigger
from airflow.providers.cncf.kubernetes.triggers.pod import KubernetesPodTrigger
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskDeferred

from airflow_llmengine.exceptions import ConnectionUnusableError, RequestRefusedError
from airflow_llmengine.hooks.connection_settings import ConnectionSettings
from airflow_llmengine.hooks.eks_access import EksCluster
from airflow_llmengine.hooks.eks_kubernetes import EksKubernetesHook
from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator
from airflow_llmengine.operators.eks import (
    LLMEngineEksBatchCompletionsOperator,
    LLMEngineEksBatchCompletionsTaskGroup,
    LLMEngineEksCollectOperator,
    LLMEngineEksReplicaOperator,
)
from tests.airflow.operators_in_tests import EchoJob, connection, run, task_context

REQUEST: dict[str, Any] = {"input_data_path": "in.jsonl", "output_data_path": "o.json", "model_config": {"model": "m"}}
ON_EKS = {"launcher": "kubernetes", "image": "i", "eks": {"cluster_name": "theirs", "region": "eu-west-1"}}


def on_eks(**arguments: Any) -> LLMEngineEksBatchCompletionsOperator:
    return LLMEngineEksBatchCompletionsOperator(task_id="job", **REQUEST, **arguments)


def applied(operator: Any, **extra: Any) -> Any:
    """The operator, rendered, with what the connection says."""
    operator.render_template_fields(task_context(ds="2026-11-30"))
    operator._apply_connection(ConnectionSettings.parse("c", {**ON_EKS, **extra}))
    return operator


def test_it_is_the_amazon_providers_operator_and_takes_its_arguments_or_none() -> None:
    assert isinstance(on_eks(), EksPodOperator)
    named = on_eks(cluster_name="ours", region="us-east-1", aws_conn_id="aws", pod_name="worker", image="i")
    assert (named.name, on_eks(name="worker").name) == ("worker", "worker")
    assert {"request", "cluster_name", "region", "aws_conn_id", "image"} <= set(named.template_fields)
    assert named.namespace is None


@pytest.mark.parametrize(
    ("arguments", "cluster"),
    [
        ({}, EksCluster(cluster_name="theirs", region="eu-west-1")),
        ({"cluster_name": "of-{{ ds }}", "region": "r"}, EksCluster(cluster_name="of-2026-11-30", region="r")),
        ({"aws_conn_id": ""}, EksCluster(cluster_name="theirs", region="eu-west-1", aws_conn_id="")),
    ],
)
def test_what_the_dag_says_goes_before_the_connection(arguments: dict[str, Any], cluster: EksCluster) -> None:
    operator = applied(on_eks(**arguments))
    assert operator._eks == cluster
    assert isinstance(operator.hook, EksKubernetesHook)


def test_without_a_cluster_the_task_says_where_to_name_one() -> None:
    with pytest.raises(ConnectionUnusableError, match=r"There is no EKS cluster: name it in the field eks"):
        applied(on_eks(), eks=None)


def test_the_plain_operator_goes_to_the_cluster_that_its_connection_names() -> None:
    plain = applied(LLMEngineBatchCompletionsOperator(task_id="job", **REQUEST))
    assert plain._eks == EksCluster(cluster_name="theirs", region="eu-west-1")
    assert isinstance(plain.hook, EksKubernetesHook)
    other = applied(LLMEngineBatchCompletionsOperator(task_id="job", kubernetes_conn_id="other", **REQUEST))
    assert other._eks is None
    assert not isinstance(other.hook, EksKubernetesHook)


@pytest.mark.parametrize("given", [None, "theirs"])
def test_the_namespace_is_the_dags_or_the_connections_and_not_the_providers(given: str | None) -> None:
    assert applied(on_eks(), namespace=given).namespace == given
    assert applied(on_eks(namespace="ours"), namespace="theirs").namespace == "ours"


@pytest.mark.parametrize("argument", ["kubernetes_conn_id", "in_cluster", "config_file", "cluster_context"])
def test_what_leads_to_another_cluster_is_refused(argument: str) -> None:
    with pytest.raises(RequestRefusedError, match=f"{argument}: an EKS cluster is reached by cluster_name"):
        on_eks(**{argument: "yes"})


@pytest.mark.parametrize("kind", [LLMEngineEksBatchCompletionsOperator, LLMEngineBatchCompletionsOperator])
def test_the_trigger_is_given_no_configuration_of_the_tasks_machine(
    kind: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("users: [{name: me, user: {token: of-this-machine}}]")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    operator = applied(kind(task_id="job", **REQUEST))
    plain = KubernetesPodTrigger(
        pod_name="worker",
        pod_namespace="llm",
        trigger_start_time=datetime(2026, 1, 1),  # noqa: DTZ001
        base_container_name="base",
        kubernetes_conn_id="kubernetes_default",
        connection_extras={"kube_config": "of-a-connection"},
        config_dict={"users": [{"user": {"token": "of-this-machine"}}]},
        log_events_on_startup=False,
    )
    with pytest.raises(TaskDeferred) as deferred:
        operator.defer(trigger=plain, method_name="trigger_reentry")
    trigger = deferred.value.trigger
    assert isinstance(trigger, EksPodTrigger)
    _path, arguments = trigger.serialize()
    assert (arguments["eks_cluster_name"], arguments["region"], arguments["aws_conn_id"]) == (
        "theirs",
        "eu-west-1",
        "aws_default",
    )
    assert "of-" not in str(arguments)
    assert "kubernetes_default" not in str(arguments)


def test_the_group_runs_and_collects_on_eks() -> None:
    with DAG("teams", schedule=None) as dag:
        LLMEngineEksBatchCompletionsTaskGroup("group", cluster_name="ours", data_parallelism=2, **REQUEST)
    replicas: Any = dag.task_dict["group.replicas"]
    collect: Any = dag.task_dict["group.collect"]
    assert replicas.operator_class is LLMEngineEksReplicaOperator
    assert replicas.partial_kwargs["cluster_name"] == "ours"
    assert {"request", "launch", "cluster_name", "image"} <= set(replicas.template_fields)
    assert isinstance(collect, LLMEngineEksCollectOperator)
    assert collect.cluster_name == "ours"


def test_the_same_dag_runs_on_a_laptop(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    job = EchoJob(tmp_path / "job", ["one", "two"])
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection())
    operator = LLMEngineEksBatchCompletionsOperator(
        task_id="job",
        cluster_name="of-production",
        input_data_path=str(job.input),
        output_data_path=str(job.output),
        model_config={"model": "stand-in"},
    )
    assert run(operator)["records"] == 2  # type: ignore[arg-type]


def imported(module: str, before: str = "") -> subprocess.CompletedProcess[str]:
    script = f"import sys\n{before}\nimport {module}\nprint(*(name for name in sys.modules if '.amazon.aws' in name))"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("module", ["operators.eks", "triggers.eks"])
def test_without_the_amazon_provider_its_import_says_what_to_install(module: str) -> None:
    failed = imported(f"airflow_llmengine.{module}", "sys.modules['airflow.providers.amazon.aws'] = None")
    said = failed.stderr.strip().splitlines()[-1]
    assert said.startswith(f"ImportError: airflow_llmengine.{module} needs the package apache-airflow-providers-amazon")


@pytest.mark.slow
def test_the_plain_operator_does_not_load_the_amazon_provider() -> None:
    loaded = imported("airflow_llmengine.operators.task_group")
    assert loaded.stdout.split() == [], loaded.stderr
