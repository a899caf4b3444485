"""What a worker's pod is given of a job and its connection."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import models as k8s

from airflow_llmengine.exceptions import ConnectionUnusableError, RequestRefusedError
from airflow_llmengine.hooks.llmengine import LLMEngineHook
from airflow_llmengine.hooks.worker_attempt import WorkerAttempt
from airflow_llmengine.kube.storage_secret import secret_name
from airflow_llmengine.operators.pod_launch import INLINE_REQUEST_BYTES, PodLaunch
from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.job_state import JobHandle
from tests.airflow.cluster_double import ScriptedApi
from tests.airflow.operators_in_tests import connection
from tests.storage.s3_server import ACCESS_KEY, SECRET_KEY

GRACE = 30
PROXY_PASSWORD = "pr0xy"


ENGINE_ARGS = {"compilation_config": {"mode": 0}, "tool_parser_plugin": "$(HOME) é"}
ENGINE_ARGUMENT = '--engine-args={"compilation_config": {"mode": 0}, "tool_parser_plugin": "$$(HOME) \\u00e9"}'
"""As a pod has it: Kubernetes puts variables in for ``$(NAME)``, and one dollar sign for two."""


def launch(folder: Path, monkeypatch: pytest.MonkeyPatch, /, **fields: Any) -> PodLaunch:
    """A launch by a connection with credentials for S3."""
    extra = fields.pop("connection", {})
    store = {
        "conn_type": "aws",
        "login": ACCESS_KEY,
        "password": SECRET_KEY,
        "extra": {
            "endpoint_url": "http://store.example:9000",
            "region_name": "us-east-1",
            "config_kwargs": {"proxies": {"https": f"http://me:{PROXY_PASSWORD}@proxy.example:3128"}},
        },
    }
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(store))
    monkeypatch.setenv(
        "AIRFLOW_CONN_LLMENGINE_DEFAULT",
        connection(launcher="kubernetes", image="worker:1", storage_conn_id="store", **extra),
    )
    request = validate_request(
        {
            "input_data_path": "in.jsonl",
            "output_data_path": str(folder / "out.json"),
            "model_config": {"model": "m"},
            **fields,
        }
    )
    attempt = WorkerAttempt(
        handle=JobHandle(path=str(folder / "out.json"), fingerprint="f" * 24, generation=2),
        owner="dag/task",
        series="one",
        deadline=4e9,
        max_error_rate=0.25,
        replica=3,
        replicas=8,
        engine_args=ENGINE_ARGS,
    )
    return PodLaunch.of(LLMEngineHook(), attempt, request, grace_seconds=GRACE)


def completed(launched: PodLaunch, **spec: Any) -> dict[str, Any]:
    """The manifest of the pod."""
    from kubernetes.client import ApiClient

    pod = k8s.V1Pod(
        metadata=k8s.V1ObjectMeta(name="job-abc", namespace="llm", labels={}),
        spec=k8s.V1PodSpec(containers=[k8s.V1Container(name="base")], **spec),
    )
    with ApiClient() as client:
        manifest: dict[str, Any] = client.sanitize_for_serialization(launched.complete(pod, container="base"))
    return manifest


def worker(manifest: dict[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Plain environment and arguments of the worker."""
    (container,) = manifest["spec"]["containers"]
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}, container["args"]


def test_the_pod_says_until_when_it_is_of_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = launch(tmp_path, monkeypatch)
    assert completed(launched)["metadata"]["annotations"]["airflow-llmengine/deadline"] == "4000000000"
    # A later attempt of the series may find another deadline, and takes the pod over.
    assert "airflow-llmengine/deadline" not in launched.identity


def test_a_small_request_travels_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment, arguments = worker(completed(launch(tmp_path, monkeypatch)))
    assert json.loads(environment["LLMENGINE_REQUEST"])["model_config"] == {"model": "m"}
    assert arguments == [
        *("run", "env:LLMENGINE_REQUEST", "--generation=2", "--owner=dag/task", f"--grace-seconds={GRACE}"),
        *("--log-format=json", "--launched", "--series=one", "--replica=3", "--replicas=8", "--max-error-rate=0.25"),
        ENGINE_ARGUMENT,
    ]
    assert not list(tmp_path.iterdir())


def test_the_pod_is_told_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = launch(tmp_path, monkeypatch)
    table = '{"prompt": "{{ text }} $(HOME)"}'
    with_table = replace(launched, attempt=replace(launched.attempt, table=table))
    _environment, arguments = worker(completed(with_table))
    # Kubernetes takes $(NAME) in an argument for a variable, and two dollars for one.
    assert arguments[-1].replace("$$", "$") == f"--table={table}"


def test_a_large_request_is_staged_among_the_jobs_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template = "x" * INLINE_REQUEST_BYTES
    fields = {"model_config": {"model": "m", "chat_template": template}}
    environment, arguments = worker(completed(launch(tmp_path, monkeypatch, **fields)))
    assert "LLMENGINE_REQUEST" not in environment
    staged = Path(arguments[1])
    assert json.loads(staged.read_text())["model_config"]["chat_template"] == template
    assert staged.is_relative_to(tmp_path / "out.json.job" / f"{'f' * 24}-2")


def test_a_signed_url_is_not_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signed = "https://store.example/in.jsonl?X-Amz-Signature=abcdef"
    environment, arguments = worker(completed(launch(tmp_path, monkeypatch, input_data_path=signed)))
    assert "abcdef" not in json.dumps([environment, arguments])
    assert json.loads(Path(arguments[1]).read_text())["input_data_path"] == signed


