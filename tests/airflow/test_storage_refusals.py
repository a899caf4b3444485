"""What a store refuses to Airflow and to its worker: one sentence that says who asked, with what, and what to do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_llmengine.exceptions import InputRefusedError, LLMEngineError, StorageFailedError, StorageRefusedError
from airflow_llmengine.hooks.llmengine import LLMEngineHook
from airflow_llmengine.sensors.batch_completions import LLMEngineBatchCompletionsSensor
from airflow_llmengine.storage import filesystem
from airflow_llmengine.storage.retrying import RetryPolicy
from airflow_llmengine.triggers.batch_completions import LLMEngineBatchCompletionsTrigger
from tests.airflow.operators_in_tests import EchoJob, connection, run
from tests.airflow.test_sensor import context
from tests.storage.s3_server import ACCESS_KEY, SECRET_KEY, Fault, S3Server

TO_AIRFLOW = "to the credentials of store"


@pytest.fixture(scope="module")
def _server() -> Iterator[S3Server]:
    with S3Server.running() as server:
        yield server


@pytest.fixture
def s3(_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A store, and the two connections that lead there."""
    _server.reset()
    store = {
        "conn_type": "aws",
        "login": ACCESS_KEY,
        "password": SECRET_KEY,
        "extra": {"endpoint_url": _server.endpoint, "region_name": "us-east-1"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(store))
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(storage_conn_id="store"))
    yield _server
    _server.reset()


@pytest.fixture
def output(s3: S3Server) -> str:
    return f"s3://{s3.new_bucket()}/out.json"


def hook(path: str) -> None:
    LLMEngineHook().get(path)


def sensor(path: str) -> None:
    LLMEngineBatchCompletionsSensor(task_id="wait", job=path, poke_interval=0.1).execute(context())


def trigger(path: str) -> None:
    """What it has to say is in its event; the task that it wakes raises it."""

    async def events() -> list[Any]:
        run = LLMEngineBatchCompletionsTrigger(job=path, poke_interval=0.1).run()
        return [event.payload async for event in run]

    (payload,) = asyncio.run(events())
    raise {"StorageRefusedError": StorageRefusedError}[payload["error"]](payload["message"])


@pytest.mark.parametrize("ask", [hook, sensor, trigger])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault("GET", status=403, code="AccessDenied"), f"the store answered 403 AccessDenied {TO_AIRFLOW}; check the"),
        (Fault("GET", status=404, code="NoSuchBucket"), "the bucket does not exist; create it or correct its name"),
        (Fault("GET", status=301, code="PermanentRedirect"), "the store answered 301 PermanentRedirect, as where"),
        (Fault("GET", status=403, code="RequestTimeTooSkewed"), "403 RequestTimeTooSkewed; set the clock"),
    ],
    ids=lambda value: value.code if isinstance(value, Fault) else "",
)
def test_who_was_refused_what(s3: S3Server, output: str, fault: Fault, reason: str, ask: Callable[[str], None]) -> None:
    s3.faults.append(Fault(**{**vars(fault), "times": 9}))

    with pytest.raises(LLMEngineError) as caught:
        ask(output)

    assert isinstance(caught.value, StorageRefusedError)
    assert f"Airflow cannot read {output}" in str(caught.value)
    assert reason in str(caught.value)
    assert not [secret for secret in (ACCESS_KEY, SECRET_KEY) if secret in str(caught.value)]
    assert "\n" not in str(caught.value)


def test_expired_credentials_are_worth_a_retry(s3: S3Server, output: str) -> None:
    s3.faults.append(Fault("GET", status=400, code="ExpiredToken", times=9))

    with pytest.raises(StorageFailedError, match="ExpiredToken to the credentials of store: temporary credentials"):
        hook(output)


def test_a_machine_without_a_connection_is_told_that_its_own_credentials_counted(
    s3: S3Server, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"s3": {"endpoint_url": s3.endpoint}}
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(storage_options=options))

    with pytest.raises(
        StorageRefusedError, match="no valid credentials were found among its machine's own credentials"
    ):
        hook(output)


def test_a_storm_is_ridden_out(s3: S3Server, output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = RetryPolicy(first_wait_seconds=0.01, longest_wait_seconds=0.02)
    monkeypatch.setattr(filesystem, "RetryPolicy", lambda: quick)
    storm = Fault("GET", code="SlowDown", times=6)
    s3.faults.append(storm)

    assert LLMEngineHook().get(output).state == "absent"
    assert not storm.times


def test_a_signature_is_in_no_message(s3: S3Server, output: str) -> None:
    s3.faults.append(Fault("GET", status=403, code="AccessDenied", times=9))

    with pytest.raises(StorageRefusedError) as caught:
        hook(f"{output}?X-Amz-Signature=0123456789abcdef")

    assert "0123456789abcdef" not in str(caught.value)


@pytest.mark.slow
def test_what_is_refused_to_the_worker_is_said_of_the_worker(
    s3: S3Server, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = output.split("/")[2]
    s3.client.put_object(Bucket=bucket, Key="input.jsonl", Body=b'{"prompt": "a"}\n')
    job = EchoJob(tmp_path, [])
    extra = {"storage_conn_id": "store", "worker_environment": job.environment()}
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(**extra))
    s3.faults.append(Fault("PUT", path="/chunks/", status=403, code="AccessDenied", times=9))

    with pytest.raises(InputRefusedError) as caught:
        run(job.operator(input_data_path=f"s3://{bucket}/input.jsonl", output_data_path=output))

    assert isinstance(caught.value, AirflowFailException)
    assert f"The worker cannot create {output}.job/" in str(caught.value)
    assert (
        "the store answered 403 AccessDenied to the credentials of Airflow's storage connection, which were handed "
        "to it; check the credentials and what they permit"
    ) in str(caught.value)
