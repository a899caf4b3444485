"""Pods that were left to a sensor, in states and before API servers that a test can't have for real."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from kubernetes.client import V1ContainerState, V1ContainerStateWaiting, V1ContainerStatus

from airflow_llmengine.exceptions import PodDeletedError, PodFailedError, ResultMissingError, WorkerDiedError
from airflow_llmengine.hooks.connection_settings import ConnectionSettings
from airflow_llmengine.hooks.job_decision import POD_END_SECONDS, Terms
from airflow_llmengine.hooks.job_pods import JobPods, SeenPods
from airflow_llmengine.hooks.job_watch import JobWatch
from airflow_llmengine.hooks.llmengine import LLMEngineHook
from airflow_llmengine.hooks.worker_pod_manager import LOST_AFTER_SECONDS
from airflow_llmengine.kube.labels import identity_annotations
from airflow_llmengine.spec.job_state import HandedOverPod, JobDocument, JobHandle
from airflow_llmengine.storage.status import JobStatus
from tests.airflow.cluster_double import CONTAINER, NAMESPACE, SERVER, ScriptedApi, a_pod, refusal
from tests.airflow.operators_in_tests import connection
from tests.airflow.test_sensor import context, sensor
from tests.worker.jobs import Job

NOW = 10_000.0
HANDLE = JobHandle(path="s3://bucket/out.json", fingerprint="ab12", generation=2)
OTHER = HANDLE.model_copy(update={"generation": 3})


def marks(series: str = "one", handle: JobHandle = HANDLE, *, handed_over: bool = True) -> dict[str, str]:
    return identity_annotations(handle, series=series, replica=0, handed_over=handed_over)


def ours(name: str = "worker", phase: str = "Running", **fields: Any) -> Any:
    return a_pod(name, phase, **{"annotations": marks(), **fields})


def waiting(reason: str, **fields: Any) -> Any:
    pod = ours(phase="Pending", **fields)
    state = V1ContainerState(waiting=V1ContainerStateWaiting(reason=reason, message="manifest unknown"))
    pod.status.container_statuses = [
        V1ContainerStatus(name=CONTAINER, state=state, image="", image_id="", ready=False, restart_count=0)
    ]
    return pod


def watched(api: ScriptedApi, told: list[str] | None = None, **handed_over: Any) -> JobPods:
    fields = {"series": "one", "namespace": NAMESPACE, "pod": "worker", "container": CONTAINER, "server": SERVER}
    pods = JobPods(
        ConnectionSettings(launcher="kubernetes"),
        HANDLE,
        HandedOverPod(fingerprint="ab12", generation=2, **{**fields, "start_by": NOW + 100, **handed_over}),
        log=logging.getLogger("test"),
        told=[] if told is None else told,
    )
    pods._client = api
    return pods


def status(series: str = "one") -> JobStatus:
    job = JobDocument(
        plugin_version="1", request={}, owner="dag/launch", series=series, created=1, launched=1, deadline=9e9
    )
    return JobStatus("stopped", HANDLE, job=job)


@pytest.mark.parametrize(
    ("pods", "series", "state"),
    [
        ([ours()], "one", "at_work"),
        ([ours(phase="Pending")], "one", "at_work"),
        ([ours(phase="Failed", ended=NOW)], "one", "ended"),
        ([ours(phase="Succeeded", ended=NOW)], "one", "ended"),
        ([ours("first", "Failed", ended=NOW), ours()], "one", "at_work"),
        ([], "one", "ended"),
        # What runs beside the worker keeps the pod alive, not the job.
        ([ours(ended=NOW - POD_END_SECONDS)], "one", "at_work"),
        ([ours(ended=NOW - POD_END_SECONDS - 1)], "one", "ended"),
        # One that is deleted saves its work; on a node that is gone it stays in sight for ever.
        ([ours(deletion=NOW + 5)], "one", "at_work"),
        ([ours(deletion=NOW - LOST_AFTER_SECONDS - 1)], "one", "ended"),
        # Its kubelet calls it failed, and its container has its grace yet, of 30 s.
        ([ours(phase="Failed", told=NOW)], "one", "at_work"),
        ([ours(phase="Failed", told=NOW - 30 - LOST_AFTER_SECONDS - 1)], "one", "ended"),
        # Never to start.
        ([waiting("ErrImageNeverPull")], "one", "ended"),
        ([waiting("ContainerCreating")], "one", "at_work"),
        # Another series has launched the job meanwhile: its pod may come at any time.
        ([ours(phase="Failed", ended=NOW)], "two", "unknown"),
        ([], "two", "unknown"),
        # Not this sensor's.
        ([ours(annotations=marks(handle=OTHER))], "one", "ended"),
        ([ours(annotations=marks(handed_over=False))], "one", "ended"),
        ([ours(annotations=None)], "one", "ended"),
        # An earlier series' pod that is still about says nothing of this one's.
        ([ours("old", annotations=marks("zero")), ours(phase="Failed", ended=NOW)], "one", "ended"),
        # A job that has finished: whoever made them.
        ([ours(annotations=marks("zero"))], None, "at_work"),
        ([ours(phase="Succeeded", ended=NOW)], None, "ended"),
        ([], None, "ended"),
    ],
)
def test_what_becomes_of_the_pods(pods: list[Any], series: str | None, state: str) -> None:
    assert watched(ScriptedApi(*pods)).look(series, NOW).state == state


def test_a_pod_that_has_not_started_in_its_time_is_waited_for_no_more() -> None:
    api = ScriptedApi(ours(phase="Pending"))
    assert watched(api, start_by=NOW).look("one", NOW).state == "at_work"
    assert watched(api, start_by=NOW - 1).look("one", NOW).state == "ended"
    assert watched(ScriptedApi(ours()), start_by=NOW - 1).look("one", NOW).state == "at_work"


def test_a_pod_that_is_not_in_another_cluster_may_be_at_work_in_its_own(caplog: pytest.LogCaptureFixture) -> None:
    pods = watched(ScriptedApi(), server="https://elsewhere.example")
    assert [pods.look("one", NOW).state for _ in range(3)] == ["unknown"] * 3
    (warning,) = caplog.records
    assert "made in the cluster at https://elsewhere.example" in warning.getMessage()
    # One that is there is the job's, by whatever name its cluster goes.
    assert watched(ScriptedApi(ours()), server="https://10.0.0.1").look("one", NOW).state == "at_work"


def test_a_cluster_that_does_not_answer_is_told_once_and_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    api, told = ScriptedApi(ours()), list[str]()
    api.troubles["list"].extend([refusal(503, "Service Unavailable"), refusal(503, "Service Unavailable")])
    pods = watched(api, told)
    assert pods.look("one", NOW) == SeenPods(fault="The Kubernetes API answers 503 Service Unavailable.")
    # Another process of a rescheduled sensor, which is given what was told.
    pods = watched(api, told)
    assert pods.look("one", NOW).state == "unknown"
    pods._client = api
    assert pods.look("one", NOW).state == "at_work"
    (warning,) = caplog.records
    assert "The job's pods can't be looked at. The Kubernetes API answers 503" in warning.getMessage()
    # A look is one try: the next one follows soon.
    assert api.verbs() == ["list"] * 3


def test_a_connection_that_is_not_defined_is_no_reason_to_fail(caplog: pytest.LogCaptureFixture) -> None:
    pods = watched(ScriptedApi())
    pods._client = None
    pods._settings = ConnectionSettings(launcher="kubernetes", kubernetes_conn_id="nowhere")
    assert pods.look("one", NOW).state == "unknown"
    assert "The Kubernetes connection nowhere can't be used" in caplog.records[0].getMessage()


def test_those_at_work_are_deleted_with_their_own_grace_and_failed_ones_are_kept() -> None:
    api = ScriptedApi(
        ours("at-work"),
        ours("waiting", "Pending"),
        ours("succeeded", "Succeeded", ended=NOW),
        ours("failed", "Failed", ended=NOW),
        ours("going", deletion=NOW),
        a_pod("somebody-elses"),
    )
    pods = watched(api)
    pods.delete(pods.look("one", NOW), "at_work")
    assert set(api.pods) == {"succeeded", "failed", "going", "somebody-elses"}
    assert [options["grace"] for verb, options in api.calls if verb == "delete"] == [None, None]
    pods.delete(pods.look("one", NOW), "ended")
    assert set(api.pods) == {"failed", "going", "somebody-elses"}


@pytest.mark.parametrize(
    ("action", "left"),
    [
        ("delete_succeeded_pod", {"failed"}),
        ("delete_pod", set()),
        ("keep_pod", {"succeeded", "failed"}),
        ("delete_active_pod", {"succeeded", "failed"}),
    ],
)
def test_what_has_ended_is_kept_as_the_launching_task_says(action: str, left: set[str]) -> None:
    api = ScriptedApi(ours(), ours("succeeded", "Succeeded", ended=NOW), ours("failed", "Failed", ended=NOW))
    pods = watched(api, on_finish_action=action)
    pods.delete(pods.look("one", NOW), "ended")
    assert set(api.pods) == left


def test_a_pod_that_may_not_be_deleted_is_told_and_no_reason_to_fail(caplog: pytest.LogCaptureFixture) -> None:
    api = ScriptedApi(ours())
    api.troubles["delete"].append(refusal(403, "Forbidden"))
    pods = watched(api)
    pods.delete(pods.look("one", NOW), "at_work")
    assert f"{NAMESPACE}/worker could not be deleted (the Kubernetes API answers 403 Forbidden)" in caplog.text


@pytest.mark.parametrize(
    ("found", "expected", "said"),
    [
        ([], PodDeletedError, f"{NAMESPACE}/worker is gone"),
        ([ours(phase="Failed", ended=NOW, exit_code=137)], WorkerDiedError, "was killed"),
        ([ours(phase="Failed", ended=NOW, exit_code=70)], WorkerDiedError, "defect"),
        ([ours(phase="Succeeded", ended=NOW)], ResultMissingError, "no valid manifest"),
        # Of several, it is the one that was made last.
        ([ours("first", "Succeeded", ended=NOW), ours(phase="Failed", ended=NOW, exit_code=137)], WorkerDiedError, ""),
    ],
)
def test_it_says_what_happened_and_what_to_clear(found: list[Any], expected: type[Exception], said: str) -> None:
    pods = watched(ScriptedApi(*found))
    failure = pods.failure(pods.look("one", NOW), status())
    assert type(failure) is expected
    assert said in str(failure)
    assert "What was finished is kept; to go on, clear dag/launch, and this task" in str(failure)
    assert "a retry" not in str(failure)


# Together with what storage says


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job that was launched, and whose pod was left to a sensor."""
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(launcher="kubernetes"))
    job = Job(tmp_path, ["row"] * 3)
    handle = LLMEngineHook().create(job.request, owner="dag/launch", series="one").handle
    hand_over(job, handle)
    return job


