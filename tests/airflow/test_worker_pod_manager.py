"""How long a pod is waited for: as long as it may still do its work, whatever the API server does, and no longer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from airflow.providers.cncf.kubernetes.utils.pod_manager import PodManager
from kubernetes.client import (
    V1ContainerState,
    V1ContainerStateRunning,
    V1ContainerStateTerminated,
    V1ContainerStateWaiting,
    V1ContainerStatus,
    V1ObjectMeta,
    V1Pod,
    V1PodStatus,
)
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from airflow_llmengine.exceptions import ClusterUnavailableError
from airflow_llmengine.hooks import worker_pod_manager
from airflow_llmengine.hooks.worker_pod_manager import PodGivenUp, WorkerPodManager

POD = V1Pod(metadata=V1ObjectMeta(name="worker", namespace="here"))


class ScriptedApi:
    """Stands for an API server: gives its answers in order, the last one again and again."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.calls = 0

    def _answer(self, *_arguments: Any, **_options: Any) -> Any:
        self.calls += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    read_namespaced_pod = read_namespaced_pod_log = _answer


def in_phase(phase: str, waiting: str | None = None) -> V1Pod:
    statuses = None
    if waiting:
        state = V1ContainerState(waiting=V1ContainerStateWaiting(reason=waiting))
        statuses = [V1ContainerStatus(name="base", image="", image_id="", ready=False, restart_count=0, state=state)]
    return V1Pod(metadata=POD.metadata, status=V1PodStatus(phase=phase, container_statuses=statuses))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits in these tests; how long they would is not looked at."""
    monkeypatch.setattr(worker_pod_manager, "AWAY_SECONDS", 0.0)
    monkeypatch.setattr(worker_pod_manager, "UNSTARTABLE_SECONDS", 0.0)
    for method in (PodManager.read_pod, PodManager.read_pod_logs):
        monkeypatch.setattr(method.retry, "wait", lambda _state: 0)


AWAY = [
    ApiException(status=503),
    ApiException(status=429),
    ApiException(status=0),
    HTTPError("refused"),
    # Who makes the token for it is away.
    ClusterUnavailableError("AWS does not answer."),
]


@pytest.mark.parametrize("error", AWAY, ids=lambda error: f"{type(error).__name__} {getattr(error, 'status', '')}")
def test_an_api_server_that_is_away_is_waited_for(error: Exception) -> None:
    api = ScriptedApi(*[error] * 20, in_phase("Running"))
    assert WorkerPodManager(kube_client=api).read_pod(POD).status.phase == "Running"
    assert api.calls == 21


@pytest.mark.parametrize("status", [401, 403, 404])
def test_an_answer_is_not_waited_out(status: int) -> None:
    with pytest.raises(ApiException):
        WorkerPodManager(kube_client=ScriptedApi(ApiException(status=status))).read_pod(POD)


def test_nobody_waits_for_it_when_airflow_has_ended_the_task() -> None:
    manager = WorkerPodManager(kube_client=ScriptedApi(ApiException(status=503)))
    manager.is_ended = lambda: True
    with pytest.raises(ApiException):
        manager.read_pod(POD)


def test_a_log_that_can_not_be_read_now_is_a_broken_connection() -> None:
    """The parent reads on after one, and gives up the pod after anything else."""
    manager = WorkerPodManager(kube_client=ScriptedApi(ApiException(status=503)))
    with pytest.raises(HTTPError):
        manager.read_pod_logs(POD, "base")


def start(*pods: V1Pod) -> None:
    manager = WorkerPodManager(kube_client=ScriptedApi(*pods))
    manager.stop_watching_events = True
    asyncio.run(manager.await_pod_start(POD, schedule_timeout=60, startup_timeout=60, check_interval=0))


def test_a_pod_that_names_what_does_not_exist_is_given_up() -> None:
    with pytest.raises(PodGivenUp, match="can't be started"):
        start(in_phase("Pending", "CreateContainerConfigError"))


def test_what_exists_a_moment_later_does_not_matter() -> None:
    start(
        in_phase("Pending", "CreateContainerConfigError"), in_phase("Pending", "ContainerCreating"), in_phase("Running")
    )


def with_sidecar(worker: V1ContainerState) -> V1Pod:
    """A pod that runs, and whose second container never ends."""
    states = {"base": worker, "sidecar": V1ContainerState(running=V1ContainerStateRunning())}
    statuses = [
        V1ContainerStatus(name=name, image="", image_id="", ready=False, restart_count=0, state=state)
        for name, state in states.items()
    ]
    return V1Pod(metadata=POD.metadata, status=V1PodStatus(phase="Running", container_statuses=statuses))


def test_a_pod_whose_worker_has_ended_is_not_waited_for_because_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pod_manager, "POD_END_SECONDS", 0.0)
    running = with_sidecar(V1ContainerState(running=V1ContainerStateRunning()))
    ended = with_sidecar(V1ContainerState(terminated=V1ContainerStateTerminated(exit_code=0)))
    api = ScriptedApi(running, running, ended)
    assert WorkerPodManager(api).await_pod_completion(POD, container_name="base") is ended
    assert api.calls == 3
