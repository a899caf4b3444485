"""SIGKILL of a worker with real vLLM in it: nothing is lost, nothing committed is generated again, no process stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_llmengine.spec.exit_codes import ExitCode

RECORDS = 300
CHUNK_RECORDS = 10
SESSIONS: defaultdict[str, list[int]] = defaultdict(list)
"""The sessions of the workers that each test has started."""
TOPICS = ("bread", "rain", "trains", "the Moon", "chess", "a river", "old maps", "bees", "glass", "salt")


def chunk_files(folder: Path) -> dict[str, int]:
    """The committed chunks with the time at which each was written."""
    return {
        path.name: path.stat().st_mtime_ns
        for path in folder.glob("output.jsonl.job/*/chunks/*/*.jsonl")
        if ".part-" not in path.name
    }


def start(folder: Path, mark: str, *arguments: str) -> subprocess.Popen[bytes]:
    worker = subprocess.Popen(
        [
            *(sys.executable, "-m", "airflow_llmengine.worker", "run", str(folder / "request.json")),
            *("--chunk-records", str(CHUNK_RECORDS), "--series", "s", *arguments),
        ],
        env={**os.environ, "LLMENGINE_ENGINE": "vllm", "VLLM_CPU_KVCACHE_SPACE": "1", "LLMENGINE_TEST_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    SESSIONS[mark].append(worker.pid)
    return worker


def marked_processes(mark: str) -> list[int]:
    """Every process that came from this test's workers, whatever became of its parent.

    vLLM's renamed processes show no environment, but stay in the session that the worker leads.
    """
    found = []
    sessions = set(SESSIONS[mark])
    for process in psutil.process_iter(["environ", "status"]):
        if process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        try:
            ours = os.getsid(process.pid) in sessions
        except ProcessLookupError:
            continue
        if ours or (process.info["environ"] or {}).get("LLMENGINE_TEST_MARK") == mark:
            found.append(process.pid)
    return found


def write_job(folder: Path, model: Path, records: int) -> None:
    lines: list[dict[str, Any]] = [
        {
            "prompt": f"Note {index}, about {TOPICS[index % 10]} and {TOPICS[index // 10 % 10]}:",
            "max_tokens": 16,
            "temperature": 0,
            "user": f"record {index}",
        }
        for index in range(records)
    ]
    (folder / "input.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    request = {
        "input_data_path": str(folder / "input.jsonl"),
        "output_data_path": str(folder / "output.jsonl"),
        "model_config": {
            "model": "SmolLM2",
            "checkpoint_path": str(model),
            "max_model_len": 512,
            "dtype": "float32",
            "enforce_eager": True,
            "max_num_seqs": 16,
        },
    }
    (folder / "request.json").write_text(json.dumps(request))


def require_answers(folder: Path, records: int) -> None:
    answers = [json.loads(line) for line in (folder / "output.jsonl").read_text().splitlines()]
    assert [answer["metadata"]["user"] for answer in answers] == [f"record {index}" for index in range(records)]


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    """Marks this test's processes; none of them outlives it, even if it fails."""
    name = f"{tmp_path.name}-{os.getpid()}"
    yield name
    for pid in marked_processes(name):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.engine
@pytest.mark.timeout(2400)
def test_two_kills_of_a_real_worker(tmp_path: Path, quickstart_model: Path, mark: str) -> None:
    write_job(tmp_path, quickstart_model, RECORDS)
    kept: dict[str, int] = {}
    for wanted in (5, 12):
        worker = start(tmp_path, mark)
        deadline = time.monotonic() + 900
        while len(chunk_files(tmp_path)) < wanted:
            assert worker.poll() is None, "the worker ended by itself"
            assert time.monotonic() < deadline, "no chunks were committed"
            time.sleep(0.1)
        # The worker alone, as the kernel's out-of-memory killer would: vLLM's own processes must notice.
        os.kill(worker.pid, signal.SIGKILL)
        worker.communicate()
        deadline = time.monotonic() + 120
        while marked_processes(mark):
            assert time.monotonic() < deadline, "vLLM's processes outlive the worker"
            time.sleep(0.2)
        now = chunk_files(tmp_path)
        assert all(now[name] == written for name, written in kept.items()), "a committed chunk was written again"
        kept = now
    worker = start(tmp_path, mark)
    output, _nothing = worker.communicate(timeout=900)
    assert worker.returncode == ExitCode.DONE
    manifest = json.loads(output)
    assert (manifest["records"], manifest["failed"]) == (RECORDS, 0)
    require_answers(tmp_path, RECORDS)
    assert not marked_processes(mark)


@pytest.mark.engine
@pytest.mark.timeout(1200)
def test_a_real_engine_that_is_killed_is_started_again(tmp_path: Path, quickstart_model: Path, mark: str) -> None:
    """As an engine does that meets a fault of the GPU, or the out-of-memory killer."""
    write_job(tmp_path, quickstart_model, 100)
    worker = start(tmp_path, mark)
    deadline = time.monotonic() + 900
    while len(chunk_files(tmp_path)) < 3:
        assert worker.poll() is None, "the worker ended by itself"
        assert time.monotonic() < deadline, "no chunks were committed"
        time.sleep(0.05)
    engine = [pid for pid in marked_processes(mark) if "EngineCor" in psutil.Process(pid).name()]
    assert engine, "vLLM's engine process has another name"
    for pid in engine:
        os.kill(pid, signal.SIGKILL)
    output, _nothing = worker.communicate(timeout=900)
    assert worker.returncode == ExitCode.DONE
    manifest = json.loads(output)
    assert (manifest["records"], manifest["failed"]) == (100, 0)
    require_answers(tmp_path, 100)
    assert not marked_processes(mark)
