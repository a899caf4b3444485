"""The trigger that waits for a worker's pod, without a cluster.

The double of the pod trigger's hook stands for an API server: what it says of a pod, and that it is away.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.models.trigger import Trigger
from airflow.providers.amazon.aws.triggers.eks import EksPodTrigger
from airflow.providers.cncf.kubernetes.triggers.pod import KubernetesPodTrigger
from kubernetes.client import models as k8s
from kubernetes_asyncio.client import ApiException

from airflow_llmengine.hooks import worker_pod_manager
from airflow_llmengine.hooks.llmengine import LLMEngineHook
from airflow_llmengine.hooks.worker_attempt import WorkerAttempt
from airflow_llmengine.spec.job_state import JobHandle
from airflow_llmengine.triggers import worker_pod
from airflow_llmengine.triggers.worker_pod import LLMEngineWorkerPodTrigger, watching
from tests.airflow.operators_in_tests import connection

SECRET = "client-key-that-nobody-may-see"


class ClusterDouble:
    """An API server with one pod. What ``get_pod`` gives, or raises, comes from ``says``; the last one stays."""

    def __init__(self, *says: Any) -> None:
        self.says = list(says)
        self.deleted: list[dict[str, Any]] = []
        self.asked = 0

    async def get_pod(self, name: str, namespace: str) -> Any:
        self.asked += 1
        said = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        if isinstance(said, Exception):
            raise said
        said.metadata.name, said.metadata.namespace = name, namespace
        return said

    async def delete_pod(self, **arguments: Any) -> None:
        self.deleted.append(arguments)

    async def watch_pod_events(self, **_arguments: Any) -> Any:
        await asyncio.sleep(0.01)
        events: list[Any] = []
        for event in events:
            yield event


def a_pod(phase: str = "Running", **metadata: Any) -> k8s.V1Pod:
    return k8s.V1Pod(
        metadata=k8s.V1ObjectMeta(**metadata),
        spec=k8s.V1PodSpec(containers=[], node_name="node-7", termination_grace_period_seconds=5),
        status=k8s.V1PodStatus(phase=phase, container_statuses=[container("running")] if phase == "Running" else None),
    )


def container(state: str) -> k8s.V1ContainerStatus:
    states = {
        "running": k8s.V1ContainerState(running=k8s.V1ContainerStateRunning()),
        "terminated": k8s.V1ContainerState(terminated=k8s.V1ContainerStateTerminated(exit_code=0)),
    }
    return k8s.V1ContainerStatus(name="base", image="", image_id="", ready=True, restart_count=0, state=states[state])


def an_attempt(deadline: float = 3600.0) -> WorkerAttempt:
    return WorkerAttempt(
        handle=JobHandle(path="nowhere.json", fingerprint="0" * 24, generation=1),
        owner="dag/task",
        series="dag/run/task/-1/0",
        deadline=time.time() + deadline,
        max_error_rate=None,
    )


def a_trigger(pod_trigger: type[KubernetesPodTrigger] = KubernetesPodTrigger, **arguments: Any) -> Any:
    return pod_trigger(
        **{
            "pod_name": "job-1",
            "pod_namespace": "gpus",
            "trigger_start_time": datetime.now(UTC),
            "base_container_name": "base",
            "poll_interval": 0.01,
            "startup_check_interval": 0.01,
            "termination_grace_period": 5,
            **arguments,
        }
    )


def a_watching_trigger(
    deadline: float = 3600.0, trigger: Any = None, grace_seconds: float = 5
) -> LLMEngineWorkerPodTrigger:
    return watching(
        trigger or a_trigger(),
        llmengine_conn_id="llmengine_default",
        attempt=an_attempt(deadline),
        grace_seconds=grace_seconds,
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pod_manager, "AWAY_SECONDS", 0.01)
    monkeypatch.setattr(worker_pod, "PROGRESS_SECONDS", (0.01, 0.01))
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection())


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ClusterDouble]:
    def make(*says: Any) -> ClusterDouble:
        double = ClusterDouble(*says)
        monkeypatch.setattr(KubernetesPodTrigger, "hook", double)
        return double

    return make


async def first_event(trigger: LLMEngineWorkerPodTrigger) -> Any:
    before = asyncio.all_tasks()
    async with asyncio.timeout(60):
        async for event in trigger.run():
            assert asyncio.all_tasks() == before
            return event.payload
    raise AssertionError("no event")


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what it waits for is another thread's, or the double's
        await asyncio.sleep(0.01)


def event_of(trigger: LLMEngineWorkerPodTrigger) -> Any:
    return asyncio.run(first_event(trigger))


def test_a_pod_that_succeeds(cluster: Callable[..., ClusterDouble]) -> None:
    double = cluster(a_pod(), a_pod(), a_pod(), a_pod("Succeeded"))
    event = event_of(a_watching_trigger())
    assert (event["status"], event["name"], event["namespace"]) == ("success", "job-1", "gpus")
    assert not double.deleted


def test_a_pod_that_ignores_its_deadline_is_deleted_and_the_task_woken(cluster: Callable[..., ClusterDouble]) -> None:
    """The third hand: the worker did not stop in time, and no kubelet ended it."""
    double = cluster(a_pod())
    event = event_of(a_watching_trigger(deadline=-5 - worker_pod.DEADLINE_SLACK_SECONDS))
    assert (event["status"], event["name"], event["namespace"]) == ("timeout", "job-1", "gpus")
    assert double.deleted == [{"name": "job-1", "namespace": "gpus", "grace_period_seconds": 5}]


@pytest.mark.parametrize(("phase", "status"), [("Succeeded", "success"), ("Failed", "failed")])
def test_a_pod_that_ended_while_no_triggerer_ran_has_ended_by_itself(
    cluster: Callable[..., ClusterDouble], phase: str, status: str
) -> None:
    pod = a_pod(phase)
    pod.status.container_statuses = [container("terminated")]
    double = cluster(pod)
    assert event_of(a_watching_trigger(deadline=-3600))["status"] == status
    assert not double.deleted


def test_a_pod_that_went_while_no_triggerer_ran_is_gone(cluster: Callable[..., ClusterDouble]) -> None:
    double = cluster(ApiException(status=404))
    assert event_of(a_watching_trigger(deadline=-3600))["message"] == "The pod job-1 is gone."
    assert not double.deleted


def test_where_the_api_server_is_away_the_deadline_holds(
    cluster: Callable[..., ClusterDouble], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that can't be looked at is not waited for without an end."""
    monkeypatch.setattr(worker_pod, "LOOK_SECONDS", 0.05)
    double = cluster(ApiException(status=503))
    assert event_of(a_watching_trigger(deadline=-3600))["status"] == "timeout"
    assert double.deleted


