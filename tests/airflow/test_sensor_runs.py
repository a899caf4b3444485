"""The sensor under a real Airflow, in each of its modes, and its trigger in a real triggerer."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.hooks.job_summary import summary
from airflow_llmengine.hooks.llmengine import LLMEngineHook
from tests.airflow.operators_in_tests import connection
from tests.storage.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from tests.waiting import wait_until
from tests.worker.jobs import Job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
SLOW = {"LLMENGINE_ECHO_SECONDS_PER_RECORD": "0.2", "LLMENGINE_ECHO_CAPACITY": "1"}


class Airflow:
    """An Airflow with a database of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.xcom = home / "xcom.json"
        self.environment = os.environ | {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(HERE / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
            "AIRFLOW_CONN_LLMENGINE_DEFAULT": connection(),
            "TEST_XCOM": str(self.xcom),
        }

    def sense(self, **sensor: Any) -> None:
        """How the sensor waits."""
        self.environment["TEST_SENSOR"] = json.dumps({"poke_interval": 0.5, **sensor})

    def call(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300
        )
        return done.stdout

    def airflow(self, *arguments: str) -> str:
        return self.call(str(Path(sys.executable).parent / "airflow"), *arguments)

    def test_dag(self, once: str = "", then: Callable[[], object] = lambda: None) -> str:
        """Run the DAG as `airflow dags test` does; gives what was printed.

        Args:
            once: Words to wait for in what is printed.
            then: What to do when they are there.
        """
        printed = self.home / "printed.log"
        with printed.open("w") as log:
            command = [str(Path(sys.executable).parent / "airflow"), "dags", "test", "wait_for_job"]
            process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
            try:
                wait_until(lambda: once in printed.read_text() or process.poll() is not None)
                then()
                process.wait(timeout=300)
            finally:
                process.kill()
        return printed.read_text()

    def task(self, command: str, task_id: str = "wait") -> str:
        """One step of a task, in the places of the scheduler and of an executor."""
        return self.call(sys.executable, str(HERE / "task_process.py"), command, "wait_for_job", task_id, "run-1")

    @contextmanager
    def triggerer(self) -> Iterator[None]:
        """A real triggerer, as long as this lasts."""
        command = [str(Path(sys.executable).parent / "airflow"), "triggerer", "--skip-serve-logs"]
        with (self.home / "triggerer.log").open("w") as log:
            process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, start_new_session=True)
            try:
                yield
            finally:
                process.terminate()
                try:
                    process.wait(timeout=30)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def triggerers_log(self) -> str:
        return (self.home / "triggerer.log").read_text()

    def triggers_log(self) -> str:
        """What the trigger has logged into the log of its task, as the UI shows it."""
        return "".join(path.read_text() for path in (self.home / "logs").rglob("task_id=wait/*.trigger.*.log"))

    def rows(self, query: str) -> list[Any]:
        with closing(sqlite3.connect(self.home / "airflow.db", timeout=30)) as database:
            return database.execute(query).fetchall()

    def state(self) -> str:
        rows = self.rows("SELECT state FROM task_instance WHERE task_id = 'wait'")
        return str(rows[0][0]) if rows else "none"

    def xcoms(self) -> dict[str, Any]:
        rows = self.rows("SELECT key, json(value) FROM xcom WHERE task_id = 'wait'")
        return {key: json.loads(value) for key, value in rows}


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    airflow = Airflow(tmp_path_factory.mktemp("airflow"))
    airflow.airflow("db", "migrate")
    return (airflow.home / "airflow.db").read_bytes()


@pytest.fixture
def airflow(tmp_path: Path, migrated: bytes, monkeypatch: pytest.MonkeyPatch) -> Airflow:
    home = tmp_path / "airflow"
    home.mkdir()
    (home / "airflow.db").write_bytes(migrated)
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection())
    return Airflow(home)


class RunningJob(Job):
    """A job whose worker is at work."""

    def begin(self) -> None:
        self.worker = self.start(**SLOW)
        wait_until(lambda: self.generations().total() >= 1)

    def end(self) -> None:
        self.worker.kill()
        self.worker.communicate()

    def finish(self) -> None:
        """Do what a launcher does after a worker that stopped: start another, which is quick."""
        self.worker.terminate()
        self.worker.communicate(timeout=60)
        assert self.run().returncode == 0

    @property
    def handle(self) -> dict[str, Any]:
        handle = LLMEngineHook().get(str(self.output)).handle
        assert handle is not None
        return handle.model_dump(mode="json")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningJob]:
    """It will take minutes."""
    job = RunningJob(tmp_path, [f"row {index}" for index in range(2000)])
    job.begin()
    yield job
    job.end()


@pytest.mark.parametrize(
    "mode", [{}, {"mode": "reschedule"}, {"deferrable": True}], ids=["poke", "reschedule", "deferrable"]
)
def test_each_mode_waits_for_a_running_job(airflow: Airflow, running: RunningJob, mode: dict[str, Any]) -> None:
    airflow.sense(job=running.handle, **mode)
    printed = airflow.test_dag(once="1 replica at work", then=running.finish)
    assert airflow.state() == "success", printed
    result, path = json.loads(airflow.xcom.read_text())
    assert result == summary(running.manifest())
    assert path == str(running.output)
    assert "1 replica at work" in printed
    if "deferrable" in mode:
        assert "running trigger in line" in printed
    if "mode" in mode:
        assert "UP_FOR_RESCHEDULE" in printed


