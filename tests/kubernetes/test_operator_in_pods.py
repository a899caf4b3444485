"""The life of a worker's pod under Airflow: real task processes, the real worker, a real cluster.

What holds for all of it is looked at after each test (``job``): no pod is left but those that failed, no two were at
work at once, and nobody was shown a secret or a prompt.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.kubernetes.pod_jobs import RECORDS, WORD, PodJob
from tests.storage.s3_server import ACCESS_KEY, SECRET_KEY
from tests.waiting import wait_until

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]


@pytest.fixture
def job(pod_job: PodJob) -> Iterator[PodJob]:
    """A job, after which everything is seen to be in order."""
    yield pod_job
    wait_until(lambda: {pod.status.phase for pod in pod_job.pods()} <= {"Failed"})
    assert pod_job.watch.most_at_work <= 1
    told = pod_job.told()
    assert not [text for text in (ACCESS_KEY, SECRET_KEY, f"{WORD} ") if text in told]


def finish(job: PodJob, stopped: int) -> None:
    """Run the next attempt, which ends the job, and see that it did not do again what had been done.

    Args:
        job: A job that has begun.
        stopped: How many workers were told to stop: each may have been in the middle of a record.
    """
    job.set_speed(0)
    state, log = job.run()
    assert state == "success", log
    assert job.is_complete()
    assert job.generations().total() <= RECORDS + stopped


# Ends from outside


def test_the_pod_deleted_in_mid_run(job: PodJob) -> None:
    first = job.start()
    job.wait_for_records(5)
    (pod,) = job.pods()
    job.cluster.delete_pod(job.namespace, pod.metadata.name)
    state, log = first.end()
    assert state == "up_for_retry", log
    assert "PodDeletedError" in log
    assert job.output() is None
    finish(job, stopped=1)
    assert len(job.watch.names) == 2


def test_the_airflow_worker_killed_and_the_pod_found_again(job: PodJob) -> None:
    first = job.start()
    job.wait_for_records(5)
    with job.frozen():
        first.kill()
        second = job.start()
        wait_until(lambda: "Taking over the pod" in second.log())
    state, log = second.end()
    assert state == "success", log
    assert job.is_complete()
    assert set(job.generations().values()) == {1}
    assert len(job.watch.names) == 1


def test_the_airflow_worker_killed_and_the_pod_finished_meanwhile(job: PodJob) -> None:
    first = job.start()
    job.wait_for_records(5)
    (pod,) = job.pods()
    first.kill()
    job.cluster.wait_for_phase(job.namespace, pod.metadata.name, "Succeeded")
    state, log = job.run()
    assert state == "success", log
    assert "Answered from storage" in log
    assert job.is_complete()
    assert len(job.watch.names) == 1


def test_a_retry_while_a_failed_pod_is_in_its_grace(job: PodJob) -> None:
    """Some versions of Kubernetes call a pod failed as soon as they begin to end it, for example at its deadline."""
    job.arguments["termination_grace_period"] = 120
    first = job.start()
    job.wait_for_records(2)
    (pod,) = job.pods()
    with job.frozen():
        first.kill()
        job.cluster.core.patch_namespaced_pod(pod.metadata.name, job.namespace, {"spec": {"activeDeadlineSeconds": 1}})
        job.cluster.wait_for_phase(job.namespace, pod.metadata.name, "Failed")
        second = job.start()
        wait_until(lambda: "Waiting for the pod" in second.log())
        assert len(job.watch.names) == 1
    state, log = second.end()
    assert state == "success", log
    assert job.is_complete()
    assert len(job.watch.names) == 2


def test_a_pod_that_is_kept_does_not_block_the_next_one_of_its_name(job: PodJob) -> None:
    job.arguments["random_name_suffix"] = False
    first = job.start()
    job.wait_for_records(2)
    job.kill_workers()
    state, log = first.end()
    assert state == "up_for_retry", log
    assert job.kept()
    job.set_speed(0)
    state, log = job.run()
    assert state == "success", log
    assert job.is_complete()
    assert len(job.watch.names) == 1


# Ends by Airflow


def test_sigterm_of_the_task_and_a_retry_at_once(job: PodJob) -> None:
    """Case 18, and airflow#73006: a worker of Airflow's that is shut down passes SIGTERM on to the task."""
    first = job.start()
    job.wait_for_records(5)
    first.supervisor.send_signal(signal.SIGTERM)
    state, log = first.end()
    assert state == "up_for_retry", log
    assert "TaskKilledError" in log
    assert job.output() is None
    finish(job, stopped=1)
    assert len(job.watch.names) == 2


def test_marked_failed(job: PodJob) -> None:
    job.set_speed(1)
    first = job.start()
    job.wait_for_records(2)
    assert job.run("fail")[0] == "failed"
    state, log = first.end()
    assert state == "failed", log
    wait_until(lambda: not job.pods())
    assert job.output() is None
    finish(job, stopped=1)


def test_cleared_and_run_again_while_the_pod_is_in_its_grace(job: PodJob) -> None:
    job.arguments["termination_grace_period"] = 300
    job.set_speed(1)
    first = job.start()
    job.wait_for_records(2)
    job.set_speed(0)
    with job.frozen():
        said, log = job.run("clear")
        assert said.startswith("restarting"), log
        state, log = first.end()
        assert state == "restarting", log
        second = job.start()
        wait_until(lambda: "Waiting for the pod" in second.log())
        assert len(job.watch.names) == 1
    state, log = second.end()
    assert state == "success", log
    assert job.is_complete()
    assert job.generations().total() <= RECORDS + 1
    assert len(job.watch.names) == 2


def test_an_execution_timeout(job: PodJob) -> None:
    job.set_speed(1)
    job.arguments["execution_timeout"] = 8
    state, log = job.run()
    assert state == "up_for_retry", log
    assert "AirflowTaskTimeout" in log
    assert not job.kept()
    assert job.output() is None
    del job.arguments["execution_timeout"]
    finish(job, stopped=1)


def test_max_runtime_sec_too_short_and_a_new_series(job: PodJob) -> None:
    job.set_speed(0.5)
    job.arguments["max_runtime_sec"] = 20
    state, log = job.run()
    assert state == "failed", log
    assert "DeadlineExceededError" in log
    assert job.output() is None
    done = job.generations().total()
    assert 0 < done < RECORDS
    job.run("clear")
    finish(job, stopped=0)
