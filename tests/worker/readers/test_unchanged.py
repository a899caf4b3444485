"""An input that is replaced while a job reads it, be it only for a moment."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.readers import open_input
from airflow_llmengine.worker.readers.errors import InputChangedError
from airflow_llmengine.worker.readers.limits import BLOCK_BYTES

LINES = "".join(f'{{"prompt": "{index} {"x" * 1000}"}}\n' for index in range(5 * BLOCK_BYTES // 1000))


def replace(path: Path, text: str) -> None:
    path.with_name("new").write_text(text)
    path.with_name("new").replace(path)


def overwrite(path: Path, text: str) -> None:
    # A file system's clock may tick too slowly to tell two writes of a test apart.
    before = path.stat().st_mtime_ns
    path.write_text(text)
    os.utime(path, ns=(before + 1, before + 1))


@pytest.mark.parametrize("change", [replace, overwrite])
def test_a_file_that_was_replaced_and_put_back_between_two_readings_is_not_read_again(
    tmp_path: Path, change: Callable[[Path, str], None]
) -> None:
    file = tmp_path / "input.jsonl"
    file.write_text(LINES)
    request = validate_request(
        {
            "input_data_path": str(file),
            "output_data_path": str(tmp_path / "out"),
            "model_config": {"model": "m"},
        }
    )
    reader = open_input(Storage(), request)
    assert sum(1 for _record in reader.records()) == LINES.count("\n")
    change(file, LINES.upper())
    with pytest.raises(InputChangedError, match="was changed while the job read it"):
        next(iter(reader.records()))
    change(file, LINES)
    with pytest.raises(InputChangedError):
        next(iter(reader.records()))
    # The last look finds the content that it was: without the looks in between nobody would know.
    reader.check_unchanged()


def test_a_file_that_is_written_to_while_it_is_read_hands_out_nothing_of_it(tmp_path: Path) -> None:
    file = tmp_path / "input.jsonl"
    file.write_text(LINES)
    request = validate_request(
        {
            "input_data_path": str(file),
            "output_data_path": str(tmp_path / "out"),
            "model_config": {"model": "m"},
        }
    )
    records = open_input(Storage(), request).records()
    found = [next(records)]
    overwrite(file, LINES.upper())
    with pytest.raises(InputChangedError):
        found.extend(records)
    assert all("x" in record.value["prompt"] for record in found)
