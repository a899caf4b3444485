"""The worker's side of the sandbox: one supervisor's process for each completion that runs code.

Why no library: see docs/code_evaluator.md. What holds the code is in `sandbox_seal.py`, and nothing here or there is
skipped where it can't be had: then there is no sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import airflow_llmengine
from airflow_llmengine.worker.tools.code_runner import CodeOutput, SandboxUnavailableError
from airflow_llmengine.worker.tools.sandbox_limits import DEFAULT_LIMITS, MAX_CODE_BYTES, SandboxLimits
from airflow_llmengine.worker.tools.sandbox_protocol import (
    ANSWER,
    CAN_NOT_SEAL,
    FORGET,
    MAX_ERROR_BYTES,
    REQUEST,
    RUN,
    SUCCEEDED_RUN,
)

__all__ = ["SandboxedPython", "require_sandbox"]

SCRATCH_PREFIX = "llmengine-code-"

ANSWER_GRACE_SECONDS = 90.0
"""How long after a run's timeout, and a start, the supervisor may be silent: it is killed then, in seconds."""

END_SECONDS = 5.0
"""How long a supervisor may take to end once it is told to, in seconds."""

# Its own, which needs Linux, is imported nowhere else in the worker.
START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1));"
    " from airflow_llmengine.worker.tools.sandbox_supervisor import main; del sys.path[0]; main()"
)

ENVIRONMENT = {"PYTHONHASHSEED": "0"}
"""All of the supervisor's environment. Sets then have the same order in each run, so that code gives the same again."""


def require_sandbox() -> None:
    """See whether code can be shut off here; to be called before an engine is loaded.

    Raises:
        SandboxUnavailableError: It can't, with what the kernel or the pod lacks and what to do.
    """
    require_sandbox_of(DEFAULT_LIMITS, sys.executable)


def require_sandbox_of(limits: SandboxLimits, python: str) -> None:
    """See whether a `SandboxedPython` of these arguments runs here.

    Raises:
        SandboxUnavailableError: It doesn't.
    """
    if sys.platform != "linux":
        raise SandboxUnavailableError("Model-written code can be shut off on Linux only: run the worker there.")
    scratch = _make_scratch()
    try:
        with subprocess.Popen(
            _command(scratch, limits, python),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            start_new_session=True,
        ) as process:
            assert process.stdin is not None  # noqa: S101 - for mypy, as below
            assert process.stdout is not None  # noqa: S101
            assert process.stderr is not None  # noqa: S101
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(_request(b"6 * 7", ANSWER_GRACE_SECONDS))
                process.stdin.flush()
            header = process.stdout.read(ANSWER.size)
            kind, length = ANSWER.unpack(header) if len(header) == ANSWER.size else (b"", 0)
            text = process.stdout.read(length)
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            problem = process.stderr.read().decode("utf-8", "replace").strip()
    except OSError as error:
        raise SandboxUnavailableError(f"An interpreter for model-written code can't be started: {error}.") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if kind == CAN_NOT_SEAL:
        raise SandboxUnavailableError(text.decode("utf-8", "replace"))
    if (kind, text) != (SUCCEEDED_RUN, b"42\n"):
        reason = problem.splitlines()[-1] if problem else text.decode("utf-8", "replace").strip() or "it ended"
        raise SandboxUnavailableError(f"An interpreter for model-written code does not run here: {reason}.")


def _make_scratch() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX))
    except OSError as error:
        raise SandboxUnavailableError(
            f"Model-written code needs a folder to write to ({error.strerror}): mount an emptyDir at /tmp, or name a"
            f" folder in TMPDIR."
        ) from error


def _command(scratch: Path, limits: SandboxLimits, python: str) -> list[str]:
    root = Path(airflow_llmengine.__file__).parents[1]
    flags = ["-s", "-S", "-P", "-X", "utf8"]
    return [python, *flags, "-c", START, str(root), str(scratch), limits.to_argument(), str(os.getpid())]


def _request(code: bytes, timeout_seconds: float) -> bytes:
    return REQUEST.pack(RUN, timeout_seconds, len(code)) + code


