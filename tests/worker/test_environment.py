"""A request and options for storage that come by environment variables, as they do in a pod."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.worker.cli import main
from airflow_llmengine.worker.environment import EnvironmentInvalidError, storage_caller, take_storage_options
from tests.storage.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from tests.worker.jobs import Job

VARIABLES = (
    "LLMENGINE_STORAGE_OPTIONS",
    "LLMENGINE_STORAGE_OPTIONS_FILE",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_CLIENT_SECRET",
)

# Each starts worker processes.
pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server.running() as server:
        yield server


def set_variables(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> None:
    # Set first, so that what is removed by the code under test is put back as it was.
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def test_a_request_is_read_from_a_variable_which_is_gone_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    request = {"input_data_path": "/in.jsonl", "output_data_path": "/out.jsonl", "model_config": {"model": "ä"}}
    monkeypatch.setenv("LLMENGINE_REQUEST", json.dumps(request, ensure_ascii=False))
    assert main(["validate", "env:LLMENGINE_REQUEST"]) == ExitCode.DONE
    assert capsys.readouterr().out == "valid\n"
    assert "LLMENGINE_REQUEST" not in os.environ
    assert main(["validate", "env:LLMENGINE_REQUEST"]) == ExitCode.BAD_REQUEST
    assert (
        "the environment variable LLMENGINE_REQUEST is to hold the request, and is not set" in capsys.readouterr().err
    )


def test_options_are_taken_from_variable_and_file_and_both_variables_are_gone_then(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "options.json").write_text('{"s3": {"key": "k", "client_kwargs": {"verify": false}}}')
    options = {
        "s3": {"endpoint_url": "http://e", "key": "x", "client_kwargs": {"region_name": "r"}},
        "gs": {"project": "p"},
    }
    values = (json.dumps(options), str(tmp_path / "options.json"))
    set_variables(monkeypatch, dict(zip(VARIABLES[:2], values, strict=True)))
    assert take_storage_options() == {
        "s3": {"endpoint_url": "http://e", "key": "k", "client_kwargs": {"region_name": "r", "verify": False}},
        "gs": {"project": "p"},
    }
    assert not [name for name in VARIABLES if name in os.environ]
    assert take_storage_options() == {}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"s3": {"key": "id", "secret": "s3cret", "token": "t0ken"}}),
        (
            {"s3": {"endpoint_url": "e"}},
            {"s3": {"key": "id", "secret": "s3cret", "token": "t0ken", "endpoint_url": "e"}},
        ),
        ({"s3": {"key": "mine", "secret": "own"}}, {"s3": {"key": "mine", "secret": "own"}}),
        ({"s3a": {"anon": True}}, {"s3a": {"anon": True}}),
        (
            {"s3": {"client_kwargs": {"aws_access_key_id": "mine"}}},
            {"s3": {"client_kwargs": {"aws_access_key_id": "mine"}}},
        ),
    ],
)
@pytest.mark.parametrize("by_launcher", [False, True])
def test_the_machines_aws_credentials_become_options_unless_there_are_some(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], expected: dict[str, Any], by_launcher: bool
) -> None:
    credentials = dict(zip(VARIABLES[2:5], ("id", "s3cret", "t0ken"), strict=True))
    set_variables(
        monkeypatch, {**credentials, "LLMENGINE_STORAGE_OPTIONS": "{}" if by_launcher else json.dumps(options)}
    )
    assert take_storage_options(options if by_launcher else None) == expected
    assert not [name for name in VARIABLES if name in os.environ]


@pytest.mark.parametrize(
    "text",
    ["s3cret", '{"s3": "s3cret"}', '["s3cret"]', '{"key": "s3cret", "s3": {}}', '{"s3": {"key": "s3cret"', "[" * 9999],
)
@pytest.mark.parametrize("by_file", [False, True])
def test_what_are_no_options_is_one_sentence_without_the_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, by_file: bool
) -> None:
    (tmp_path / "options.json").write_text(text)
    name = "LLMENGINE_STORAGE_OPTIONS_FILE" if by_file else "LLMENGINE_STORAGE_OPTIONS"
    set_variables(monkeypatch, {name: str(tmp_path / "options.json") if by_file else text})
    assert main(["status", str(tmp_path / "out.json")]) == ExitCode.BAD_REQUEST
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"{name} names, must be a JSON object" in told if by_file else f"{name} must be a JSON object" in told
    assert "s3cret" not in told


def test_a_file_that_can_not_be_read_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_variables(monkeypatch, {"LLMENGINE_STORAGE_OPTIONS_FILE": str(tmp_path / "options.json")})
    with pytest.raises(EnvironmentInvalidError, match=r"options.json, which .* names, can't be read: No such file"):
        take_storage_options()
    (tmp_path / "large.json").write_bytes(b" " * 2**21)
    set_variables(monkeypatch, {"LLMENGINE_STORAGE_OPTIONS_FILE": str(tmp_path / "large.json")})
    with pytest.raises(EnvironmentInvalidError, match="larger than 1048576 bytes"):
        take_storage_options()


WITH_THE_ENVIRONMENT_OF_THE_ENGINES_PROCESSES = textwrap.dedent(
    """
    import subprocess, sys
    from airflow_llmengine.worker.engines.echo import EchoEngine
    from airflow_llmengine.worker.cli import main

    async def start(self):
        sys.stdout.write(subprocess.run(["env"], capture_output=True, text=True).stdout)

    EchoEngine.start = start
    sys.exit(main(sys.argv[1:]))
    """
)


@pytest.mark.parametrize("credentials", ["in the variable", "in the file", "AWS's own variables"])
def test_a_job_on_s3_whose_engine_inherits_nothing_of_it(server: S3Server, tmp_path: Path, credentials: str) -> None:
    bucket = server.new_bucket()
    server.client.put_object(Bucket=bucket, Key="in.jsonl", Body=b'{"prompt": "row 0", "max_tokens": 4}\n')
    job = Job(tmp_path, [], input_data_path=f"s3://{bucket}/in.jsonl", output_data_path=f"s3://{bucket}/out.json")
    open_options = {name: server.options[name] for name in ("endpoint_url", "client_kwargs")}
    secret_options = {name: server.options[name] for name in ("key", "secret")}
    (tmp_path / "options.json").write_text(json.dumps({"s3": secret_options}))
    environment = (
        job.environment({"LLMENGINE_REQUEST": json.dumps(job.request)})
        | {
            "in the variable": {"LLMENGINE_STORAGE_OPTIONS": json.dumps({"s3": server.options})},
            "in the file": {
                "LLMENGINE_STORAGE_OPTIONS": json.dumps({"s3": open_options}),
                "LLMENGINE_STORAGE_OPTIONS_FILE": str(tmp_path / "options.json"),
            },
            "AWS's own variables": {
                "LLMENGINE_STORAGE_OPTIONS": json.dumps({"s3": open_options}),
                "AWS_ACCESS_KEY_ID": ACCESS_KEY,
                "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            },
        }[credentials]
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            WITH_THE_ENVIRONMENT_OF_THE_ENGINES_PROCESSES,
            "run",
            "env:LLMENGINE_REQUEST",
            "--verbose",
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == ExitCode.DONE, done.stderr
    assert "LLMENGINE_ENGINE=echo" in done.stdout
    for secret in (ACCESS_KEY, SECRET_KEY, "LLMENGINE_REQUEST=", "LLMENGINE_STORAGE_OPTIONS"):
        assert secret not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"az": {"account_key": "k", "sas_token": "s"}}),
        (
            {"abfs": {"account_name": "a"}},
            {"az": {"account_key": "k", "sas_token": "s"}, "abfs": {"account_name": "a"}},
        ),
        ({"az": {"connection_string": "c"}}, {"az": {"connection_string": "c"}}),
    ],
)
def test_azures_credentials_are_taken_out_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, options: Mapping[str, Any], expected: Mapping[str, Any]
) -> None:
    set_variables(monkeypatch, {"AZURE_STORAGE_ACCOUNT_KEY": "k", "AZURE_STORAGE_SAS_TOKEN": "s"})

    assert take_storage_options(options) == expected
    assert not [name for name in os.environ if name.startswith("AZURE_STORAGE_")]


@pytest.mark.parametrize(
    ("sent", "variables", "credentials"),
    [
        (None, {}, "the credentials of its own pod"),
        ({"s3": {"endpoint_url": "http://store"}}, {}, "the credentials of its own machine"),
        ({"s3": {"key": "k"}}, {}, "the credentials of Airflow's storage connection, which were handed to it"),
        (
            None,
            {"LLMENGINE_STORAGE_OPTIONS_FILE": "/options.json"},
            "the credentials of Airflow's storage connection, which were handed to it",
        ),
    ],
)
def test_a_worker_says_whose_credentials_it_has(
    monkeypatch: pytest.MonkeyPatch, sent: Mapping[str, Any] | None, variables: Mapping[str, str], credentials: str
) -> None:
    set_variables(monkeypatch, variables)

    assert storage_caller(sent).credentials == credentials


def test_every_command_reaches_storage_by_them(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = server.new_bucket()
    request = {
        "input_data_path": f"s3://{bucket}/in.jsonl",
        "output_data_path": f"s3://{bucket}/out.json",
        "model_config": {"model": "m"},
    }
    server.client.put_object(Bucket=bucket, Key="in.jsonl", Body=b'{"prompt": "row 0", "max_tokens": 4}\n')
    server.client.put_object(Bucket=bucket, Key="request.json", Body=json.dumps(request).encode())
    place, output = f"s3://{bucket}/request.json", f"s3://{bucket}/out.json"
    variables = {"LLMENGINE_STORAGE_OPTIONS": json.dumps({"s3": server.options}), "LLMENGINE_ENGINE": "echo"}
    for command, said in {
        ("validate", place): "valid\n",
        ("plan", place): "replicas  1",
        ("run", place, "--replicas", "2"): "",
        ("collect", place): '"records":1',
        ("status", output): "done",
        ("cancel", output): "the job is done already",
        ("clean", output): "nothing to delete",
    }.items():
        set_variables(monkeypatch, variables)
        assert main(command) == ExitCode.DONE, capsys.readouterr().err
        assert said in capsys.readouterr().out
