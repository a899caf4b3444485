"""A whole group whose replicas are pods: real task processes, the scheduler's own decisions, a real cluster."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from tests.kubernetes.cluster import GPU_RESOURCE
from tests.kubernetes.pod_jobs import ONE_A_CHUNK, WORD, PodJob
from tests.storage.s3_server import ACCESS_KEY, SECRET_KEY
from tests.waiting import wait_until

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

RECORDS = 24
DONE = {"group.plan": ["success"], "group.replicas": ["success"] * 3, "group.collect": ["success"]}


@pytest.fixture
def group(pod_job: PodJob) -> PodJob:
    pod_job.put_input(RECORDS, max_tokens=ONE_A_CHUNK)
    pod_job.arguments["data_parallelism"] = 3
    return pod_job


def gpus_of(pod: dict[str, Any]) -> str:
    limits: dict[str, str] = pod["spec"]["containers"][0]["resources"].get("limits", {})
    return limits.get(GPU_RESOURCE, "none")


def without_time(output: bytes | None) -> bytes:
    """The output without the moment at which its job was launched."""
    assert output is not None
    return re.sub(rb'"created":\d+', b'"created":0', output)


def roles(group: PodJob) -> Counter[str]:
    """How many pods of each role there ever were."""
    return Counter(
        group.watch.last(name)["metadata"]["labels"]["app.kubernetes.io/component"] for name in group.watch.names
    )


def test_three_replicas_give_what_a_local_worker_gives(
    group: PodJob, node_gpus: Callable[[int], AbstractContextManager[None]]
) -> None:
    group.settings["cluster"] = {}
    with node_gpus(3):
        run = group.start_group("run")
        assert run.states() == DONE, run.log()
    wait_until(lambda: not group.pods())
    assert roles(group) == {"replica": 3, "collect": 1}
    gpus = {
        (pod["metadata"]["labels"]["app.kubernetes.io/component"], gpus_of(pod))
        for pod in map(group.watch.last, group.watch.names)
    }
    assert gpus == {("replica", "1"), ("collect", "none")}
    assert set(group.generations().values()) == {1}
    told = group.told()
    assert not [text for text in (ACCESS_KEY, SECRET_KEY, f"{WORD} ") if text in told]

    by_pods = group.output()
    del group.arguments["data_parallelism"]
    group.arguments["output_data_path"] = f"s3://{group.bucket}/local.json"
    group.settings = {"launcher": "local", "engine": "echo", "storage_conn_id": "store"}
    state, log = group.run()
    assert state == "success", log
    assert without_time(by_pods) == without_time(group.output("local.json"))


def test_replicas_whose_pods_finished_while_airflow_was_dead(group: PodJob) -> None:
    group.set_speed(0.3)
    first = group.start_group("run")
    wait_until(lambda: len(group.pods()) == 3)
    group.wait_for_records(1)
    first.kill()
    wait_until(lambda: all(pod.status.phase == "Succeeded" for pod in group.pods()))
    assert group.output() is None
    run = group.start_group("lost", "run")
    assert run.states() == DONE, run.log()
    assert run.log().count("A pod of an earlier attempt has done this already") >= 3
    assert roles(group) == {"replica": 3, "collect": 1}
    assert set(group.generations().values()) == {1}
    assert group.is_complete(RECORDS)
    wait_until(lambda: not group.pods())
