"""The connection: its fields, its defaults, its storage credentials, and the button "Test"."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_llmengine.exceptions import ConnectionUnusableError
from airflow_llmengine.hooks.connection_settings import ConnectionSettings
from airflow_llmengine.hooks.llmengine import LLMEngineHook
from airflow_llmengine.hooks.local_launch import worker_environment
from airflow_llmengine.kube.cluster import ClusterSettings
from tests.airflow.operators_in_tests import EchoJob, connection, run
from tests.storage.s3_server import ACCESS_KEY, SECRET_KEY, Fault, S3Server


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    with S3Server.running() as server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A store, and the connection `store` to it."""
    s3_server.reset()
    extra = {
        "endpoint_url": s3_server.endpoint,
        "region_name": "eu-west-1",
        "verify": False,
        "config_kwargs": {"s3": {"addressing_style": "path"}, "retries": {"total_max_attempts": 1}},
    }
    store = {"conn_type": "aws", "login": ACCESS_KEY, "password": SECRET_KEY, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(store))
    return s3_server


def hook(monkeypatch: pytest.MonkeyPatch, **extra: Any) -> LLMEngineHook:
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(**extra))
    return LLMEngineHook()


def test_the_form_leaves_what_is_empty_out() -> None:
    filled = ConnectionSettings.parse(
        "c",
        {
            "launcher": "local",
            "engine": "",
            "storage_conn_id": None,
            "storage_options": "",
            "local_workers": "2",
            "worker_environment": '{"HF_HOME": "/models"}',
            "request_defaults": '{"max_runtime_sec": 60}',
            "kubernetes_conn_id": "",
            "pod_credentials": None,
            "cluster": '{"image_pull_secrets": "one, two"}',
            "pod_template": "",
        },
    )
    assert filled == ConnectionSettings(
        local_workers=2,
        worker_environment={"HF_HOME": "/models"},
        request_defaults={"max_runtime_sec": 60},
        cluster=ClusterSettings(image_pull_secrets=("one", "two")),
    )
    assert ConnectionSettings.parse("c", {}) == ConnectionSettings()
    assert (ConnectionSettings().launcher, ConnectionSettings().engine) == ("local", "vllm")


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        ({"launchr": "local"}, "launchr is not a field of it; did you mean launcher?"),
        ({"launcher": "laptop"}, "launcher: "),
        ({"local_workers": 0}, "local_workers: "),
        ({"worker_environment": "{HF_HOME"}, "worker_environment: is not JSON"),
        ({"worker_environment": '{"A": 1}'}, r"worker_environment\.A: "),
        ({"worker_environment": {"LLMENGINE_ENGINE": "echo"}}, "use the field engine"),
        ({"request_defaults": {"model_config": {"model": "m"}}}, r"model_config\.model can't be a default"),
        ({"request_defaults": {"output_data_path": "x"}}, "output_data_path can't be a default"),
        ({"request_defaults": {"model_config": []}}, "model_config must be an object"),
        ({"storage_options": {"s3": {"secret": "SECRET"}}}, r"s3\.secret looks like a credential"),
        ({"storage_options": '{"s3": {"aws_access_key_id": "SECRET"}}'}, "looks like a credential"),
        ({"pod_credentials": "SECRET"}, "pod_credentials: "),
        ({"worker_environment": {"LLMENGINE_STORAGE_OPTIONS": "SECRET"}}, "LLMENGINE_STORAGE_OPTIONS is set by the"),
        ({"cluster": "{gpu"}, "cluster: is not JSON"),
        ({"cluster": {"acelerator": "none"}}, "cluster: acelerator is not a field of it; did you mean accelerator?"),
        (
            {"cluster": {"gpu_nodes": {"nvidia-tesla-t4": {"resorce": "SECRET"}}}},
            "nvidia-tesla-t4: resorce is not a field of it; did you mean resource?",
        ),
        (
            {"cluster": {"tolerations": [{"tolerationSecond": 1}]}},
            "tolerationSecond is not a field of it; did you mean tolerationSeconds?",
        ),
        ({"cluster": {"zzz": 1}}, "cluster: zzz is not a field of it"),
        ({"cluster": {"credentials_secret": "Not A Name"}}, r"cluster\.credentials_secret"),
        ({"pod_template": {"kind": "Deployment"}}, "pod_template: Deployment is not a part of a pod"),
    ],
)
def test_what_it_can_not_hold_is_refused_by_name_and_without_the_value(extra: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConnectionUnusableError, match=sentence) as refused:
        ConnectionSettings.parse("the_id", extra)
    assert isinstance(refused.value, AirflowFailException)
    assert "the_id" in str(refused.value)
    assert "SECRET" not in str(refused.value)


def test_defaults_give_way_to_the_request_field_by_field() -> None:
    settings = ConnectionSettings(
        request_defaults={"labels": {"a": "b"}, "cpus": 4, "model_config": {"dtype": "bfloat16", "seed": 1}}
    )
    request = {"cpus": 8, "model_config": {"model": "m", "seed": 2}}
    assert settings.with_defaults(request) == {
        "labels": {"a": "b"},
        "cpus": 8,
        "model_config": {"dtype": "bfloat16", "model": "m", "seed": 2},
    }
    assert request == {"cpus": 8, "model_config": {"model": "m", "seed": 2}}
    assert ConnectionSettings().with_defaults(request) == request


