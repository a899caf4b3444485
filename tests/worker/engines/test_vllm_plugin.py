"""A process that a worker's vLLM has started ends with the worker. The engine tests show it with vLLM itself."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from importlib.metadata import entry_points
from pathlib import Path

import psutil
import pytest

from airflow_llmengine.worker.engines.vllm_plugin import END_WITH_PARENT_VARIABLE, PLUGIN_NAME, end_with_parent

ROOT = Path(__file__).parents[3]

WORKER = """
import multiprocessing, time
from airflow_llmengine.worker.engines.vllm_plugin import end_with_parent

def child():
    end_with_parent()
    end_with_parent()
    time.sleep(60)

if __name__ == "__main__":
    process = multiprocessing.get_context("{method}").Process(target=child)
    process.start()
    print(process.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(("method", "switched_on"), [("spawn", True), ("fork", True), ("spawn", False)])
def test_a_child_ends_with_a_killed_parent(method: str, switched_on: bool, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER.format(method=method))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), END_WITH_PARENT_VARIABLE: "1" if switched_on else "0"}
    with subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        time.sleep(0.5)
        assert child.is_running()
        parent.kill()
    if switched_on:
        child.wait(timeout=60)
    else:
        with pytest.raises(psutil.TimeoutExpired):
            child.wait(timeout=2)
        child.kill()


FAILING = """
import multiprocessing, signal, sys, time
from airflow_llmengine.worker.engines import vllm_plugin

def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)

def engine():
    vllm_plugin.CHILDREN_SECONDS = 1.0
    vllm_plugin.end_with_parent()
    multiprocessing.get_context("spawn").Process(target=deaf).start()
    time.sleep(1)
    raise SystemExit(3)

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=engine)
    process.start()
    process.join(120)
    print(process.exitcode)
"""


def test_a_process_that_fails_does_not_wait_for_a_deaf_child_for_ever(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(FAILING)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), END_WITH_PARENT_VARIABLE: "1"}
    began = time.monotonic()
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "3", done.stderr
    assert time.monotonic() - began < 120


def test_a_process_that_nobody_started_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(END_WITH_PARENT_VARIABLE, "1")
    assert multiprocessing.parent_process() is None
    before = threading.active_count()
    end_with_parent()
    assert threading.active_count() == before


def test_it_is_registered_where_vllm_looks() -> None:
    (point,) = entry_points(group="vllm.general_plugins", name=PLUGIN_NAME)
    assert point.load() is end_with_parent
