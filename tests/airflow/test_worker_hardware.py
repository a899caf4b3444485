"""What a job's pods get, from the task's first step to the pod itself, without a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.exceptions import ModelSizeUnknownError, RequestRefusedError
from airflow_llmengine.hooks.llmengine import LLMEngineHook
from airflow_llmengine.hooks.worker_attempt import WorkerAttempt
from airflow_llmengine.operators import worker_hardware
from airflow_llmengine.operators.worker_pod import WorkerPodMixin
from airflow_llmengine.spec.hardware.inference import Model
from tests.airflow.operators_in_tests import EchoJob, connection, run
from tests.airflow.test_group_tasks import Tasks
from tests.kube.pods import environment_of, from_manifest, operators_pod, to_manifest, worker_of
from tests.spec.hardware.models import MODELS

LLAMA = MODELS["meta-llama/Llama-3.1-8B-Instruct"]
A10, H100 = "nvidia-ampere-a10", "nvidia-hopper-h100"


class PodMadeError(Exception):
    """A pod would be made now."""

    def __init__(self, pod: dict[str, Any]) -> None:
        super().__init__()
        self.pod = pod


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every task ends where it would make its pod."""

    def make(self: Any, _context: Any, hook: LLMEngineHook, attempt: WorkerAttempt, request: Any) -> Any:
        self._begin_pod(hook, attempt, request)
        raise PodMadeError(to_manifest(self._pod_launch.complete(from_manifest(operators_pod()), container="base")))

    monkeypatch.setattr(WorkerPodMixin, "_run_pod", make)
    monkeypatch.setattr(WorkerPodMixin, "_tidy_pods", lambda *_arguments: None)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA.config))
    index = {"metadata": {"total_size": LLAMA.stored_bytes}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture
def job(tmp_path: Path) -> EchoJob:
    return EchoJob(tmp_path / "job", ["one", "two"])


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Define the connection."""

    def define(**extra: Any) -> None:
        given = {"launcher": "kubernetes", "engine": "vllm", "image": "worker:1", **extra}
        monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(**given))

    define(cluster={"gpu_types": [A10, H100]})
    return define


def pod_of(job: EchoJob, checkpoint: Path | str, **arguments: Any) -> dict[str, Any]:
    model = {"model": "llama", "checkpoint_path": str(checkpoint), **arguments.pop("model_config", {})}
    with pytest.raises(PodMadeError) as made:
        run(job.operator(model_config=model, **arguments))
    return made.value.pod


def told_to_the_engine(pod: dict[str, Any]) -> dict[str, Any]:
    request: dict[str, Any] = json.loads(environment_of(pod)["LLMENGINE_REQUEST"])
    return request


def test_the_pod_gets_what_the_model_needs_and_the_engine_is_told(
    connect: Any, job: EchoJob, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = pod_of(job, checkpoint, model_config={"max_model_len": 8192})
    resources = worker_of(pod)["resources"]
    assert resources["limits"] == {"nvidia.com/gpu": "2"}
    assert resources["requests"] == {"cpu": "4", "memory": "30Gi", "nvidia.com/gpu": "2"}
    assert "NVIDIA-A10" in json.dumps(pod["spec"]["affinity"])
    told = told_to_the_engine(pod)
    assert (told["gpus"], told["model_config"]["tensor_parallel_size"]) == (2, 2)
    log = capsys.readouterr().out
    assert "Each worker gets 2 x nvidia-ampere-a10 (tensor parallel 2), 4 cores" in log
    assert "- passed over: 1 x nvidia-ampere-a10: 2.5 GiB for the KV cache, 4.1 GiB are wanted" in log
    # What was worked out is not a part of the job.
    (document,) = Path(f"{job.output}.job").glob("*/job.json")
    assert "gpus" not in json.loads(document.read_text())["request"]


@pytest.mark.parametrize(
    ("given", "gpus", "pool"),
    [({"gpus": 1}, "1", "H100"), ({"gpu_type": H100}, "1", "H100"), ({"gpus": 4, "gpu_type": A10}, "4", "A10")],
)
def test_what_is_given_is_kept(
    connect: Any, job: EchoJob, checkpoint: Path, given: dict[str, Any], gpus: str, pool: str
) -> None:
    pod = pod_of(job, checkpoint, **given)
    assert worker_of(pod)["resources"]["limits"] == {"nvidia.com/gpu": gpus}
    assert f"NVIDIA-{pool}" in json.dumps(pod["spec"]["affinity"])


def test_without_a_list_and_a_type_the_user_must_say(connect: Any, job: EchoJob, checkpoint: Path) -> None:
    connect()
    with pytest.raises(RequestRefusedError) as refused:
        run(job.operator(model_config={"model": "llama", "checkpoint_path": str(checkpoint)}, gpus=1))
    assert str(refused.value).endswith(
        "say gpu_type, or list the cluster's types, the cheapest first, in gpu_types of the connection's field cluster"
    )
    assert not Path(f"{job.output}.job").exists()


def test_what_does_not_fit_is_refused_before_anything_is_launched(connect: Any, job: EchoJob, checkpoint: Path) -> None:
    with pytest.raises(RequestRefusedError, match=r"the model does not fit: weights of 15\.0 GiB"):
        run(
            job.operator(
                model_config={"model": "llama", "checkpoint_path": str(checkpoint)},
                gpus=1,
                gpu_type=A10,
                content={"prompts": ["one"], "max_new_tokens": 1, "temperature": 0},
                input_data_path=None,
            )
        )
    assert not [path for path in job.output.parent.rglob("*") if path.is_file() and path != job.input]


def test_a_model_that_can_not_be_read_needs_all_to_be_given(
    connect: Any, job: EchoJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "in-the-pod"
    with pytest.raises(RequestRefusedError, match=r"gpus can't be worked out, .* has no config.json here.*; give gpus"):
        pod_of(job, elsewhere, gpu_type=A10)
    pod = pod_of(job, elsewhere, gpus=2, gpu_type=A10)
    assert told_to_the_engine(pod)["model_config"]["tensor_parallel_size"] == 2
    assert worker_of(pod)["resources"]["requests"]["memory"] == "35Gi"
    assert "whether the model fits was not checked" in capsys.readouterr().out


def test_a_hub_that_does_not_answer_is_no_fault_of_the_request(
    connect: Any, job: EchoJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_arguments: Any) -> Model:
        return Model(None, "the hub can't be reached", may_pass=True)

    monkeypatch.setattr("airflow_llmengine.storage.model_config.read_model", away)
    with pytest.raises(
        ModelSizeUnknownError, match=r"the hub can't be reached.*; give gpus and gpu_type, or try again"
    ):
        run(job.operator(model_config={"model": "org/llama"}))
    assert ModelSizeUnknownError.retry_helps


def test_a_job_that_is_done_needs_no_model(
    connect: Any, job: EchoJob, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer is on storage, and the model may be gone."""
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection())
    model = {"model": "llama", "checkpoint_path": str(checkpoint)}
    assert run(job.operator(model_config=model))["records"] == 2
    # The same fingerprint as the stand-in's, and another launcher.
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(launcher="kubernetes", image="worker:1"))
    monkeypatch.setattr(worker_hardware, "ENGINE", "echo")
    (checkpoint / "config.json").unlink()
    assert run(job.operator(model_config=model))["records"] == 2


