"""The pods of a replica that spans several nodes, made from the first one, and what their ends say of it.

The leader is the pod that the pod operator makes: it is found again, waited for and judged like any other worker's.
Its followers belong to it, so that Kubernetes deletes them with it, and lack what the pod operator finds pods by.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from kubernetes.client import models as k8s

from airflow_llmengine.kube.cluster import ClusterSettings
from airflow_llmengine.kube.diagnosis import Diagnosis
from airflow_llmengine.kube.finding import within
from airflow_llmengine.kube.labels import (
    GROUP_LABEL,
    HANDED_OVER_ANNOTATION,
    NODE_LABEL,
    POD_OPERATOR_LABELS,
    REPLICA_NODES_LABEL,
)
from airflow_llmengine.kube.observed_pod import ObservedPod, quoted, to_json
from airflow_llmengine.kube.pod_parts import find_container
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.replica_nodes import LIFELINE_PORT

NODES_ANNOTATION = "airflow-llmengine/nodes"
"""How many pods the replica has, the leader among them. Other pods lack it."""

LEADER = "0"
"""The value of ``NODE_LABEL`` on the leader."""

_GROUP_SIZE_ANNOTATION = "kueue.x-k8s.io/pod-group-total-count"
_GROUP_RETRY_ANNOTATION = "kueue.x-k8s.io/retriable-in-group"
_LONGEST_NAME = 253


def with_followers(pod: k8s.V1Pod, *, nodes: int, cluster: ClusterSettings) -> k8s.V1Pod:
    """Make the leader of a replica out of a worker's pod.

    Args:
        pod: A pod with a name, from ``worker_pod``; it is not changed.
        nodes: Pods of the replica.
        cluster: Names Kueue's queue, if there is one: it then admits all of them together, or none.
    """
    pod = deepcopy(pod)
    group = group_name(pod)
    pod.metadata.labels = {**(pod.metadata.labels or {}), NODE_LABEL: LEADER, REPLICA_NODES_LABEL: group}
    annotations = {NODES_ANNOTATION: str(nodes)}
    if cluster.queue:
        pod.metadata.labels[GROUP_LABEL] = group
        # A pod of the group that has failed is never replaced: the whole group is, by the task's next attempt.
        annotations |= {_GROUP_SIZE_ANNOTATION: str(nodes), _GROUP_RETRY_ANNOTATION: "false"}
    pod.metadata.annotations = {**(pod.metadata.annotations or {}), **annotations}
    return pod


def leader_service(leader: k8s.V1Pod) -> k8s.V1Service:
    """Make the headless Service whose name is the leader's address, before it is ready and as long as it is there.

    No other leader's has its name, even if they have the same one: the cluster deletes a Service some time after its
    owner.

    Args:
        leader: The pod as the cluster has it, with its uid.
    """
    metadata = leader.metadata
    return k8s.V1Service(
        api_version="v1",
        kind="Service",
        metadata=k8s.V1ObjectMeta(
            name=_hashed(metadata.uid),
            namespace=metadata.namespace,
            labels=_people_labels(metadata.labels or {}),
            owner_references=[_owner(leader)],
        ),
        spec=k8s.V1ServiceSpec(
            cluster_ip="None",
            publish_not_ready_addresses=True,
            selector={REPLICA_NODES_LABEL: group_name(leader), NODE_LABEL: LEADER},
            ports=[k8s.V1ServicePort(name="tcp-nodes", port=LIFELINE_PORT, protocol="TCP")],
        ),
    )


def follower_pod(
    pod: k8s.V1Pod, leader: k8s.V1Pod, node: int, *, container: str, arguments: Sequence[str]
) -> k8s.V1Pod:
    """Make a follower: the leader's pod once more, with other arguments.

    Args:
        pod: The leader as it was asked for; the cluster fills in what a second pod must not have.
        leader: The leader as the cluster has it, with its uid.
        node: Which node it is, from 1.
        container: Name of the worker's container.
        arguments: What its program is given; a ``$`` is one.
    """
    follower = deepcopy(pod)
    labels = {key: value for key, value in (pod.metadata.labels or {}).items() if key not in POD_OPERATOR_LABELS}
    annotations = dict(pod.metadata.annotations or {})
    # A sensor looks after the leader.
    annotations.pop(HANDED_OVER_ANNOTATION, None)
    annotations.pop(NODES_ANNOTATION, None)
    follower.metadata = k8s.V1ObjectMeta(
        name=follower_name(leader, node),
        namespace=leader.metadata.namespace,
        labels={**labels, NODE_LABEL: str(node)},
        annotations=annotations,
        owner_references=[_owner(leader)],
    )
    find_container(follower, container).args = [argument.replace("$", "$$") for argument in arguments]
    return follower


def group_name(leader: k8s.V1Pod) -> str:
    """What the pods of a replica have in common, as a label's value."""
    return _hashed(leader.metadata.name)


