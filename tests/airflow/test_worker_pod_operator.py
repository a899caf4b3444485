"""What the operator makes of the pod operator's options, without a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from kubernetes.client import models as k8s
from kubernetes.client.exceptions import ApiException

from airflow_llmengine.exceptions import ClusterUnavailableError, ConnectionUnusableError, TaskKilledError
from airflow_llmengine.hooks import pods
from airflow_llmengine.hooks.llmengine import LLMEngineHook
from airflow_llmengine.hooks.worker_attempt import WorkerAttempt
from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator
from airflow_llmengine.operators.worker_pod import WorkerEnd
from airflow_llmengine.spec.job_state import JobHandle
from tests.airflow.operators_in_tests import EchoJob, connection, run, task_context


def a_template(namespace: str) -> dict[str, Any]:
    return {"metadata": {"namespace": namespace}, "spec": {"containers": [{"name": "base", "image": "worker:1"}]}}


@pytest.mark.parametrize(
    ("options", "of_connection", "namespace"),
    [
        ({"namespace": "mine", "pod_template_dict": a_template("template")}, {"namespace": "theirs"}, "mine"),
        ({"pod_template_dict": a_template("template")}, {"namespace": "theirs"}, "template"),
        (
            {"full_pod_spec": k8s.V1Pod(metadata=k8s.V1ObjectMeta(namespace="spec"))},
            {"namespace": "theirs", "pod_template": a_template("their-template")},
            "spec",
        ),
        ({}, {"namespace": "theirs", "pod_template": a_template("their-template")}, "theirs"),
        ({}, {"pod_template": a_template("their-template")}, "their-template"),
        ({}, {}, None),
    ],
)
def test_pods_are_looked_for_where_they_are_made(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    of_connection: dict[str, Any],
    namespace: str | None,
) -> None:
    given = connection(launcher="kubernetes", image="worker:1", **of_connection)
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", given)
    operator = EchoJob(tmp_path, []).operator(**options)
    operator._apply_connection(LLMEngineHook().settings)
    assert operator.namespace == namespace


def test_a_template_file_names_the_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(launcher="kubernetes", namespace="theirs"))
    (tmp_path / "pod.yaml").write_text("metadata:\n  namespace: file\nspec:\n  containers: []\n")
    operator = EchoJob(tmp_path, []).operator(pod_template_file=str(tmp_path / "pod.yaml"))
    operator._apply_connection(LLMEngineHook().settings)
    assert operator.namespace == "file"


HOW = pytest.mark.parametrize(
    "options", [{}, {"deferrable": True}, {"wait_for_completion": False}], ids=["waits", "deferred", "handed over"]
)


def refused(folder: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], **of_connection: Any) -> str:
    """What the task says of its connection."""
    # Read from KUBECONFIG when the client is imported: a cluster that this machine has is none of this test's.
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(folder / "none"))
    given = connection(launcher="kubernetes", image="worker:1", **of_connection)
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", given)
    context = task_context(dag=SimpleNamespace(parent_dag=None))
    with pytest.raises(ConnectionUnusableError) as raised:
        run(EchoJob(folder / "job", ["one"]).operator(**options), context)
    # Airflow logs what led to it, too.
    assert "SECRET" not in "".join(traceback.format_exception(raised.value))
    return str(raised.value)


@HOW
def test_a_kubernetes_connection_that_is_not_there_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    said = refused(tmp_path, monkeypatch, options, kubernetes_conn_id="nowhere")
    assert said == (
        "The Kubernetes connection can't be used: The conn_id `nowhere` isn't defined. Correct it, or name another as "
        "kubernetes_conn_id."
    )


@HOW
def test_a_machine_that_knows_no_cluster_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    said = refused(tmp_path, monkeypatch, options)
    assert said == (
        "The Kubernetes connection can't be used: Invalid kube-config file. No configuration found. Correct it, or "
        "name another as kubernetes_conn_id."
    )


@HOW
@pytest.mark.parametrize(
    ("template", "fault"),
    [
        ({"spec": {"containers": [{"name": "base", "volumeMounts": [{"name": "a"}]}]}}, "a part of it lacks mountPath"),
        ({"spec": {"containers": [{"image": "SECRET"}]}}, "a part of it lacks name"),
        ({"spec": {"containers": [], "activeDeadlineSeconds": "SECRET"}}, "a value in it is of a wrong type"),
        ({"metadata": {"creationTimestamp": "SECRET"}}, "a value in it is of a wrong type"),
    ],
)
def test_a_template_that_is_no_pod_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], template: dict[str, Any], fault: str
) -> None:
    said = refused(tmp_path, monkeypatch, options, pod_template=template)
    assert said == f"The connection's pod_template can't be read as a pod: {fault}. Correct it there."


def test_a_local_worker_is_waited_for_in_the_task_whatever_deferrable_says(echo_job: EchoJob) -> None:
    assert run(echo_job.operator(deferrable=True))["records"] == 12


@pytest.mark.slow
@pytest.mark.parametrize("default", ["True", "False"])
def test_whether_tasks_are_deferred_is_airflows_setting(default: str) -> None:
    """It is read when the pod operator is imported, hence a process of its own."""
    program = (
        "from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator as Operator\n"
        "arguments = dict(input_data_path='in.json', output_data_path='out.json', model_config={'model': 'm'})\n"
        "print([Operator(task_id='job', **arguments, **more).deferrable for more in ({}, {'deferrable': True})])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": default},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1:] == [f"[{default}, True]"], done.stderr


class ApiDouble:
    """Stands for an API server that says the same of every pod: it is gone, or the server is away."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.deleted: list[str] = []

    def read_namespaced_pod(self, *_arguments: Any, **_options: Any) -> Any:
        raise ApiException(status=self.status, reason="as the test wants it")

    get_pod = read_namespaced_pod

    def list_namespaced_event(self, *_arguments: Any, **_options: Any) -> Any:
        return SimpleNamespace(items=[])

    def delete_namespaced_pod(self, name: str, *_arguments: Any, **_options: Any) -> None:
        self.deleted.append(name)


