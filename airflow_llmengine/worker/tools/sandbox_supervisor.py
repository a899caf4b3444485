"""The process between the worker and an interpreter: starts it, shuts it off, watches it and ends it.

It is a process of its own so that it can act whatever the worker is busy with, and when the worker is gone: then its
input ends, and it kills the interpreter and removes the scratch folder. It has no environment and nothing of the
worker's memory, and never runs code itself. Each interpreter is a copy of it (fork), which takes milliseconds.

The interpreter's side of every pipe is in the hands of the code that it runs: it may write anything, or nothing, close
them, or stop itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import select
import signal
import struct
import sys
import time
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import FrameType
from typing import NoReturn

from airflow_llmengine.worker.tools.sandbox_interpreter import (
    CODE_DESCRIPTOR,
    DONE_DESCRIPTOR,
    OUTPUT_DESCRIPTORS,
    READY,
    SUCCEEDED,
    interpret,
)
from airflow_llmengine.worker.tools.sandbox_limits import SandboxLimits
from airflow_llmengine.worker.tools.sandbox_protocol import (
    ANSWER,
    CAN_NOT_SEAL,
    FAILED_RUN,
    FORGET,
    MAX_ERROR_BYTES,
    REQUEST,
    SUCCEEDED_RUN,
)
from airflow_llmengine.worker.tools.sandbox_seal import (
    CanNotSealError,
    end_with_parent,
    hide_memory,
    nobody_if_possible,
    seal,
)

__all__ = ["main"]

WATCH_SECONDS = 0.025
"""How often the scratch folder is looked at while code runs, in seconds."""

MOST_DESCRIPTORS = 1024
"""Above all descriptors of a supervisor, which inherits three and opens a few."""

SEAL_SECONDS = 60.0
"""How long a machine may be too busy to start an interpreter, in seconds."""


class _WorkerGoneError(Exception):
    """Nobody waits for an answer any more."""


def main() -> None:
    """Serve the worker at the other end of standard input and output until it closes them or ends.

    The arguments are the scratch folder, which must exist and is removed in the end, the limits, and the worker's
    process number.
    """
    scratch, limits, worker = sys.argv[1:4]
    signal.signal(signal.SIGTERM, _end)
    os.chdir(scratch)
    supervisor = _Supervisor(SandboxLimits.from_argument(limits))
    try:
        try:
            end_with_parent(int(worker), signal.SIGTERM)
            hide_memory()
            supervisor.serve()
        finally:
            # The worker's end comes as a signal and as the end of the input, a moment apart: the later of the two must
            # not break off what the earlier one began.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except _WorkerGoneError:
        pass
    finally:
        supervisor.forget()
        with contextlib.suppress(OSError):
            Path(scratch).rmdir()


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _WorkerGoneError


class _Interpreter:
    """One process, stopped but while it runs code; and the supervisor's ends of its pipes."""

    def __init__(self, pid: int, code: int, output: int, done: int) -> None:
        self.pid = pid
        self.code = code
        self.output = output
        self.done = done
        self.status: int | None = None

    def ended(self) -> bool:
        """Whether it has ended; its `status` is known then, and its number may be another process's."""
        if self.status is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = status if found else None
        return self.status is not None

    def close(self) -> None:
        """Kill it, if it is still there, and close the pipes."""
        if not self.ended():
            with contextlib.suppress(ProcessLookupError):  # It ended before it had a group of its own.
                os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        for descriptor in (self.code, self.output, self.done):
            os.close(descriptor)


class _Run:
    """What is known of one run so far."""

    def __init__(self) -> None:
        self.output = bytearray()
        self.error: str | None = None
        self.succeeded = False


