"""The API server's own validation of the pods, and what a pod that was made so can do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_llmengine.kube.cluster import ClusterSettings
from airflow_llmengine.kube.storage_secret import storage_secret, with_storage_secret
from airflow_llmengine.kube.worker_pod import WorkerStart
from airflow_llmengine.spec.kubernetes_syntax import parse_quantity
from tests.kube.pods import CONTAINER, build, lost, operators_pod, to_manifest, worker_of
from tests.kube.test_gpu_placement import EXPECTED
from tests.kube.test_worker_pod import EVERYTHING, L40S, USERS_POD, worked_out
from tests.kubernetes.cluster import Cluster
from tests.waiting import wait_until

pytestmark = pytest.mark.kubernetes


@pytest.fixture(scope="module")
def shared_namespace(cluster: Cluster) -> Iterator[str]:
    """One for all dry runs, which leave nothing."""
    name = cluster.new_namespace()
    yield name
    cluster.delete_namespace(name)


def in_namespace(pod: Any, namespace: str) -> Any:
    pod.metadata.namespace = namespace
    return pod


def accept(cluster: Cluster, namespace: str, pod: Any) -> Any:
    """What the API server would store. Nothing is made."""
    return cluster.core.create_namespaced_pod(namespace, in_namespace(pod, namespace), dry_run="All")


def require_service_accounts(cluster: Cluster, namespace: str, *names: str) -> None:
    for name in names:
        cluster.new_service_account(namespace, name)


@pytest.mark.parametrize(("platform", "gpu_type"), [(platform, gpu_type) for platform, gpu_type, *_ in EXPECTED])
def test_the_pod_of_every_gpu_type_is_accepted_as_it_is(
    cluster: Cluster, shared_namespace: str, platform: Any, gpu_type: str
) -> None:
    fields: dict[str, Any] = {"cpus": 6.5, "memory": 9e18, "storage": "1.5Ti", "labels": {"team": "a"}}
    pod = build(cluster=ClusterSettings(gpu_platform=platform, queue="gpus"), gpu_type=gpu_type, gpus=2, **fields)
    stored = to_manifest(accept(cluster, shared_namespace, pod))
    # An older API server drops what it doesn't know without a word, and writes quantities its own way.
    sent = to_manifest(pod)
    quantities = worker_of(sent).pop("resources"), worker_of(stored).pop("resources")
    assert list(lost(sent, stored)) == []
    given, kept = ({name: parse_quantity(text) for name, text in each["limits"].items()} for each in quantities)
    assert given == kept


def test_everything_that_a_connection_and_a_user_can_say_is_accepted(cluster: Cluster, namespace: str) -> None:
    require_service_accounts(cluster, namespace, "batch", "mine")
    accept(cluster, namespace, build(cluster=EVERYTHING, gpu_type="nvidia-hopper-h100"))
    accept(cluster, namespace, build(cluster=EVERYTHING, role="collect"))
    users = {**USERS_POD, "spec": {**USERS_POD["spec"], "priorityClassName": "system-node-critical"}}
    accept(cluster, namespace, build(users, cluster=EVERYTHING))


def test_a_pod_with_what_was_worked_out_for_its_model_is_accepted(cluster: Cluster, shared_namespace: str) -> None:
    pod = build(cluster=L40S, gpus=2, hardware=worked_out(storage=20 * 2**30))
    stored = to_manifest(accept(cluster, shared_namespace, pod))
    requests = worker_of(stored)["resources"]["requests"]
    assert requests == {"cpu": "4", "memory": "28Gi", "ephemeral-storage": "20Gi", "nvidia.com/gpu": "2"}
    assert stored["spec"]["nodeSelector"] == {"pool": "l40s"}


LOOK = """
id
cat "$LLMENGINE_STORAGE_OPTIONS_FILE" && echo
touch /tmp/mine && echo "writes to $HOME"
touch /mine 2>/dev/null || echo "does not write to /"
grep CapEff /proc/self/status
ls /var/run/secrets/kubernetes.io 2>/dev/null || echo "no token of Kubernetes"
echo done > /dev/termination-log
"""


@pytest.mark.slow
def test_the_worker_of_a_hardened_pod_can_do_what_it_must_and_its_secret_dies_with_it(
    cluster: Cluster, namespace: str
) -> None:
    start = WorkerStart(command=["sh", "-c"], arguments=[LOOK], environment={}, image="local/busybox:1")
    pod = build(operators_pod(), cluster=ClusterSettings(accelerator="none"), start=start, cpus="50m", memory="32Mi")
    pod = cluster.create_pod(namespace, in_namespace(with_storage_secret(pod, container=CONTAINER), namespace))
    secret = cluster.core.create_namespaced_secret(namespace, storage_secret(pod, {"s3": {"key": "abc"}}))
    ended = cluster.wait_for_phase(namespace, pod.metadata.name, "Succeeded")
    log = cluster.log(namespace, pod.metadata.name)
    assert "uid=1000 gid=1000" in log
    assert '{"s3": {"key": "abc"}}' in log
    assert "writes to /tmp" in log
    assert "does not write to /" in log
    assert "CapEff:\t0000000000000000" in log
    assert "no token of Kubernetes" in log
    assert ended.status.container_statuses[0].state.terminated.message.strip() == "done"
    cluster.delete_pod(namespace, pod.metadata.name)
    wait_until(lambda: secret.metadata.name not in secrets_of(cluster, namespace), seconds=120)


def secrets_of(cluster: Cluster, namespace: str) -> list[str]:
    return [secret.metadata.name for secret in cluster.core.list_namespaced_secret(namespace).items]
