"""The life of a worker's pod while its task is deferred: a real triggerer, the real worker, a real cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.airflow.started_tasks import TaskServer
from tests.airflow.triggerer_process import Triggerer
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.conftest import airflow_of_pods
from tests.kubernetes.deferred_jobs import DeferredJob
from tests.kubernetes.host_python import HostPython
from tests.kubernetes.pod_jobs import ONE_A_CHUNK, WORD, PodJob
from tests.kubernetes.service_accounts import ServiceAccount
from tests.storage.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from tests.waiting import wait_until

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.scheduler]

RECORDS = 40
"""Enough for something to happen meanwhile: half a second each, mostly."""


@pytest.fixture(scope="module")
def tasks_of_pods(tmp_path_factory: pytest.TempPathFactory, migrated_database: bytes) -> Iterator[TaskServer]:
    """An Airflow with a triggerer beside it, of this module's own."""
    with airflow_of_pods(tmp_path_factory.mktemp("airflow-deferred"), migrated_database) as server:
        yield server


@pytest.fixture(scope="module")
def launcher(cluster: Cluster) -> Iterator[ServiceAccount]:
    """Airflow's service account, in a namespace of its own. It has no rights yet."""
    namespace = cluster.new_namespace()
    yield ServiceAccount(cluster, namespace, "airflow")
    cluster.delete_namespace(namespace)


@pytest.fixture(scope="module")
def started_triggerer(
    tasks_of_pods: TaskServer, _s3_server_for_pods: S3Server, launcher: ServiceAccount
) -> Iterator[Triggerer]:
    storage = {
        "conn_type": "aws",
        "login": ACCESS_KEY,
        "password": SECRET_KEY,
        "extra": {"endpoint_url": _s3_server_for_pods.endpoint, "region_name": "us-east-1"},
    }
    # It looks at storage only; where a pod is, its task says.
    connection = {"conn_type": "llmengine", "extra": {"launcher": "kubernetes", "storage_conn_id": "store"}}
    triggerer = Triggerer(
        {
            **tasks_of_pods.environment,
            "AIRFLOW_CONN_STORE": json.dumps(storage),
            "AIRFLOW_CONN_LLMENGINE_DEFAULT": json.dumps(connection),
            "AIRFLOW_CONN_CLUSTER": launcher.connection,
            # A triggerer's first question to the database takes long.
            "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps({"conn_type": "kubernetes"}),
        }
    )
    triggerer.start()
    yield triggerer
    triggerer.stop()


@pytest.fixture
def triggerer(started_triggerer: Triggerer) -> Triggerer:
    """It runs, whatever the test before did to it."""
    started_triggerer.start()
    return started_triggerer


@pytest.fixture
def deferred(pod_job: PodJob, triggerer: Triggerer) -> DeferredJob:
    """A job of the DAG ``pod_job``; its task is deferred."""
    pod_job.put_input(RECORDS)
    return DeferredJob(pod_job, triggerer, "pod_job")


@pytest.fixture
def group(pod_job: PodJob, triggerer: Triggerer) -> DeferredJob:
    """A job of two replicas of the DAG ``pod_group``; its tasks are deferred."""
    group = DeferredJob(pod_job, triggerer, "pod_group")
    pod_job.arguments |= {"data_parallelism": 2}
    pod_job.put_input(RECORDS, max_tokens=ONE_A_CHUNK)
    return group


