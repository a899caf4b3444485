"""The launcher ``local``: from a launched job to a worker process on this machine, and how that ended."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_llmengine.exceptions import KEPT, ConnectionUnusableError, DeadlineExceededError, TaskKilledError
from airflow_llmengine.hooks.leftovers import WorkerMark, end_leftovers
from airflow_llmengine.hooks.local_worker import LocalWorker, WorkerOutcome
from airflow_llmengine.hooks.worker_slots import NoFreeSlotError, SlotDirectoryError, runtime_directory, take_slot

if TYPE_CHECKING:
    from airflow_llmengine.hooks.connection_settings import ConnectionSettings

WORKER_MODULE = "airflow_llmengine.worker"

PRIVATE_VARIABLES = ("AIRFLOW_", "_AIRFLOW_", "__AIRFLOW_")
"""Airflow's own environment: it holds connections, keys and the metadata database's address, and is not passed on."""


def require_local_launcher(settings: ConnectionSettings) -> None:
    """Refuse a launcher that this version does not have.

    Raises:
        ConnectionUnusableError: It is not ``local``.
    """
    if settings.launcher != "local":
        raise ConnectionUnusableError(
            f"The launcher {settings.launcher} is not available in this version: set the connection's field launcher "
            "to local."
        )


def worker_environment(settings: ConnectionSettings) -> dict[str, str]:
    """The worker's environment: the task's own without what is Airflow's, and what the connection adds."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PRIVATE_VARIABLES)}
    return {**inherited, **settings.worker_environment, "LLMENGINE_ENGINE": settings.engine}


@dataclass(frozen=True, slots=True, repr=False)
class LocalAttempt:
    """What one attempt runs. Has no repr: it holds the user's text and credentials."""

    output: str
    """The job's ``output_data_path``, as its handle names it."""
    owner: str
    series: str
    request: bytes
    """The request as JSON."""
    storage_options: Mapping[str, Mapping[str, Any]]
    deadline: float
    """Seconds since the epoch after which nothing may run."""
    max_error_rate: float | None


class LocalLauncher:
    """Runs a job's only replica on this machine. ``stop`` may be called at any time, also from a signal handler.

    Args:
        settings: The connection.
        grace_seconds: How long a worker may take to save its work.
        runtime_directory: Directory of the lock files; empty for the default one.
        log: Takes a log line: its level and its text.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        *,
        grace_seconds: int,
        runtime_directory: str,
        log: Callable[[int, str], None],
    ) -> None:
        require_local_launcher(settings)
        self._settings = settings
        self._grace_seconds = grace_seconds
        self._runtime_directory = runtime_directory
        self._log = log
        self._worker: LocalWorker | None = None
        self._stopped = False

    def stop(self) -> None:
        """Stop waiting, or stop the worker, which saves its work."""
        self._stopped = True
        if self._worker is not None:
            self._worker.stop()

    def end_leftovers(self, output: str, series: str) -> None:
        """End what an earlier attempt of this job left running on this machine, and wait for it."""
        end_leftovers(
            WorkerMark(output, 0, series), grace_seconds=self._grace_seconds, check=self._check, log=self._warn
        )

    def run(self, attempt: LocalAttempt) -> WorkerOutcome:
        """Wait for a free slot of this machine, and run the worker to its end.

        Raises:
            TaskKilledError: ``stop`` was called before the worker was started.
            DeadlineExceededError: No slot was free in time.
            ConnectionUnusableError: The worker can't be started on this machine.
        """
        mark = WorkerMark(attempt.output, 0, attempt.series)
        try:
            slot = take_slot(
                self._directory(),
                self._settings.local_workers,
                holder=f"{attempt.owner} (process {os.getpid()})",
                deadline=attempt.deadline,
                check=self._check,
                log=self._inform,
            )
        except NoFreeSlotError as error:
            raise DeadlineExceededError(
                f"max_runtime_sec ran out while the job waited for its turn on this machine. {KEPT}. Raise "
                "max_runtime_sec or the connection's local_workers, or spread the jobs; then clear the task."
            ) from error
        except SlotDirectoryError as error:
            raise ConnectionUnusableError(str(error)) from error
        try:
            self._worker = LocalWorker(
                self._command(attempt),
                request=attempt.request,
                storage_options=attempt.storage_options,
                environment={**worker_environment(self._settings), **mark.environment()},
                grace_seconds=self._grace_seconds,
                log=self._log,
                inherited=(slot.fileno(),),
            )
            self._check()
            return self._worker.run()
        except OSError as error:
            raise ConnectionUnusableError(
                f"The worker can't be started with {self._python} ({error.strerror}): correct the connection's field "
                "python, and press Test."
            ) from error
        finally:
            self._worker = None
            slot.release()
            # Nothing that left the worker's process group stays either.
            end_leftovers(mark, grace_seconds=0, check=lambda: None, log=self._warn)

    @property
    def _python(self) -> str:
        return self._settings.python or sys.executable

    def _command(self, attempt: LocalAttempt) -> list[str]:
        command = [
            self._python,
            "-m",
            WORKER_MODULE,
            "run",
            "-",
            "--launched",
            f"--owner={attempt.owner}",
            f"--series={attempt.series}",
            f"--grace-seconds={self._grace_seconds}",
            "--log-format=json",
        ]
        if attempt.max_error_rate is not None:
            command.append(f"--max-error-rate={attempt.max_error_rate!r}")
        return command

    def _directory(self) -> Path:
        return runtime_directory(self._runtime_directory)

    def _check(self) -> None:
        if self._stopped:
            raise TaskKilledError(
                f"The task was ended before its worker was started. {KEPT}; a retry, or clearing the task, goes on."
            )

    def _inform(self, message: str) -> None:
        self._log(logging.INFO, message)

    def _warn(self, message: str) -> None:
        self._log(logging.WARNING, message)