def follower_name(leader: k8s.V1Pod, node: int) -> str:
    """Name of a follower."""
    suffix = f"-node-{node}"
    name: str = leader.metadata.name
    return name[: _LONGEST_NAME - len(suffix)].rstrip("-.") + suffix


def nodes_of_pod(pod: k8s.V1Pod) -> int:
    """How many pods the replica of a leader has; 1 for any other pod."""
    text = (pod.metadata.annotations or {}).get(NODES_ANNOTATION, "1")
    return int(text) if text.isdecimal() else 1


def followers_selector(leader: k8s.V1Pod) -> str:
    """Selects the followers of a leader, and those of an earlier one that had its name."""
    return f"{REPLICA_NODES_LABEL}={group_name(leader)},{NODE_LABEL}!={LEADER}"


def followers_among(pods: Iterable[k8s.V1Pod], leader: k8s.V1Pod) -> dict[int, k8s.V1Pod]:
    """Those pods that belong to this very leader, by their number.

    Args:
        pods: Found by ``followers_selector``.
        leader: The leader, with its uid if that is known.
    """
    uid = leader.metadata.uid
    found = {}
    for pod in pods:
        owners = {owner.uid for owner in pod.metadata.owner_references or ()}
        number = (pod.metadata.labels or {}).get(NODE_LABEL, "")
        if number.isdecimal() and (uid is None or uid in owners):
            found[int(number)] = pod
    return found


def with_followers_ends(leader: Diagnosis, followers: Mapping[int, Diagnosis]) -> Diagnosis:
    """Say what ended a replica, where it was one of its followers.

    A leader that has lost a follower, or waits for one in vain, ends by itself, and so do the other followers. What
    happened to the first that did not is what happened to the replica.

    Args:
        leader: How the leader ended.
        followers: How each of its followers did, by its number.
    """
    if not ended_by_itself(leader):
        return leader
    for node, diagnosis in sorted(followers.items(), key=lambda item: (item[1].kind == "deleted", item[0])):
        if diagnosis.kind not in ("succeeded", "running"):
            return replace(diagnosis, sentence=f"Node {node} of the replica has ended it: {within(diagnosis.sentence)}")
    return leader


def as_it_waited(diagnosis: Diagnosis, events: Sequence[Any]) -> Diagnosis:
    """Say of a follower that has not started by now what it had waited for: the end of its leader gives it room."""
    observed = ObservedPod({}, [to_json(event) for event in events])
    said = observed.events("FailedScheduling")
    if diagnosis.kind != "pending" or not said:
        return diagnosis
    sentence = f"No node took the pod {observed.name} in time: {quoted(said[0])}"
    return replace(diagnosis, kind="unschedulable", sentence=sentence)


def ended_by_itself(leader: Diagnosis) -> bool:
    """Whether a leader ended as one does that has lost a follower, or waited for it in vain."""
    return leader.kind == "exited" and leader.exit_code in (ExitCode.ENGINE_DIED, ExitCode.PARTIAL)


def _hashed(text: str) -> str:
    return f"llmengine-{hashlib.sha256(text.encode()).hexdigest()[:20]}"


def _owner(leader: k8s.V1Pod) -> k8s.V1OwnerReference:
    return k8s.V1OwnerReference(api_version="v1", kind="Pod", name=leader.metadata.name, uid=leader.metadata.uid)


def _people_labels(labels: Mapping[str, Any]) -> dict[str, str]:
    """Without those by which pods are found."""
    found = (NODE_LABEL, GROUP_LABEL, *POD_OPERATOR_LABELS)
    return {key: str(value) for key, value in labels.items() if key not in found}