class _Supervisor:
    def __init__(self, limits: SandboxLimits) -> None:
        self._limits = limits
        self._library = [folder for folder in sys.path if Path(folder).is_dir()]
        # Lists these folders, which the interpreter may not: what else is installed there is not its business.
        PathFinder.find_spec("no_module_has_this_name", self._library)
        _load_extensions(self._library)
        self._user = nobody_if_possible()
        if self._user is not None:
            os.chown(".", self._user, self._user)
        self._interpreter: _Interpreter | None = None

    def serve(self) -> None:
        while True:
            what, timeout, length = REQUEST.unpack(_read(REQUEST.size))
            if what == FORGET:
                self.forget()
                continue
            code = _read(length)
            if self._interpreter is not None and self._interpreter.ended():
                self.forget()  # The kernel may have taken its memory.
            try:
                interpreter = self._interpreter or self._start()
            except CanNotSealError as error:
                _answer(CAN_NOT_SEAL, str(error).encode()[:MAX_ERROR_BYTES])
                continue
            except OSError as error:
                # Not what the code printed: the machine has no more processes, say.
                _answer(CAN_NOT_SEAL, _can_not_start(error).encode())
                continue
            run = self._run(interpreter, code, timeout)
            if run.error is not None:
                # Whatever it is about to do, it does no more.
                self.forget()
                if run.output and not run.output.endswith(b"\n"):
                    run.output += b"\n"
                run.output += run.error.encode() + b"\n"
            _answer(SUCCEEDED_RUN if run.succeeded and run.error is None else FAILED_RUN, run.output)

    def forget(self) -> None:
        """End the interpreter and remove its files."""
        if self._interpreter is not None:
            self._interpreter.close()
            self._interpreter = None
        for entry in os.scandir("."):
            with contextlib.suppress(OSError):
                Path(entry.name).unlink()

    def _start(self) -> _Interpreter:
        code, code_writer = os.pipe()
        output, output_writer = os.pipe()
        done, done_writer = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_interpreter(parent, code, output_writer, done_writer)
        for descriptor in (code, output_writer, done_writer):
            os.close(descriptor)
        with contextlib.suppress(OSError):  # Whichever comes first; nobody may be ended or stopped with it.
            os.setpgid(pid, pid)
        interpreter = _Interpreter(pid, code_writer, output, done)
        for descriptor in (code_writer, output, done):
            os.set_blocking(descriptor, False)
        greeting = _read_when_there(done, SEAL_SECONDS)
        if greeting != READY:
            interpreter.close()
            message = greeting.decode("utf-8", "replace") or "The interpreter of a completion's code did not start."
            raise CanNotSealError(message)
        os.killpg(pid, signal.SIGSTOP)
        self._interpreter = interpreter
        return interpreter

    def _become_interpreter(self, parent: int, code: int, output: int, done: int) -> NoReturn:
        try:
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.setpgid(0, 0)
                code, output, done = (fcntl.fcntl(descriptor, fcntl.F_DUPFD, 20) for descriptor in (code, output, done))
                null = os.open(os.devnull, os.O_RDONLY)
                os.dup2(null, 0)
                for descriptor in OUTPUT_DESCRIPTORS:
                    os.dup2(output, descriptor)
                os.dup2(code, CODE_DESCRIPTOR)
                os.dup2(done, DONE_DESCRIPTOR)
                done = DONE_DESCRIPTOR
                os.closerange(DONE_DESCRIPTOR + 1, MOST_DESCRIPTORS)
                seal(self._limits, library=self._library, user=self._user, parent=parent)
            except CanNotSealError as error:
                os.write(done, str(error).encode())
                os._exit(1)
            except OSError as error:
                os.write(done, _can_not_start(error).encode())
                os._exit(1)
            for name in [name for name in sys.modules if name.partition(".")[0] == __name__.partition(".")[0]]:
                del sys.modules[name]
            os.environ.clear()
            os.write(DONE_DESCRIPTOR, READY)
            interpret()
        finally:
            # Nothing that the code left behind to be done at the end (atexit) is done.
            os._exit(1)

    def _run(self, interpreter: _Interpreter, code: bytes, timeout: float) -> _Run:
        run = _Run()
        self._limit_cpu(interpreter.pid, timeout)
        _read_available(interpreter.done)
        _read_available(interpreter.output)
        waiting = memoryview(struct.pack("<I", len(code)) + code)
        deadline = time.monotonic() + timeout
        look = 0.0
        os.killpg(interpreter.pid, signal.SIGCONT)
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(interpreter.output, select.POLLIN)
        poll.register(interpreter.done, select.POLLIN)
        poll.register(interpreter.code, select.POLLOUT)
        while run.error is None:
            events = dict(poll.poll(1000 * max(0.0, min(WATCH_SECONDS, deadline - time.monotonic()))))
            if 0 in events:
                raise _WorkerGoneError
            if interpreter.code in events:
                waiting = _write_some(interpreter.code, waiting)
                if not waiting:
                    poll.unregister(interpreter.code)
            if interpreter.output in events and not self._take_output(interpreter, run):
                poll.unregister(interpreter.output)
            if interpreter.done in events:
                self._finish(interpreter, run)
                return run
            now = time.monotonic()
            if now >= look:
                look = now + WATCH_SECONDS
                self._check_scratch(run)
            if now >= deadline and run.error is None:
                run.error = f"TimeoutError: the code ran for longer than {timeout:g} s"
        return run

    def _take_output(self, interpreter: _Interpreter, run: _Run) -> bool:
        """Read what is there; False when there will be no more."""
        data = _read_available(interpreter.output)
        run.output += data or b""
        if len(run.output) > self._limits.output_bytes:
            del run.output[self._limits.output_bytes :]
            run.error = f"OSError: more than {self._limits.output_bytes} bytes were printed"
        return data is not None

    def _finish(self, interpreter: _Interpreter, run: _Run) -> None:
        """The interpreter says that it is done, or says nothing any more."""
        said = _read_available(interpreter.done)
        if said is None:
            run.error = _how_it_ended(interpreter)
        else:
            # It computes nothing between runs, neither by timers nor by having lied.
            os.killpg(interpreter.pid, signal.SIGSTOP)
            run.succeeded = said == SUCCEEDED
        ended = run.error
        while run.error in (None, ended) and select.select([interpreter.output], [], [], 0)[0]:
            if not self._take_output(interpreter, run):
                break
        if run.error is None:
            self._check_scratch(run)

    def _check_scratch(self, run: _Run) -> None:
        files = size = 0
        for entry in os.scandir("."):
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                files += 1
                size += max(status.st_size, status.st_blocks * 512)
            if files > self._limits.scratch_files:
                run.error = f"OSError: more than {self._limits.scratch_files} files were written"
                return
        if size > self._limits.scratch_bytes:
            run.error = f"OSError: more than {self._limits.scratch_bytes} bytes were written to files"

    def _limit_cpu(self, pid: int, timeout: float) -> None:
        """Let the kernel end it by CPU time too, of which one thread can't use more than there is wall time."""
        # The number of a process's clock: MAKE_PROCESS_CPUCLOCK of the kernel's linux/posix-timers.h.
        used = time.clock_gettime(~pid << 3 | 2)
        seconds = int(used + timeout) + 2
        if self._user is None:
            _limit_cpu(pid, seconds)
            return
        # Limits of another user's process take a capability that root in a container seldom has; those of one's own
        # don't, and the real user decides.
        os.setresgid(self._user, -1, -1)
        os.setresuid(self._user, -1, -1)
        try:
            _limit_cpu(pid, seconds)
        finally:
            os.setresuid(0, -1, -1)
            os.setresgid(os.getegid(), -1, -1)


