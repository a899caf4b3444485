"""A whole job on S3 over HTTP: input, output and job directory; the credentials come through the launcher's pipe."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.exit_codes import ExitCode
from tests.storage.s3_server import ACCESS_KEY, SECRET_KEY, Fault, S3Server

pytestmark = pytest.mark.slow


class Bucket(S3Server):
    """A server with a bucket in which the job lies."""

    name: str


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    server = Bucket()
    server.start()
    server.name = server.new_bucket()
    body = "".join(json.dumps({"prompt": f"row {index}", "max_tokens": 4}) + "\n" for index in range(60))
    server.client.put_object(Bucket=server.name, Key="in/rows.jsonl", Body=body.encode())
    yield server
    server.stop()


def start(server: Bucket, folder: Path, **environment: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start a worker as a launcher does; the second is the launcher's end of the pipe."""
    return start_on(f"s3://{server.name}", {"s3": server.options}, folder, **environment)


def start_on(
    base: str, options: dict[str, Any], folder: Path, **environment: str
) -> tuple[subprocess.Popen[bytes], int]:
    """The same on any store."""
    request = {
        "input_data_path": f"{base}/in/",
        "output_data_path": f"{base}/out/answers.jsonl",
        "model_config": {"model": "stand-in"},
    }
    (folder / "request.json").write_text(json.dumps(request))
    reader, writer = os.pipe()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    worker = subprocess.Popen(
        [
            *(sys.executable, "-m", "airflow_llmengine.worker", "run", str(folder / "request.json")),
            *("--control-fd", str(reader), "--chunk-records", "5", "--series", "s", "--verbose"),
        ],
        env={**inherited, "LLMENGINE_ENGINE": "echo", "LLMENGINE_ECHO_LOG": str(folder / "log"), **environment},
        pass_fds=(reader,),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    os.close(reader)
    os.write(writer, json.dumps({"storage_options": options}).encode() + b"\n")
    return worker, writer


def test_a_killed_job_on_s3_goes_on_where_it_stopped(bucket: Bucket, tmp_path: Path) -> None:
    worker, pipe = start(bucket, tmp_path, LLMENGINE_ECHO_SECONDS_PER_RECORD="0.05", LLMENGINE_ECHO_CAPACITY="2")
    chunks = "/out/answers.jsonl.job/"
    for _ in range(600):
        if bucket.count("PUT", "/chunks/") >= 3:
            break
        time.sleep(0.05)
    os.killpg(worker.pid, signal.SIGKILL)
    worker.communicate()
    os.close(pipe)
    assert bucket.count("PUT", chunks) > 3
    before = len((tmp_path / "log").read_text().splitlines())
    # A storm of 503 on the way is ridden out.
    bucket.faults.extend([Fault("PUT", path="/chunks/", times=2), Fault("GET", path="/in/", times=1)])
    worker, pipe = start(bucket, tmp_path)
    output, log = worker.communicate(timeout=60)
    os.close(pipe)
    assert worker.returncode == ExitCode.DONE, log.decode()
    body = bucket.client.get_object(Bucket=bucket.name, Key="out/answers.jsonl")["Body"].read()
    texts = [json.loads(line)["choices"][0]["text"] for line in body.decode().splitlines()]
    assert [f"row {index}" in text for index, text in enumerate(texts)] == [True] * 60
    manifest = json.loads(output)
    assert manifest["output_bytes"] == len(body)
    assert manifest["output_etag"]
    generated = len((tmp_path / "log").read_text().splitlines())
    assert generated < before + 60
    left = bucket.client.list_objects_v2(Bucket=bucket.name, Prefix="out/")["Contents"]
    assert sorted(item["Key"] for item in left) == [
        "out/answers.jsonl",
        "out/answers.jsonl.job/current.json",
        "out/answers.jsonl.manifest.json",
    ]
    for secret in (SECRET_KEY, ACCESS_KEY):
        assert secret.encode() not in log + output
        assert all(
            secret.encode() not in bucket.client.get_object(Bucket=bucket.name, Key=item["Key"])["Body"].read()
            for item in left
        )


@pytest.mark.parametrize(("status", "code"), [(403, ExitCode.BAD_REQUEST), (None, ExitCode.STORAGE_UNREACHABLE)])
def test_a_store_that_refuses_is_one_sentence(
    bucket: Bucket, tmp_path: Path, status: int | None, code: ExitCode
) -> None:
    if status is None:
        bucket.stop()
    else:
        bucket.faults.append(Fault("GET", status=status, code="AccessDenied", times=1000))
        bucket.faults.append(Fault("HEAD", status=status, code="AccessDenied", times=1000))
    worker, pipe = start(bucket, tmp_path)
    _output, log = worker.communicate(timeout=120)
    os.close(pipe)
    if status is None:
        bucket.start()
    assert worker.returncode == code, log.decode()
    last = log.decode().strip().splitlines()[-1]
    assert f"s3://{bucket.name}/in" in last
    assert SECRET_KEY not in log.decode()
    assert "Traceback" not in last
