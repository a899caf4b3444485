"""Real task processes under Airflow's own supervisor: what remains after kills, clears and timeouts.

The supervisor and the task that it forks are started by `task_process.py`; the metadata database is a real one.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from airflow_llmengine.hooks.leftovers import MARK_VARIABLE, WorkerMark
from airflow_llmengine.hooks.llmengine import LLMEngineHook
from airflow_llmengine.storage.status import JobStatus
from tests.airflow.operators_in_tests import EchoJob, connection, run, task_context
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
SECONDS_PER_RECORD = "0.2"
RECORDS = 60


class Task:
    """One task, its runs, and the processes that belong to it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.job = EchoJob(folder / "job", [f"row {index}" for index in range(RECORDS)])
        self.environment = environment | {
            "TEST_INPUT": str(self.job.input),
            "TEST_OUTPUT": str(self.job.output),
            "AIRFLOW__LLMENGINE__RUNTIME_DIRECTORY": str(folder / "runtime"),
        }
        self.set_speed(SECONDS_PER_RECORD)

    def set_speed(self, seconds_per_record: str) -> None:
        variables = {"LLMENGINE_ECHO_SECONDS_PER_RECORD": seconds_per_record, "LLMENGINE_ECHO_CAPACITY": "1"}
        self.environment["AIRFLOW_CONN_LLMENGINE_DEFAULT"] = connection(
            worker_environment=self.job.environment(**variables)
        )

    def start(self, command: str = "run", **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(HERE / "task_process.py"), command, "echo_job", "job", "run-1"],
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str = "run", **environment: str) -> tuple[str, str]:
        """The task's state in the end, and all that was logged."""
        return self.end(self.start(command, **environment))

    def end(self, process: subprocess.Popen[str]) -> tuple[str, str]:
        log, _ = process.communicate(timeout=300)
        found = re.findall(r"^state: (.*)$", log, re.MULTILINE)
        return found[-1] if found else "", log

    def workers(self) -> list[psutil.Process]:
        place = WorkerMark(str(self.job.output), 0, "").environment()[MARK_VARIABLE].rpartition("/")[0]
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK_VARIABLE, "").startswith(place) and process.status() != "zombie":
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def task_of(self, supervisor: subprocess.Popen[str]) -> psutil.Process:
        """The process that the supervisor forked; the worker is its child."""
        (worker,) = self.workers()
        task = worker.parent()
        assert task is not None
        assert task.ppid() == supervisor.pid
        return task

    def wait_for_records(self, count: int) -> None:
        wait_until(lambda: self.job.generations().total() >= count, seconds=90)

    def finish(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What the next attempt does, without an Airflow around it."""
        self.set_speed("0")
        monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", self.environment["AIRFLOW_CONN_LLMENGINE_DEFAULT"])
        run(self.job.operator(), task_context(dag_id="echo_job"))
        assert self.job.texts() == [f"row {index}" for index in range(RECORDS)]
        # The record that was being made when the worker was told to stop may have been made twice.
        assert self.job.generations().total() <= RECORDS + 1

    def status(self, monkeypatch: pytest.MonkeyPatch) -> JobStatus:
        monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", self.environment["AIRFLOW_CONN_LLMENGINE_DEFAULT"])
        return LLMEngineHook().get(str(self.job.output))


@pytest.fixture
def task(tmp_path: Path, airflow_environment: dict[str, str]) -> Iterator[Task]:
    task = Task(tmp_path, airflow_environment)
    yield task
    for process in task.workers():
        process.kill()


def test_sigterm_of_the_task_is_no_success_and_a_retry_goes_on(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 18, and airflow#73006: a worker of Airflow's that is shut down passes SIGTERM on to the task."""
    supervisor = task.start()
    task.wait_for_records(5)
    first = task.status(monkeypatch).job
    supervisor.send_signal(signal.SIGTERM)
    state, log = task.end(supervisor)
    assert state == "up_for_retry", log
    assert "Airflow ended the task" in log
    assert not task.workers()
    assert not task.job.output.exists()
    before = task.job.generations()
    assert 5 <= before.total() < RECORDS

    supervisor = task.start()
    task.wait_for_records(before.total() + 2)
    retried = task.status(monkeypatch).job
    state, log = task.end(supervisor)
    assert state == "success", log
    assert "Resuming job" in log
    assert task.job.texts() == [f"row {index}" for index in range(RECORDS)]
    assert task.job.generations().total() <= RECORDS + 1
    # A retry has the series of the first attempt, and no deadline of its own.
    assert first is not None
    assert retried is not None
    assert (retried.series, retried.deadline) == (first.series, first.deadline)


def test_sigkill_of_the_task_ends_its_worker_which_saves(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = task.start()
    task.wait_for_records(5)
    task.task_of(supervisor).kill()
    wait_until(lambda: not task.workers(), seconds=60)
    state, log = task.end(supervisor)
    # The scheduler, which is not there, would see to the retry.
    assert state == "running", log
    assert not task.job.output.exists()
    task.finish(monkeypatch)


def test_sigkill_of_supervisor_and_task_leaves_nothing(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = task.start()
    task.wait_for_records(5)
    running = task.task_of(supervisor)
    supervisor.kill()
    running.kill()
    supervisor.communicate()
    wait_until(lambda: not task.workers(), seconds=60)
    assert not task.job.output.exists()
    task.finish(monkeypatch)


def test_a_cleared_task_is_ended_and_the_next_attempt_goes_on(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's supervisor learns of a clear by its next heartbeat, and then ends the task: SIGTERM, 5 s, SIGKILL."""
    # The command that clears takes its time, and must not come too late.
    task.set_speed("1")
    supervisor = task.start(TEST_GRACE="4")
    task.wait_for_records(1)
    said, log = task.run("clear")
    assert said.startswith("restarting"), log
    state, log = task.end(supervisor)
    assert state == "restarting", log
    wait_until(lambda: not task.workers(), seconds=60)
    assert not task.job.output.exists()
    task.finish(monkeypatch)


def test_a_finished_task_that_is_cleared_is_a_new_series(task: Task) -> None:
    task.set_speed("0")
    state, log = task.run()
    assert state == "success", log
    said, log = task.run("clear")
    assert said == "None, max_tries 3", log
    state, log = task.run(TEST_IF_DONE="regenerate")
    assert state == "success", log
    assert set(task.job.generations().values()) == {2}


def test_an_execution_timeout_ends_the_worker(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    state, log = task.run(TEST_TIMEOUT="4", TEST_GRACE="3")
    assert state == "up_for_retry", log
    assert "AirflowTaskTimeout" in log
    assert not task.workers()
    assert not task.job.output.exists()
    task.finish(monkeypatch)
