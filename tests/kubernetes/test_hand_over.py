"""Pods that their task does not wait for, and the sensor that owns them: real workers in pods of a real cluster.

All data is on S3, which Airflow reaches by its storage connection and the pods by credentials of their own.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_llmengine.exceptions import (
    DeadlineExceededError,
    ImageUnavailableError,
    JobCancelledError,
    PodDeletedError,
    TaskKilledError,
    WorkerDiedError,
)
from airflow_llmengine.hooks.job_summary import summary
from airflow_llmengine.hooks.llmengine import LLMEngineHook
from airflow_llmengine.kube.labels import HANDED_OVER_ANNOTATION
from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator
from airflow_llmengine.sensors.batch_completions import LLMEngineBatchCompletionsSensor
from tests.airflow.operators_in_tests import connection, task_context
from tests.airflow.test_sensor import StateStore, fired
from tests.airflow.test_sensor_runs import Airflow
from tests.kubernetes.cluster import Cluster, terminated
from tests.kubernetes.host_python import HostPython
from tests.kubernetes.jobs_on_s3 import JobOnS3, aws_connection, own_credentials
from tests.kubernetes.service_accounts import kubernetes_connection
from tests.kubernetes.worker_pods import WorkerPods, processes_of
from tests.storage.s3_server import S3Server
from tests.waiting import wait_until

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

RECORDS = 40
QUICK = {"LLMENGINE_ECHO_SECONDS_PER_RECORD": "0.02"}
SLOW = {"LLMENGINE_ECHO_SECONDS_PER_RECORD": "0.5", "LLMENGINE_ECHO_CAPACITY": "1"}
"""Twenty seconds for all of them, and the first chunk after eight."""


class LaunchedJob:
    """A job that an operator launches in a pod, and a sensor waits for, each without an Airflow around it."""

    def __init__(self, cluster: Cluster, namespace: str, s3: S3Server, folder: Path, pods: HostPython) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.job = JobOnS3(s3, [f"row {index}" for index in range(RECORDS)], folder / "generated.log")
        self.pods = pods
        self.settings: dict[str, Any] = {
            "launcher": "kubernetes",
            "image": "the-operators-image",
            "python": pods.python,
            "namespace": namespace,
            "storage_conn_id": "store",
            **own_credentials(cluster, namespace),
        }
        self.use(**QUICK)

    def use(self, **environment: str) -> None:
        """Set the connection: how fast the workers are that are started from now on."""
        variables = {"LLMENGINE_ECHO_LOG": str(self.job.generated), **environment}
        os.environ["AIRFLOW_CONN_LLMENGINE_DEFAULT"] = connection(**self.settings, worker_environment=variables)

    def launch(self, max_tries: int = 2, **arguments: Any) -> dict[str, Any]:
        """What the task that launches the job hands on."""
        operator = LLMEngineBatchCompletionsOperator(
            task_id="launch",
            wait_for_completion=False,
            **{**self.pods.operator_arguments(), **self.job.request, "termination_grace_period": 20, **arguments},
        )
        context = task_context(task_id="launch", max_tries=max_tries, dag=SimpleNamespace())
        context["ti"].start_date = None
        context["ti"].xcom_push = lambda key, value: None
        operator.render_template_fields(context)
        result = operator.execute(context)
        assert result is not None
        return result

    @property
    def pod(self) -> Any:
        """The only pod."""
        (pod,) = self.cluster.pods(self.namespace)
        return pod

    def is_being_deleted(self) -> bool:
        return self.pod.metadata.deletion_timestamp is not None

    def wait_for_records(self, count: int = 1) -> None:
        wait_until(lambda: self.job.generations().total() >= count)

    def wait_until_no_pod(self) -> None:
        wait_until(lambda: not self.cluster.pods(self.namespace), seconds=60)

    def kill_worker(self) -> None:
        for process in processes_of(self.pod.metadata.uid):
            os.kill(process, signal.SIGKILL)
        name = self.pod.metadata.name
        wait_until(lambda: terminated(self.cluster.pod(self.namespace, name)) is not None)


@pytest.fixture
def launched(
    cluster: Cluster,
    namespace: str,
    s3_for_pods: S3Server,
    shared_folder: Path,
    host_python_pod: HostPython,
    monkeypatch: pytest.MonkeyPatch,
) -> LaunchedJob:
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", "")
    monkeypatch.setenv("AIRFLOW_CONN_STORE", aws_connection(s3_for_pods))
    return LaunchedJob(cluster, namespace, s3_for_pods, shared_folder, host_python_pod)


def sensor(job: Any, **arguments: Any) -> LLMEngineBatchCompletionsSensor:
    return LLMEngineBatchCompletionsSensor(**{"task_id": "wait", "job": job, "poke_interval": 0.5, **arguments})


def context() -> Any:
    return task_context(task_id="wait", task_state_store=StateStore())


def waited(job: Any, **arguments: Any) -> Any:
    """What a sensor gives, whether it waits in its task or by its trigger."""
    given = context()
    task = sensor(job, **arguments)
    try:
        return task.execute(given)
    except TaskDeferred as deferred:
        # As Airflow does: another process goes on with the trigger's event.
        return sensor(job, **arguments).execute_complete(given, fired(deferred.trigger))


MODES = pytest.mark.parametrize("deferrable", [False, True], ids=["poke", "trigger"])


@MODES
def test_when_the_job_has_finished_nothing_is_left(launched: LaunchedJob, deferrable: bool) -> None:
    handed_on = launched.launch()
    assert set(handed_on) == {"output_data_path", "manifest_path", "job"}
    assert launched.pod.metadata.annotations[HANDED_OVER_ANNOTATION] == "true"
    result = waited(handed_on, deferrable=deferrable)
    assert result == summary(launched.job.manifest())
    assert result["job"] == handed_on["job"]
    launched.wait_until_no_pod()


def test_past_the_deadline_the_pod_stays_or_saves_its_work_and_goes(launched: LaunchedJob) -> None:
    launched.use(**SLOW)
    handed_on = launched.launch()
    launched.wait_for_records(2)
    with pytest.raises(DeadlineExceededError, match="It was left alone"):
        waited(handed_on, max_runtime_sec=0.1, on_timeout="leave")
    assert not launched.is_being_deleted()

    with pytest.raises(DeadlineExceededError, match="It was cancelled"):
        waited(handed_on, max_runtime_sec=0.1)
    assert launched.is_being_deleted()
    cancelled = LLMEngineHook().get(handed_on["job"]).cancelled
    assert cancelled is not None
    assert cancelled.requested <= launched.pod.metadata.deletion_timestamp.timestamp()
    launched.wait_until_no_pod()
    assert launched.job.output() is None

    # A new launch goes on with what the pod saved when it was told to end.
    launched.use(**QUICK)
    waited(launched.launch(max_tries=5))
    assert set(launched.job.generations().values()) == {1}
    launched.wait_until_no_pod()


def test_the_trigger_ends_the_pod_past_the_deadline_by_itself(launched: LaunchedJob) -> None:
    launched.use(**SLOW)
    handed_on = launched.launch()
    with pytest.raises(TaskDeferred) as deferred:
        sensor(handed_on, max_runtime_sec=5, deferrable=True).execute(context())
    assert fired(deferred.value.trigger)["outcome"] == "deadline"
    assert launched.is_being_deleted()
    launched.wait_until_no_pod()


def test_the_pod_of_a_job_that_somebody_cancels_goes_also_before_it_has_started(launched: LaunchedJob) -> None:
    handed_on = launched.launch(node_selector={"there-is": "none"})
    LLMEngineHook().cancel(handed_on["job"], "too dear")
    with pytest.raises(JobCancelledError):
        waited(handed_on)
    launched.wait_until_no_pod()


@MODES
def test_a_worker_that_died_fails_the_sensor_at_once(launched: LaunchedJob, deferrable: bool) -> None:
    launched.use(**SLOW)
    handed_on = launched.launch()
    launched.wait_for_records()
    launched.kill_worker()
    with pytest.raises(WorkerDiedError, match="was killed") as failed:
        waited(handed_on, deferrable=deferrable)
    assert "to go on, clear dag/launch, and this task" in str(failed.value)
    assert "a retry" not in str(failed.value)
    # To be looked at.
    assert launched.pod.status.phase == "Failed"
    assert not launched.is_being_deleted()


def test_a_pod_that_somebody_deleted_fails_the_sensor_when_it_is_gone(launched: LaunchedJob) -> None:
    launched.use(**SLOW)
    handed_on = launched.launch()
    launched.wait_for_records()
    name = launched.pod.metadata.name
    launched.cluster.delete_pod(launched.namespace, name)
    with pytest.raises(PodDeletedError, match=f"{launched.namespace}/{name} (is gone|was deleted)") as failed:
        waited(handed_on)
    assert "to go on, clear dag/launch, and this task" in str(failed.value)
    launched.wait_until_no_pod()

    # Cleared, both: the launching task makes a new pod, and the sensor waits for that.
    launched.use(**QUICK)
    waited(launched.launch(max_tries=5))
    assert set(launched.job.generations().values()) == {1}


def test_a_pod_that_will_never_start_fails_the_sensor_at_once_and_goes(launched: LaunchedJob) -> None:
    handed_on = launched.launch(image="local/there-is-none:1")
    with pytest.raises(ImageUnavailableError, match="clear dag/launch, and this task") as failed:
        waited(handed_on)
    assert isinstance(failed.value, AirflowFailException)
    # Gone, or on its way.
    assert all(pod.metadata.deletion_timestamp for pod in launched.cluster.pods(launched.namespace))


def test_while_the_job_is_launched_again_it_is_waited_for(launched: LaunchedJob) -> None:
    """The old pod is gone, and the new one is not made yet."""
    launched.use(**SLOW)
    handed_on = launched.launch()
    task, given = sensor(handed_on), context()
    assert task.poke(given) is False
    LLMEngineHook().create(launched.job.request, owner="dag/launch", series="the next")
    launched.cluster.delete_pod(launched.namespace, launched.pod.metadata.name, grace_seconds=0)
    launched.wait_until_no_pod()
    assert task.poke(given) is False


def test_ending_the_sensor_leaves_the_pod_alone(launched: LaunchedJob) -> None:
    launched.use(**SLOW)
    handed_on = launched.launch()
    task = sensor(handed_on)
    task.on_kill()
    with pytest.raises(TaskKilledError):
        task.execute(context())
    assert not launched.is_being_deleted()
    launched.cluster.delete_pod(launched.namespace, launched.pod.metadata.name, grace_seconds=0)


def test_the_pod_of_a_task_that_waits_itself_is_none_of_the_sensors(launched: LaunchedJob) -> None:
    options = {"s3": launched.job.s3.options}
    pods = WorkerPods(launched.cluster, launched.namespace, launched.pods, launched.job.request, options=options)
    handle = pods.launch().handle.model_dump(mode="json")
    task, given = sensor(handle), context()
    pods.start(
        "theirs", environment={"LLMENGINE_ECHO_LOG": str(launched.job.generated), **SLOW}, secret_options=options
    )
    launched.wait_for_records()
    launched.kill_worker()
    assert task.poke(given) is False
    pods.start("retried", secret_options=options)
    result = task.execute(given)
    assert result["records"] == RECORDS
    pods.wait_for_success("retried")
    found = {pod.metadata.name: pod.metadata.deletion_timestamp for pod in launched.cluster.pods(launched.namespace)}
    assert found == {"theirs": None, "retried": None}


@pytest.fixture
def few_rights(cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A connection whose service account may do nothing with pods."""
    monkeypatch.setenv("AIRFLOW_CONN_FEW_RIGHTS", kubernetes_connection(cluster, namespace, "nobody"))
    return "few_rights"