class Woken(LLMEngineBatchCompletionsOperator):
    """Gives how the pod ended as its result."""

    def _conclude(self, context: Any, hook: LLMEngineHook, attempt: WorkerAttempt, end: WorkerEnd) -> Any:
        return end


@pytest.fixture
def woken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Woken:
    """A task whose trigger has fired."""
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(launcher="kubernetes", image="worker:1"))
    monkeypatch.setattr(pods, "patiently", lambda call: call)
    return Woken(
        task_id="job", input_data_path="in.json", output_data_path="out.json", model_config={"model": "stand-in"}
    )


def wake(operator: Woken, api: ApiDouble, status: str) -> Any:
    operator.__dict__["hook"] = operator.__dict__["client"] = api
    attempt = WorkerAttempt(
        handle=JobHandle(path="out.json", fingerprint="0" * 24, generation=1),
        owner="dag/job",
        series="dag/run/job/-1/2",
        deadline=time.time() + 3600,
        max_error_rate=None,
    )
    event = {"status": status, "name": "job-1", "namespace": "gpus", "message": "it says"}
    return operator.trigger_reentry(task_context(), event, attempt=attempt.encode())


def test_a_pod_that_was_seen_to_succeed_and_is_gone_by_now_has_succeeded(woken: Woken) -> None:
    assert wake(woken, ApiDouble(404), "success").done


@pytest.mark.parametrize("status", ["failed", "timeout", "error"])
def test_a_pod_that_is_gone_otherwise_was_deleted(woken: Woken, status: str) -> None:
    end = wake(woken, ApiDouble(404), status)
    assert not end.done
    assert end._diagnosis.kind == "deleted"
    assert "job-1 is gone" in end._diagnosis.sentence


def test_a_pod_that_cannot_be_asked_for_is_not_said_to_be_gone(woken: Woken) -> None:
    with pytest.raises(ClusterUnavailableError):
        wake(woken, ApiDouble(503), "failed")


def test_a_kill_while_the_task_wakes_up_deletes_its_pod(woken: Woken) -> None:
    api = ApiDouble(404)

    def killed(*_arguments: Any) -> Any:
        woken.on_kill()
        raise ApiException(status=503)

    api.get_pod = killed  # type: ignore[method-assign]
    with pytest.raises(TaskKilledError):
        wake(woken, api, "error")
    assert api.deleted == ["job-1"]


class RunningApi(ApiDouble):
    """Stands for an API server with a pod that runs."""

    def __init__(self) -> None:
        super().__init__(200)

    def read_namespaced_pod(self, name: str, namespace: str, **_options: Any) -> Any:
        metadata = k8s.V1ObjectMeta(name=name, namespace=namespace, uid="1")
        return k8s.V1Pod(metadata=metadata, spec=k8s.V1PodSpec(containers=[]), status=k8s.V1PodStatus(phase="Running"))


def test_a_failure_between_the_pods_making_and_the_deferral_leaves_no_pod(woken: Woken) -> None:
    """The pod operator ends a pod only where it waits for it itself."""
    api = RunningApi()
    woken.__dict__["hook"] = woken.__dict__["client"] = api

    def fails_later() -> None:
        woken.pod = k8s.V1Pod(metadata=k8s.V1ObjectMeta(name="job-1", namespace="gpus", uid="1"))
        raise RuntimeError("the XCom can't be pushed")

    with pytest.raises(RuntimeError, match="XCom"):
        woken._watch(fails_later)
    assert api.deleted == ["job-1"]


def test_a_task_that_is_deferred_keeps_its_pod(woken: Woken) -> None:
    api = RunningApi()
    woken.__dict__["hook"] = woken.__dict__["client"] = api

    def defers() -> None:
        woken.pod = k8s.V1Pod(metadata=k8s.V1ObjectMeta(name="job-1", namespace="gpus", uid="1"))
        raise TaskDeferred(trigger=None, method_name="trigger_reentry")

    with pytest.raises(TaskDeferred):
        woken._watch(defers)
    assert api.deleted == []


class KilledAtTheEnd(LLMEngineBatchCompletionsOperator):
    """Airflow ends the task when its pod has just been handed over."""

    def _apply_connection(self, settings: Any) -> None:
        pass

    def _start_pod(self, *_arguments: Any) -> None:
        self.on_kill()


def test_a_kill_after_the_hand_over_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(launcher="kubernetes", engine="echo"))
    job = EchoJob(tmp_path / "job", ["row"])
    operator = KilledAtTheEnd(
        task_id="job",
        input_data_path=str(job.input),
        output_data_path=str(job.output),
        model_config={"model": "stand-in"},
        wait_for_completion=False,
    )
    with pytest.raises(TaskKilledError):
        run(operator)
