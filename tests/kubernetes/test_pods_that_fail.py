"""Pods that die, or never come to life, and what becomes of the task: the exception, the retry, and what is left."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kubernetes.pod_jobs import PodJob
from tests.kubernetes.service_accounts import grant, kubernetes_connection
from tests.waiting import wait_until

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

EATS_MEMORY = "kept = []\nwhile True:\n    kept.append(bytearray(1 << 20))\n"


def sleeper() -> dict[str, Any]:
    """A pod of somebody else's."""
    container = {"name": "base", "image": "local/busybox:1", "command": ["sleep", "3600"]}
    return {
        "metadata": {"name": "of-somebody-else"},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
    }


def limit_pods(job: PodJob, number: int) -> None:
    """Make a quota that leaves no room beside another's pod."""
    job.cluster.create_pod(job.namespace, sleeper())
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": str(number)}}}
    job.cluster.core.create_namespaced_resource_quota(job.namespace, quota)

    def counted() -> bool:
        status = job.cluster.core.read_namespaced_resource_quota("few", job.namespace).status
        return bool(status.used) and status.used.get("pods") == "1"

    wait_until(counted)


def use_account(job: PodJob, *resources: str) -> None:
    """Have Airflow use an account that may do everything with these, in the job's namespace, and nothing else."""
    job.base_environment["AIRFLOW_CONN_FEW"] = kubernetes_connection(job.cluster, job.namespace, "airflow")
    job.settings["kubernetes_conn_id"] = "few"
    rules = [{"apiGroups": [""], "resources": list(resources), "verbs": ["*"]}] if resources else []
    grant(job.cluster, job.namespace, "airflow", rules)


def test_an_account_that_may_not_read_logs_waits_without_them(pod_job: PodJob) -> None:
    use_account(pod_job, "pods", "secrets")
    state, log = pod_job.run()
    assert state == "success", log
    assert "can't be read (Forbidden): waiting without it" in log
    assert pod_job.is_complete()


def test_killed_for_its_memory_while_it_loads(pod_job: PodJob) -> None:
    pod_job.arguments |= {
        "cmds": [pod_job.settings["python"], "-c", EATS_MEMORY],
        "container_resources": {"limits": {"memory": "64Mi"}},
    }
    state, log = pod_job.run()
    assert state == "failed", log
    assert "ModelOutOfMemoryError" in log
    assert "64Mi" in log
    # It is kept as evidence.
    assert [pod.status.phase for pod in pod_job.pods()] == ["Failed"]


def test_no_node_has_its_gpus(pod_job: PodJob) -> None:
    pod_job.settings["cluster"] = {}
    pod_job.arguments |= {"gpus": 64, "schedule_timeout_seconds": 3}
    state, log = pod_job.run()
    assert state == "up_for_retry", log
    assert "PodUnschedulableError" in log
    assert not pod_job.kept()


def test_there_is_no_such_image(pod_job: PodJob) -> None:
    pod_job.arguments["image"] = "local/no-such-image:1"
    state, log = pod_job.run()
    assert state == "failed", log
    assert "ImageUnavailableError" in log
    assert not pod_job.kept()


def test_there_is_no_such_secret(pod_job: PodJob) -> None:
    pod_job.settings |= {"pod_credentials": "pod", "cluster": {"accelerator": "none", "credentials_secret": "keys"}}
    state, log = pod_job.run()
    assert state == "failed", log
    assert "PodMisconfiguredError" in log
    assert 'secret "keys" not found' in log
    assert not pod_job.kept()


def test_a_used_up_quota_is_waited_for(pod_job: PodJob) -> None:
    limit_pods(pod_job, 1)
    pod_job.set_speed(0)
    task = pod_job.start()
    wait_until(lambda: "Waiting for the quota" in task.log())
    pod_job.cluster.core.patch_namespaced_resource_quota("few", pod_job.namespace, {"spec": {"hard": {"pods": "2"}}})
    state, log = task.end()
    assert state == "success", log
    assert pod_job.is_complete()


def test_a_quota_that_stays_used_up(pod_job: PodJob) -> None:
    limit_pods(pod_job, 1)
    pod_job.arguments["schedule_timeout_seconds"] = 2
    state, log = pod_job.run()
    assert state == "up_for_retry", log
    assert "PodQuotaError" in log
    assert len(pod_job.pods()) == 1


def test_an_account_that_may_not_look_for_pods(pod_job: PodJob) -> None:
    use_account(pod_job)
    state, log = pod_job.run()
    assert state == "failed", log
    assert "PodRejectedError" in log
    assert f"system:serviceaccount:{pod_job.namespace}:airflow may not list pods in the namespace" in log


def test_an_account_that_may_not_make_the_secret_leaves_no_pod_that_waits_for_it(pod_job: PodJob) -> None:
    use_account(pod_job, "pods", "pods/log", "events")
    state, log = pod_job.run()
    assert state == "failed", log
    assert "PodRejectedError" in log
    assert "may not create secrets" in log
    assert len(pod_job.watch.names) == 1
    assert not pod_job.kept()
