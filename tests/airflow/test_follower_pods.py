"""The further pods of a replica that spans several nodes, as a task deals with them; without a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client import (
    CoreV1Event,
    V1Container,
    V1ObjectMeta,
    V1ObjectReference,
    V1Pod,
    V1PodSpec,
    V1PodStatus,
)
from kubernetes.client.exceptions import ApiException

from airflow_llmengine.exceptions import (
    PodPreemptedError,
    PodRejectedError,
    PodUnschedulableError,
    RequestRefusedError,
    TaskKilledError,
)
from airflow_llmengine.hooks.replica_nodes import end_followers, with_nodes
from airflow_llmengine.hooks.worker_attempt import WorkerAttempt
from airflow_llmengine.kube.cluster import ClusterSettings
from airflow_llmengine.kube.diagnosis import Diagnosis, diagnose
from airflow_llmengine.kube.labels import NODE_LABEL
from airflow_llmengine.kube.replica_nodes import follower_pod, with_followers
from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator
from airflow_llmengine.operators.pod_launch import PodEnd
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.job_state import JobHandle
from airflow_llmengine.storage.status import JobStatus
from tests.airflow.cluster_double import CONTAINER, NAMESPACE, ScriptedApi, a_pod, moment, refusal
from tests.airflow.operators_in_tests import EchoJob, connection, run, task_context

IDENTITY = {"airflow-llmengine/job": "abc-1"}
NODES = 3


class NodesApi(ScriptedApi):
    """A cluster that tells followers from other pods, takes Services, and gives pods addresses."""

    def __init__(self, *pods: V1Pod) -> None:
        super().__init__(*pods)
        self.services: list[str] = []
        self.addresses: dict[str, str] = {}

    def list_namespaced_pod(self, namespace: str, **options: Any) -> Any:
        followers = f"{NODE_LABEL}!=0" in options.get("label_selector", "")
        found = [
            pod for pod in self.pods.values() if ((pod.metadata.labels or {}).get(NODE_LABEL, "0") != "0") == followers
        ]
        return self._answer("list", options, lambda: SimpleNamespace(items=found))

    def create_namespaced_service(self, namespace: str, service: Any, **options: Any) -> None:
        self._answer("service", options, lambda: self.services.append(service.metadata.name))

    def list_namespaced_event(self, namespace: str, **options: Any) -> Any:
        named = [event for event in self.events if event.involved_object.name in options["field_selector"]]
        return SimpleNamespace(items=named)

    def read_namespaced_pod(self, name: str, namespace: str, **options: Any) -> V1Pod:
        pod = super().read_namespaced_pod(name, namespace, **options)
        pod.status = pod.status or V1PodStatus(phase="Pending")
        pod.status.pod_ip = self.addresses.get(name)
        return pod


def leader(name: str, phase: str | None = "Running", **options: Any) -> V1Pod:
    pod = with_followers(
        a_pod(name, phase, annotations=dict(IDENTITY), **options), nodes=NODES, cluster=ClusterSettings()
    )
    pod.spec.containers = [V1Container(name=CONTAINER)]
    return pod


def follower(of: V1Pod, node: int, phase: str = "Running", **options: Any) -> V1Pod:
    asked = V1Pod(metadata=of.metadata, spec=V1PodSpec(containers=[V1Container(name=CONTAINER)]))
    pod = follower_pod(asked, of, node, container=CONTAINER, arguments=[])
    seen = a_pod(pod.metadata.name, phase, **options)
    pod.spec, pod.status = seen.spec, seen.status
    pod.metadata.deletion_timestamp = seen.metadata.deletion_timestamp
    pod.metadata.uid = f"uid-of-{pod.metadata.name}"
    return pod


def operator(api: ScriptedApi, *, address: str = "service", meanwhile: Callable[[Any], None] = lambda _op: None) -> Any:
    """A task whose launch has three nodes."""
    made: Any = LLMEngineBatchCompletionsOperator(
        task_id="job", input_data_path="in.json", output_data_path="out.json", model_config={"model": "stand-in"}
    )
    made.__dict__["client"] = api

    def followers(pod: V1Pod, of: V1Pod, *, address: str, container: str) -> list[V1Pod]:
        return [follower_pod(pod, of, node, container=container, arguments=[address]) for node in range(1, NODES)]

    made._pod_launch = SimpleNamespace(
        identity=IDENTITY,
        add_secret=lambda *_arguments: None,
        settings=SimpleNamespace(cluster=ClusterSettings(leader_address=address)),
        followers=followers,
    )
    made._build_find_pod_label_selector = lambda *_arguments, **_options: ""
    made._pause = lambda _seconds: meanwhile(made)
    return made


def asked(name: str) -> V1Pod:
    pod = leader(name, None)
    pod.metadata.uid = None
    pod.metadata.annotations["try"] = "2"
    return pod


def arguments_of(api: ScriptedApi) -> dict[str, list[str]]:
    return {name: pod.spec.containers[0].args for name, pod in api.pods.items() if "-node-" in name}


def test_followers_are_made_with_the_leader_and_find_it_by_its_service() -> None:
    api = NodesApi()
    operator(api).get_or_create_pod(asked("job"), task_context())
    (service,) = api.services
    assert arguments_of(api) == {"job-node-1": [service], "job-node-2": [service]}


def test_followers_of_an_earlier_leader_by_the_same_name_give_theirs_to_the_next() -> None:
    """With random_name_suffix=False: Kubernetes deletes them some time after their leader."""
    earlier = leader("job")
    earlier.metadata.uid = "uid-of-the-earlier-one"
    api = NodesApi(follower(earlier, 1, "Succeeded", ended=1.0), follower(earlier, 2))
    made = operator(api).get_or_create_pod(asked("job"), task_context())
    assert sorted(arguments_of(api)) == ["job-node-1", "job-node-2"]
    owners = {api.pods[name].metadata.owner_references[0].uid for name in arguments_of(api)}
    assert owners == {made.metadata.uid}


def test_without_dns_followers_are_made_when_the_leader_has_an_address() -> None:
    api = NodesApi()
    made_before: list[int] = []

    def give_address(_operator: Any) -> None:
        made_before.append(len(api.pods))
        api.addresses["job"] = "10.0.0.7"

    operator(api, address="pod_ip", meanwhile=give_address).get_or_create_pod(asked("job"), task_context())
    assert made_before == [1]
    assert arguments_of(api) == {"job-node-1": ["10.0.0.7"], "job-node-2": ["10.0.0.7"]}
    assert api.services == []


def test_a_leader_that_gets_no_address_in_time() -> None:
    task = operator(NodesApi(), address="pod_ip")
    task.schedule_timeout_seconds = 0
    with pytest.raises(PodUnschedulableError, match=r"has not started yet.* wait for its address"):
        task.get_or_create_pod(asked("job"), task_context())


def test_a_kill_ends_the_wait_for_the_address_and_the_leader() -> None:
    api = NodesApi()

    def kill(task: Any) -> None:
        task._ended_by_airflow = True

    with pytest.raises(TaskKilledError):
        operator(api, address="pod_ip", meanwhile=kill).get_or_create_pod(asked("job"), task_context())
    assert not api.pods


def test_a_service_that_may_not_be_made_is_told_and_no_pod_waits_for_it() -> None:
    api = NodesApi()
    said = (
        'services is forbidden: User "airflow" cannot create resource "services" in API group "" in the namespace "llm"'
    )
    api.troubles["service"].append(refusal(403, "Forbidden", message=said))
    with pytest.raises(PodRejectedError, match="may not create services"):
        operator(api).get_or_create_pod(asked("job"), task_context())
    assert list(api.pods) == ["job"]


def test_a_replica_is_taken_over_whole() -> None:
    first = leader("first")
    api = NodesApi(first, follower(first, 1), follower(first, 2, "Pending"))
    assert operator(api).get_or_create_pod(asked("second"), task_context()).metadata.name == "first"
    assert "create" not in api.verbs()


@pytest.mark.parametrize("second", [None, {"phase": "Failed", "ended": 1.0}, {"deletion": 4e9}], ids=str)
def test_a_replica_that_lacks_a_node_is_made_anew(second: dict[str, Any] | None) -> None:
    first = leader("first")
    others = [] if second is None else [follower(first, 2, **second)]
    api = NodesApi(first, follower(first, 1), *others)
    assert operator(api).get_or_create_pod(asked("second"), task_context()).metadata.name == "second"
    assert "first" not in api.pods
    assert {"second", "second-node-1", "second-node-2"} <= set(api.pods)


def test_a_leaders_end_ends_the_followers_that_wait_for_it_and_keeps_the_evidence() -> None:
    first = leader("first", "Failed", ended=1.0)
    api = NodesApi(first, follower(first, 1, "Failed", ended=1.0, exit_code=137), follower(first, 2, "Pending"))
    end_followers(api, first)
    assert set(api.pods) == {"first", "first-node-1"}


def lost_one(pod: V1Pod) -> Diagnosis:
    return diagnose(pod, container=CONTAINER)


def preempted(name: str) -> CoreV1Event:
    return CoreV1Event(
        reason="Preempted",
        message="Preempted by llm/other on node node-1",
        involved_object=V1ObjectReference(namespace=NAMESPACE, name=name),
        metadata=V1ObjectMeta(name="event", creation_timestamp=moment(1)),
    )


def test_the_exception_is_that_of_the_node_that_was_preempted() -> None:
    first = leader("first", "Failed", ended=1.0, exit_code=ExitCode.ENGINE_DIED)
    api = NodesApi(first, follower(first, 1, "Succeeded", ended=1.0))
    api.events = [preempted("first-node-2")]
    found = with_nodes(api, first, lost_one(first), container=CONTAINER)
    handle = JobHandle(path="out.json", fingerprint="f" * 24, generation=1)
    error = PodEnd(found).failure(
        WorkerAttempt(handle=handle, owner="dag/job", series="one", deadline=4e9, max_error_rate=None),
        JobStatus(state="running", handle=handle),
        series=None,
        launched_by="the task",
    )
    assert isinstance(error, PodPreemptedError)
    assert str(error).startswith(f"Node 2 of the replica has ended it: the pod {NAMESPACE}/first-node-2 ")


def test_where_followers_can_not_be_looked_at_the_leader_tells_its_end() -> None:
    first = leader("first", "Failed", ended=1.0, exit_code=ExitCode.ENGINE_DIED)
    api = NodesApi(first)
    api.troubles["list"].append(ApiException(status=403))
    own = lost_one(first)
    assert with_nodes(api, first, own, container=CONTAINER) is own
    assert with_nodes(api, None, own, container=CONTAINER) is own


def test_on_one_machine_several_nodes_are_refused_before_anything_is_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection())
    job = EchoJob(tmp_path / "job", ["a"])
    with pytest.raises(RequestRefusedError, match="nodes_per_worker: 2 nodes need pods"):
        run(job.operator(nodes_per_worker=2))
    assert not list((tmp_path / "job").glob("output*"))
