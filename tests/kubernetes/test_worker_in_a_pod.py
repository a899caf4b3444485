"""The worker in a pod as the operator makes it, without Airflow: hardened, signalled by the kubelet, killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_llmengine.kube.cluster import ClusterSettings
from airflow_llmengine.spec.exit_codes import ExitCode
from tests.kubernetes.cluster import Cluster, terminated
from tests.kubernetes.host_python import HostPython
from tests.kubernetes.jobs_on_s3 import JobOnS3
from tests.kubernetes.worker_pods import WorkerPods, processes_of
from tests.storage.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from tests.waiting import wait_until
from tests.worker.jobs import Job, text_of

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

RECORDS = 120
SLOWLY = {"LLMENGINE_ECHO_SECONDS_PER_RECORD": "0.4", "LLMENGINE_ECHO_CAPACITY": "4"}


@pytest.fixture
def job(shared_folder: Path) -> Job:
    return Job(shared_folder, [f"row {index}" for index in range(RECORDS)])


@pytest.fixture
def pods(cluster: Cluster, namespace: str, host_python_pod: HostPython, job: Job) -> WorkerPods:
    return WorkerPods(cluster, namespace, host_python_pod, job.request)


def log_to(job: Job, **environment: str) -> dict[str, str]:
    return {"LLMENGINE_ECHO_LOG": str(job.generated), **environment}


def require_results(job: Job) -> None:
    assert [text_of(result) for result in job.results()] == [f"row {index}" for index in range(RECORDS)]
    assert not list(job.folder.glob("output.json.job/*/"))


def test_a_hardened_pod_does_a_job(pods: WorkerPods, job: Job) -> None:
    pods.start("worker", environment=log_to(job))
    pod = pods.wait_for_success("worker")
    require_results(job)
    assert set(job.generations().values()) == {1}
    assert terminated(pod).message is None
    # It ran as nobody in particular, and could write nowhere else.
    assert (job.output.stat().st_uid, job.output.stat().st_gid) == (1000, 1000)
    security = pod.spec.containers[0].security_context
    assert security.run_as_non_root
    assert security.read_only_root_filesystem


def test_the_worker_sees_the_very_text(
    cluster: Cluster, namespace: str, host_python_pod: HostPython, shared_folder: Path
) -> None:
    """Kubernetes puts variables in for names in brackets, and one dollar sign for two."""
    text = "cash$$flow-$(LLMENGINE_ENGINE)-$"
    job = Job(shared_folder, ["row"])
    job.output = shared_folder / f"{text}.json"
    job.generated = shared_folder / f"{text}.log"
    pods = WorkerPods(cluster, namespace, host_python_pod, job.request)
    pods.start("worker", environment=log_to(job))
    pods.wait_for_success("worker")
    assert [text_of(result) for result in job.results()] == ["row"]
    assert job.generations().total() == 1


def test_a_deleted_pod_saves_its_work_and_the_next_goes_on(pods: WorkerPods, job: Job) -> None:
    pods.start("first", "--chunk-records=16", environment=log_to(job, **SLOWLY))
    wait_until(lambda: job.generations().total() >= 40)
    end = pods.delete("first")
    assert end.exit_code == ExitCode.PARTIAL
    assert json.loads(end.message.splitlines()[-1]) | {"logger": ""} == {
        "level": "ERROR",
        "logger": "",
        "message": "got SIGTERM; what is finished is kept",
    }
    assert list(job.folder.glob("output.json.job/*/chunks/*/*.part-*"))
    assert not job.output.exists()
    pods.start("second", "--chunk-records=16", environment=log_to(job))
    pods.wait_for_success("second")
    require_results(job)
    assert set(job.generations().values()) == {1}


def test_a_reason_longer_than_a_termination_message_is_still_readable(pods: WorkerPods) -> None:
    pods.start("worker", f"--option-of-tomorrow={'x' * 5000}")
    end = pods.wait_for_container_end("worker")
    assert end.exit_code == ExitCode.BAD_REQUEST
    assert len(end.message.encode()) == 2048
    reason = json.loads(end.message.splitlines()[-1])
    assert reason["level"] == "ERROR"
    assert "unrecognized arguments: --option-of-tomorrow=xxx" in reason["message"]


@pytest.mark.parametrize("how", ["its processes are killed", "it is deleted without grace"])
def test_a_killed_pod_loses_nothing_that_was_committed(pods: WorkerPods, job: Job, how: str) -> None:
    pods.start("first", "--chunk-records=8", environment=log_to(job, **SLOWLY))
    wait_until(lambda: len(job.committed()) >= 3)
    if how == "its processes are killed":
        pods.kill("first")
        assert pods.wait_for_container_end("first").exit_code == 128 + 9
    else:
        uid = pods.cluster.pod(pods.namespace, "first").metadata.uid
        pods.cluster.delete_pod(pods.namespace, "first", grace_seconds=0)
        # It is gone from the API at once, whatever becomes of its processes.
        assert pods.cluster.pod(pods.namespace, "first") is None
        wait_until(lambda: not processes_of(uid))
    committed = {index for records in job.committed().values() for index in records}
    pods.start("second", "--chunk-records=8", environment=log_to(job))
    pods.wait_for_success("second")
    require_results(job)
    assert all(job.generations()[index] == 1 for index in committed)
    assert job.generations().total() <= RECORDS + 8 * 3


def test_s3_with_credentials_that_are_in_a_secret_only(
    cluster: Cluster, namespace: str, host_python_pod: HostPython, s3_for_pods: S3Server
) -> None:
    bucket = s3_for_pods.new_bucket()
    lines = b"".join(json.dumps({"prompt": f"row {index}"}).encode() + b"\n" for index in range(10))
    s3_for_pods.client.put_object(Bucket=bucket, Key="in.jsonl", Body=lines)
    request = {
        "input_data_path": f"s3://{bucket}/in.jsonl",
        "output_data_path": f"s3://{bucket}/out.json",
        "model_config": {"model": "stand-in"},
    }
    pods = WorkerPods(cluster, namespace, host_python_pod, request, options={"s3": s3_for_pods.options})
    open_options = {name: s3_for_pods.options[name] for name in ("endpoint_url", "client_kwargs")}
    secret_options = {name: s3_for_pods.options[name] for name in ("key", "secret")}
    pods.start(
        "worker",
        "--verbose",
        environment={"LLMENGINE_STORAGE_OPTIONS": json.dumps({"s3": open_options})},
        secret_options={"s3": secret_options},
    )
    pod = pods.wait_for_success("worker")
    results = json.loads(s3_for_pods.client.get_object(Bucket=bucket, Key="out.json")["Body"].read())
    assert [text_of(result) for result in results] == [f"row {index}" for index in range(10)]
    told = json.dumps(cluster.api_client.sanitize_for_serialization(pod)) + cluster.log(namespace, "worker")
    assert ACCESS_KEY not in told
    assert SECRET_KEY not in told
    # It goes with its pod.
    assert cluster.core.list_namespaced_secret(namespace, field_selector="type=Opaque").items
    cluster.delete_pod(namespace, "worker")
    wait_until(lambda: not cluster.core.list_namespaced_secret(namespace, field_selector="type=Opaque").items)


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_the_real_model_from_s3_in_hardened_pods_one_of_them_deleted_while_it_loads(
    cluster: Cluster, namespace: str, shared_folder: Path, s3_for_pods: S3Server, quickstart_model: Path
) -> None:
    """Weights, input and output are on S3. It needs no more than a home in ``/tmp``, shared memory and a cache."""
    prompts = ["The capital of France is", "Bread is made of"] * 8
    job = JobOnS3(s3_for_pods, prompts, shared_folder / "generated.log")
    for file in quickstart_model.iterdir():
        s3_for_pods.client.put_object(Bucket=job.bucket, Key=f"models/small/{file.name}", Body=file.read_bytes())
    request = {
        **job.request,
        "model_config": {
            "model": "SmolLM2",
            "checkpoint_path": f"s3://{job.bucket}/models/small",
            "max_model_len": 256,
            "max_num_seqs": 16,
            "dtype": "float32",
            "enforce_eager": True,
        },
    }
    cache = shared_folder / "cache"
    cache.mkdir()
    settings = ClusterSettings.model_validate(
        {"accelerator": "none", "cache_volume": {"hostPath": {"path": str(cache)}}}
    )
    options = {"s3": s3_for_pods.options}
    host_python = HostPython(shared=(shared_folder,))
    pods = WorkerPods(cluster, namespace, host_python, request, engine="vllm", options=options)

    def start(name: str) -> str:
        environment = {"VLLM_CPU_KVCACHE_SPACE": "1"}
        uid: str = pods.start(name, environment=environment, secret_options=options, settings=settings).metadata.uid
        return uid

    uid = start("first")
    # The process that vLLM has started to load the model.
    wait_until(lambda: any(b"multiprocessing.spawn" in command for command in processes_of(uid).values()), seconds=300)
    end = pods.delete("first")
    assert end.exit_code == ExitCode.PARTIAL
    assert json.loads(end.message.splitlines()[-1])["message"] == "got SIGTERM; what is finished is kept"
    assert not processes_of(uid)
    fetched = s3_for_pods.count("GET", "/model.safetensors")
    assert fetched

    start("second")
    pods.wait_for_success("second", seconds=500)
    results = json.loads(job.output() or b"[]")
    assert len(results) == len(prompts)
    assert "Paris" in text_of(results[0])
    # The weights were fetched once, for both.
    assert s3_for_pods.count("GET", "/model.safetensors") == fetched