@pytest.mark.parametrize(
    "mode", [{}, {"mode": "reschedule"}, {"deferrable": True}], ids=["poke", "reschedule", "deferrable"]
)
def test_each_mode_can_skip_past_the_deadline(airflow: Airflow, running: RunningJob, mode: dict[str, Any]) -> None:
    airflow.sense(job=str(running.output), max_runtime_sec=1, soft_fail=True, retries=3, **mode)
    printed = airflow.test_dag()
    assert airflow.state() == "skipped", printed
    assert "did not end by its deadline" in printed
    wait_until(lambda: LLMEngineHook().get(str(running.output)).state == "stopped")
    assert not running.output.exists()


def add_connections(airflow: Airflow, s3: S3Server) -> None:
    """Connections in the metadata database only: the triggerer has to ask for them."""
    storage = {
        "conn_type": "aws",
        "login": ACCESS_KEY,
        "password": SECRET_KEY,
        "extra": {"endpoint_url": s3.endpoint, "region_name": "us-east-1"},
    }
    del airflow.environment["AIRFLOW_CONN_LLMENGINE_DEFAULT"]
    ours = connection(storage_conn_id="storage")
    for name, value in (("llmengine_default", ours), ("storage", json.dumps(storage))):
        printed = airflow.airflow("connections", "add", name, "--conn-json", value)
        assert "Successfully added" in printed, printed


@pytest.fixture
def s3() -> Iterator[S3Server]:
    with S3Server.running() as server:
        yield server


@pytest.mark.scheduler
def test_a_job_on_s3_is_waited_for_in_a_real_triggerer(airflow: Airflow, s3: S3Server, tmp_path: Path) -> None:
    storage_options = {"s3": s3.options}
    path = f"s3://{s3.new_bucket()}/out/answers.json"
    add_connections(airflow, s3)
    airflow.sense(job=path, deferrable=True, retries=0)
    printed = airflow.task("run")
    assert airflow.state() == "deferred", printed
    with airflow.triggerer():
        wait_until(lambda: "Nothing was launched there yet" in airflow.triggers_log())
        run_on_s3(path, storage_options, tmp_path)
        wait_until(lambda: airflow.state() == "scheduled")
    printed = airflow.task("resume")
    assert airflow.state() == "success", printed
    xcoms = airflow.xcoms()
    assert xcoms["return_value"]["records"] == 3
    assert xcoms["output_data_path"] == path
    assert set(xcoms) == {"return_value", *xcoms["return_value"]}
    assert xcoms["return_value"]["job"] == xcoms["job"]
    everything = printed + airflow.triggers_log() + airflow.triggerers_log() + str(xcoms)
    assert SECRET_KEY not in everything
    assert ACCESS_KEY not in everything
    # The trigger's row is gone by now; what the task sent was in its log's event and in its kept state.
    assert SECRET_KEY not in str(airflow.rows("SELECT * FROM task_state_store"))


def run_on_s3(path: str, storage_options: dict[str, Any], folder: Path) -> None:
    """Run a job whose worker gets the credentials as a launcher gives them: through a pipe."""
    (folder / "input.jsonl").write_text('{"prompt": "row", "max_tokens": 4}\n' * 3)
    request = {
        "input_data_path": str(folder / "input.jsonl"),
        "output_data_path": path,
        "model_config": {"model": "stand-in"},
    }
    (folder / "request.json").write_text(json.dumps(request))
    reader, writer = os.pipe()
    os.write(writer, json.dumps({"storage_options": storage_options}).encode() + b"\n")
    worker = subprocess.run(
        [
            *(sys.executable, "-m", "airflow_llmengine.worker", "run", str(folder / "request.json")),
            *("--control-fd", str(reader)),
        ],
        env={**os.environ, "LLMENGINE_ENGINE": "echo"},
        pass_fds=(reader,),
        capture_output=True,
        timeout=120,
    )
    os.close(reader)
    os.close(writer)
    assert worker.returncode == 0, worker.stderr.decode()


@pytest.mark.scheduler
def test_a_sensor_starts_from_its_trigger_with_a_handle_from_another_task(
    airflow: Airflow, running: RunningJob
) -> None:
    airflow.environment["TEST_HANDLE"] = json.dumps(running.handle)
    airflow.sense(job="what launch returns", max_runtime_sec="{{ 1800 * 2 }}", start_from_trigger=True)
    airflow.task("run", "launch")
    printed = airflow.task("defer")
    assert airflow.state() == "deferred", printed
    with airflow.triggerer():
        wait_until(lambda: "1 replica at work" in airflow.triggers_log())
        running.finish()
        wait_until(lambda: airflow.state() == "scheduled")
    printed = airflow.task("resume")
    assert airflow.state() == "success", printed
    assert airflow.xcoms()["return_value"] == summary(running.manifest())


@pytest.mark.scheduler
def test_ending_a_deferred_sensor_leaves_the_job_alone(airflow: Airflow, running: RunningJob) -> None:
    airflow.sense(job=str(running.output), deferrable=True)
    airflow.task("run")
    with airflow.triggerer():
        wait_until(lambda: "1 replica at work" in airflow.triggers_log())
        airflow.task("fail")
        wait_until(lambda: "The job goes on: it belongs to whoever launched it" in airflow.triggers_log())
    status = LLMEngineHook().get(str(running.output))
    assert (status.state, status.cancelled) == ("running", None)
