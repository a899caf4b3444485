"""The button "Test" of a connection with the launcher kubernetes, before a real cluster."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from airflow_llmengine.hooks.llmengine import LLMEngineHook
from tests.airflow.operators_in_tests import connection
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.service_accounts import ServiceAccount, grant, kubernetes_connection

pytestmark = pytest.mark.kubernetes

ALL = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "list", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
]
"""What Airflow needs."""


@pytest.fixture
def settings(namespace: str) -> dict[str, Any]:
    return {
        "launcher": "kubernetes",
        "namespace": namespace,
        "image": "registry.example/worker:1",
        "cluster": {"accelerator": "none"},
    }


def pressed(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[bool, str]:
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(**settings))
    return LLMEngineHook().test_connection()


def test_with_all_rights_it_says_what_was_found_and_makes_nothing(
    cluster: Cluster, namespace: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    works, said = pressed(monkeypatch, **settings)
    assert works, said
    assert said.startswith(f"In the namespace {namespace} Airflow may make pods, follow and delete them; no storage")
    assert not cluster.pods(namespace)


def test_an_image_may_come_from_the_template(
    namespace: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    del settings["image"]
    works, said = pressed(monkeypatch, **settings)
    assert (works, said) == (False, "There is no worker image: fill in the field image.")
    template = {"spec": {"containers": [{"name": "base", "image": "registry.example/worker:1"}]}}
    works, said = pressed(monkeypatch, **settings, pod_template=template)
    assert works, said


def test_what_a_service_account_may_not_is_named(
    cluster: Cluster, namespace: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_FEW", kubernetes_connection(cluster, namespace, "few"))
    settings["kubernetes_conn_id"] = "few"
    works, said = pressed(monkeypatch, **settings)
    assert not works
    assert (
        f"In the namespace {namespace} Airflow may not create pods, get pods, list pods, patch pods, delete pods, "
        "get pods/log: grant it"
    ) in said

    grant(cluster, namespace, "few", ALL)
    works, said = pressed(monkeypatch, **settings)
    assert works, said
    assert "but not list events, which tell why a pod does not start" in said
    works, said = pressed(monkeypatch, **settings, pod_credentials="connection")
    assert not works
    assert "may not create secrets: grant it" in said
    several_nodes = {**settings, "request_defaults": {"nodes_per_worker": 2}}
    works, said = pressed(monkeypatch, **several_nodes)
    assert not works
    assert "may not create services: grant it" in said
    by_address = {"accelerator": "none", "leader_address": "pod_ip"}
    assert pressed(monkeypatch, **{**several_nodes, "cluster": by_address})[0]
    # Elsewhere it may nothing.
    works, said = pressed(monkeypatch, **{**settings, "namespace": "default"})
    assert not works
    assert "In the namespace default Airflow may not create pods" in said


def test_with_the_rights_of_the_reference_set_up_all_is_well(
    cluster: Cluster, namespace: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    enough = ServiceAccount(cluster, namespace, "enough")
    monkeypatch.setenv("AIRFLOW_CONN_ENOUGH", enough.connection)
    enough.bind_reference_role(namespace)
    works, said = pressed(monkeypatch, **settings, kubernetes_conn_id="enough", pod_credentials="connection")
    assert works, said
    assert "but not" not in said


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"namespace": "there-is-none"}, "would not take a worker's pod.*there-is-none"),
        ({"cluster": {"service_account_name": "nobody"}}, "would not take a worker's pod.*nobody"),
        ({"request_defaults": {"priority": "nothing-above"}}, "would not take a worker's pod.*nothing-above"),
        ({"pod_template": {"spec": {"dnsPolicy": "Odd", "containers": [{"name": "a"}]}}}, "would not take.*dnsPolicy"),
        ({"pod_template": {"spec": {"dnsPolicy": "Default"}}}, "pod_template can't be read as a pod: .*containers"),
        ({"pod_template": {"spec": {"containers": 5}}}, "pod_template can't be read as a pod"),
        ({"kubernetes_conn_id": "nowhere"}, "The Kubernetes connection nowhere can't be used: "),
    ],
)
def test_what_the_cluster_would_refuse_is_said_before_there_is_a_job(
    settings: dict[str, Any], changed: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    works, said = pressed(monkeypatch, **{**settings, **changed}, worker_environment={"PRIVATE": "zanzibar"})
    assert not works
    assert re.search(sentence, said), said
    assert "zanzibar" not in said


def test_a_quota_that_is_used_up_now_is_no_fault_of_the_connection(
    cluster: Cluster, namespace: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.core.create_namespaced_resource_quota(
        namespace, {"metadata": {"name": "one"}, "spec": {"hard": {"pods": "1"}}}
    )
    cluster.create_pod(namespace, {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    works, said = pressed(monkeypatch, **settings)
    assert works, said


def test_a_cluster_that_can_not_be_reached_is_told_with_its_address(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": {"token": "zanzibar"}}],
    }
    extra = {"kube_config": kubeconfig}
    monkeypatch.setenv("AIRFLOW_CONN_AWAY", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    works, said = pressed(monkeypatch, **settings, kubernetes_conn_id="away")
    assert not works
    assert "The cluster at https://127.0.0.1:9 can't be reached" in said
    kubeconfig["users"] = {"token": "zanzibar"}
    monkeypatch.setenv("AIRFLOW_CONN_AWAY", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    works, said = pressed(monkeypatch, **settings, kubernetes_conn_id="away")
    assert not works
    assert "The Kubernetes connection away can't be used" in said
    assert "zanzibar" not in said


def test_a_token_that_is_not_valid_any_more_is_told(
    cluster: Cluster, settings: dict[str, Any], namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = json.loads(kubernetes_connection(cluster, namespace, "few"))
    made["extra"]["kube_config"]["users"][0]["user"]["token"] = "zanzibar"
    monkeypatch.setenv("AIRFLOW_CONN_OLD", json.dumps(made))
    works, said = pressed(monkeypatch, **settings, kubernetes_conn_id="old")
    assert not works
    assert "answers 401 Unauthorized" in said
    assert "zanzibar" not in said
