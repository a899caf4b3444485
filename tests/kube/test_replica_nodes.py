"""The pods of a replica that spans several nodes, and what their ends say of it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from kubernetes.client import V1Pod
from pydantic import ValidationError

from airflow_llmengine.kube.cluster import ClusterSettings
from airflow_llmengine.kube.diagnosis import Diagnosis, Kind
from airflow_llmengine.kube.labels import HANDED_OVER_ANNOTATION, NODE_LABEL, REPLICA_NODES_LABEL, WORKER_LABEL
from airflow_llmengine.kube.replica_nodes import (
    as_it_waited,
    follower_name,
    follower_pod,
    followers_among,
    leader_service,
    nodes_of_pod,
    with_followers,
    with_followers_ends,
)
from airflow_llmengine.kube.storage_secret import with_storage_secret
from airflow_llmengine.spec.exit_codes import ExitCode
from tests.kube.pods import CONTAINER, build, require_valid, to_manifest, worker_of

ARGUMENTS = ["follow", "env:LLMENGINE_REQUEST", "--node=1", "--leader=$(HOST)"]


def asked(queue: str | None = None, **options: Any) -> V1Pod:
    """A leader as it is asked for."""
    cluster = ClusterSettings(queue=queue, cache_volume="cache")
    pod = build(cluster=cluster, gpus=8, nodes_per_worker=3, labels={"team": "a"}, **options)
    return with_storage_secret(with_followers(pod, nodes=3, cluster=cluster), container=CONTAINER)


def made(pod: V1Pod) -> V1Pod:
    """The same as the cluster has it: with what a second pod must not have."""
    leader = deepcopy(pod)
    leader.metadata.uid = "6f2c"
    leader.spec.node_name = "node-7"
    return leader


def follower(pod: V1Pod | None = None, node: int = 1) -> dict[str, Any]:
    leader = pod or asked()
    manifest = to_manifest(follower_pod(leader, made(leader), node, container=CONTAINER, arguments=ARGUMENTS))
    require_valid(manifest)
    return manifest


def test_a_follower_is_the_leader_once_more() -> None:
    leader, other = to_manifest(asked()), follower()
    assert other["metadata"]["name"] == "task-abc-node-1"
    assert worker_of(other)["args"] == [*ARGUMENTS[:3], "--leader=$$(HOST)"]
    worker_of(other)["args"] = worker_of(leader)["args"]
    assert other["spec"] == leader["spec"]


def test_a_follower_is_never_taken_for_the_tasks_pod() -> None:
    pod = asked()
    pod.metadata.annotations[HANDED_OVER_ANNOTATION] = "true"
    metadata = follower(pod)["metadata"]
    # Airflow finds pods by all of its labels at once.
    assert "kubernetes_pod_operator" not in metadata["labels"]
    assert metadata["labels"]["dag_id"] == "dag"
    assert metadata["labels"]["team"] == "a"
    assert metadata["labels"][WORKER_LABEL] == "true"
    assert HANDED_OVER_ANNOTATION not in metadata["annotations"]
    assert nodes_of_pod(V1Pod(metadata=pod.metadata)) == 3
    assert "airflow-llmengine/nodes" not in metadata["annotations"]


def test_followers_go_with_their_leader_and_the_service_too() -> None:
    leader = made(asked())
    service = to_manifest(leader_service(leader))
    require_valid(service)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "task-abc", "uid": "6f2c"}
    assert service["metadata"]["ownerReferences"] == [owner]
    assert follower()["metadata"]["ownerReferences"] == [owner]


def test_the_service_names_the_leader_alone_and_before_it_is_ready() -> None:
    leader = made(asked())
    spec = to_manifest(leader_service(leader))["spec"]
    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)
    assert spec["selector"].items() <= leader.metadata.labels.items()
    assert not spec["selector"].items() <= follower()["metadata"]["labels"].items()
    other = build()
    other.metadata.name = "task-def"
    selector = to_manifest(leader_service(made(with_followers(other, nodes=3, cluster=ClusterSettings()))))["spec"]
    assert selector["selector"] != spec["selector"]


def test_the_next_leader_of_the_same_name_has_a_service_of_its_own() -> None:
    """With random_name_suffix=False: the earlier one's Service is deleted some time after its pod."""
    first, second = made(asked()), made(asked())
    second.metadata.uid = "7a3d"
    names = {to_manifest(leader_service(leader))["metadata"]["name"] for leader in (first, second)}
    assert len(names) == 2