def hand_over(job: Job, handle: JobHandle) -> None:
    fields = {"series": "one", "namespace": NAMESPACE, "pod": "worker", "container": CONTAINER, "server": SERVER}
    LLMEngineHook().hand_over(
        str(job.output),
        HandedOverPod(fingerprint=handle.fingerprint, generation=handle.generation, start_by=9e9, **fields),
    )


def look(job: Job) -> str:
    watch = JobWatch(
        str(job.output), Terms(first_look=NOW), on_timeout="cancel", who="dag/wait", log=logging.getLogger("test")
    )
    return watch.look(LLMEngineHook()).decision.outcome


def test_a_result_that_came_between_both_looks_is_found(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(self: JobPods, series: str | None, now: float) -> SeenPods:
        # The pod finished the job, and ended, since storage was looked at.
        assert job.run("--owner=dag/launch", "--series=one").returncode == 0
        return SeenPods("ended")

    monkeypatch.setattr(JobPods, "look", ended)
    assert look(job) == "finished"


def test_a_launch_that_came_between_both_looks_is_waited_for(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(self: JobPods, series: str | None, now: float) -> SeenPods:
        LLMEngineHook().create(job.request, owner="dag/launch", series="two")
        return SeenPods("ended" if series == "one" else "unknown")

    monkeypatch.setattr(JobPods, "look", ended)
    assert look(job) == "wait"


@pytest.mark.parametrize("why", ["nobody handed a pod over", "a pod of another generation", "another launcher"])
def test_the_cluster_is_not_asked_where_there_is_no_pod_of_the_sensors(
    why: str, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobPods, "look", lambda *_arguments: pytest.fail("it looked"))
    handle = LLMEngineHook().get(str(job.output)).handle
    assert handle is not None
    if why == "nobody handed a pod over":
        (job.folder / "output.json.job" / "handed_over.json").unlink()
    elif why == "another launcher":
        monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection())
    else:
        hand_over(job, handle.model_copy(update={"generation": 7}))
    assert look(job) == "wait"


def test_what_the_triggerer_saw_counts_where_the_task_may_not_look(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deferred again, the trigger would fire at once, and so on for ever."""
    faults = ["Airflow may not list pods."]
    monkeypatch.setattr(JobPods, "look", lambda *_arguments: SeenPods(fault=faults[0]))

    def wake(outcome: str) -> None:
        sensor(str(job.output), deferrable=True).execute_complete(
            context(), {"outcome": outcome, "now": 0.0, "first_look": 0.0}
        )

    with pytest.raises(PodFailedError, match=r"Airflow may not list pods\. .* clear dag/launch, and this task\."):
        wake("pods_ended")
    with pytest.raises(TaskDeferred):
        wake("cancelled")
    # It can look, and the job is launched again.
    faults[0] = ""
    with pytest.raises(TaskDeferred):
        wake("pods_ended")
