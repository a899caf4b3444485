"""The reference set-up in ``deploy/`` before a real API server, and a job with the rights that it gives."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes.dynamic import DynamicClient

from tests.deploy.reference_setup import manifests
from tests.kube.pods import lost
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.pod_jobs import PodJob
from tests.kubernetes.service_accounts import ServiceAccount

pytestmark = pytest.mark.kubernetes


def apply(cluster: Cluster, namespace: str, given: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Have the API server take a manifest, in a namespace of the test's instead of its own; gives what is stored."""
    resource = DynamicClient(cluster.api_client).resources.get(api_version=given["apiVersion"], kind=given["kind"])
    metadata = {**given["metadata"], **({"namespace": namespace} if resource.namespaced else {})}
    where = {"namespace": namespace} if resource.namespaced else {}
    stored: dict[str, Any] = resource.create(body={**given, "metadata": metadata}, **where, **options).to_dict()
    return stored


@pytest.mark.parametrize("given", manifests(), ids=lambda given: f"{given['kind']} {given['metadata']['name']}")
def test_the_api_server_takes_it_as_it_is(cluster: Cluster, namespace: str, given: dict[str, Any]) -> None:
    given["metadata"].pop("namespace", None)
    stored = apply(cluster, namespace, given, query_params=[("dryRun", "All")])
    assert list(lost(given, stored)) == []


@pytest.mark.slow
def test_the_rights_are_enough_for_a_job_in_the_bounds_of_the_set_up(pod_job: PodJob) -> None:
    """With the storage connection's credentials, for which a Secret is made. Deferred tasks: test_deferred_operator."""
    for each in manifests():
        if each["kind"] in ("ServiceAccount", "ResourceQuota", "NetworkPolicy"):
            apply(pod_job.cluster, pod_job.namespace, each)
    pod_job.cluster.wait_for_service_account(pod_job.namespace, "llm-worker")
    airflow = ServiceAccount(pod_job.cluster, pod_job.namespace, "airflow")
    airflow.bind_reference_role(pod_job.namespace)
    del pod_job.base_environment["KUBECONFIG"]
    pod_job.base_environment["AIRFLOW_CONN_LAUNCHER"] = airflow.connection
    pod_job.settings["kubernetes_conn_id"] = "launcher"
    pod_job.settings["cluster"] |= {"service_account_name": "llm-worker"}
    state, log = pod_job.run()
    assert state == "success", log
    assert pod_job.is_complete()
    assert "Forbidden" not in log
    (pod,) = {str(pod["metadata"]["name"]): pod for pod in pod_job.watch.seen}.values()
    assert pod["spec"]["serviceAccountName"] == "llm-worker"
    assert not pod_job.pods()
