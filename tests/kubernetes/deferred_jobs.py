"""Jobs in pods whose tasks are deferred, with a real triggerer beside them."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.airflow.started_tasks import StartedTask
from tests.airflow.triggerer_process import Triggerer
from tests.kubernetes.pod_jobs import PodJob
from tests.waiting import wait_until


class DeferredJob:
    """A job whose task, or tasks, are deferred while its pods work.

    Args:
        job: The job.
        triggerer: What waits meanwhile.
        dag_id: ``pod_job`` or ``pod_group``.
    """

    def __init__(self, job: PodJob, triggerer: Triggerer, dag_id: str) -> None:
        self.job = job
        self.triggerer = triggerer
        self.dag_id = dag_id
        self.home = Path(job.base_environment["AIRFLOW_HOME"])
        job.arguments |= {"deferrable": True, "poll_interval": 1, "retries": 2}

    def start(self, *commands: str) -> StartedTask:
        """Start the DAG's run, or do something to it beside; commands of ``tests/airflow/scheduler_process.py``."""
        return self.job.start_run(self.dag_id, *(commands or ("run",)))

    def state(self, task_id: str = "job", map_index: int = -1) -> str:
        rows = self.rows(
            "SELECT state FROM task_instance WHERE run_id = ? AND task_id = ? AND map_index = ?",
            self.job.run_id,
            task_id,
            map_index,
        )
        return str(rows[0][0]) if rows else "none"

    def pod_of(self, map_index: int) -> str:
        """The name of the pod that was made for a mapped task."""
        (name,) = {
            str(pod["metadata"]["name"])
            for pod in self.job.watch.seen
            if pod["metadata"]["labels"].get("map_index") == str(map_index)
        }
        return name

    def wait_for_state(self, state: str, task_id: str = "job", map_index: int = -1) -> None:
        self.wait_for(lambda: self.state(task_id, map_index) == state)

    def wait_for_trigger_log(self, words: str, times: int = 1) -> None:
        self.wait_for(lambda: self.trigger_log().count(words) >= times)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Look now and then: who looks all the time holds up S3, which is served by this process."""

        def looked() -> bool:
            time.sleep(0.5)
            return condition()

        wait_until(looked)

    def trigger_log(self) -> str:
        """What triggers have logged into the logs of this run's tasks, as the UI shows it."""
        logs = sorted((self.home / "logs" / f"dag_id={self.dag_id}" / f"run_id={self.job.run_id}").rglob("*.trigger.*"))
        return "".join(path.read_text() for path in logs)

    def kept(self) -> str:
        """What the metadata database has of triggers, and of what tasks are woken with."""
        triggers = self.rows("SELECT classpath, kwargs FROM trigger")
        return str(triggers + self.rows("SELECT next_kwargs FROM task_instance WHERE run_id = ?", self.job.run_id))

    def xcoms(self, task_id: str = "job") -> dict[str, Any]:
        query = "SELECT key, json(value) FROM xcom WHERE run_id = ? AND task_id = ?"
        return {key: json.loads(value) for key, value in self.rows(query, self.job.run_id, task_id)}

    def rows(self, query: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(self.home / "airflow.db", timeout=30)) as database:
            return database.execute(query, values).fetchall()

    def told(self) -> str:
        """All that anybody may see of the job."""
        return "\n".join([self.job.told(), self.trigger_log(), self.triggerer.log()])
