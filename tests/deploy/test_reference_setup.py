"""The reference set-up: current Kubernetes takes it, its parts fit one another, and the pods that are made fit in."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from airflow_llmengine.hooks.cluster_test import HELPFUL, NEEDED
from airflow_llmengine.kube.cluster import ClusterSettings
from airflow_llmengine.kube.labels import WORKER_LABEL
from tests.deploy.reference_setup import DEPLOY, NAMESPACE, manifest, manifests
from tests.kube.pods import built, require_valid

CONNECTIONS = {
    "as the set-up's comments say": ClusterSettings(
        service_account_name="llm-worker", cache_volume="model-cache", queue="llm"
    ),
    "without more than an image": ClusterSettings(),
    "with Secrets": ClusterSettings(credentials_secret="storage-keys", hugging_face_secret="hub"),
    "without GPUs": ClusterSettings(accelerator="none"),
}


def test_each_file_is_named_by_its_kustomization() -> None:
    for folder in ("", "kueue"):
        named = yaml.safe_load((DEPLOY / folder / "kustomization.yaml").read_text())["resources"]
        assert sorted([*named, "kustomization.yaml"]) == sorted(path.name for path in (DEPLOY / folder).glob("*.yaml"))


@pytest.mark.parametrize("given", manifests(), ids=lambda given: f"{given['kind']} {given['metadata']['name']}")
def test_maintained_versions_of_kubernetes_take_it(given: dict[str, Any]) -> None:
    require_valid(given)
    cluster_wide = given["kind"] in ("Namespace", "PriorityClass")
    assert given["metadata"].get("namespace") == (None if cluster_wide else NAMESPACE)


def test_the_queue_leads_to_a_quota_for_all_that_a_worker_asks_for() -> None:
    flavor, cluster_queue, queue = manifests("kueue")
    assert {each["apiVersion"] for each in (flavor, cluster_queue, queue)} == {"kueue.x-k8s.io/v1beta2"}
    assert queue["metadata"]["namespace"] == NAMESPACE
    assert queue["spec"]["clusterQueue"] == cluster_queue["metadata"]["name"]
    assert cluster_queue["spec"]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": NAMESPACE}
    (group,) = cluster_queue["spec"]["resourceGroups"]
    (quota,) = group["flavors"]
    assert quota["name"] == flavor["metadata"]["name"]
    assert [each["name"] for each in quota["resources"]] == group["coveredResources"]
    cluster = ClusterSettings(queue=queue["metadata"]["name"])
    pod = built(cluster=cluster, gpus=2, gpu_type="nvidia-ampere-a10", cpus=8, memory="64Gi", storage="100Gi")
    (worker,) = pod["spec"]["containers"]
    assert set(worker["resources"]["requests"]) <= set(group["coveredResources"])


def test_the_rights_are_those_that_the_button_test_asks_for_and_what_some_jobs_need() -> None:
    given = {
        (verb, resource)
        for rule in manifest("Role", "llmengine-launcher")["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    asked = {(verb, "/".join(part for part in parts if part)) for verb, *parts in (*NEEDED, HELPFUL)}
    for_credentials, for_nodes = {("create", "secrets")}, {("create", "services")}
    # A deferred task's trigger follows events, and reads them where it may not.
    assert given == asked | {("watch", "events")} | for_credentials | for_nodes
    (binding,) = [each for each in manifests() if each["kind"] == "RoleBinding"]
    assert binding["roleRef"]["name"] == "llmengine-launcher"


def test_the_network_policy_is_for_the_pods_that_are_made() -> None:
    selected = manifest("NetworkPolicy", "llm-workers")["spec"]["podSelector"]["matchLabels"]
    assert selected == {WORKER_LABEL: "true"}
    for role in ("replica", "collect"):
        assert selected.items() <= built(role=role)["metadata"]["labels"].items()


# What the Pod Security Standard "restricted" asks of a pod on Linux, in the terms of Kubernetes' documentation of it.
RESTRICTED_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret")
}


def faults(pod: dict[str, Any]) -> list[str]:
    """What the standard finds wrong with a pod."""
    spec = pod["spec"]
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    for volume in spec.get("volumes", []):
        found += [f"volume {kind}" for kind in volume if kind not in {"name", *RESTRICTED_VOLUMES}]
    of_pod = spec.get("securityContext", {})
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        own = {**of_pod, **container.get("securityContext", {})}
        found += [
            f"{name} is set" for name in ("privileged", "procMount", "seLinuxOptions", "sysctls") if own.get(name)
        ]
        found += [f"port {port}" for port in container.get("ports", []) if port.get("hostPort")]
        if own.get("allowPrivilegeEscalation") is not False:
            found.append("privileges can grow")
        if "ALL" not in own.get("capabilities", {}).get("drop", []) or own["capabilities"].get("add"):
            found.append("capabilities")
        if own.get("runAsNonRoot") is not True or own.get("runAsUser") == 0:
            found.append("may run as root")
        if own.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            found.append("no seccomp profile")
    return found


@pytest.mark.parametrize("cluster", CONNECTIONS.values(), ids=CONNECTIONS)
@pytest.mark.parametrize("role", ["replica", "collect"])
def test_the_pods_meet_the_standard_that_the_namespace_enforces(cluster: ClusterSettings, role: Any) -> None:
    labels = manifest("Namespace", NAMESPACE)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert faults(built(cluster=cluster, role=role)) == []


def test_names_in_the_comments_are_those_of_the_set_up() -> None:
    assert manifest("ServiceAccount", "llm-worker")["automountServiceAccountToken"] is False
    assert manifest("PersistentVolumeClaim", "model-cache")["spec"]["accessModes"] == ["ReadWriteMany"]
    assert manifests("kueue")[2]["metadata"]["name"] == "llm"