def _load_extensions(library: Sequence[str]) -> None:
    """Load the files of the library's extension modules, for the interpreter may map none; none is imported."""
    for folder in library:
        for path in Path(folder).glob("*.so"):
            with contextlib.suppress(OSError):  # What it needs isn't installed, as on machines without a display.
                ctypes.CDLL(str(path), mode=os.RTLD_LAZY)


def _limit_cpu(pid: int, seconds: int) -> None:
    _soft, hard = resource.prlimit(pid, resource.RLIMIT_CPU)
    resource.prlimit(
        pid, resource.RLIMIT_CPU, (seconds if hard == resource.RLIM_INFINITY else min(seconds, hard), hard)
    )


def _how_it_ended(interpreter: _Interpreter) -> str:
    # It closes its pipes a moment before it can be waited for; or it closed them and goes on.
    for _attempt in range(100):
        if interpreter.ended():
            break
        time.sleep(0.002)
    status = interpreter.status
    if status is None:
        return "OSError: the interpreter closed its pipes"
    if os.WIFEXITED(status):
        return f"SystemExit: the interpreter ended with exit status {os.WEXITSTATUS(status)}"
    ending = os.WTERMSIG(status)
    if ending == signal.SIGXCPU:
        return "TimeoutError: the code used more CPU time than it was given"
    if ending == signal.SIGKILL:
        return "MemoryError: the interpreter was killed"
    # Most of the real-time signals have no name.
    name = signal.Signals(ending).name if ending in set(signal.Signals) else f"signal {ending}"
    return f"SystemError: the interpreter was ended by {name}"


def _can_not_start(error: OSError) -> str:
    return f"An interpreter for a completion's code can't be started ({error.strerror})."


def _read(length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = os.read(0, length - len(data))
        if not part:
            raise _WorkerGoneError
        data += part
    return data


def _read_when_there(descriptor: int, seconds: float) -> bytes:
    if not select.select([descriptor], [], [], seconds)[0]:
        return b""
    return _read_available(descriptor) or b""


def _read_available(descriptor: int) -> bytes | None:
    """What is in a pipe, at most 64 KiB; None when its other end is closed and it is empty."""
    try:
        return os.read(descriptor, 65536) or None
    except BlockingIOError:
        return b""


def _write_some(descriptor: int, data: memoryview) -> memoryview:
    try:
        return data[os.write(descriptor, data) :]
    except BlockingIOError:
        return data
    except BrokenPipeError:
        return data[:0]


def _answer(kind: bytes, output: bytes | bytearray) -> None:
    data = ANSWER.pack(kind, len(output)) + output
    try:
        while data:
            data = data[os.write(1, data) :]
    except BrokenPipeError:
        raise _WorkerGoneError from None
