"""An attempt whose engine loads a checkpoint of an object store; the engine stands for one that has weights."""

from __future__ import annotations

import asyncio
import threading
import uuid
from pathlib import Path

import pytest

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.job_state import PinnedModel
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.job_directory import JobDirectory
from airflow_llmengine.storage.launch import launch_job
from airflow_llmengine.worker.attempt import AttemptOptions, AttemptOutcome, run_attempt
from airflow_llmengine.worker.engines.echo import EchoEngine
from airflow_llmengine.worker.stopping import Stop
from airflow_llmengine.worker.timing import Timing
from airflow_llmengine.worker.weights.model_source import ModelFinder
from tests.storage.s3_server import Fault, S3Server
from tests.waiting import wait_until
from tests.worker.jobs import Job
from tests.worker.weights.checkpoints import model, put


class EngineWithWeights(EchoEngine):
    """Echoes, once it has its weights."""

    def __init__(self, request: CreateBatchCompletionsV1Request) -> None:
        super().__init__(request)
        self.weights: str | None = None

    def load_from(self, find: ModelFinder) -> None:
        self.find = find

    async def start(self) -> None:
        self.weights = (await asyncio.to_thread(self.find)).identity
        await super().start()

    @property
    def model_identity(self) -> str | None:
        return self.weights


def run(job: Job, storage: Storage, engine: type[EchoEngine] = EngineWithWeights, series: str = "1") -> AttemptOutcome:
    options = AttemptOptions(owner="test", series=series, if_done="reuse")
    timing = Timing(heartbeat_seconds=0.02)
    return run_attempt(storage, validate_request(job.request), options, Stop(), make_engine=engine, timing=timing)


@pytest.fixture
def url(server: S3Server, bucket: str) -> str:
    url = put(server, bucket, model(), f"attempt-{uuid.uuid4().hex[:8]}/small")
    server.seen.clear()
    return url


def reads(server: S3Server) -> int:
    return sum(method == "GET" and "list-type" not in query for method, _path, query in server.seen)


def test_a_replica_is_seen_alive_while_it_fetches(
    server: S3Server, storage: Storage, url: str, cache: Path, tmp_path: Path
) -> None:
    job = Job(tmp_path, ["row"], model_config={"model": "small", "checkpoint_path": url})
    server.faults.append(Fault("GET", path="model-1", delay=0.3, times=1000))
    outcomes: list[AttemptOutcome] = []
    attempt = threading.Thread(target=lambda: outcomes.append(run(job, storage)))
    attempt.start()
    seen: set[str] = set()

    def is_told() -> bool:
        for path in job.folder.glob("output.json.job/*/replicas/0.json"):
            text = path.read_text()
            if f'"message":"fetching {url}"' in text.replace('": "', '":"') and '"loading"' in text:
                seen.add(text)
        return len(seen) > 2

    wait_until(is_told)
    attempt.join()
    assert outcomes[0].exit_code is ExitCode.DONE


def test_an_engine_without_weights_fetches_none(
    server: S3Server, storage: Storage, url: str, cache: Path, tmp_path: Path
) -> None:
    job = Job(tmp_path, ["row"], model_config={"model": "small", "checkpoint_path": url})
    assert run(job, storage, EchoEngine).exit_code is ExitCode.DONE
    assert reads(server) == 0


def test_weights_that_changed_since_the_job_began(
    server: S3Server, storage: Storage, url: str, cache: Path, tmp_path: Path
) -> None:
    job = Job(tmp_path, ["row"], model_config={"model": "small", "checkpoint_path": url})
    request = validate_request(job.request)
    launch = launch_job(storage, request, owner="test", series="1", if_done="reuse", overwrite=False, engine="echo")
    # An earlier attempt has loaded what was there then.
    earlier = PinnedModel(model_identity="checkpoint-etags-sha256:0", engine="echo", engine_version=EchoEngine.version)
    JobDirectory(storage, request.output_data_path).scratch(launch.handle).pin_model(earlier)
    outcome = run(job, storage)
    assert outcome.exit_code is ExitCode.BAD_REQUEST
    assert "the model's weights are checkpoint-etags-sha256:" in outcome.message
    assert reads(server) == 0, "it is refused before it is fetched"


@pytest.mark.parametrize(
    ("code", "status", "exit_code"),
    [("AccessDenied", 403, ExitCode.BAD_REQUEST), ("SlowDown", 503, ExitCode.STORAGE_UNREACHABLE)],
)
def test_how_an_attempt_ends_that_gets_no_weights(
    server: S3Server,
    storage: Storage,
    url: str,
    cache: Path,
    tmp_path: Path,
    code: str,
    status: int,
    exit_code: ExitCode,
) -> None:
    job = Job(tmp_path, ["row"], model_config={"model": "small", "checkpoint_path": url})
    server.faults.append(Fault("GET", path="model-1", status=status, code=code, times=10**6))
    outcome = run(job, storage)
    assert outcome.exit_code is exit_code
    assert f"the store answered {status} {code}" in outcome.message
