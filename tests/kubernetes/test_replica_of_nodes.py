"""A replica that spans three pods, under Airflow, with the stand-in engine: they begin, end and are told of together.

The test cluster has no DNS, so followers are given the leader's address instead of the name of its Service.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_llmengine.kube.labels import NODE_LABEL
from tests.kubernetes.pod_jobs import RECORDS, WORD, PodJob
from tests.storage.s3_server import ACCESS_KEY, SECRET_KEY
from tests.waiting import wait_until

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]


@pytest.fixture
def job(pod_job: PodJob) -> Iterator[PodJob]:
    """A job of three nodes, after which no pod is left but those that failed."""
    # A follower that is told to end gives its leader most of its own grace to save in.
    pod_job.arguments |= {"nodes_per_worker": 3, "termination_grace_period": 60}
    pod_job.settings["cluster"] = {"accelerator": "none", "leader_address": "pod_ip"}
    yield pod_job
    wait_until(lambda: {pod.status.phase for pod in pod_job.kept()} <= {"Failed", "Succeeded"})
    told = pod_job.told()
    assert not [text for text in (ACCESS_KEY, SECRET_KEY, f"{WORD} ") if text in told]


def by_node(job: PodJob) -> dict[int, Any]:
    """The pods that nobody has deleted."""
    return {int(pod.metadata.labels[NODE_LABEL]): pod for pod in job.kept()}


def wait_for_work(job: PodJob) -> dict[int, Any]:
    """Wait until all nodes are at work; gives their pods."""
    job.wait_for_records(5)
    return by_node(job)


def finish(job: PodJob) -> None:
    """Run the next attempt, which ends the job, and see that it did not do again what had been done."""
    job.set_speed(0)
    state, log = job.run()
    assert state == "success", log
    assert job.is_complete()
    assert job.generations().total() <= RECORDS + 1


def test_three_nodes_do_a_job_and_are_gone(job: PodJob) -> None:
    job.set_speed(0)
    state, log = job.run()
    assert state == "success", log
    assert job.is_complete()
    assert set(job.generations().values()) == {1}
    pods = [job.watch.last(name) for name in job.watch.names]
    assert {pod["metadata"]["labels"][NODE_LABEL] for pod in pods} == {"0", "1", "2"}
    assert job.watch.most_at_work == 3
    wait_until(lambda: not job.pods())


def test_a_follower_that_dies_ends_the_replica_and_the_retry_goes_on(job: PodJob) -> None:
    job.set_speed(0.3)
    first = job.start()
    pods = wait_for_work(job)
    assert sorted(pods) == [0, 1, 2]
    job.cluster.delete_pod(job.namespace, pods[2].metadata.name, grace_seconds=0)
    state, log = first.end()
    assert state == "up_for_retry", log
    assert f"Node 2 of the replica has ended it: the pod {job.namespace}/{pods[2].metadata.name}" in log
    assert "PodDeletedError" in log
    finish(job)


def test_followers_go_with_a_leader_that_is_deleted(job: PodJob) -> None:
    job.set_speed(0.3)
    first = job.start()
    pods = wait_for_work(job)
    job.cluster.delete_pod(job.namespace, pods[0].metadata.name)
    state, log = first.end()
    assert state == "up_for_retry", log
    assert "PodDeletedError" in log
    assert pods[0].metadata.name in log
    wait_until(lambda: not job.pods())
    finish(job)


def test_a_replica_is_found_again_with_its_followers(job: PodJob) -> None:
    job.set_speed(0.3)
    first = job.start()
    wait_for_work(job)
    first.kill()
    state, log = job.run()
    assert state == "success", log
    assert "Taking over the pod" in log
    assert len(job.watch.names) == 3
    assert set(job.generations().values()) == {1}


def test_followers_that_find_no_node_are_told_of(job: PodJob) -> None:
    job.arguments |= {"schedule_timeout_seconds": 5, "startup_timeout_seconds": 10}
    # The cluster has one node.
    apart = {
        "labelSelector": {"matchExpressions": [{"key": NODE_LABEL, "operator": "Exists"}]},
        "topologyKey": "kubernetes.io/hostname",
    }
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    job.settings["pod_template"]["spec"]["affinity"] = affinity
    state, log = job.run()
    assert state == "up_for_retry", log
    assert "PodUnschedulableError" in log
    assert re.search(r"Node [12] of the replica has ended it: no node t\w+ the pod \S+-node-[12]", log)
    assert "nodes 1, 2 of this replica did not connect within 15 s" in log
    assert not job.generations()
