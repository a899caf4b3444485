"""A table in and a table out without an engine: rows a second, peak memory, and what is read of the input.

The stand-in engine answers. The table is one Parquet file with a text that the prompt needs, an id, and columns that
nobody needs: a longer text, numbers and an embedding. Each run is in a process of its own, pinned to one core. What is
read is counted where Arrow asks for it: once by the workers, and once more where the output is put together. A local
file is read as a whole beside that, to be recognized; an object in a store is not.

    python -m benchmarks.bench_tables                    half a minute, as in `make bench`
    python -m benchmarks.bench_tables --rows 1000000     what docs/tables.md tells
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

PROMPT = {"prompt": "Is this review positive?\n\n{{ review }}\n", "parameters": {"max_tokens": 16, "temperature": 0}}
SCHEMA = {
    "type": "object",
    "properties": {
        "sentiment": {"enum": ["positive", "neutral", "negative"]},
        "score": {"type": "integer", "minimum": 1, "maximum": 5},
    },
}

RUNS: Mapping[str, tuple[float, str, dict[str, Any]]] = {
    "a tenth of the rows": (0.1, "parquet", {"columns": ["id"]}),
    "id and completion": (1, "parquet", {"columns": ["id"]}),
    "id and typed columns": (1, "parquet", {"columns": ["id"], "output_schema": SCHEMA}),
    "all columns": (1, "parquet", {}),
    "all columns but bytes, as CSV": (1, "csv", {"columns": ["id", "review", "story", "price", "amount"]}),
}
"""By name: the share of the rows, the format of the output, and the table's fields beside the prompt."""

ROW_GROUP_ROWS = 100_000
AT_ONCE = 10_000
"""Rows that are made and written together."""


def write_input(path: Path, rows: int) -> None:
    """Write a table of so many rows."""
    import pyarrow
    import pyarrow.parquet

    chance = random.Random(7)
    words = [chance.randbytes(3).hex() for _ in range(5000)]
    types = {
        "id": pyarrow.int64(),
        "review": pyarrow.string(),
        "story": pyarrow.string(),
        "price": pyarrow.decimal128(9, 2),
        "amount": pyarrow.float64(),
        "embedding": pyarrow.binary(256),
    }
    schema = pyarrow.schema(types.items())
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for group in range(0, rows, ROW_GROUP_ROWS):
            batches = []
            for start in range(group, min(group + ROW_GROUP_ROWS, rows), AT_ONCE):
                numbers = range(start, min(start + AT_ONCE, group + ROW_GROUP_ROWS, rows))
                columns = {
                    "id": list(numbers),
                    "review": [" ".join(chance.choices(words, k=12)) for _ in numbers],
                    "story": [" ".join(chance.choices(words, k=60)) for _ in numbers],
                    "price": [Decimal(number % 10_000) / 100 for number in numbers],
                    "amount": [chance.random() for _ in numbers],
                    "embedding": [chance.randbytes(256) for _ in numbers],
                }
                batches += pyarrow.table(columns, schema=schema).to_batches()
            writer.write_table(pyarrow.Table.from_batches(batches), row_group_size=ROW_GROUP_ROWS)


def column_bytes(path: Path) -> dict[str, int]:
    """What each column takes in a Parquet file."""
    import pyarrow.parquet

    metadata = pyarrow.parquet.ParquetFile(path).metadata
    sizes: dict[str, int] = {}
    for group in range(metadata.num_row_groups):
        for place in range(metadata.num_columns):
            column = metadata.row_group(group).column(place)
            sizes[column.path_in_schema] = sizes.get(column.path_in_schema, 0) + column.total_compressed_size
    return sizes


def run(folder: Path, source: str, ending: str, fields: Mapping[str, Any]) -> dict[str, float]:
    """One job, by the function that the command calls, in this process."""
    from airflow_llmengine.spec.check import validate_request
    from airflow_llmengine.spec.table import parse_table
    from airflow_llmengine.storage.filesystem import Storage
    from airflow_llmengine.worker.attempt import AttemptOptions, run_attempt
    from airflow_llmengine.worker.engines.echo import EchoEngine
    from airflow_llmengine.worker.stopping import Stop
    from airflow_llmengine.worker.tables.random_access import RandomAccessFile

    read = 0
    original = RandomAccessFile.read

    def counted(self: RandomAccessFile, size: int | None = -1, /) -> bytes:
        nonlocal read
        data = original(self, size)
        read += len(data)
        return data

    RandomAccessFile.read = counted  # type: ignore[method-assign]
    table = parse_table({**PROMPT, **fields})
    request = validate_request(
        {
            "input_data_path": str(folder / source),
            "output_data_path": str(folder / f"output.{ending}"),
            "model_config": {"model": "stand-in"},
        },
        table,
    )
    options = AttemptOptions(owner="benchmark", series="benchmark", overwrite=True, table=table)
    cpu, wall = time.process_time(), time.perf_counter()
    outcome = run_attempt(Storage(), request, options, Stop(), make_engine=EchoEngine)
    if outcome.manifest is None or outcome.manifest.failed:
        raise SystemExit(f"the job did not succeed: {outcome.message}")
    return {
        "cpu": time.process_time() - cpu,
        "wall": time.perf_counter() - wall,
        "rows": outcome.manifest.records,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "read_mb": read / 1e6,
    }


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--child", nargs=3, metavar=("NAME", "FOLDER", "INPUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, folder, source = options.child
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        logging.disable(logging.CRITICAL)
        print(json.dumps(run(Path(folder), source, *RUNS[name][1:])))
        return
    with tempfile.TemporaryDirectory(prefix="bench-tables-") as temporary:
        folder = Path(temporary)
        sources = {RUNS[name][0]: f"input-{RUNS[name][0]}.parquet" for name in options.runs}
        sizes = {}
        for share, source in sources.items():
            write_input(folder / source, int(options.rows * share))
            sizes[share] = column_bytes(folder / source)
            megabytes = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in sizes[share].items())
            print(f"{int(options.rows * share)} rows; MB of the columns: {megabytes}", flush=True)
        for name in options.runs:
            share, _, fields = RUNS[name]
            command = [sys.executable, "-m", "benchmarks.bench_tables", "--child", name, temporary, sources[share]]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            result = json.loads(done.stdout)
            kept = fields.get("columns", list(sizes[share]))
            needed = (sizes[share]["review"] + sum(sizes[share][column] for column in kept)) / 1e6
            print(
                f"{name:30} {result['rows'] / result['cpu']:7,.0f} rows a second of the core "
                f"({result['rows'] / result['wall']:,.0f} a second passed); peak {result['peak_mb']:.0f} MB; read "
                f"{result['read_mb']:.1f} MB of {needed:.1f} MB needed",
                flush=True,
            )


if __name__ == "__main__":
    main()
