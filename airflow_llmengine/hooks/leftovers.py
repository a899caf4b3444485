"""Finding and ending worker processes that earlier attempts left on this machine.

A worker's processes carry a mark in their environment, which their children inherit, so that they are found when nobody
remembers a process id. vLLM gives its engine processes other names, and Linux keeps those in the place of the
environment; they are found by the session that the worker leads.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

MARK_VARIABLE = "LLMENGINE_WORKER"
"""``<digest of the output path>/<replica, or "collect">/<digest of the series>``."""

LAUNCHER_VARIABLE = "LLMENGINE_LAUNCHER"
"""``<process id>@<start time>`` of the process that launched the worker."""

POLL_SECONDS = 0.1


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class WorkerMark:
    """Names the worker of one replica of a job, for one series of attempts."""

    output: str
    """The job's ``output_data_path``."""
    replica: int | None
    """None: the worker that puts together what the replicas did."""
    series: str

    def environment(self) -> dict[str, str]:
        """The variables that mark a worker which this process launches."""
        me = psutil.Process()
        return {
            MARK_VARIABLE: f"{self._place}/{_digest(self.series)}",
            LAUNCHER_VARIABLE: f"{me.pid}@{me.create_time():.2f}",
        }

    def is_leftover(self, environment: dict[str, str]) -> bool:
        """Whether a process with this environment is a worker of an earlier attempt, which must end.

        It is when it works on the same replica of the same output, for an earlier attempt of this very series, or for
        a task that is gone. Another task that is alive and works on the same output is not ours to end.
        """
        place, _, series = environment.get(MARK_VARIABLE, "").rpartition("/")
        if place != self._place:
            return False
        return series == _digest(self.series) or not _is_alive(environment.get(LAUNCHER_VARIABLE, ""))

    @property
    def _place(self) -> str:
        return f"{_digest(self.output)}/{'collect' if self.replica is None else self.replica}"


def find_leftovers(mark: WorkerMark) -> list[psutil.Process]:
    """Processes of this user that earlier attempts of the same worker left behind."""
    found = []
    for process in psutil.process_iter():
        # A process may end at any moment, and others' environments are not ours to read.
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and mark.is_leftover(process.environ()):
                found.append(process)
    return found + _in_sessions_of(found)


def _in_sessions_of(marked: list[psutil.Process]) -> list[psutil.Process]:
    """Other processes of the sessions that marked ones belong to; a worker has a session of its own."""
    sessions = {_session(process) for process in marked} - {None, os.getsid(0)}
    known = {process.pid for process in marked}
    if not sessions:
        return []
    return [process for process in psutil.process_iter() if process.pid not in known and _session(process) in sessions]


def _session(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except OSError:
        return None


def end_leftovers(
    mark: WorkerMark,
    *,
    grace_seconds: float,
    check: Callable[[], None],
    log: Callable[[str], None],
) -> None:
    """End what earlier attempts left: SIGTERM, and SIGKILL to what is still there when the grace is over.

    Args:
        mark: The worker that is about to be started.
        grace_seconds: How long the leftovers have to save their work.
        check: Called while waiting; what it raises ends the wait, and the leftovers are killed at once.
        log: Takes a sentence for the log.
    """
    leftovers = find_leftovers(mark)
    if not leftovers:
        return
    pids = ", ".join(str(process.pid) for process in leftovers)
    log(f"An earlier attempt left processes ({pids}); ending them first, with {grace_seconds:g} s to save.")
    # Signalled alone: the leader of a group shuts its engine down itself, and needs it until then.
    leaders = [process for process in leftovers if _leads(process)]
    for process in leaders or leftovers:
        _send(process, signal.SIGTERM)
    try:
        ends_at = time.monotonic() + grace_seconds
        while time.monotonic() < ends_at and any(_is_running(process) for process in leaders or leftovers):
            check()
            time.sleep(POLL_SECONDS)
    finally:
        for process in {*leftovers, *find_leftovers(mark)}:
            _send(process, signal.SIGKILL)
        psutil.wait_procs(leftovers, timeout=5)


def _leads(process: psutil.Process) -> bool:
    with contextlib.suppress(ProcessLookupError):
        return bool(os.getpgid(process.pid) == process.pid)
    return False


def _is_running(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def _send(process: psutil.Process, number: signal.Signals) -> None:
    # psutil compares start times first, so a process id that was given to somebody else is not hit.
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)


def _is_alive(launcher: str) -> bool:
    pid, _, started = launcher.partition("@")
    try:
        process = psutil.Process(int(pid))
        same = abs(process.create_time() - float(started)) < 1.0
        return same and bool(process.status() != psutil.STATUS_ZOMBIE)
    except (ValueError, psutil.NoSuchProcess):
        return False
    except psutil.Error:
        return True
