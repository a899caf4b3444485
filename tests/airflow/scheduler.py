"""A real scheduler, for a test that needs what only it does: backfills, runs by assets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
AIRFLOW = str(Path(sys.executable).parent / "airflow")


@contextmanager
def scheduler(environment: Mapping[str, str]) -> Iterator[Path]:
    """Run Airflow's scheduler over a metadata database, with tasks as ``in_process_executor`` runs them.

    DAGs must have been parsed (``airflow dags reserialize``): there is no DAG processor beside it.

    Args:
        environment: Of its process, with AIRFLOW_HOME.

    Yields:
        Its log, with those of its tasks.
    """
    log = Path(environment["AIRFLOW_HOME"]) / "scheduler.log"
    database = environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
    with log.open("ab") as file:
        process = subprocess.Popen(
            [AIRFLOW, "scheduler", "--skip-serve-logs"],
            env={
                **environment,
                "PYTHONPATH": os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")]).rstrip(os.pathsep),
                "AIRFLOW__CORE__EXECUTOR": "tests.airflow.in_process_executor.InProcessExecutor",
                "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "1",
                # Several processes write into one SQLite file.
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"{database}?timeout=60",
                "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
            },
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield log
        process.terminate()
        wait_until(lambda: process.poll() is not None, 60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
