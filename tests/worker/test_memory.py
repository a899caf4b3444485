"""The worker's memory does not grow with the input."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

RECORDS = 1_000_000
ALLOWED_GROWTH_MB = 150


def records(count: int) -> Iterator[dict[str, Any]]:
    for index in range(count):
        yield {"prompt": f"record {index} of many, of an ordinary length for a prompt", "max_tokens": 8}


def write_json_lines(file: TextIO, count: int) -> None:
    file.writelines(json.dumps(record) + "\n" for record in records(count))


def write_batch_lines(file: TextIO, count: int) -> None:
    for index, record in enumerate(records(count)):
        line = {"custom_id": f"row-{index}", "method": "POST", "url": "/v1/completions", "body": record}
        file.write(json.dumps(line) + "\n")


def write_json_array(file: TextIO, count: int) -> None:
    file.write("[")
    file.writelines(("," if index else "") + json.dumps(record) for index, record in enumerate(records(count)))
    file.write("]")


def write_content(file: TextIO, count: int) -> None:
    file.write('{"max_new_tokens": 8, "temperature": 0, "prompts": [')
    file.writelines(
        ("," if index else "") + json.dumps(record["prompt"]) for index, record in enumerate(records(count))
    )
    file.write("]}")


def peak_memory_mb(folder: Path, count: int, write: Callable[[TextIO, int], None], is_compressed: bool) -> float:
    """Run a job to its end in a process of its own; its peak resident memory, from the operating system."""
    folder.mkdir()
    with gzip.open(folder / "input", "wt", 1) if is_compressed else (folder / "input").open("w") as file:
        write(file, count)
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
    ("write", "is_compressed", "count"),
    [
        pytest.param(write_json_lines, False, RECORDS, id="json-lines"),
        pytest.param(write_json_array, False, RECORDS // 4, id="json-array"),
        pytest.param(write_json_lines, True, RECORDS // 10, id="json-lines-gz"),
        pytest.param(write_content, False, RECORDS // 10, id="v1-content"),
        pytest.param(write_batch_lines, False, RECORDS // 10, id="batch-lines"),
    ],
)
def test_memory_is_flat_whatever_the_format(
    tmp_path: Path, write: Callable[[TextIO, int], None], is_compressed: bool, count: int
) -> None:
    start = peak_memory_mb(tmp_path / "few", 1_000, write, is_compressed)
    peak = peak_memory_mb(tmp_path / "many", count, write, is_compressed)
    assert peak - start < ALLOWED_GROWTH_MB, f"{start:.0f} MB for a thousand records, {peak:.0f} MB for {count}"
    for folder in (tmp_path / "few", tmp_path / "many"):
        for path in folder.glob("*put*"):
            if path.is_file():
                path.unlink()