def test_a_job_is_waited_for_in_a_triggerer(deferred: DeferredJob, launcher: ServiceAccount) -> None:
    """Tasks and triggerer have the rights of the reference set-up, and no others."""
    job = deferred.job
    job.settings["kubernetes_conn_id"] = "cluster"
    job.base_environment["AIRFLOW_CONN_CLUSTER"] = launcher.connection
    del job.base_environment["KUBECONFIG"]
    launcher.bind_reference_role(job.namespace)
    job.set_speed(0.25)
    scheduler = deferred.start()
    deferred.wait_for_state("deferred")
    deferred.wait_for_trigger_log("left")
    kept = deferred.kept()
    # Should no triggerer live when it is time, the scheduler does something.
    ((timeout,),) = deferred.rows("SELECT trigger_timeout FROM task_instance WHERE run_id = ?", job.run_id)
    assert timeout is not None
    assert scheduler.states() == {"job": ["success"]}, scheduler.log() + deferred.trigger_log()
    assert job.is_complete(RECORDS)
    lines = re.findall(r"(\d+) of (?:\d+|\?) records done, [0-9.]+ records/s, \d+ tokens/s", deferred.trigger_log())
    assert lines, deferred.trigger_log()
    assert re.search(rf"of {RECORDS} records done.*about 0:0\d:\d\d left", deferred.trigger_log())
    xcoms = deferred.xcoms()
    assert xcoms["return_value"]["records"] == RECORDS
    assert xcoms["output_data_path"] == job.arguments["output_data_path"]
    assert set(xcoms) == {"return_value", "pod_name", "pod_namespace", *xcoms["return_value"]}
    assert len(job.watch.names) == 1
    wait_until(lambda: not job.pods())
    everything = deferred.told() + kept
    for secret in (ACCESS_KEY, SECRET_KEY, WORD, launcher.token):
        assert secret not in everything, secret


def test_a_triggerer_that_is_killed_and_started_again_goes_on_with_the_pod(deferred: DeferredJob) -> None:
    job = deferred.job
    job.set_speed(0.5)
    scheduler = deferred.start()
    deferred.wait_for_trigger_log("records done")
    deferred.triggerer.kill()
    deferred.triggerer.start()
    deferred.wait_for_trigger_log("starting", 2)
    assert scheduler.states() == {"job": ["success"]}, scheduler.log() + deferred.trigger_log()
    assert job.is_complete(RECORDS)
    assert job.generations().total() == RECORDS
    assert len(job.watch.names) == 1
    assert deferred.trigger_log().count("Trigger fired event") == 1
    assert "Resuming" not in scheduler.log()


def test_a_triggerer_that_is_stopped_in_order_leaves_the_pod_alone_which_ends_unwatched(deferred: DeferredJob) -> None:
    job = deferred.job
    job.set_speed(0.2)
    scheduler = deferred.start()
    deferred.wait_for_trigger_log("records done")
    deferred.triggerer.stop()
    (name,) = job.watch.names
    job.cluster.wait_for_end(job.namespace, name)
    assert job.cluster.pod(job.namespace, name).status.phase == "Succeeded"
    deferred.triggerer.start()
    assert scheduler.states() == {"job": ["success"]}, scheduler.log() + deferred.trigger_log()
    assert job.generations().total() == RECORDS
    assert job.watch.names == {name}
    wait_until(lambda: not job.pods())


def test_a_task_that_is_cleared_ends_its_pod_and_the_next_attempt_waits_for_that(deferred: DeferredJob) -> None:
    job = deferred.job
    job.arguments["termination_grace_period"] = 30
    job.set_speed(0.5)
    scheduler = deferred.start()
    job.wait_for_records(5)
    deferred.wait_for_trigger_log("records done")
    (first,) = job.watch.names
    deferred.start("clear:job").end()
    assert scheduler.states() == {"job": ["success"]}, scheduler.log() + deferred.trigger_log()
    assert "invoking on_kill" in deferred.trigger_log()
    assert f"Waiting for the pod {first} of an earlier attempt to end" in scheduler.log()
    assert "Resuming job" in scheduler.log()
    assert job.is_complete(RECORDS)
    assert len(job.watch.names) == 2
    assert job.watch.most_at_work == 1
    # The record that was being made when the worker was told to stop may have been made twice.
    assert job.generations().total() <= RECORDS + 1
    wait_until(lambda: not job.pods())


