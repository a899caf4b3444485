"""Running one worker process on this machine: start it, pass its log on, stop it in time, and leave nothing behind.

The worker is a session of its own, so that signals meant for the task don't reach its engine: it is signalled alone
and shuts its engine down itself. What holds it on a leash instead is a pipe: when this process dies, however it dies,
the pipe ends, and the worker saves and ends itself and its group.

Everything happens in the caller's thread. Airflow calls ``on_kill`` in a signal handler in that very thread, so
``stop`` takes no lock.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import psutil

POLL_SECONDS = 0.2
"""How often the worker is looked at while it is silent."""

DRAIN_SECONDS = 2.0
"""How long to read on after the worker's end, should a process that it left hold its output open."""

LINE_LIMIT = 1 << 20
"""Longer lines are cut."""

CONTROL_LINE_LIMIT = 60_000
"""Bytes that certainly fit into a pipe before anybody reads it."""


@dataclass(frozen=True, slots=True)
class WorkerOutcome:
    """How a worker ended."""

    exit_code: int
    """Its exit code, or minus the number of the signal that killed it."""
    killed: bool
    """Whether it had to be killed because its grace was over."""
    last_line: str
    """The last line on its standard output; empty when there was none."""
    last_error: str
    """The message of its last log line at ERROR or above; empty when there was none."""


