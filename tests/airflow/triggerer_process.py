"""A real triggerer, which tests start, kill, and start again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

HEALTH_SECONDS = "5"
"""So long after its last sign of life a triggerer counts as dead, and another one takes over its triggers."""


class Triggerer:
    """Airflow's triggerer over a metadata database.

    Args:
        environment: Of its process, with AIRFLOW_HOME.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {
            **environment,
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": HEALTH_SECONDS,
        }
        self._log = Path(environment["AIRFLOW_HOME"]) / "triggerer.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, if it does not run."""
        if self._process is not None and self._process.poll() is None:
            return
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(Path(sys.executable).parent / "airflow"), "triggerer", "--skip-serve-logs"],
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self) -> None:
        """End it in order, as a deployment does."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it and the process in which its triggers run."""
        self._end(signal.SIGKILL)

    def log(self) -> str:
        """What it said itself; what its triggers say is in the logs of their tasks."""
        return self._log.read_text() if self._log.exists() else ""

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        if number == signal.SIGTERM:
            self._process.terminate()
            try:
                self._process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                number = signal.SIGKILL
        if number == signal.SIGKILL:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
