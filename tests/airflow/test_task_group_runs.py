"""Whole groups under Airflow: a real database, the scheduler's own decisions, supervised tasks, real workers."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_llmengine.hooks.leftovers import MARK_VARIABLE, WorkerMark
from tests.airflow.operators_in_tests import EchoJob, connection
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
RECORDS = 12
REPLICAS = range(3)
ONE_A_CHUNK = 200_000
"""Tokens that a record asks for, so that each is a chunk by itself."""


class Group:
    """One run of the DAG ``echo_group``: extract, the group ``teams`` of three replicas, load."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder / "job"
        self.make_job(RECORDS)
        self.database = Path(environment["AIRFLOW_HOME"]) / "airflow.db"
        self.environment = environment | {
            "PYTHONPATH": str(ROOT),
            "TEST_INPUT": str(self.job.input),
            "TEST_FOLDER": str(self.job.output.parent),
            "AIRFLOW__LLMENGINE__RUNTIME_DIRECTORY": str(folder / "runtime"),
        }
        self.started: list[subprocess.Popen[str]] = []
        self.connect()

    def make_job(self, records: int) -> None:
        self.job = EchoJob(self.folder, [f"row {index}" for index in range(records)], max_tokens=ONE_A_CHUNK)

    def connect(self, local_workers: int = 3, **worker: str) -> None:
        self.environment["AIRFLOW_CONN_LLMENGINE_DEFAULT"] = connection(
            worker_environment=self.job.environment(**worker), local_workers=local_workers
        )

    def start(self, *commands: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.airflow.scheduler_process", "echo_group", *commands],
            env=self.environment | environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(process)
        return process

    def end(self, process: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
        """The tasks' states, those of the mapped task as a list, and all that was logged."""
        log, _ = process.communicate(timeout=400)
        states: dict[str, Any] = {}
        for task_id, index, state in re.findall(r"^state: (\S+) (\S+) (\S+)$", log, re.MULTILINE):
            if index == "-1":
                states[task_id] = state
            else:
                states.setdefault(task_id, []).append(state)
        assert states, log
        return states, log

    def run(self, *commands: str, **environment: str) -> tuple[dict[str, Any], str]:
        return self.end(self.start(*commands, **environment))

    def worker(self, replica: int) -> psutil.Process | None:
        place = WorkerMark(str(self.job.output), replica, "").environment()[MARK_VARIABLE].rpartition("/")[0]
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK_VARIABLE, "").startswith(f"{place}/") and process.status() != "zombie":
                    return process
            except psutil.Error:
                continue
        return None

    def has_generated(self, replica: int) -> bool:
        """Whether the replica's worker, which must be running, has finished a record."""
        worker = self.worker(replica)
        lines = self.job.generated.read_text().splitlines() if self.job.generated.exists() else []
        return worker is not None and any(line.split()[1] == str(worker.pid) for line in lines)

    def xcom(self, task_id: str, key: str = "return_value") -> Any:
        with closing(sqlite3.connect(self.database)) as database:
            rows = database.execute("SELECT value FROM xcom WHERE task_id = ? AND key = ?", (task_id, key))
            (value,) = rows.fetchone()
        return json.loads(value)

    def tables_with(self, text: str) -> list[str]:
        """The tables of Airflow's database in which the text is."""
        found = []
        with closing(sqlite3.connect(self.database)) as database:
            for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                rows = database.execute(f'SELECT * FROM "{table}"').fetchall()  # noqa: S608 - SQLite's own names
                if any(text in str(cell) for row in rows for cell in row):
                    found.append(table)
        return found


@pytest.fixture
def group(tmp_path: Path, airflow_environment: dict[str, str]) -> Iterator[Group]:
    group = Group(tmp_path, airflow_environment)
    yield group
    for process in group.started:
        with process:
            process.kill()
    for replica in REPLICAS:
        worker = group.worker(replica)
        if worker is not None:
            worker.kill()


DONE = {
    "extract": "success",
    "teams.plan": "success",
    "teams.replicas": ["success"] * 3,
    "teams.collect": "success",
    "load": "success",
}


@pytest.mark.parametrize("local_workers", [1, 3])
def test_three_replicas_share_the_records(group: Group, local_workers: int) -> None:
    group.connect(local_workers)
    states, log = group.run("run")
    assert states == DONE, log
    assert group.job.texts() == [f"row {index}" for index in range(RECORDS)]
    assert group.job.generations() == dict.fromkeys(range(RECORDS), 1)
    assert group.xcom("load") == str(group.job.output)
    assert group.xcom("teams.collect")["records"] == RECORDS
    assert group.xcom("teams.plan", "job") == group.xcom("teams.collect", "job")
    assert [item["replica"] for item in group.xcom("teams.plan")] == [0, 1, 2]
    assert not list(group.job.output.parent.glob("output.json.job/*/")), "scratch is left"
    with closing(sqlite3.connect(group.database)) as database:
        labels = database.execute(
            "SELECT rendered_map_index FROM task_instance WHERE task_id = 'teams.replicas' ORDER BY map_index"
        ).fetchall()
    assert labels == [(f"replica {replica} of 3",) for replica in REPLICAS]


def test_each_task_of_a_finished_group_can_be_cleared_and_nothing_is_generated_again(group: Group) -> None:
    states, log = group.run("serial", "clear:teams.replicas:1", "run", "clear:teams.collect", "run")
    assert states == DONE, log
    assert "The job is done already; nothing is left to do for replica 1." in log
    result = group.xcom("teams.collect")

    # A new series, which finds the output.
    states, log = group.run("downstream:teams.plan", "run")
    assert states == DONE, log
    assert "Answered from storage" in log
    assert set(re.findall(r"nothing is left to do for replica .", log)) == {
        f"nothing is left to do for replica {replica}" for replica in REPLICAS
    }
    assert group.xcom("teams.collect") == result
    assert set(group.job.generations().values()) == {1}

    states, log = group.run("downstream:teams.plan", "run", TEST_ARGUMENTS='{"if_done": "regenerate"}')
    assert states == DONE, log
    assert group.xcom("teams.collect")["job"]["generation"] == 2
    assert set(group.job.generations().values()) == {2}


def test_collect_says_what_is_missing_and_why_and_clearing_one_replica_goes_on(group: Group) -> None:
    group.make_job(60)
    group.connect(LLMENGINE_ECHO_DIES_AFTER="2", LLMENGINE_ECHO_CAPACITY="1")
    states, log = group.run("run")
    assert states == {
        **DONE,
        "teams.replicas": ["failed"] * 3,
        "teams.collect": "failed",
        "load": "upstream_failed",
    }, log
    (said,) = set(re.findall(r"The job is not done: .*", log))
    assert re.search(r"The job is not done: \d+ of 60 chunks are missing\. Replica 0: The engine died: ", said)
    assert "Replica 2: The engine died: " in said
    assert "Clear the replicas that failed, with their downstream tasks" in said
    assert not group.job.output.exists()
    before = group.job.generations().total()
    assert 0 < before < 60

    # One of them is enough: it does its share, and what the others left.
    group.connect()
    states, log = group.run("clear:teams.replicas:0", "clear:teams.collect", "clear:load", "run")
    assert states == {**DONE, "teams.replicas": ["success", "failed", "failed"]}, log
    assert set(group.job.generations().values()) == {1}
    assert "Replica 1: The engine died: " in log
    assert "Others did its work." in log
    # The plan's launch was joined: its generation, and its series with its deadline.
    assert group.xcom("teams.plan", "launch")["series"].endswith("/teams.plan/-1/0")


def test_a_replica_that_fails_for_good_does_not_fail_a_job_whose_records_are_done(group: Group) -> None:
    group.make_job(2)
    states, log = group.run("run", TEST_FAILING_REPLICA="2")
    assert states == {**DONE, "teams.replicas": ["success", "success", "failed"]}, log
    assert "Replica 2: its state is failed; see its log. Others did its work." in log
    assert group.job.texts() == ["row 0", "row 1"]


def test_without_a_plan_there_is_nothing_to_collect_and_nothing_hangs(group: Group) -> None:
    group.job.output.write_text("precious")
    states, log = group.run("run")
    assert states == {
        "extract": "success",
        "teams.plan": "failed",
        "teams.replicas": "upstream_failed",
        "teams.collect": "failed",
        "load": "upstream_failed",
    }, log
    assert "teams.plan launched no job: its state is failed." in log
    assert group.job.output.read_text() == "precious"

    # An earlier success must not be taken for this one's.
    group.job.output.unlink()
    states, log = group.run("downstream:teams.plan", "run")
    assert states == DONE, log
    states, log = group.run("downstream:extract", "run", TEST_EXTRACT_FAILS="1")
    assert (states["teams.plan"], states["teams.collect"]) == ("upstream_failed", "failed"), log
    assert "teams.plan launched no job: its state is upstream_failed." in log


def test_sigterm_of_one_replica_ends_its_worker_only_and_its_retry_goes_on(group: Group) -> None:
    # More than one replica keeps in work at once, and slow enough that none has ended before all have begun.
    group.make_job(90)
    group.connect(LLMENGINE_ECHO_SECONDS_PER_RECORD="1", LLMENGINE_ECHO_CAPACITY="1")
    running = group.start("run", TEST_ARGUMENTS='{"retries": 1}')
    wait_until(lambda: all(group.worker(replica) for replica in REPLICAS) and group.has_generated(replica=1))
    first, second, third = (group.worker(replica) for replica in REPLICAS)
    assert first is not None
    assert second is not None
    assert third is not None
    task = second.parent()
    assert task is not None
    task.terminate()
    wait_until(lambda: not second.is_running())
    assert first.is_running()
    assert third.is_running()
    states, log = group.end(running)
    assert states == DONE, log
    assert "Airflow ended the task" in log
    assert group.job.texts() == [f"row {index}" for index in range(90)]
    # The record that was being made may have been made twice.
    assert group.job.generations().total() <= 91


@pytest.mark.parametrize("inline_bytes", [65536, 10], ids=["inline", "staged"])
def test_the_users_text_is_in_no_table_and_no_log(group: Group, inline_bytes: int) -> None:
    prompts = [f"PRIVATE {index}" for index in range(7)]
    request = {"content": {"prompts": prompts, "max_new_tokens": 100_000, "temperature": 0}}
    states, log = group.run(
        "run",
        TEST_REQUEST=json.dumps(request),
        AIRFLOW__LLMENGINE__MAX_INLINE_CONTENT_BYTES=str(inline_bytes),
        AIRFLOW__CORE__COMPRESS_SERIALIZED_DAGS="False",
    )
    assert states == DONE, log
    assert [element["text"] for element in json.loads(group.job.output.read_text())] == prompts
    assert {"serialized_dag", "rendered_task_instance_fields"} == set(group.tables_with("7 prompts, not shown"))
    assert not group.tables_with("PRIVATE")
    assert "PRIVATE" not in log
