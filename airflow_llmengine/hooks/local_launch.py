"""The launcher ``local``: from a launched job to a worker process on this machine, and how that ended."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_llmengine.exceptions import KEPT, ConnectionUnusableError, DeadlineExceededError, TaskKilledError
from airflow_llmengine.hooks.leftovers import WorkerMark, end_leftovers
from airflow_llmengine.hooks.local_worker import LocalWorker, WorkerOutcome
from airflow_llmengine.hooks.worker_slots import (
    NoFreeSlotError,
    SlotDirectoryError,
    WorkerSlot,
    runtime_directory,
    take_slot,
)

if TYPE_CHECKING:
    from airflow_llmengine.hooks.connection_settings import ConnectionSettings
    from airflow_llmengine.spec.job_state import JobHandle

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

    handle: JobHandle
    """What is joined: this generation, or none."""
    owner: str
    series: str
    request: bytes
    """The request as JSON."""
    storage_options: Mapping[str, Mapping[str, Any]]
    deadline: float
    """Seconds since the epoch after which nothing may run."""
    max_error_rate: float | None
    replica: int | None = 0
    """Which share is done; None: the shares that were done are put together."""
    replicas: int = 1
    launched_by: str = "the task"
    """What to clear for a new launch."""

    @property
    def mark(self) -> WorkerMark:
        """What its worker's processes carry."""
        return WorkerMark(self.handle.path, self.replica, self.series)


class LocalLauncher:
    """Runs a job's workers on this machine. ``stop`` may be called at any time, also from a signal handler.

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

    def end_leftovers(self, mark: WorkerMark) -> None:
        """End what an earlier attempt of this worker left running on this machine, and wait for it."""
        end_leftovers(mark, grace_seconds=self._grace_seconds, check=self._check, log=self._warn)

    def run(self, attempt: LocalAttempt) -> WorkerOutcome:
        """Run a worker to its end. One that needs an engine waits for a free slot of this machine first.

        Raises:
            TaskKilledError: ``stop`` was called before the worker was started.
            DeadlineExceededError: No slot was free in time.
            ConnectionUnusableError: The worker can't be started on this machine.
        """
        if attempt.replica is None:
            return self._work(attempt)
        slot = self._take_slot(attempt)
        try:
            return self._work(attempt, inherited=(slot.fileno(),))
        finally:
            slot.release()

    def _take_slot(self, attempt: LocalAttempt) -> WorkerSlot:
        try:
            return take_slot(
                self._directory(),
                self._settings.local_workers,
                holder=f"{attempt.owner} (process {os.getpid()})",
                deadline=attempt.deadline,
                check=self._check,
                log=self._inform,
            )
        except NoFreeSlotError as error:
            raise DeadlineExceededError(
                f"max_runtime_sec ran out while the job waited for its turn on this machine. {KEPT}. Raise it or the "
                f"connection's local_workers, or spread the jobs; then clear {attempt.launched_by}."
            ) from error
        except SlotDirectoryError as error:
            raise ConnectionUnusableError(str(error)) from error

    def _work(self, attempt: LocalAttempt, inherited: Sequence[int] = ()) -> WorkerOutcome:
        try:
            self._worker = LocalWorker(
                self._command(attempt),
                request=attempt.request,
                storage_options=attempt.storage_options,
                environment={**worker_environment(self._settings), **attempt.mark.environment()},
                grace_seconds=self._grace_seconds,
                log=self._log,
                inherited=inherited,
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
            # Nothing that left the worker's process group stays either.
            end_leftovers(attempt.mark, grace_seconds=0, check=lambda: None, log=self._warn)

    @property
    def _python(self) -> str:
        return self._settings.python or sys.executable

    def _command(self, attempt: LocalAttempt) -> list[str]:
        command = [
            self._python,
            "-m",
            WORKER_MODULE,
            "collect" if attempt.replica is None else "run",
            "-",
            f"--generation={attempt.handle.generation}",
            f"--owner={attempt.owner}",
            f"--grace-seconds={self._grace_seconds}",
            "--log-format=json",
        ]
        if attempt.replica is not None:
            command += [
                "--launched",
                f"--series={attempt.series}",
                f"--replica={attempt.replica}",
                f"--replicas={attempt.replicas}",
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