def test_the_worker_does_not_get_airflows_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "SECRET")
    monkeypatch.setenv("AIRFLOW_CONN_STORE", "SECRET")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("HF_HOME", "/task")
    found = worker_environment(ConnectionSettings(engine="echo", worker_environment={"HF_HOME": "/models"}))
    assert "SECRET" not in found.values()
    assert not [name for name in found if "AIRFLOW_" in name]
    assert (found["CUDA_VISIBLE_DEVICES"], found["HF_HOME"], found["LLMENGINE_ENGINE"]) == ("0", "/models", "echo")
    assert found["PATH"] == os.environ["PATH"]


def test_another_type_of_connection_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", '{"conn_type": "http"}')
    with pytest.raises(ConnectionUnusableError, match="other is of type http: name one of type llmengine"):
        _ = LLMEngineHook("other").settings


def test_storage_options_come_from_the_storage_connection(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    found = hook(
        monkeypatch,
        storage_conn_id="store",
        storage_options={"s3": {"client_kwargs": {"use_ssl": False}}, "gs": {"project": "p"}},
    )
    assert found.storage_options == {
        "s3": {
            "key": ACCESS_KEY,
            "secret": SECRET_KEY,
            "endpoint_url": s3.endpoint,
            "client_kwargs": {"region_name": "eu-west-1", "verify": False, "use_ssl": False},
            "config_kwargs": {"s3": {"addressing_style": "path"}, "retries": {"total_max_attempts": 1}},
        },
        "gs": {"project": "p"},
    }
    assert SECRET_KEY not in repr(found.storage()) + repr(found.settings) + repr(found.__dict__["settings"])


def test_a_session_token_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    store = {"conn_type": "aws", "login": "a", "password": "b", "extra": {"aws_session_token": "c"}}
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(store))
    assert hook(monkeypatch, storage_conn_id="store").storage_options == {
        "s3": {"key": "a", "secret": "b", "token": "c"}
    }


@pytest.mark.parametrize(
    ("store", "sentence"),
    [
        (None, "store is not defined"),
        ('{"conn_type": "ssh"}', "type ssh; it must be of type aws, google_cloud_platform or wasb"),
        ('{"conn_type": "aws"}', "gives no credentials, and this machine has none"),
        ('{"conn_type": "aws", "extra": {"profile_name": "nobody"}}', "gives no credentials: .*nobody"),
    ],
)
def test_a_storage_connection_without_credentials_is_refused(
    store: str | None, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if store is not None:
        monkeypatch.setenv("AIRFLOW_CONN_STORE", store)
    with pytest.raises(ConnectionUnusableError, match=sentence):
        _ = hook(monkeypatch, storage_conn_id="store").storage_options


@pytest.mark.slow
def test_a_job_on_an_object_store(s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The worker gets the credentials by the control pipe and by nothing else."""
    bucket = s3.new_bucket()
    s3.client.put_object(Bucket=bucket, Key="in/a.jsonl", Body=b'{"prompt": "one", "max_tokens": 4}\n' * 3)
    job = EchoJob(tmp_path / "job", [])
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(storage_conn_id="store"))
    output = f"s3://{bucket}/out/{{{{ run_id }}}}.json"
    result = run(job.operator(input_data_path=f"s3://{bucket}/in/", output_data_path=output))
    assert (result["output_data_path"], result["records"]) == (f"s3://{bucket}/out/run-1.json", 3)
    stands = s3.client.get_object(Bucket=bucket, Key="out/run-1.json")["Body"].read()
    assert [element["choices"][0]["text"] for element in json.loads(stands)] == ["one"] * 3
    assert SECRET_KEY not in json.dumps(result)


@pytest.mark.slow
def test_the_button_test_says_what_it_found(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    works, said = hook(monkeypatch, storage_conn_id="store").test_connection()
    assert works, said
    assert sys.executable in said
    assert "with the engine echo" in said
    assert f"{s3.endpoint} accepts the credentials of store" in said
    works, said = hook(monkeypatch).test_connection()
    assert works, said
    assert "no storage connection is named" in said
    s3.faults.append(Fault("GET", status=403, code="AccessDenied"))
    works, said = hook(monkeypatch, storage_conn_id="store").test_connection()
    assert works, said
    assert "does not let store list buckets" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        ({"launcher": "kubernetes"}, "There is no worker image: fill in the field image."),
        ({"engine": "abacus"}, "there is no engine abacus among those installed: echo, vllm"),
        ({"python": "/no/such/python"}, r"/no/such/python can't be run \(No such file or directory\)"),
        ({"python": "/bin/false"}, "With /bin/false, the worker can't be started: exit code 1"),
        ({"request_defaults": {"max_runtime_sec": 0}}, "request_defaults: max_runtime_sec"),
        ({"storage_conn_id": "nowhere"}, "nowhere is not defined"),
        ({"storage_conn_id": "silent"}, "can't be reached with silent"),
        ({"launchr": "x"}, "launchr is not a field"),
    ],
)
def test_the_button_test_says_what_is_missing(
    extra: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = {"conn_type": "aws", "login": "a", "password": "b", "extra": {"endpoint_url": "http://127.0.0.1:9"}}
    monkeypatch.setenv("AIRFLOW_CONN_SILENT", json.dumps(silent))
    works, said = hook(monkeypatch, **extra).test_connection()
    assert not works
    assert re.search(sentence, said), said


@pytest.mark.slow
@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"])
def test_the_button_test_tells_refused_credentials(s3: S3Server, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    s3.faults.append(Fault("GET", status=403, code=code))
    works, said = hook(monkeypatch, storage_conn_id="store").test_connection()
    assert not works
    assert f"refuses the credentials of store: {code}" in said
    assert SECRET_KEY not in said
