"""The launcher ``local``: from a launched job to a worker process on this machine, and how that ended."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_llmengine.exceptions import KEPT, ConnectionUnusableError, DeadlineExceededError, TaskKilledError
from airflow_llmengine.hooks.leftovers import WorkerMark, end_leftovers
from airflow_llmengine.hooks.local_worker import LocalWorker, WorkerOutcome
from airflow_llmengine.hooks.worker_attempt import WORKER_MODULE, WorkerAttempt
from airflow_llmengine.hooks.worker_slots import (
    NoFreeSlotError,
    SlotDirectoryError,
    WorkerSlot,
    runtime_directory,
    take_slot,
)

if TYPE_CHECKING:
    from airflow_llmengine.hooks.connection_settings import ConnectionSettings

PRIVATE_VARIABLES = ("AIRFLOW_", "_AIRFLOW_", "__AIRFLOW_")
"""Airflow's own environment: it holds connections, keys and the metadata database's address, and is not passed on."""


def worker_environment(settings: ConnectionSettings) -> dict[str, str]:
    """The worker's environment: the task's own without what is Airflow's, and what the connection adds."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PRIVATE_VARIABLES)}
    return {**inherited, **settings.worker_environment, "LLMENGINE_ENGINE": settings.engine}


def mark_of(attempt: WorkerAttempt) -> WorkerMark:
    """What the processes of an attempt's worker carry."""
    return WorkerMark(attempt.handle.path, attempt.replica, attempt.series)


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

    def run(
        self, attempt: WorkerAttempt, *, request: bytes, storage_options: Mapping[str, Mapping[str, Any]]
    ) -> WorkerOutcome:
        """Run a worker to its end. One that needs an engine waits for a free slot of this machine first.

        Args:
            attempt: What it is told.
            request: The request as JSON: the user's text.
            storage_options: Options of fsspec by protocol, credentials included.

        Raises:
            TaskKilledError: ``stop`` was called before the worker was started.
            DeadlineExceededError: No slot was free in time.
            ConnectionUnusableError: The worker can't be started on this machine.
        """
        if attempt.replica is None:
            return self._work(attempt, request, storage_options)
        slot = self._take_slot(attempt)
        try:
            return self._work(attempt, request, storage_options, inherited=(slot.fileno(),))
        finally:
            slot.release()

    def _take_slot(self, attempt: WorkerAttempt) -> WorkerSlot:
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

    def _work(
        self,
        attempt: WorkerAttempt,
        request: bytes,
        storage_options: Mapping[str, Mapping[str, Any]],
        inherited: Sequence[int] = (),
    ) -> WorkerOutcome:
        mark = mark_of(attempt)
        try:
            self._worker = LocalWorker(
                [self._python, "-m", WORKER_MODULE, *attempt.arguments("-", grace_seconds=self._grace_seconds)],
                request=request,
                storage_options=storage_options,
                environment={**worker_environment(self._settings), **mark.environment()},
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
            end_leftovers(mark, grace_seconds=0, check=lambda: None, log=self._warn)

    @property
    def _python(self) -> str:
        return self._settings.python or sys.executable

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