def test_a_pod_has_its_grace_after_the_deadline(cluster: Callable[..., ClusterDouble]) -> None:
    double = cluster(a_pod(), a_pod(), a_pod("Failed"))
    long_ago = -worker_pod.DEADLINE_SLACK_SECONDS - 60
    event = event_of(a_watching_trigger(deadline=long_ago, grace_seconds=3600))
    assert event["status"] == "failed"
    assert not double.deleted


def test_the_deadline_is_told_also_where_the_pod_cannot_be_deleted(
    cluster: Callable[..., ClusterDouble], monkeypatch: pytest.MonkeyPatch
) -> None:
    double = cluster(a_pod())

    async def refuse(**_arguments: Any) -> None:
        raise ApiException(status=403)

    monkeypatch.setattr(double, "delete_pod", refuse)
    assert event_of(a_watching_trigger(deadline=-3600))["status"] == "timeout"


def test_an_api_server_that_is_away_is_waited_for(
    cluster: Callable[..., ClusterDouble], capsys: pytest.CaptureFixture[str]
) -> None:
    away = [ApiException(status=503, reason="Service Unavailable"), ConnectionRefusedError(), TimeoutError()]
    double = cluster(*away, *away, a_pod(), *away, *away, a_pod("Succeeded"))
    assert event_of(a_watching_trigger())["status"] == "success"
    assert double.asked >= 14
    assert "The Kubernetes API does not answer (Service Unavailable): waiting for it." in capsys.readouterr().out


def test_a_pod_that_is_gone_wakes_the_task_without_a_traceback(
    cluster: Callable[..., ClusterDouble], capsys: pytest.CaptureFixture[str]
) -> None:
    cluster(a_pod(), a_pod(), ApiException(status=404))
    event = event_of(a_watching_trigger())
    assert (event["status"], event["message"]) == ("timeout", "The pod job-1 is gone.")
    assert "Traceback" not in capsys.readouterr().out


def test_a_pod_on_a_dead_node_is_given_up(cluster: Callable[..., ClusterDouble]) -> None:
    """It was deleted, its grace is long over, and it still shows up: nobody is there to end it."""
    gone = datetime.now(UTC) - timedelta(seconds=worker_pod_manager.LOST_AFTER_SECONDS + 1)
    cluster(a_pod(), a_pod(), a_pod(deletion_timestamp=gone))
    event = event_of(a_watching_trigger())
    assert event["status"] == "timeout"
    assert "its node node-7 does not answer" in event["message"]


def test_a_pod_that_is_being_deleted_is_waited_for(cluster: Callable[..., ClusterDouble]) -> None:
    going = a_pod(deletion_timestamp=datetime.now(UTC) + timedelta(seconds=5))
    cluster(going, going, going, a_pod("Failed", deletion_timestamp=datetime.now(UTC)))
    assert event_of(a_watching_trigger())["status"] == "failed"


