"""The worker's memory does not grow with the input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

RECORDS = 1_000_000
ALLOWED_GROWTH_MB = 300


def records(count: int) -> Iterator[str]:
    for index in range(count):
        yield json.dumps({"prompt": f"record {index} of many, of an ordinary length for a prompt", "max_tokens": 8})


def write_json_lines(path: Path, count: int) -> None:
    with path.open("w") as file:
        for record in records(count):
            file.write(record + "\n")


def write_json_array(path: Path, count: int) -> None:
    with path.open("w") as file:
        file.write("[")
        for index, record in enumerate(records(count)):
            file.write(("," if index else "") + record)
        file.write("]")


def peak_memory_mb(folder: Path, count: int, as_array: bool) -> float:
    """Run a job to its end in a process of its own; its peak resident memory, from the operating system."""
    folder.mkdir()
    (write_json_array if as_array else write_json_lines)(folder / "input", count)
    request = {
        "input_data_path": str(folder / "input"),
        "output_data_path": str(folder / "output.jsonl"),
        "model_config": {"model": "stand-in"},
    }
    worker = subprocess.Popen(
        [sys.executable, "-m", "airflow_llmengine.worker", "run", "-"],
        env={**os.environ, "LLMENGINE_ENGINE": "echo"},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    assert worker.stdin is not None
    worker.stdin.write(json.dumps(request).encode())
    worker.stdin.close()
    _pid, status, usage = os.wait4(worker.pid, 0)
    worker.returncode = os.waitstatus_to_exitcode(status)
    assert worker.returncode == 0
    manifest = json.loads((folder / "output.jsonl.manifest.json").read_text())
    assert manifest["records"] == count
    return usage.ru_maxrss / 1024


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("as_array", "count"), [(False, RECORDS), (True, RECORDS // 4)], ids=["json-lines", "json-array"]
)
def test_memory_is_flat_over_a_million_records(tmp_path: Path, as_array: bool, count: int) -> None:
    start = peak_memory_mb(tmp_path / "few", 1_000, as_array)
    peak = peak_memory_mb(tmp_path / "many", count, as_array)
    assert peak - start < ALLOWED_GROWTH_MB, f"{start:.0f} MB for a thousand records, {peak:.0f} MB for {count}"
    for folder in (tmp_path / "few", tmp_path / "many"):
        for path in folder.glob("*put*"):
            if path.is_file():
                path.unlink()
