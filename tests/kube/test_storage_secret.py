from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_llmengine.kube.storage_secret import (
    OPTIONS_FILE,
    SECRET_PATH,
    secret_name,
    storage_secret,
    with_storage_secret,
)
from tests.kube.pods import (
    CONTAINER,
    build,
    environment_of,
    from_manifest,
    mounts_of,
    operators_pod,
    require_valid,
    to_manifest,
    worker_of,
)

OPTIONS = {"s3": {"key": "AKIAEXAMPLE", "secret": "s3cr3t", "client_kwargs": {"region_name": "eu-west-1"}}}


def mounted(manifest: dict[str, Any] | None = None) -> dict[str, Any]:
    pod = to_manifest(with_storage_secret(build(manifest), container=CONTAINER))
    require_valid(pod)
    return pod


def created() -> Any:
    pod = with_storage_secret(build(labels={"team": "a"}), container=CONTAINER)
    pod.metadata.uid = "6f2c"
    return pod


def test_the_secret_dies_with_its_pod() -> None:
    secret = to_manifest(storage_secret(created(), OPTIONS))
    require_valid(secret)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "task-abc", "uid": "6f2c"}
    assert secret["metadata"]["ownerReferences"] == [owner]
    assert secret["metadata"]["namespace"] == "default"
    assert secret["immutable"] is True
    assert secret["metadata"]["labels"] == to_manifest(created())["metadata"]["labels"]


def test_the_worker_is_told_the_file_that_holds_the_options() -> None:
    secret = to_manifest(storage_secret(created(), OPTIONS))
    pod = mounted()
    assert mounts_of(pod)[SECRET_PATH]["secret"]["secretName"] == secret["metadata"]["name"]
    assert environment_of(pod)["LLMENGINE_STORAGE_OPTIONS_FILE"] == f"{SECRET_PATH}/{OPTIONS_FILE}"
    assert json.loads(secret["stringData"][OPTIONS_FILE]) == OPTIONS
    assert worker_of(pod)["volumeMounts"][-1]["readOnly"] is True


def test_pods_of_one_name_have_secrets_of_their_own() -> None:
    """With random_name_suffix=False: the earlier one's Secret is deleted some time after its pod."""
    pods = [with_storage_secret(build(), container=CONTAINER, attempt=attempt) for attempt in ("first", "second")]
    assert [secret_name(pod) for pod in pods] == ["task-abc-first", "task-abc-second"]
    assert secret_name(build()) is None


def test_no_credential_is_in_the_pod() -> None:
    assert "s3cr3t" not in json.dumps(to_manifest(created()))


@pytest.mark.parametrize(
    ("context", "mode"),
    [({}, 0o440), ({"fsGroup": 2000}, 0o440), ({"runAsUser": 2000}, 0o444)],
)
def test_the_file_is_for_the_pods_group_where_it_has_one(context: dict[str, int], mode: int) -> None:
    pod = mounted(operators_pod(securityContext=context))
    assert mounts_of(pod)[SECRET_PATH]["secret"]["defaultMode"] == mode


def test_a_security_context_as_the_pod_operator_passes_it_on_is_read_too() -> None:
    pod = from_manifest(operators_pod())
    pod.spec.security_context = {"fsGroup": 2000}
    manifest = to_manifest(with_storage_secret(pod, container=CONTAINER))
    assert mounts_of(manifest)[SECRET_PATH]["secret"]["defaultMode"] == 0o440


def test_the_pod_that_comes_in_is_not_changed() -> None:
    pod = build()
    before = to_manifest(pod)
    with_storage_secret(pod, container=CONTAINER)
    assert to_manifest(pod) == before


def test_a_long_pod_name_makes_a_name_that_kubernetes_takes() -> None:
    manifest = operators_pod()
    manifest["metadata"]["name"] = "a" * 244 + "-" + "b" * 8
    source = mounts_of(mounted(manifest))[SECRET_PATH]["secret"]
    assert source["secretName"] == "a" * 244 + "-storage"
