"""Stopping in time: who asks for it, how long there is, and the last hand that ends the process when it is over."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from enum import StrEnum

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.worker.early_signals import STOPPING_SIGNALS, signal_pipe
from airflow_llmengine.worker.logs import log_end

logger = logging.getLogger(__name__)


LAST_WORDS_SECONDS = 3.0
"""How long a process that is ended with nothing to save may take to say so."""


class StopReason(StrEnum):
    """Why a worker stops before everything is done."""

    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"
    LAUNCHER_GONE = "launcher gone"
    SUPERSEDED = "superseded"
    REPLACED = "replaced"
    FINISHED = "finished"
    FILES_GONE = "files gone"
    TOO_MANY_FAILED_RECORDS = "too many failed records"
    FAILING = "failing records"
    ENGINE_DIED = "engine died"
    NODE_GONE = "node gone"
    STORAGE_UNREACHABLE = "storage unreachable"
    STORAGE_REFUSED = "storage refused"

    @property
    def exit_code(self) -> ExitCode:
        """How the process ends for this reason."""
        return {
            StopReason.TOO_MANY_FAILED_RECORDS: ExitCode.TOO_MANY_FAILED_RECORDS,
            StopReason.ENGINE_DIED: ExitCode.ENGINE_DIED,
            StopReason.NODE_GONE: ExitCode.ENGINE_DIED,
            StopReason.STORAGE_UNREACHABLE: ExitCode.STORAGE_UNREACHABLE,
            StopReason.STORAGE_REFUSED: ExitCode.BAD_REQUEST,
            StopReason.FINISHED: ExitCode.DONE,
        }.get(self, ExitCode.PARTIAL)


class Stop:
    """The one switch that ends a worker early. The first reason stands; a later one can only shorten the time.

    All that came are in ``reasons``. Until ``saving_starts`` is called there is nothing to save, and a stop ends the
    process at once, even while the main thread is busy loading a model.

    Args:
        end: Ends this process with an exit code, when there is no time left or nothing to save.
    """

    def __init__(self, end: Callable[[ExitCode], None] | None = None) -> None:
        self._end = end or end_process
        self.reason: StopReason | None = None
        self.reasons: set[StopReason] = set()
        self.message = ""
        self._ends_at = float("inf")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event: asyncio.Event | None = None
        self._lock = threading.Condition()
        self._saving = False
        self._watchdog: threading.Thread | None = None
        self._deadline: threading.Timer | None = None
        self._closed = False
        self._last_words: Callable[[], None] | None = None

    def is_requested(self) -> bool:
        """Whether somebody asked to stop."""
        return self.reason is not None

    @property
    def seconds_left(self) -> float:
        """Seconds until the process is ended from outside or by the watchdog; infinite if nobody asked to stop."""
        return self._ends_at - time.monotonic()

    def saving_starts(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on there is work to save: a stop is told to ``wait`` instead of ending the process at once."""
        with self._lock:
            self._loop = loop
            self._event = asyncio.Event()
            self._saving = True
            if self.is_requested():
                self._event.set()

    def say_last(self, last_words: Callable[[], None]) -> None:
        """What to do if the process is ended before its work was saved; it gets a few seconds, in another thread."""
        self._last_words = last_words

    def finished(self) -> None:
        """The work is saved: the watchdog stands down."""
        with self._lock:
            self._ends_at = float("inf")
            self._saving = True
            self._lock.notify_all()

    def end_at_deadline(self, seconds: float, message: str) -> None:
        """End the process in so many seconds, whatever the main thread is busy with then."""
        self._deadline = threading.Timer(
            max(0.0, seconds), self.request, (StopReason.DEADLINE, message), {"seconds": 0.0}
        )
        self._deadline.daemon = True
        self._deadline.start()

    def close(self) -> None:
        """Nothing is left to stop: neither the deadline nor the watchdog ends the process any more."""
        with self._lock:
            self._closed = True
            if self._deadline is not None:
                self._deadline.cancel()
            self._lock.notify_all()

    async def wait(self) -> None:
        """Return once a stop is asked for. Only after ``saving_starts``."""
        if self._event is None:
            raise RuntimeError("wait() was called before saving_starts()")
        await self._event.wait()

    def request(self, reason: StopReason, message: str, *, seconds: float = float("inf")) -> None:
        """Ask to stop; from any thread.

        Args:
            reason: Why.
            message: One sentence for the log and the exception.
            seconds: How long the worker has to save; then the process is ended.
        """
        with self._lock:
            self.reasons.add(reason)
            first = self.reason is None
            if first:
                self.reason, self.message = reason, message
                logger.warning("stopping: %s", message)
            self._ends_at = min(self._ends_at, time.monotonic() + seconds)
            saving = self._saving
            if saving and self._loop is not None and self._event is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._event.set)
            if self._watchdog is None and not self._closed:
                self._watchdog = threading.Thread(target=self._watch, name="stop-watchdog", daemon=True)
                self._watchdog.start()
            self._lock.notify_all()

    def _watch(self) -> None:
        with self._lock:
            while not self._closed and self._saving and self._ends_at > time.monotonic():
                left = self._ends_at - time.monotonic()
                self._lock.wait(None if left == float("inf") else left)
            if self._closed:
                return
            reason, message = self.reason, self.message
        if self._last_words is not None:
            speaker = threading.Thread(target=self._last_words, name="last-words", daemon=True)
            speaker.start()
            speaker.join(max(0.0, min(LAST_WORDS_SECONDS, self.seconds_left)))
        log_end(logger, message)
        self._end((reason or StopReason.TERMINATED).exit_code)


def end_process(exit_code: ExitCode) -> None:
    """End this process now, and the processes that it started."""
    for child in multiprocessing.active_children():
        child.kill()
    logging.shutdown()
    os._exit(exit_code)


def watch_signals(stop: Stop, grace_seconds: float) -> None:
    """Turn SIGTERM, SIGINT and SIGHUP into a stop, in a thread of its own: the main thread may be busy loading a model.

    Args:
        stop: The switch.
        grace_seconds: How long after the signal the process may live (Kubernetes' termination grace period). A tenth
            of it is kept in hand.
    """
    reader = signal_pipe()

    def watch() -> None:
        while data := os.read(reader, 1):
            if data[0] in STOPPING_SIGNALS:
                stop.request(
                    StopReason.TERMINATED,
                    f"got {signal.Signals(data[0]).name}; what is finished is kept",
                    seconds=0.9 * grace_seconds,
                )

    threading.Thread(target=watch, name="signals", daemon=True).start()
