"""Worker processes that fetch a checkpoint: killed, two at once, told to stop."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.weights.checkpoint import list_checkpoint
from airflow_llmengine.worker.weights.folder import PARALLEL_RANGES
from airflow_llmengine.worker.weights.model_files import ModelFiles
from tests.storage.s3_server import Fault, S3Server
from tests.waiting import wait_until
from tests.worker.jobs import Job
from tests.worker.weights.checkpoints import RANGE, model, put, ranges
from tests.worker.weights.test_object_store import content, request

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]

FETCH = f"""
import json, os, sys
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.weights import file_fetch
from airflow_llmengine.worker.weights.model_files import ModelFiles

file_fetch.RANGE_BYTES = {RANGE}
storage = Storage({{"s3": json.loads(os.environ["OPTIONS"])}})
request = CreateBatchCompletionsV1Request.model_validate_json(sys.argv[1])
print(ModelFiles(storage, request).find().directory)
"""


def start(server: S3Server, url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, request(url).model_dump_json(by_alias=True, exclude_unset=True)],
        cwd=ROOT,
        env={**os.environ, "OPTIONS": json.dumps(server.options)},
        stdout=subprocess.PIPE,
        text=True,
    )


def reads(server: S3Server) -> int:
    return sum(method == "GET" and "list-type" not in query for method, _path, query in server.seen)


def test_a_killed_fetch_goes_on_where_it_ended(server: S3Server, storage: Storage, bucket: str, cache: Path) -> None:
    files = model(weights=40 * RANGE)
    url = put(server, bucket, files, "killed/small")
    server.faults.append(Fault("GET", path="/killed/", delay=0.1, times=1000))
    worker = start(server, url)
    with worker:
        wait_until(lambda: reads(server) >= 24)
        worker.kill()
    server.faults.clear()
    assert content(ModelFiles(storage, request(url)).find().directory) == files
    # What was in work when it was killed is asked for again; of what had arrived nothing is.
    assert ranges(files) < reads(server) <= ranges(files) + PARALLEL_RANGES


def test_two_processes_at_once_fetch_it_once(server: S3Server, bucket: str, cache: Path) -> None:
    files = model()
    url = put(server, bucket, files, "twice/small")
    server.faults.append(Fault("GET", path="/twice/", delay=2))
    # The first to fetch is at it until the second has come, too.
    workers = [start(server, url) for _ in range(2)]
    folders = {worker.communicate(timeout=120)[0].strip() for worker in workers}
    (folder,) = folders
    assert content(Path(folder)) == files
    assert reads(server) == ranges(files)


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a lock, as another worker does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize("while_it", ["waits", "fetches"])
def test_a_worker_that_is_told_to_stop_does_so(
    server: S3Server, storage: Storage, bucket: str, cache: Path, tmp_path: Path, while_it: str
) -> None:
    url = put(server, bucket, model(), f"{while_it}/small")
    checkpoint = list_checkpoint(storage, url)
    lock = cache / f".{checkpoint.folder_name}.lock"
    # It never comes to the engine.
    job = Job(tmp_path, ["row"], model_config={"model": "small", "checkpoint_path": url})
    environment = {"LLMENGINE_ENGINE": "vllm", "LLMENGINE_STORAGE_OPTIONS": json.dumps({"s3": server.options})}
    server.faults.append(Fault("GET", path=f"/{while_it}/", delay=60, times=1000))
    with contextlib.ExitStack() as stack:
        if while_it == "waits":
            stack.enter_context(held(lock))
        worker = job.start(**environment)
        assert worker.stderr is not None
        said = b"waiting for another worker" if while_it == "waits" else b"fetching s3://"
        for line in worker.stderr:
            if said in line:
                break
        else:
            pytest.fail("it ended by itself")
        worker.send_signal(signal.SIGTERM)
        _, told = worker.communicate(timeout=60)
    server.faults.clear()
    assert worker.returncode == ExitCode.PARTIAL
    assert b"got SIGTERM; what is finished is kept" in told
