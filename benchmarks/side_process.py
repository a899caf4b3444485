"""A side in a process of its own, which keeps its engine and takes its turns by commands over a pipe.

An engine takes half a minute to load, and two in one process would share a Python and its caches. While it is not a
side's turn, its process waits and computes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.sides import SIDES, Measured

ROOT = Path(__file__).parent.parent

END_SECONDS = 30.0
"""How long an engine may take to end before it is killed."""

ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # GiB that vLLM asks for where there is no GPU; the size of the KV cache is a setting of the engine.
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
}
"""The same for every side, unless it is set already."""


class SideFailedError(Exception):
    """A side has died, hangs, or could not do what it was told; the message says which, and where its words are."""


class SideProcess:
    """The process of one side.

    Args:
        name: One of ``SIDES``.
        log: Where its own words go, and vLLM's.
    """

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self._log = log
        self._busy = False
        with log.open("ab") as words:
            # A session of its own, so that the engine's processes can be ended with it.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.side_process", name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                start_new_session=True,
                cwd=ROOT,
                env={**ENVIRONMENT, **os.environ},
            )
        assert self._process.stdout is not None
        self._lines = self._process.stdout

    def start(self, model: str, settings: Mapping[str, Any], *, timeout: float) -> None:
        """Load the engine."""
        self._ask({"do": "start", "model": model, "settings": dict(settings)}, timeout)

    def run(self, source: Path, *, without: tuple[str, ...] = (), timeout: float) -> Measured:
        """Complete a file; see ``Side.run``."""
        return Measured(**self._ask({"do": "run", "source": str(source), "without": list(without)}, timeout))

    def _ask(self, command: dict[str, Any], timeout: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        # Until it has answered well: whatever ends the wait, there is no use in asking it to end in order.
        self._busy = True
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._failed("has ended") from error
        if not select.select([self._lines], [], [], timeout)[0]:
            raise self._failed(f"has not answered for {timeout:.0f} s")
        line = self._lines.readline()
        if not line:
            raise self._failed("has ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise self._failed(f"says {answer['error']}")
        self._busy = False
        return answer

    def _failed(self, what: str) -> SideFailedError:
        return SideFailedError(f"{self.name} {what}; its own words are in {self._log}")

    def end(self) -> None:
        """End it with its engine; what is left after a while is killed, and all at once where it is in the middle."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.0 if self._busy else END_SECONDS)
        # Also when it has ended well: a process of the engine may not have.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._lines.close()


def serve(name: str) -> None:
    """Be the side ``name``, until standard input ends, as it does when the benchmark is no more."""
    # vLLM writes to standard output, too: what is printed goes where the other words go.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    side = SIDES[name]()
    try:
        for line in sys.stdin:
            command = json.loads(line)
            answer: dict[str, Any] = {}
            try:
                if command["do"] == "start":
                    started = time.perf_counter()
                    side.start(command["model"], command["settings"])
                    answer = {"seconds": time.perf_counter() - started}
                else:
                    answer = side.run(Path(command["source"]), without=tuple(command["without"])).to_json()
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
                raise
            finally:
                print(json.dumps(answer), file=answers, flush=True)
    finally:
        side.stop()


# Guarded, because vLLM starts its own processes by importing the main module again.
if __name__ == "__main__":
    serve(sys.argv[1])