def test_a_task_that_is_marked_as_failed_ends_its_pod_and_no_other(
    group: DeferredJob, host_python_pod: HostPython
) -> None:
    """Neither that of another map index, nor that of another task of the same namespace."""
    job = group.job
    job.set_speed(0.5)
    other = host_python_pod.pod(name="other", labels={"dag_id": "pod_group", "task_id": "other"})
    other.spec.containers[0].command = ["sleep", "600"]
    job.cluster.create_pod(job.namespace, other)
    scheduler = group.start()
    for index in range(2):
        group.wait_for_state("deferred", "group.replicas", index)
    group.wait_for_trigger_log("records done", 2)
    job.wait_for_records(5)
    group.start("fail:group.replicas:0").end()
    killed, spared = (group.pod_of(index) for index in range(2))
    job.cluster.wait_until_gone(job.namespace, killed)
    assert job.cluster.pod(job.namespace, "other").metadata.deletion_timestamp is None
    states = scheduler.states()
    assert sorted(states["group.replicas"]) == ["failed", "success"], scheduler.log() + group.trigger_log()
    assert states["group.collect"] == ["success"], scheduler.log() + group.trigger_log()
    assert group.trigger_log().count("Trigger fired event") == 2
    assert job.watch.last(spared)["status"]["phase"] == "Succeeded"
    assert job.is_complete(RECORDS)
    assert job.generations().total() <= RECORDS + 1


def test_the_pod_deleted_from_outside(deferred: DeferredJob) -> None:
    job = deferred.job
    job.set_speed(0.5)
    scheduler = deferred.start()
    job.wait_for_records(5)
    deferred.wait_for_trigger_log("records done")
    (first,) = job.watch.names
    job.cluster.delete_pod(job.namespace, first)
    assert scheduler.states() == {"job": ["success"]}, scheduler.log() + deferred.trigger_log()
    assert "PodDeletedError" in scheduler.log()
    assert "Traceback" not in deferred.trigger_log()
    assert "Resuming job" in scheduler.log()
    assert job.is_complete(RECORDS)
    assert job.generations().total() <= RECORDS + 1
    assert job.watch.most_at_work == 1


def test_a_trigger_that_times_out_ends_the_pod_and_a_retry_resumes(deferred: DeferredJob) -> None:
    """As where no triggerer lives; where the trigger's code fails to load, the task goes the same way."""
    job = deferred.job
    job.set_speed(0.5)
    deferred.triggerer.kill()
    scheduler = deferred.start()
    job.wait_for_records(5)
    deferred.wait_for_state("deferred")
    deferred.start("timeout:job").end()
    deferred.triggerer.start()
    assert scheduler.states() == {"job": ["success"]}, scheduler.log() + deferred.trigger_log()
    assert "TaskDeferralTimeout" in scheduler.log()
    assert "Nobody watches the pod" in scheduler.log()
    assert job.is_complete(RECORDS)
    assert job.watch.most_at_work == 1
    assert job.generations().total() <= RECORDS + 1
    wait_until(lambda: not job.pods())


def test_past_the_deadline_the_task_fails_with_what_was_done(deferred: DeferredJob) -> None:
    job = deferred.job
    job.set_speed(1)
    job.arguments |= {
        "max_runtime_sec": 20,
        "termination_grace_period": 2,
        # It takes no notice of SIGTERM, as the worker would.
        "cmds": ["sh", "-c", "trap '' TERM; while true; do sleep 1; done"],
    }
    scheduler = deferred.start()
    assert scheduler.states() == {"job": ["failed"]}, scheduler.log() + deferred.trigger_log()
    assert "DeadlineExceededError" in scheduler.log()
    assert len(job.watch.names) == 1


def test_the_workers_log_comes_at_its_own_levels(deferred: DeferredJob) -> None:
    job = deferred.job
    job.set_speed(0.2)
    job.arguments["logging_interval"] = 1
    # Something else in the pod says something, too.
    script = f'echo "a library quotes {WORD}"; exec "$0" "$@"'
    job.arguments["cmds"] = ["sh", "-c", script, job.settings["python"], "-m", "airflow_llmengine.worker"]
    scheduler = deferred.start()
    assert scheduler.states() == {"job": ["success"]}, scheduler.log() + deferred.trigger_log()
    lines = [json.loads(line) for line in deferred.trigger_log().splitlines()]
    ready = [line for line in lines if line["event"].startswith("echo 0.1.0 is ready")]
    assert [line["level"] for line in ready] == ["info"]
    assert WORD in job.watch.text()
    assert WORD not in deferred.trigger_log() + scheduler.log()
