"""Secrets and the user's text stay out of what Airflow logs and shows; see docs/threat_model.md."""

from __future__ import annotations

import http.server
import json
import logging
import os
import re
import stat
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.exceptions import ConnectionUnusableError, LLMEngineError, StorageRefusedError
from airflow_llmengine.hooks.connection_settings import ConnectionSettings
from airflow_llmengine.hooks.llmengine import LLMEngineHook
from airflow_llmengine.hooks.storage_credentials import public_options
from tests.airflow.operators_in_tests import EchoJob, connection, run, task_context

SIGNATURE = "s1gnature"
PRIVATE = "private words"


class _Refusing(http.server.BaseHTTPRequestHandler):
    """A store that does not accept the signature."""

    def do_GET(self) -> None:
        self.send_error(403)

    do_HEAD = do_GET  # noqa: N815 - the base class's name

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass


@pytest.fixture
def refusing_web() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("query", [f"X-Amz-Signature={SIGNATURE}", f"a/b=c&sig={SIGNATURE}", SIGNATURE])
def test_a_signed_urls_signature_is_in_no_traceback(
    echo_job: EchoJob, refusing_web: str, caplog: pytest.LogCaptureFixture, query: str
) -> None:
    """Airflow logs an exception with all that led to it, and stores' libraries quote URLs."""
    job = echo_job.operator(input_data_path=f"{refusing_web}/input.jsonl?{query}")
    with pytest.raises(StorageRefusedError) as refused:
        run(job)
    assert f"{refusing_web}/input.jsonl" in str(refused.value)
    assert SIGNATURE not in "".join(traceback.format_exception(refused.value))
    assert SIGNATURE not in caplog.text


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "OPENAI_API_KEY", "password"],
)
def test_a_credential_among_the_workers_variables_is_refused_and_not_shown(name: str) -> None:
    with pytest.raises(ConnectionUnusableError, match=f"{name} looks like a credential") as refused:
        ConnectionSettings.parse("the_id", {"worker_environment": {name: SIGNATURE}})
    assert SIGNATURE not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "GOOGLE_APPLICATION_CREDENTIALS", "HF_TOKEN_PATH", "VLLM_MAX_TOKENS", "HF_HOME"]
)
def test_what_only_sounds_like_a_credential_is_taken(name: str) -> None:
    assert ConnectionSettings.parse("the_id", {"worker_environment": {name: "x"}}).worker_environment == {name: "x"}


@pytest.mark.parametrize(
    "name", ["AZURE_STORAGE_KEY", "AZURE_STORAGE_CONNECTION_STRING", "SSH_PASSPHRASE", "DB_PWD", "AIRFLOW_CONN_STORE"]
)
def test_other_clouds_variables_are_refused_too(name: str) -> None:
    with pytest.raises(ConnectionUnusableError, match=f"{name} looks like a credential"):
        ConnectionSettings.parse("the_id", {"worker_environment": {name: "x"}})


@pytest.mark.parametrize("proxy", [f"http://me:{SIGNATURE}@proxy:3128", f"me:{SIGNATURE}@proxy:3128"])
def test_a_proxys_password_among_the_workers_variables_is_refused_and_not_shown(proxy: str) -> None:
    with pytest.raises(ConnectionUnusableError, match="HTTPS_PROXY looks like a credential, or holds") as refused:
        ConnectionSettings.parse("the_id", {"worker_environment": {"HTTPS_PROXY": proxy}})
    assert SIGNATURE not in "".join(traceback.format_exception(refused.value))
    plain = {"HTTPS_PROXY": "http://proxy:3128", "PWD": "/", "IMAGE": "worker:1@sha256:0", "MAIL": "me@example.org"}
    assert ConnectionSettings.parse("the_id", {"worker_environment": plain}).worker_environment == plain


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("s3.client_kwargs.aws_secret_access_key", {"s3": {"client_kwargs": {"aws_secret_access_key": SIGNATURE}}}),
        ("s3.s3_additional_kwargs.SSECustomerKey", {"s3": {"s3_additional_kwargs": {"SSECustomerKey": SIGNATURE}}}),
        ("s3.config_kwargs.proxies.https", {"s3": {"config_kwargs": {"proxies": {"https": f"a:{SIGNATURE}@proxy:1"}}}}),
        ("s3.endpoint_url", {"s3": {"endpoint_url": f"https://me:{SIGNATURE}@store.example"}}),
        ("az.account_key", {"az": {"account_name": "me", "account_key": SIGNATURE}}),
        ("az.connection_string", {"az": {"connection_string": f"AccountName=me;AccountKey={SIGNATURE}"}}),
        ("az.account_url", {"az": {"account_url": f"https://me.blob.example/?sv=1&sig={SIGNATURE}"}}),
        ("sftp.passphrase", {"sftp": {"username": "me", "passphrase": SIGNATURE}}),
        (
            "https.client_kwargs.headers.Authorization",
            {"https": {"client_kwargs": {"headers": {"Authorization": SIGNATURE}}}},
        ),
        ("https.headers.0.1", {"https": {"headers": [["X-Own", f"Bearer {SIGNATURE}"]]}}),
        ("https.headers.X-Api-Key", {"https": {"headers": {"X-Api-Key": SIGNATURE}}}),
    ],
)
def test_a_credential_among_storage_options_is_found_wherever_it_is(path: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConnectionUnusableError, match=f"{re.escape(path)} looks like a credential") as refused:
        ConnectionSettings.parse("the_id", {"storage_options": options})
    assert SIGNATURE not in "".join(traceback.format_exception(refused.value))
    assert SIGNATURE not in json.dumps(public_options(options))