def test_another_engine_gets_what_the_request_gives(connect: Any, job: EchoJob) -> None:
    connect(engine="echo")
    resources = worker_of(pod_of(job, "/nowhere", gpus=2))["resources"]
    assert resources["limits"] == {"nvidia.com/gpu": "2"}
    assert resources["requests"]["memory"] == "34Gi"


@pytest.mark.parametrize(("readable", "memory"), [(True, "37Gi"), (False, "6Gi")])
def test_an_engine_on_the_cpu_gets_memory_for_its_model(
    connect: Any, job: EchoJob, checkpoint: Path, tmp_path: Path, readable: bool, memory: str
) -> None:
    connect(cluster={"accelerator": "none"})
    requests = worker_of(pod_of(job, checkpoint if readable else tmp_path))["resources"]["requests"]
    assert requests["memory"] == memory
    assert "nvidia.com/gpu" not in requests


@pytest.mark.parametrize(
    ("connection_says", "model", "storage"),
    [
        ({}, {"model": "org/llama"}, "17Gi"),
        ({"cluster": {"gpu_types": [H100], "cache_volume": "weights"}}, {"model": "org/llama"}, None),
        ({"worker_environment": {"HF_HOME": "/mnt/hub"}}, {"model": "org/llama"}, None),
        ({}, {"model": "llama", "checkpoint_path": "/mnt/llama"}, None),
        ({}, {"model": "/mnt/llama"}, None),
        ({}, {"model": "llama", "checkpoint_path": "memory://llama"}, "17Gi"),
    ],
)
def test_weights_that_are_fetched_without_a_volume_need_disk(
    connect: Any,
    job: EchoJob,
    monkeypatch: pytest.MonkeyPatch,
    connection_says: dict[str, Any],
    model: dict[str, str],
    storage: str | None,
) -> None:
    connect(**{"cluster": {"gpu_types": [H100]}, **connection_says})
    monkeypatch.setattr(
        "airflow_llmengine.storage.model_config.read_model", lambda *_arguments: Model(LLAMA.facts, "its config")
    )
    with pytest.raises(PodMadeError) as made:
        run(job.operator(model_config=model))
    assert worker_of(made.value.pod)["resources"]["requests"].get("ephemeral-storage") == storage


def test_the_plan_reads_the_model_once_for_all_replicas(
    connect: Any, job: EchoJob, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Tasks(job, model_config={"model": "llama", "checkpoint_path": str(checkpoint)}, data_parallelism=2)
    launches = tasks.plan()
    assert json.loads(json.dumps(launches)) == launches
    # It is gone, or the hub has enough of the questions.
    (checkpoint / "config.json").unlink()
    for launch in launches:
        with pytest.raises(PodMadeError) as made:
            tasks.replica(launch)
        assert told_to_the_engine(made.value.pod)["model_config"]["tensor_parallel_size"] == 2
    # A replica that is cleared with more GPUs gets those.
    with pytest.raises(PodMadeError) as made:
        tasks.replica(launches[0], gpus=4, gpu_type=H100)
    assert worker_of(made.value.pod)["resources"]["limits"] == {"nvidia.com/gpu": "4"}


def test_the_plan_refuses_what_no_replica_could_run(connect: Any, job: EchoJob, checkpoint: Path) -> None:
    connect()
    tasks = Tasks(job, model_config={"model": "llama", "checkpoint_path": str(checkpoint)}, data_parallelism=2)
    with pytest.raises(RequestRefusedError, match="say gpu_type"):
        tasks.plan()


def test_a_local_worker_has_what_its_machine_has(
    job: EchoJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection())
    assert run(job.operator(gpus=2))["records"] == 2
    log = capsys.readouterr().out
    assert "gpus: for pods; a local worker has what this machine has." in log
    assert "gets" not in log
