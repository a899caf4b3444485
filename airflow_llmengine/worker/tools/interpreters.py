"""How many interpreters there may be at once, and who gets the next one."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable

from airflow_llmengine.worker.engines.processes import available_memory, available_processes
from airflow_llmengine.worker.tools.code_runner import CodeOutput, CodeRunner
from airflow_llmengine.worker.tools.sandbox import SandboxedPython

LEAST_INTERPRETERS = 8
MOST_INTERPRETERS = 256

INTERPRETER_BYTES = 128 * 2**20
"""What one interpreter is taken to use of memory: more than most do, and less than the sandbox allows each."""

MEMORY_SHARE = 2
"""Interpreters together may take one part in so many of the memory that is free when the first one starts."""

INTERPRETER_FILES = 16
"""What one interpreter is taken to need of the files that this process may have open."""

INTERPRETER_PROCESSES = 4
"""What one interpreter is taken to need of the processes and threads that the container may have: itself, what watches
over it, and their start."""


def affordable_interpreters() -> int:
    """How many interpreters this machine can bear beside the engine."""
    files, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    bearable = available_memory() // MEMORY_SHARE // INTERPRETER_BYTES
    if files != resource.RLIM_INFINITY:
        bearable = min(bearable, files // INTERPRETER_FILES)
    processes = available_processes()
    if processes is not None:
        bearable = min(bearable, processes // INTERPRETER_PROCESSES)
    return max(LEAST_INTERPRETERS, min(MOST_INTERPRETERS, bearable))


class Interpreters:
    """Gives out interpreters, in the order in which they are asked for.

    Args:
        most: How many there may be at once; by default as many as the machine can bear when the first one starts.
        make: Makes one.
    """

    def __init__(self, most: int | None = None, make: Callable[[], CodeRunner] = SandboxedPython) -> None:
        self._most = most
        self._make = make
        self._places: asyncio.Semaphore | None = None

    def take(self) -> Interpreter:
        """An interpreter of one completion; it takes a place when it runs something."""
        return Interpreter(self._make(), self._get_places)

    def _get_places(self) -> asyncio.Semaphore:
        if self._places is None:
            self._places = asyncio.Semaphore(affordable_interpreters() if self._most is None else self._most)
        return self._places


class Interpreter:
    """The interpreter of one completion, with its place among all. ``close`` must be called."""

    def __init__(self, runner: CodeRunner, places: Callable[[], asyncio.Semaphore]) -> None:
        self._runner = runner
        self._places = places
        self._held: asyncio.Semaphore | None = None

    async def enter(self) -> None:
        """Wait for a place. It is kept until ``leave`` or ``close``, as names in memory are."""
        if self._held is None:
            places = self._places()
            await places.acquire()
            self._held = places

    async def run(self, code: str, timeout_seconds: float) -> CodeOutput:
        """Run code; after ``enter``. See ``CodeRunner.run``."""
        return await self._runner.run(code, timeout_seconds)

    async def leave(self) -> None:
        """Forget all names, and give the place to another completion."""
        try:
            await self._runner.forget()
        finally:
            self._release()

    async def close(self) -> None:
        """End it, also in the middle of a run."""
        try:
            await self._runner.close()
        finally:
            self._release()

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.release()
