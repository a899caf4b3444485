"""The machine's memory, and the end of processes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from airflow_llmengine.worker.engines import processes
from airflow_llmengine.worker.engines.processes import available_memory, available_processes, end_processes, hurrying
from tests.waiting import wait_until

FAMILY = """
import signal, subprocess, sys, time
{ignore}
child = subprocess.Popen([sys.executable, "-c", "{ignore}; print(1, flush=True); import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def start_family(ignore: str = "pass") -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A process with a child; both are up when this returns."""
    parent = subprocess.Popen([sys.executable, "-c", FAMILY.format(ignore=ignore)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    lines = {parent.stdout.readline().strip(), parent.stdout.readline().strip()}
    (child,) = (int(line) for line in lines if line != "1")
    parent.stdout.close()
    return parent, [psutil.Process(parent.pid), psutil.Process(child)]


def alive(family: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("ignore", ["pass", STUBBORN])
def test_processes_end_with_all_below_them(ignore: str) -> None:
    parent, family = start_family(ignore)
    end_processes([parent.pid], 0.5)
    assert not alive(family)
    end_processes([parent.pid], 0.5)
    parent.wait()


def test_hurrying_kills_those_below_first() -> None:
    parent, family = start_family()
    with hurrying([parent.pid], 0.1, 30):
        wait_until(lambda: alive(family) == family[:1], seconds=20)
    with hurrying([parent.pid], 30, 0.1):
        parent.wait(timeout=20)


def test_nobody_is_killed_once_the_end_has_come() -> None:
    parent, family = start_family()
    with hurrying([parent.pid], 0.3, 0.3):
        pass
    time.sleep(0.6)
    assert alive(family) == family
    end_processes([parent.pid], 1)
    parent.wait()


def test_memory_that_is_free() -> None:
    assert 0 < available_memory() <= psutil.virtual_memory().total


@pytest.mark.parametrize(("limit", "available"), [("1000", 600), ("300", 0), ("max", None), (None, None)])
def test_a_containers_limit_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str | None, available: int | None
) -> None:
    files = (tmp_path / "max", tmp_path / "current")
    if limit is not None:
        files[0].write_text(limit)
        files[1].write_text("400")
    monkeypatch.setattr(processes, "_CGROUP_FILES", (files,))
    monkeypatch.setattr(processes, "_PROCESS_FILES", (files,))
    found = available_memory()
    assert found == available if available is not None else found > 2**20
    assert available_processes() == available
