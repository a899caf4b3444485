"""SIGKILL in mid-run of a partitioned Parquet job: what is resumed has every row once, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from airflow_llmengine.spec.manifest import Manifest
from tests.waiting import wait_until
from tests.worker.tables.table_jobs import PROMPT, files_below, write_parquet

PARTS = {f"region={region}/part-{number}.parquet": 20 for region in ("EU", "US", "XX") for number in (0, 1)}
"""The input's files, with their rows."""

ROWS = sum(PARTS.values())
CHUNK_RECORDS = 8
KILLED_AFTER = (10, 60, ROWS)
"""How many rows have been generated, over all attempts, when the next kill falls: the last falls about the end."""


class KilledJob:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "out"
        self.log = folder / "generated.log"
        start = 0
        for name, rows in PARTS.items():
            ids = list(range(start, start + rows))
            columns = {"id": pyarrow.array(ids), "text": [f"review {number}" for number in ids]}
            write_parquet(folder / "in" / name, columns, row_group_size=7)
            start += rows
        request = {
            "input_data_path": f"{folder}/in/",
            "output_data_path": f"{folder}/out/",
            "model_config": {"model": "stand-in"},
        }
        (folder / "request.json").write_text(json.dumps(request))
        (folder / "table.json").write_text(json.dumps({**PROMPT, "partitioning": "hive"}))

    def start(self, seconds_per_record: float) -> subprocess.Popen[bytes]:
        """Start an attempt in a session of its own."""
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "airflow_llmengine.worker", "run", f"{self.folder}/request.json"),
                *("--table", f"{self.folder}/table.json", "--series=one", f"--chunk-records={CHUNK_RECORDS}"),
            ],
            env={
                **os.environ,
                "LLMENGINE_ENGINE": "echo",
                "LLMENGINE_ECHO_LOG": str(self.log),
                "LLMENGINE_ECHO_SECONDS_PER_RECORD": str(seconds_per_record),
                "LLMENGINE_ECHO_CAPACITY": "4",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def generations(self) -> Counter[int]:
        """How often each row was generated, over all attempts."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return Counter(int(line.split()[0]) for line in lines)

    def has_ended_or_generated(self, worker: subprocess.Popen[bytes], rows: int) -> bool:
        return worker.poll() is not None or len(self.generations()) >= rows

    def committed(self) -> set[int]:
        """The rows whose chunks stand."""
        rows: set[int] = set()
        for path in self.folder.glob("out.job/*/chunks/*/*.jsonl"):
            if ".part-" not in path.name:
                header = json.loads(path.read_bytes().split(b"\n", 1)[0])
                rows.update(range(header["first"], header["first"] + header["records"]))
        return rows


@pytest.mark.slow  # Four worker processes: 8 s.
def test_a_killed_partitioned_job_goes_on_and_ends_with_each_row_once_and_no_stray_file(tmp_path: Path) -> None:
    job = KilledJob(tmp_path)
    # How often each row had been generated when its chunk was first seen to stand.
    standing: dict[int, int] = {}
    for enough in KILLED_AFTER:
        worker = job.start(seconds_per_record=0.15)
        wait_until(partial(job.has_ended_or_generated, worker, enough))
        os.killpg(worker.pid, signal.SIGKILL)
        worker.communicate()
        if enough < ROWS:
            assert not job.output.exists()
            assert not list(tmp_path.glob("out.manifest.json"))
            standing = {row: job.generations()[row] for row in job.committed()} | standing
    assert standing
    last = job.start(seconds_per_record=0)
    said, _ = last.communicate(timeout=120)
    assert last.returncode == 0, said.decode()

    assert set(job.generations()) == set(range(ROWS))
    assert {row: job.generations()[row] for row in standing} == standing
    assert files_below(job.output) == sorted(PARTS)
    start = 0
    for name, rows in PARTS.items():
        found = pyarrow.parquet.ParquetFile(job.output / name).read()
        assert found.drop_columns("completion").equals(pyarrow.parquet.ParquetFile(tmp_path / "in" / name).read())
        assert found["id"].to_pylist() == list(range(start, start + rows))
        assert found["completion"].to_pylist() == found["text"].to_pylist()
        start += rows
    manifest = Manifest.model_validate_json((tmp_path / "out.manifest.json").read_text())
    assert (manifest.records, manifest.succeeded) == (ROWS, ROWS)
    assert [(file.name, file.records) for file in manifest.files or ()] == list(PARTS.items())
    assert files_below(tmp_path / "out.job") == ["current.json"]
