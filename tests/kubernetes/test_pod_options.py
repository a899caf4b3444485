"""What the DAG says of its pod goes before what the connection says, and what neither may be shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kubernetes.host_python import IMAGE
from tests.kubernetes.jobs_on_s3 import own_credentials
from tests.kubernetes.pod_jobs import WORD, PodJob
from tests.kubernetes.pod_watch import PodWatch
from tests.storage.s3_server import ACCESS_KEY, POD_ACCESS_KEY, SECRET_KEY
from tests.waiting import wait_until

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

PRIVATE = "quagmire"
"""In the prompts of a DAG, and nowhere else."""


@pytest.fixture
def other_namespace(pod_job: PodJob) -> Iterator[str]:
    name = pod_job.cluster.new_namespace()
    yield name
    pod_job.cluster.delete_namespace(name)


def test_the_operators_options_win_over_the_connection(pod_job: PodJob, other_namespace: str) -> None:
    pod_job.cluster.new_service_account(other_namespace, "of-the-dag")
    template = pod_job.settings["pod_template"]
    pod_job.settings |= {
        "image": "of/the-connection:1",
        "pod_template": {"spec": {"containers": [{"name": "base", "image": "of/the-template:1"}]}},
        "cluster": {
            "accelerator": "none",
            "service_account_name": "of-the-connection",
            "node_selector": {"kubernetes.io/hostname": "of-the-connection"},
        },
    }
    pod_job.arguments |= {
        "image": IMAGE,
        "namespace": other_namespace,
        "pod_template_dict": template,
        "service_account_name": "of-the-dag",
        "container_resources": {"requests": {"cpu": "70m"}, "limits": {"memory": "2Gi"}},
        "node_selector": {"kubernetes.io/hostname": pod_job.cluster.node.metadata.name},
        "security_context": {"runAsUser": 1234, "fsGroup": 1234},
        "container_security_context": {"readOnlyRootFilesystem": False},
        "env_vars": {"OF": "the DAG"},
        "termination_grace_period": 7,
        "cpus": "3",
        "memory": "3Gi",
    }
    pod_job.set_speed(0)
    with PodWatch(pod_job.cluster, other_namespace) as watch:
        state, log = pod_job.run()
    assert state == "success", log
    assert not pod_job.watch.names
    (name,) = watch.names
    pod = watch.last(name)
    spec: dict[str, Any] = pod["spec"]
    (container,) = spec["containers"]
    assert container["image"] == IMAGE
    assert container["resources"] == {"requests": {"cpu": "70m", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}
    assert container["securityContext"] == {"readOnlyRootFilesystem": False}
    assert {"name": "OF", "value": "the DAG"} in container["env"]
    assert spec["serviceAccountName"] == "of-the-dag"
    assert spec["nodeSelector"] == {"kubernetes.io/hostname": pod_job.cluster.node.metadata.name}
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["fsGroup"]) == (1234, 1234)
    assert spec["terminationGracePeriodSeconds"] == 7


def test_neither_credentials_nor_prompts_are_shown(pod_job: PodJob) -> None:
    """Prompts that stand in the DAG itself, and the credentials of a connection."""
    core, namespace = pod_job.cluster.core, pod_job.namespace
    del pod_job.arguments["input_data_path"]
    prompts = [f"{PRIVATE} {index}" for index in range(3)] + [f"llmengine-echo:reject {PRIVATE}"]
    pod_job.arguments["content"] = {"prompts": prompts, "max_new_tokens": 4, "temperature": 0}
    pod_job.set_speed(3)
    task = pod_job.start()
    wait_until(lambda: pod_job.generations().total())
    (secret,) = [
        each
        for each in core.list_namespaced_secret(namespace).items
        if each.type != "kubernetes.io/service-account-token"
    ]
    (pod,) = pod_job.pods()
    assert [owner.uid for owner in secret.metadata.owner_references] == [pod.metadata.uid]
    state, log = task.end()
    assert state == "success", log
    wait_until(lambda: not pod_job.pods())
    wait_until(
        lambda: (
            secret.metadata.name not in [each.metadata.name for each in core.list_namespaced_secret(namespace).items]
        )
    )
    told = pod_job.told()
    assert pod_job.run_id in told
    assert not [text for text in (ACCESS_KEY, SECRET_KEY, PRIVATE, WORD) if text in told]


@pytest.fixture
def with_own_credentials(pod_job: PodJob) -> PodJob:
    """Its pods have credentials of their own, from a Secret that somebody made for them."""
    pod_job.settings |= own_credentials(pod_job.cluster, pod_job.namespace)
    pod_job.set_speed(0)
    return pod_job


def test_each_side_reaches_storage_by_its_own_credentials(with_own_credentials: PodJob) -> None:
    job = with_own_credentials
    job.s3.reset()
    state, log = job.run()
    assert state == "success", log
    by_airflow = {(each.method, each.path) for each in job.s3.asked if each.access_key == ACCESS_KEY}
    by_pod = {(each.method, each.path) for each in job.s3.asked if each.access_key == POD_ACCESS_KEY}
    assert {each.access_key for each in job.s3.asked} == {ACCESS_KEY, POD_ACCESS_KEY}
    assert {each.address for each in job.s3.asked if each.access_key == POD_ACCESS_KEY}.isdisjoint(
        each.address for each in job.s3.asked if each.access_key == ACCESS_KEY
    )
    # The launch is Airflow's, and so is the look at the proof; what is in between is the worker's.
    assert any(method == "PUT" and path.endswith("/job.json") for method, path in by_airflow)
    assert ("GET", f"/{job.bucket}/output.json.manifest.json") in by_airflow
    assert ("PUT", f"/{job.bucket}/output.json.manifest.json") in by_pod
    assert any("/chunks/" in path for _, path in by_pod)
    assert not any(
        "/chunks/" in path or path.endswith("/input.jsonl") for method, path in by_airflow if method == "PUT"
    )
    assert job.is_complete()
    told = job.told()
    assert not [text for text in (ACCESS_KEY, POD_ACCESS_KEY, SECRET_KEY) if text in told]


def test_what_is_refused_to_the_pod_is_said_of_the_pod(with_own_credentials: PodJob) -> None:
    job = with_own_credentials
    job.s3.refused_keys.add(POD_ACCESS_KEY)
    state, log = job.run()
    assert state == "failed", log
    assert f"The worker cannot look up s3://{job.bucket}/input.jsonl: the store" in log
    assert "answered 403 InvalidAccessKeyId to the credentials of its own pod; check the credentials" in log


def test_a_sidecar_that_never_ends_keeps_no_gpu(pod_job: PodJob) -> None:
    template = pod_job.settings["pod_template"]
    shell = {"image": "local/busybox:1", "imagePullPolicy": "IfNotPresent", "command": ["sleep", "3600"]}
    template["spec"]["containers"].append({"name": "sidecar", "securityContext": {"runAsUser": 1000}, **shell})
    pod_job.arguments["termination_grace_period"] = 3
    pod_job.set_speed(0)
    state, log = pod_job.run()
    assert state == "success", log
    assert pod_job.is_complete()
    wait_until(lambda: not pod_job.pods())
