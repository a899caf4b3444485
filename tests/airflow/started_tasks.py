"""The tests' side of ``task_server.py``: tasks that were started there, their ends, and what they logged."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]


class StartedTask:
    """A supervisor, and the task that it forks; or what plays the scheduler, and its tasks."""

    def __init__(self, pid: int, log: Path) -> None:
        self._log = log
        try:
            self._process: psutil.Process | None = psutil.Process(pid)
        except psutil.NoSuchProcess:
            self._process = None

    @property
    def supervisor(self) -> psutil.Process:
        """The process that was started; it must not have ended."""
        assert self._process is not None, self.log()
        return self._process

    @property
    def task(self) -> psutil.Process:
        """The process that the supervisor forked."""
        (task,) = self.supervisor.children()
        return task

    def log(self) -> str:
        """What was logged so far."""
        return self._log.read_text() if self._log.exists() else ""

    def end(self, seconds: float = 240) -> tuple[str, str]:
        """Wait for its end; gives the task's state, and all that was logged."""
        if self._process is not None:
            self._process.wait(seconds)
        log = self.log()
        found = re.findall(r"^state: (.*)$", log, re.MULTILINE)
        return found[-1] if found else "", log

    def states(self, seconds: float = 240) -> dict[str, list[str]]:
        """Wait for the end of a whole run; gives the states of each task's instances."""
        _state, log = self.end(seconds)
        states: dict[str, list[str]] = {}
        for task_id, _index, state in re.findall(r"^state: (\S+) (\S+) (\S+)$", log, re.MULTILINE):
            states.setdefault(task_id, []).append(state)
        assert states, log
        return states

    def kill(self) -> None:
        """Kill it and all below it, if it still runs."""
        if self._process is None:
            return
        try:
            for process in [*self._process.children(recursive=True), self._process]:
                process.kill()
            self._process.wait(30)
        except psutil.NoSuchProcess:
            pass


class TaskServer:
    """Starts tasks, in processes of their own, over one metadata database."""

    def __init__(self, process: subprocess.Popen[str], environment: Mapping[str, str]) -> None:
        self._process = process
        self.environment = environment
        """Its own; tasks need its ``AIRFLOW_`` variables."""

    def start(self, call: str, *arguments: str, environment: Mapping[str, str], log: Path) -> StartedTask:
        """Start a task (``task``: command, dag id, task id, run id) or a run (``group``: dag id, run id, commands).

        Args:
            call: ``task`` or ``group``.
            arguments: Its arguments.
            environment: All that the process has in its environment.
            log: A file for what it says.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        command = {"call": call, "arguments": arguments, "environment": dict(environment), "log": str(log)}
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("started "):
                return StartedTask(int(line.split()[1]), log)
        raise AssertionError("the task server has ended")


@contextmanager
def task_server(environment: Mapping[str, str]) -> Iterator[TaskServer]:
    """A server, for as long as the context is entered."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.airflow.task_server"],
        env=dict(environment),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        try:
            yield TaskServer(process, environment)
        finally:
            process.kill()