def test_credentials_are_not_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = launch(tmp_path, monkeypatch)
    manifest = completed(launched)
    environment, _arguments = worker(manifest)
    options = json.loads(environment["LLMENGINE_STORAGE_OPTIONS"])
    assert options["s3"]["endpoint_url"] == "http://store.example:9000"
    assert options["s3"]["config_kwargs"] == {"proxies": {"https": "http://proxy.example:3128"}}
    for secret in (ACCESS_KEY, SECRET_KEY, PROXY_PASSWORD):
        assert secret not in json.dumps(manifest) + repr(launched)
    assert "LLMENGINE_STORAGE_OPTIONS_FILE" not in environment


def test_the_connections_credentials_are_a_secret_that_the_pod_mounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = launch(tmp_path, monkeypatch, connection={"pod_credentials": "connection"})
    manifest = completed(launched)
    environment, _arguments = worker(manifest)
    assert environment["LLMENGINE_STORAGE_OPTIONS_FILE"].startswith("/var/run/secrets/")
    assert any(volume.get("secret", {}).get("secretName") for volume in manifest["spec"]["volumes"])
    assert "LLMENGINE_STORAGE_OPTIONS" not in environment
    assert launched.credentials["s3"]["endpoint_url"] == "http://store.example:9000"
    for secret in (ACCESS_KEY, SECRET_KEY, PROXY_PASSWORD):
        assert secret not in json.dumps(manifest) + repr(launched)


def test_attempts_have_secrets_of_their_own_and_a_pod_without_one_gets_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = [launch(tmp_path, monkeypatch, connection={"pod_credentials": "connection"}) for _attempt in range(2)]
    built = k8s.V1Pod(
        metadata=k8s.V1ObjectMeta(name="job-abc"), spec=k8s.V1PodSpec(containers=[k8s.V1Container(name="base")])
    )
    first, second = (secret_name(attempt.complete(built, container="base")) for attempt in launched)
    assert None is not first != second
    # Taken over from an attempt that was made when the connection said otherwise.
    api = ScriptedApi()
    launched[0].add_secret(api, built)
    assert not api.calls


@pytest.mark.parametrize(("given", "left"), [(None, GRACE), (60, 45), (10, 5), (1, 1)])
def test_the_worker_has_less_time_to_save_than_the_pod_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: int | None, left: int
) -> None:
    """Whether the DAG, a template or a mutation hook says how long the pod has."""
    manifest = completed(launch(tmp_path, monkeypatch), termination_grace_period_seconds=given)
    _environment, arguments = worker(manifest)
    assert f"--grace-seconds={left}" in arguments
    assert manifest["spec"]["terminationGracePeriodSeconds"] >= left


def test_a_label_by_which_airflow_finds_pods_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestRefusedError, match=r"labels\.dag_id: Airflow finds its pods by a label of this name"):
        completed(launch(tmp_path, monkeypatch, labels={"dag_id": "mine"}))


def test_a_template_in_the_connection_must_be_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConnectionUnusableError, match=r"pod_template: volumes is not a part of a pod: write it as"):
        launch(tmp_path, monkeypatch, connection={"pod_template": {"volumes": []}})
    with pytest.raises(ConnectionUnusableError, match=r"pod_template: Job is not a part of a pod"):
        launch(tmp_path, monkeypatch, connection={"pod_template": {"kind": "Job"}})


def test_the_nodes_of_a_replica_share_what_nobody_else_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched, another = (launch(tmp_path, monkeypatch, nodes_per_worker=3) for _ in range(2))
    manifest = completed(launched)
    environment, arguments = worker(manifest)
    assert arguments[0] == "run"
    assert arguments[-1] == f"--nodes-within={launched.nodes_within}"
    token = environment["LLMENGINE_NODE_TOKEN"]
    assert len(token) > 16
    assert token != worker(completed(another))[0]["LLMENGINE_NODE_TOKEN"]
    assert manifest["metadata"]["annotations"]["airflow-llmengine/nodes"] == "3"

    asked = k8s.V1Pod(
        metadata=k8s.V1ObjectMeta(name="job-abc", namespace="llm", labels={}, uid="6f2c"),
        spec=k8s.V1PodSpec(containers=[k8s.V1Container(name="base")], termination_grace_period_seconds=60),
    )
    leader = launched.complete(asked, container="base")
    followers = launched.followers(leader, leader, address="the-leader", container="base")
    assert [pod.spec.containers[0].args for pod in followers] == [
        [
            "follow",
            "env:LLMENGINE_REQUEST",
            f"--node={node}",
            "--leader=the-leader",
            "--grace-seconds=45",
            "--log-format=json",
            ENGINE_ARGUMENT,
            f"--nodes-within={launched.nodes_within}",
        ]
        for node in (1, 2)
    ]


def test_a_replica_of_one_node_and_the_collecting_pod_have_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = launch(tmp_path, monkeypatch)
    several = launch(tmp_path, monkeypatch, nodes_per_worker=3)
    collecting = replace(several, attempt=replace(several.attempt, replica=None))
    for launched in (alone, collecting):
        environment, arguments = worker(completed(launched))
        assert "LLMENGINE_NODE_TOKEN" not in environment
        assert not [argument for argument in arguments if argument.startswith("--nodes")]
        assert launched.nodes == 1