def test_a_sensor_that_may_not_list_pods_says_so_once_and_goes_by_storage(
    launched: LaunchedJob, few_rights: str, capsys: pytest.CaptureFixture[str]
) -> None:
    handed_on = launched.launch()
    launched.settings["kubernetes_conn_id"] = few_rights
    launched.use()
    capsys.readouterr()
    assert waited(handed_on)["records"] == RECORDS
    printed = capsys.readouterr().out
    assert printed.count(f"Airflow may not list pods in the namespace {launched.namespace}") == 1
    assert "token" not in printed
    assert not launched.is_being_deleted()


@pytest.mark.scheduler
@pytest.mark.timeout(400)
def test_in_a_real_triggerer(launched: LaunchedJob, cluster: Cluster, airflow_environment: dict[str, str]) -> None:
    launched.use(**SLOW | {"LLMENGINE_ECHO_SECONDS_PER_RECORD": "5"})
    handed_on = launched.launch()
    airflow = Airflow(Path(airflow_environment["AIRFLOW_HOME"]))
    for name in ("AIRFLOW_CONN_LLMENGINE_DEFAULT", "AIRFLOW_CONN_STORE"):
        airflow.environment[name] = os.environ[name]
    airflow.environment["KUBECONFIG"] = cluster.kubeconfig
    airflow.sense(job=handed_on["job"], deferrable=True, retries=0)
    printed = airflow.task("run")
    assert airflow.state() == "deferred", printed
    with airflow.triggerer():
        wait_until(lambda: "1 replica at work" in airflow.triggers_log())
        launched.kill_worker()
        wait_until(lambda: airflow.state() == "scheduled")
    printed = airflow.task("resume")
    assert airflow.state() == "failed", printed
    assert "WorkerDiedError" in printed
    assert "to go on, clear dag/launch, and this task" in printed
