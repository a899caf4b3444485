"""The pods of a replica that spans several nodes, in the cluster: found by their leader, judged, and ended with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_llmengine.exceptions import LLMEngineError
from airflow_llmengine.hooks.pods import delete_pod, events_of, patiently

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api, V1Pod

    from airflow_llmengine.kube.diagnosis import Diagnosis


def find_followers(client: CoreV1Api, leader: V1Pod) -> dict[int, V1Pod]:
    """The followers of a leader that are there, by their number; empty for a pod that has none."""
    from airflow_llmengine.kube.replica_nodes import followers_among, nodes_of_pod

    return {} if nodes_of_pod(leader) == 1 else followers_among(_with_its_name(client, leader), leader)


def earlier_followers(client: CoreV1Api, leader: V1Pod) -> list[V1Pod]:
    """The followers of an earlier leader that had the name of this one: they are there for a while after it is gone."""
    from airflow_llmengine.kube.replica_nodes import followers_among

    found = _with_its_name(client, leader)
    own = {pod.metadata.uid for pod in followers_among(found, leader).values()}
    return [pod for pod in found if pod.metadata.uid not in own]


def _with_its_name(client: CoreV1Api, leader: V1Pod) -> list[V1Pod]:
    from airflow_llmengine.kube.replica_nodes import followers_selector

    selector = followers_selector(leader)
    found: list[V1Pod] = patiently(client.list_namespaced_pod)(leader.metadata.namespace, label_selector=selector).items
    return found


def missing_followers(client: CoreV1Api, leader: V1Pod) -> list[int]:
    """The nodes of a leader's replica that have no pod, or one that has ended or is about to."""
    from airflow_llmengine.kube.reattach import is_active
    from airflow_llmengine.kube.replica_nodes import nodes_of_pod

    at_work = {
        node
        for node, pod in find_followers(client, leader).items()
        if pod.metadata.deletion_timestamp is None and is_active(pod)
    }
    return [node for node in range(1, nodes_of_pod(leader)) if node not in at_work]


def end_followers(client: CoreV1Api, leader: V1Pod) -> None:
    """Delete the followers that have not ended, of a leader that has: they would go on waiting for it."""
    from airflow_llmengine.kube.reattach import is_active

    for pod in find_followers(client, leader).values():
        if is_active(pod):
            delete_pod(client, pod)


def with_nodes(client: CoreV1Api, leader: V1Pod | None, diagnosis: Diagnosis, *, container: str) -> Diagnosis:
    """Say what happened to a replica. Never raises: where its followers can't be looked at, its first pod tells.

    Args:
        client: The API.
        leader: Its first pod, as it is or was; None: nothing is known of it.
        diagnosis: What happened to that.
        container: The worker's container.
    """
    from kubernetes.client import V1ObjectMeta, V1Pod
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    from airflow_llmengine.kube.diagnosis import diagnose
    from airflow_llmengine.kube.replica_nodes import (
        as_it_waited,
        ended_by_itself,
        follower_name,
        nodes_of_pod,
        with_followers_ends,
    )

    if leader is None or nodes_of_pod(leader) == 1 or not ended_by_itself(diagnosis):
        return diagnosis
    try:
        found = find_followers(client, leader)
    except (ApiException, HTTPError, LLMEngineError):
        # The last: there is no token for the cluster.
        return diagnosis
    ends = {}
    for node in range(1, nodes_of_pod(leader)):
        pod = found.get(node)
        known = pod or V1Pod(
            metadata=V1ObjectMeta(name=follower_name(leader, node), namespace=leader.metadata.namespace)
        )
        events = events_of(client, known)
        ends[node] = as_it_waited(diagnose(pod, events, container=container, last_seen=known), events)
    return with_followers_ends(diagnosis, ends)