def test_options_about_credentials_that_are_none_are_taken_and_reach_the_pod() -> None:
    options: dict[str, dict[str, Any]] = {
        "s3": {
            "anon": False,
            "endpoint_url": "https://store.example:9000/?region=a",
            "config_kwargs": {"signature_version": "s3v4", "proxies": {"https": "http://proxy:3128"}},
            "client_kwargs": {"verify": "/etc/ca.pem", "region_name": "us-east-1"},
            "s3_additional_kwargs": {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "alias/mine"},
        },
        "sftp": {"host": "h", "username": "me", "key_filename": "/keys/id", "key_path": "/keys/id"},
        "az": {"account_name": "me", "tenant_id": "t", "client_id": "c"},
        "https": {
            "client_kwargs": {"headers": {"Accept": "text/plain"}},
            "use_token": True,
            "token_url": "https://a/b",
        },
    }
    assert ConnectionSettings.parse("the_id", {"storage_options": options}).storage_options == options
    assert public_options(options) == options


def test_a_url_is_shown_without_its_user() -> None:
    """Where the store is the pod must know."""
    private = {"s3": {"endpoint_url": f"https://me:{SIGNATURE}@store.example:1/a", "key": "k"}, "gs": {"token": "t"}}
    assert public_options(private) == {"s3": {"endpoint_url": "https://store.example:1/a"}}


@pytest.mark.parametrize(
    ("prompt", "variables"),
    [
        (f"llmengine-echo:reject {PRIVATE}", {}),
        (f"llmengine-echo:die {PRIVATE}", {}),
        (PRIVATE, {"LLMENGINE_ECHO_DIES_AFTER": "0"}),
        (PRIVATE, {"LLMENGINE_ECHO_CAPACITY": PRIVATE}),
        ("", {}),
        (PRIVATE, {}),
    ],
    ids=["rejected", "engine dies of it", "engine dies", "engine can't start", "all failed", "done"],
)
def test_no_prompt_is_in_a_tasks_log_or_exception(
    echo_job: EchoJob,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    prompt: str,
    variables: dict[str, str],
) -> None:
    echo_job.input.write_text(json.dumps({"prompt": prompt, "user": PRIVATE}) + "\n")
    environment = echo_job.environment(**{name: value.replace(PRIVATE, "?") for name, value in variables.items()})
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(worker_environment=environment))
    told = ""
    with caplog.at_level(logging.DEBUG):
        try:
            told += json.dumps(run(echo_job.operator()))
        except LLMEngineError as error:
            told += "".join(traceback.format_exception(error))
    told += "".join(record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG)
    assert told
    assert PRIVATE not in told


def test_what_a_job_keeps_has_the_mode_that_the_umask_gives(echo_job: EchoJob) -> None:
    """Staged prompts, chunks, results and documents alike: nothing is wider than the user's other files."""
    seen: dict[str, int] = {}
    content = {"prompts": [PRIVATE * 9000], "max_new_tokens": 1, "temperature": 0}
    before = os.umask(0o077)
    try:
        run(echo_job.operator(input_data_path=None, content=content))
    finally:
        os.umask(before)
    for path in echo_job.output.parent.rglob("output.json*"):
        seen[path.name] = stat.S_IMODE(path.stat().st_mode)
    for path in Path(f"{echo_job.output}.job").rglob("*"):
        seen[path.name] = stat.S_IMODE(path.stat().st_mode)
    assert {"output.json", "output.json.manifest.json", "output.json.job", "current.json", "inputs"} <= seen.keys()
    assert not [name for name, mode in seen.items() if mode & 0o077]


def test_only_what_was_staged_is_deleted_where_it_was_staged(echo_job: EchoJob, tmp_path: Path) -> None:
    """Somebody may have made the folder a link to files of others."""
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    (treasure / "dear.json").write_text("dear")
    Path(f"{echo_job.output}.job").mkdir()
    Path(f"{echo_job.output}.job/inputs").symlink_to(treasure, target_is_directory=True)
    run(
        echo_job.operator(
            input_data_path=None, content={"prompts": ["x" * 70_000], "max_new_tokens": 1, "temperature": 0}
        )
    )
    assert (treasure / "dear.json").read_text() == "dear"


def test_storage_options_are_in_no_repr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps({"conn_type": "aws", "login": "key", "password": SIGNATURE}))
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(storage_conn_id="store"))
    hook = LLMEngineHook()
    assert hook.storage_options["s3"]["secret"] == SIGNATURE
    assert SIGNATURE not in repr(hook.storage()) + repr(hook) + repr(hook.settings) + str(vars(hook.settings))


def test_the_trigger_of_a_waiting_sensor_and_the_owner_of_a_job_name_no_secret(echo_job: EchoJob) -> None:
    """What is kept of a launch is the task's name, the run's, and the request without its text."""
    run(echo_job.operator(), task_context(run_id="run-1"))
    kept = json.loads(Path(f"{echo_job.output}.job/current.json").read_text())
    assert kept.keys() == {"fingerprint", "generation", "owner", "series"}
    assert kept["owner"] == "dag/job"