def test_looking_at_storage_does_not_hold_up_the_event_loop(
    cluster: Callable[..., ClusterDouble], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop_goes_on = threading.Event()
    went_on = []

    def glance(self: LLMEngineHook, job: Any) -> Any:
        went_on.append(loop_goes_on.wait(20))
        raise RuntimeError

    monkeypatch.setattr(LLMEngineHook, "glance", glance)
    double = cluster(a_pod())

    async def follow() -> Any:
        waiting = asyncio.create_task(first_event(a_watching_trigger()))
        await until(lambda: double.asked >= 5)
        loop_goes_on.set()
        double.says = [a_pod("Succeeded")]
        return await waiting

    assert asyncio.run(follow())["status"] == "success"
    assert went_on[0]


def test_storage_that_cannot_be_read_does_not_end_the_wait_and_is_read_again(
    cluster: Callable[..., ClusterDouble], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = []

    def glance(self: LLMEngineHook, job: Any) -> Any:
        looks.append(self)
        raise RuntimeError(f"it quotes {SECRET}")

    monkeypatch.setattr(LLMEngineHook, "glance", glance)
    double = cluster(a_pod())

    async def follow() -> Any:
        waiting = asyncio.create_task(first_event(a_watching_trigger()))
        await until(lambda: len(looks) >= 3)
        double.says = [a_pod("Succeeded")]
        return await waiting

    assert asyncio.run(follow())["status"] == "success"
    # Each time with credentials that are read anew.
    assert len(set(map(id, looks))) == len(looks)
    log = capsys.readouterr().out
    assert "The job's progress could not be read: RuntimeError" in log
    assert SECRET not in log


@pytest.mark.parametrize("message", [None, "user-action"])
def test_a_trigger_that_is_cancelled_leaves_nothing_behind_and_the_pod_alone(
    cluster: Callable[..., ClusterDouble], message: str | None
) -> None:
    """As when it moves to another triggerer. Airflow tells a user's action by the message, which must come through."""
    double = cluster(a_pod())

    async def cancel() -> tuple[Any, ...]:
        trigger = a_watching_trigger()
        running = asyncio.create_task(first_event(trigger))
        await until(lambda: double.asked >= 5)
        running.cancel(message)
        try:
            await running
        except asyncio.CancelledError as error:
            await trigger.cleanup()
            assert asyncio.all_tasks() == {asyncio.current_task()}
            return error.args
        raise AssertionError("it was not cancelled")

    assert asyncio.run(cancel()) == (() if message is None else (message,))
    assert not double.deleted


def test_a_kill_deletes_this_pod(cluster: Callable[..., ClusterDouble]) -> None:
    double = cluster(a_pod())
    asyncio.run(a_watching_trigger().on_kill())
    assert double.deleted == [{"name": "job-1", "namespace": "gpus", "grace_period_seconds": 5}]


def test_a_kill_keeps_the_pod_where_the_dag_says_so(cluster: Callable[..., ClusterDouble]) -> None:
    double = cluster(a_pod())
    asyncio.run(a_watching_trigger(trigger=a_trigger(on_kill_action="keep_pod")).on_kill())
    assert not double.deleted


def through_the_database(trigger: LLMEngineWorkerPodTrigger) -> LLMEngineWorkerPodTrigger:
    path, arguments = trigger.serialize()
    assert path == "airflow_llmengine.triggers.worker_pod.LLMEngineWorkerPodTrigger"
    row = Trigger(classpath=path, kwargs=arguments)
    return LLMEngineWorkerPodTrigger(**row.kwargs)


def test_it_comes_back_from_the_database_as_it_was() -> None:
    trigger = a_watching_trigger()
    again = through_the_database(trigger)
    assert again.serialize() == trigger.serialize()
    assert again._inner.trigger_start_time == trigger._inner.trigger_start_time


def test_another_pod_operators_trigger_waits_as_itself(cluster: Callable[..., ClusterDouble]) -> None:
    trigger = a_trigger(
        EksPodTrigger,
        eks_cluster_name="training",
        aws_conn_id="aws",
        region="eu-west-1",
        in_cluster=False,
    )
    again = through_the_database(a_watching_trigger(trigger=trigger))
    assert type(again._inner) is EksPodTrigger
    assert again._inner.eks_cluster_name == "training"


def test_what_the_kubernetes_connection_holds_is_not_kept_with_the_trigger() -> None:
    kubeconfig = {"users": [{"name": "me", "user": {"client-key-data": SECRET}}]}
    trigger = a_watching_trigger(
        trigger=a_trigger(
            kubernetes_conn_id="gpus",
            connection_extras={"kube_config": json.dumps(kubeconfig)},
            config_dict={"users": [{"user": {"token": SECRET}}]},
        )
    )
    assert SECRET not in str(trigger.serialize())
    # The connection is asked, and has to be the only one that says where the cluster is.
    assert trigger._inner.hook.conn_id == "gpus"
    assert trigger._inner.config_dict is None


def test_a_kubeconfig_of_the_worker_goes_with_the_trigger_and_is_not_shown() -> None:
    """The triggerer may have none itself; it is where Airflow keeps it, encrypted if Airflow has a key for that."""
    trigger = a_watching_trigger(trigger=a_trigger(config_dict={"users": [{"user": {"token": SECRET}}]}))
    assert trigger._inner.config_dict == {"users": [{"user": {"token": SECRET}}]}
    assert SECRET not in repr(trigger)