class LocalWorker:
    """One worker process. ``run`` is called once; ``stop`` at any time, also from a signal handler.

    Args:
        command: The worker's command line.
        request: What it reads on standard input.
        storage_options: What it reads as the first line of the control pipe; never seen in its arguments, its
            environment or a file.
        environment: All of its environment variables.
        grace_seconds: How long it may take to end after ``stop``.
        log: Takes a log line: its level and its text.
        inherited: File descriptors that it gets as well, for example a lock that it must hold.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        request: bytes,
        storage_options: Mapping[str, Mapping[str, Any]],
        environment: Mapping[str, str],
        grace_seconds: float,
        log: Callable[[int, str], None],
        inherited: Sequence[int] = (),
    ) -> None:
        self._command = list(command)
        self._request = request
        self._control_line = (json.dumps({"storage_options": storage_options}) + "\n").encode()
        if len(self._control_line) > CONTROL_LINE_LIMIT:
            raise ValueError(f"storage_options take more than {CONTROL_LINE_LIMIT} bytes as JSON")
        self._environment = dict(environment)
        self._grace_seconds = grace_seconds
        self._log = log
        self._inherited = tuple(inherited)
        self._pid: int | None = None
        self._stop_requested = False
        self._kill_at: float | None = None
        self._killed = False
        self._last_line = ""
        self._last_error = ""

    @property
    def pid(self) -> int | None:
        """The worker's process id, and that of its group, while it runs."""
        return self._pid

    @property
    def stop_requested(self) -> bool:
        """Whether somebody asked to stop."""
        return self._stop_requested

    def stop(self) -> None:
        """Ask the worker to save its work and end; ``run`` then returns within the grace."""
        self._stop_requested = True

    def run(self) -> WorkerOutcome:
        """Run the worker to its end. Nothing of it is left when this returns or raises, whatever is raised.

        Raises:
            OSError: The command can't be started.
        """
        control_reader, control_writer = os.pipe()
        try:
            try:
                os.write(control_writer, self._control_line)
                process = self._start(control_reader)
            finally:
                os.close(control_reader)
            with process:
                try:
                    self._attend(process)
                finally:
                    self._end(process)
        finally:
            # Its end alone ends a worker that an exception kept from being known here.
            os.close(control_writer)
        return WorkerOutcome(process.returncode, self._killed, self._last_line, self._last_error)

    def _start(self, control_reader: int) -> subprocess.Popen[bytes]:
        # Not a pipe: a request of any size is there at once, and nobody waits for somebody who doesn't read.
        with tempfile.TemporaryFile() as request:
            request.write(self._request)
            request.seek(0)
            process = subprocess.Popen(
                [*self._command, "--control-fd", str(control_reader)],
                stdin=request,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment,
                pass_fds=(control_reader, *self._inherited),
                start_new_session=True,
            )
        self._pid = process.pid
        return process

    def _attend(self, process: subprocess.Popen[bytes]) -> None:
        """Pass on what the worker says until it has ended, and stop it when that is asked for."""
        with _Output(process, self._take_stdout_line, self._take_log_line) as output:
            while not _has_ended(process.pid):
                output.read(POLL_SECONDS)
                self._enforce_stop(process.pid)
            # What it left could hold its output open, and the GPU.
            _kill_group(process.pid)
            output.read_rest(DRAIN_SECONDS)

    def _enforce_stop(self, pid: int) -> None:
        if not self._stop_requested:
            return
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._grace_seconds
            os.kill(pid, signal.SIGTERM)
        elif time.monotonic() >= self._kill_at:
            self._killed = True
            _kill_group(pid)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Make sure that it is over, also when an exception, such as a timeout of the task, came between."""
        try:
            if not _has_ended(process.pid):
                self._stop_requested = True
                self._attend(process)
        finally:
            # Before the leader is reaped, so that its number can't be anybody else's yet.
            _kill_group(process.pid)
            self._pid = None
            process.wait()

    def _take_stdout_line(self, line: str) -> None:
        self._last_line = line

    def _take_log_line(self, line: str) -> None:
        level, message = parse_log_line(line)
        if level >= logging.ERROR:
            self._last_error = message
        self._log(level, message)


class _Output:
    """The worker's standard output and error, read as they come and cut into lines."""

    def __init__(
        self, process: subprocess.Popen[bytes], take_stdout: Callable[[str], None], take_stderr: Callable[[str], None]
    ) -> None:
        self._selector = selectors.DefaultSelector()
        for stream, take in ((process.stdout, take_stdout), (process.stderr, take_stderr)):
            if stream is not None:
                self._selector.register(stream, selectors.EVENT_READ, _LineReader(stream.fileno(), take))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._selector.close()

    def read(self, timeout: float) -> bool:
        """Read what is there, or comes within so many seconds; False once both are at their end."""
        if not self._selector.get_map():
            time.sleep(timeout)
            return False
        for key, _events in self._selector.select(timeout):
            if not key.data.read():
                self._selector.unregister(key.fileobj)
        return True

    def read_rest(self, seconds: float) -> None:
        """Read to the end, but no longer than so many seconds."""
        ends_at = time.monotonic() + seconds
        while self._selector.get_map() and time.monotonic() < ends_at:
            self.read(POLL_SECONDS)


class _LineReader:
    """Cuts what comes out of a pipe into lines, without ever waiting for the rest of one."""

    def __init__(self, descriptor: int, take: Callable[[str], None]) -> None:
        self._descriptor = descriptor
        self._take = take
        self._rest = b""

    def read(self) -> bool:
        """Read what is there; False at the end."""
        data = os.read(self._descriptor, 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_LIMIT or not data:
            lines.append(self._rest[:LINE_LIMIT])
            self._rest = b""
        for line in lines:
            text = line.decode("utf-8", "replace").rstrip("\r")
            if text:
                self._take(text)
        return bool(data)


def parse_log_line(line: str) -> tuple[int, str]:
    """Level and message of a line of the worker's log.

    A line that is not the worker's own comes from a library, and may quote a prompt: it is for DEBUG.
    """
    try:
        record = json.loads(line)
        if not str(record["logger"]).startswith("airflow_llmengine"):
            return logging.DEBUG, line
        level = logging.getLevelNamesMapping()[str(record["level"]).upper()]
        message = str(record["message"])
    except (ValueError, TypeError, KeyError):
        return logging.DEBUG, line
    return level, message


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _has_ended(pid: int) -> bool:
    """Whether a child has ended. It is not reaped, so that its number still means it."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