def test_kueue_admits_all_of_them_or_none() -> None:
    pods = [to_manifest(asked("batch")), follower(asked("batch"), 1), follower(asked("batch"), 2)]
    for pod in pods:
        labels, annotations = pod["metadata"]["labels"], pod["metadata"]["annotations"]
        assert labels["kueue.x-k8s.io/queue-name"] == "batch"
        assert labels["kueue.x-k8s.io/pod-group-name"] == pods[0]["metadata"]["labels"][REPLICA_NODES_LABEL]
        assert annotations["kueue.x-k8s.io/pod-group-total-count"] == "3"
        assert annotations["kueue.x-k8s.io/retriable-in-group"] == "false"
    alone = to_manifest(asked())["metadata"]
    assert not [name for name in (*alone["labels"], *alone["annotations"]) if name.startswith("kueue")]
    with pytest.raises(ValidationError, match="pod_ip does not go with a queue"):
        ClusterSettings(queue="batch", leader_address="pod_ip")


def test_only_followers_of_this_very_leader_are_found() -> None:
    leader = made(asked())
    own = [follower_pod(asked(), leader, node, container=CONTAINER, arguments=[]) for node in (1, 2)]
    earlier = made(asked())
    earlier.metadata.uid = "another"
    foreign = follower_pod(asked(), earlier, 2, container=CONTAINER, arguments=[])
    assert followers_among([foreign, *own], leader) == {1: own[0], 2: own[1]}
    assert followers_among([foreign], leader) == {}
    assert own[0].metadata.labels[NODE_LABEL] == "1"


def test_long_names() -> None:
    pod = build()
    pod.metadata.name = "a" * 253
    names = {follower_name(pod, node) for node in (1, 2, 63)}
    assert [len(name) for name in names] == [253, 253, 253]
    assert len(names) == 3


def ended(kind: Kind, exit_code: int | None = None, sentence: str = "The pod x.") -> Diagnosis:
    return Diagnosis(kind, sentence, started=True, exit_code=exit_code)


LOST_ONE = ended("exited", ExitCode.ENGINE_DIED)


@pytest.mark.parametrize("kind", ["preempted", "node_lost", "out_of_memory", "image_unavailable", "unschedulable"])
def test_what_happened_to_a_follower_happened_to_the_replica(kind: Kind) -> None:
    others = {1: ended("succeeded", 0), 2: ended(kind, sentence="The pod ns/x was unlucky."), 3: ended("deleted")}
    found = with_followers_ends(LOST_ONE, others)
    assert (found.kind, found.sentence) == (kind, "Node 2 of the replica has ended it: the pod ns/x was unlucky.")


def test_a_leader_that_ended_otherwise_tells_its_own_end() -> None:
    others = {1: ended("deleted")}
    own_ends = [ended("exited", ExitCode.BAD_REQUEST), ended("preempted", ExitCode.PARTIAL), ended("succeeded", 0)]
    for leader in own_ends:
        assert with_followers_ends(leader, others) is leader
    assert with_followers_ends(LOST_ONE, {1: ended("succeeded", 0), 2: ended("running")}) is LOST_ONE


def test_a_follower_that_got_room_only_when_its_leader_had_ended() -> None:
    event = {"reason": "FailedScheduling", "message": "0/1 nodes are available", "involvedObject": {"name": "x-node-1"}}
    waited = as_it_waited(ended("pending"), [event])
    assert (waited.kind, waited.sentence) == (
        "unschedulable",
        "No node took the pod x-node-1 in time: 0/1 nodes are available.",
    )
    assert as_it_waited(ended("pending"), []).kind == "pending"
    assert as_it_waited(ended("out_of_memory"), [event]).kind == "out_of_memory"