@dataclass(frozen=True)
class _Supervisor:
    """A running supervisor."""

    process: asyncio.subprocess.Process
    scratch: Path

    @classmethod
    async def start(cls, limits: SandboxLimits, python: str) -> _Supervisor:
        scratch = _make_scratch()
        try:
            process = await asyncio.create_subprocess_exec(
                *_command(scratch, limits, python),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=ENVIRONMENT,
                start_new_session=True,
            )
        except BaseException as error:
            shutil.rmtree(scratch, ignore_errors=True)
            if isinstance(error, OSError):
                raise SandboxUnavailableError(f"An interpreter can't be started: {error.strerror}.") from error
            raise
        return cls(process, scratch)

    async def send(self, request: bytes) -> None:
        assert self.process.stdin is not None  # noqa: S101
        self.process.stdin.write(request)
        await self.process.stdin.drain()

    async def answer(self, limits: SandboxLimits) -> tuple[bytes, bytes]:
        """The answer to a run.

        Raises:
            EOFError: It has ended, or says what is no answer.
        """
        assert self.process.stdout is not None  # noqa: S101
        kind, length = ANSWER.unpack(await self.process.stdout.readexactly(ANSWER.size))
        if length > limits.output_bytes + MAX_ERROR_BYTES:
            raise EOFError
        return kind, await self.process.stdout.readexactly(length)

    async def end(self) -> None:
        """End it with its interpreter, and remove what they wrote."""
        try:
            try:
                async with asyncio.timeout(END_SECONDS):
                    # The end of its input is what ends it; it cleans up by itself.
                    if self.process.stdin is not None:
                        self.process.stdin.close()
                    await self.process.communicate()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)
                await self.process.communicate()
        finally:
            shutil.rmtree(self.scratch, ignore_errors=True)


class SandboxedPython:
    """A `CodeRunner` whose interpreter the kernel shuts off; see docs/code_evaluator.md.

    Args:
        limits: What the code may use.
        python: The interpreter's program, by default this process's own.
    """

    def __init__(self, limits: SandboxLimits = DEFAULT_LIMITS, python: str = sys.executable) -> None:
        self._limits = limits
        self._python = python
        self._supervisor: _Supervisor | None = None
        self._endings: set[asyncio.Task[None]] = set()

    async def run(self, code: str, timeout_seconds: float) -> CodeOutput:
        """See `CodeRunner.run`."""
        data = code.encode("utf-8", "surrogatepass")
        if len(data) > MAX_CODE_BYTES:
            return CodeOutput(f"MemoryError: the code is longer than {MAX_CODE_BYTES} bytes\n", failed=True)
        if self._supervisor is None:
            self._supervisor = await _Supervisor.start(self._limits, self._python)
        supervisor = self._supervisor
        try:
            await supervisor.send(_request(data, timeout_seconds))
            async with asyncio.timeout(timeout_seconds + ANSWER_GRACE_SECONDS):
                kind, output = await supervisor.answer(self._limits)
        except (EOFError, ConnectionError, TimeoutError) as error:
            # Nothing that the code did: it must not stand in the result as what the code printed.
            self._abandon()
            raise SandboxUnavailableError("The process that watches over its interpreter has ended.") from error
        except BaseException:
            self._abandon()
            raise
        text = output.decode("utf-8", "replace")
        if kind == CAN_NOT_SEAL:
            raise SandboxUnavailableError(text)
        return CodeOutput(text, failed=kind != SUCCEEDED_RUN)

    async def forget(self) -> None:
        """See `CodeRunner.forget`."""
        if self._supervisor is not None:
            try:
                await self._supervisor.send(REQUEST.pack(FORGET, 0, 0))
            except ConnectionError:
                self._abandon()

    async def close(self) -> None:
        """See `CodeRunner.close`."""
        self._abandon()
        # Whoever gives up waiting does not stop it.
        for ending in list(self._endings):
            await asyncio.shield(ending)

    def _abandon(self) -> None:
        if self._supervisor is not None:
            ending = asyncio.create_task(self._supervisor.end(), name="end-code-sandbox")
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)
            self._supervisor = None
