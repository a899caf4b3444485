"""Finding what earlier attempts left, among real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from airflow_llmengine.hooks.leftovers import (
    LAUNCHER_VARIABLE,
    MARK_VARIABLE,
    WorkerMark,
    end_leftovers,
    find_leftovers,
)

GONE = "1@0.00"


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(stack: ExitStack, mark: WorkerMark, script: str = "input()", **environment: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", f"print(flush=True); {script}"],
        env={**os.environ, **mark.environment(), **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    stack.enter_context(process)
    stack.callback(process.kill)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def end(mark: WorkerMark, grace_seconds: float = 5) -> list[str]:
    said: list[str] = []
    end_leftovers(mark, grace_seconds=grace_seconds, check=lambda: None, log=said.append)
    return said


def is_running(process: subprocess.Popen[bytes]) -> bool:
    try:
        return bool(psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_the_mark_names_neither_the_path_nor_the_series() -> None:
    mark = WorkerMark("s3://bucket/private/name", 0, "dag/run")
    values = " ".join(mark.environment().values())
    assert "private" not in values
    assert "run" not in values
    assert set(mark.environment()) == {MARK_VARIABLE, LAUNCHER_VARIABLE}


def test_what_is_a_leftover(tmp_path: Path, processes: ExitStack) -> None:
    mine = WorkerMark(str(tmp_path), 0, "series")
    earlier = start(processes, mine)
    orphan = start(processes, WorkerMark(str(tmp_path), 0, "other series"), **{LAUNCHER_VARIABLE: GONE})
    living = start(processes, WorkerMark(str(tmp_path), 0, "other series"))
    replica = start(processes, WorkerMark(str(tmp_path), 1, "series"), **{LAUNCHER_VARIABLE: GONE})
    elsewhere = start(processes, WorkerMark(f"{tmp_path}/x", 0, "series"), **{LAUNCHER_VARIABLE: GONE})
    assert {process.pid for process in find_leftovers(mine)} == {earlier.pid, orphan.pid}
    said = end(mine)
    assert len(said) == 1
    assert str(earlier.pid) in said[0]
    assert str(orphan.pid) in said[0]
    assert not is_running(earlier)
    assert not is_running(orphan)
    assert all(is_running(process) for process in (living, replica, elsewhere))
    assert end(mine) == []


@pytest.mark.parametrize("launcher", ["", "x", "1", "@", "99999999@1.0", GONE])
def test_a_launcher_that_can_not_be_found_is_gone(launcher: str) -> None:
    mark = WorkerMark("output", 0, "series")
    other = WorkerMark("output", 0, "other").environment()
    assert mark.is_leftover({**other, LAUNCHER_VARIABLE: launcher})
    assert not mark.is_leftover(other)
    assert not mark.is_leftover({})


def test_a_leader_has_time_to_save_and_is_signalled_alone(tmp_path: Path, processes: ExitStack) -> None:
    saved = tmp_path / "saved"
    mark = WorkerMark(str(tmp_path), 0, "series")
    leader = start(
        processes,
        mark,
        "import pathlib, signal, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'])\n"
        "def stop(*_):\n"
        f"    pathlib.Path({str(saved)!r}).write_text(str(child.poll()))\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "print('ready', flush=True)\n"
        "signal.pause()",
    )
    assert leader.stdout is not None
    leader.stdout.readline()
    end(mark)
    assert saved.read_text() == "None", "its child was ended before it"
    assert not find_leftovers(mark)


def test_a_child_that_shows_no_environment_is_found_by_its_session(tmp_path: Path, processes: ExitStack) -> None:
    """As those of vLLM, which renames its engine processes: Linux then shows no environment of them."""
    mark = WorkerMark(str(tmp_path), 0, "series")
    leader = start(
        processes,
        mark,
        "import subprocess, sys\n"
        "print(subprocess.Popen([sys.executable, '-c', 'input()'], env={}).pid, flush=True)\n"
        "input()",
    )
    assert leader.stdout is not None
    child = psutil.Process(int(leader.stdout.readline()))
    assert {process.pid for process in find_leftovers(mark)} == {leader.pid, child.pid}
    end(mark, grace_seconds=0)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_what_does_not_end_is_killed(tmp_path: Path, processes: ExitStack) -> None:
    mark = WorkerMark(str(tmp_path), 0, "series")
    script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
    stubborn = start(processes, mark, script)
    assert stubborn.stdout is not None
    stubborn.stdout.readline()
    end(mark, grace_seconds=0.5)
    assert not is_running(stubborn)


def test_who_is_told_to_stop_waiting_leaves_nothing(tmp_path: Path, processes: ExitStack) -> None:
    mark = WorkerMark(str(tmp_path), 0, "series")
    script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
    stubborn = start(processes, mark, script)
    assert stubborn.stdout is not None
    stubborn.stdout.readline()

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        end_leftovers(mark, grace_seconds=60, check=stop, log=lambda _message: None)
    assert not is_running(stubborn)
