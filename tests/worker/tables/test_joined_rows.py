"""Rows and results meet in their order, however both are cut into pieces."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmengine.spec.table import Table
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.output_folder import OutputFolder
from airflow_llmengine.worker.readers.errors import InputChangedError
from airflow_llmengine.worker.tables.results import RowResult
from airflow_llmengine.worker.tables.table_output import TableOutput

SCHEMA = pyarrow.schema([("n", pyarrow.int64()), ("p", pyarrow.string())])


class File:
    """A file of the input, in batches of given sizes; ``n`` counts the rows of all files."""

    def __init__(self, name: str, first: int, sizes: Sequence[int]) -> None:
        self.name = name
        self.first = first
        self.sizes = sizes

    def batches(self, columns: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
        start = self.first
        for size in self.sizes:
            numbers = pyarrow.array(range(start, start + size), pyarrow.int64())
            start += size
            whole = pyarrow.RecordBatch.from_arrays([numbers, pyarrow.array(["x"] * size)], schema=SCHEMA)
            yield whole.select(list(columns))


class Input:
    """What stands for a table's input."""

    schema = SCHEMA
    partition_columns = ("p",)

    def __init__(self, files: Sequence[Sequence[int]]) -> None:
        self.files = []
        first = 0
        for number, sizes in enumerate(files):
            self.files.append(File(f"p=x/{number}.parquet", first, sizes))
            first += sum(sizes)
        self.rows = first


class Taker:
    """Stands for what an output is written to."""

    def __init__(self) -> None:
        self.content = io.BytesIO()
        self.write = self.content.write


def results(count: int, sizes: Sequence[int]) -> Iterator[list[RowResult]]:
    start = 0
    for size in [*sizes, count]:
        end = min(start + size, count)
        yield [RowResult(str(number)) for number in range(start, end)]
        start = end


FILES = st.lists(st.lists(st.integers(0, 7), max_size=4), min_size=1, max_size=4)
PIECES = st.lists(st.integers(0, 9), max_size=6)


@settings(max_examples=50)
@given(FILES, PIECES, st.sampled_from([None, [], ["p"]]))
def test_of_one_file(files: list[list[int]], pieces: list[int], columns: list[str] | None) -> None:
    source, taker = Input(files), Taker()
    output = TableOutput(Table(prompt="x", columns=columns), source, "/out.parquet")
    output.write_file(taker, results(source.rows, pieces))  # type: ignore[arg-type]
    found = pyarrow.parquet.read_table(pyarrow.BufferReader(taker.content.getvalue()))
    assert found.schema.names == [*(["n", "p"] if columns is None else columns), "completion"]
    assert found["completion"].to_pylist() == [str(number) for number in range(source.rows)]
    if columns is None:
        assert found["n"].to_pylist() == list(range(source.rows))


@settings(max_examples=50)
@given(FILES, PIECES, st.sampled_from([None, []]))
def test_of_a_folder(files: list[list[int]], pieces: list[int], columns: list[str] | None) -> None:
    source, storage = Input(files), Storage()
    root = storage.location("memory://joined-rows")
    root.delete_tree()
    folder = OutputFolder(root.child("out"), root.child("aside"))
    TableOutput(Table(prompt="x", columns=columns), source, "memory://joined-rows/out/").write_folder(
        folder, results(source.rows, pieces)
    )
    written = folder.put(lambda: None)
    assert [(file.name, file.records) for file in written] == [(file.name, sum(file.sizes)) for file in source.files]
    completions = []
    for file in written:
        content = root.child(f"out/{file.name}").read_bytes()
        found = pyarrow.parquet.read_table(pyarrow.BufferReader(content))
        assert found.schema.names == [*(["n"] if columns is None else columns), "completion"]
        completions += found["completion"].to_pylist()
    assert completions == [str(number) for number in range(source.rows)]


@pytest.mark.parametrize(("answered", "told"), [(6, "more rows"), (8, "fewer rows")])
def test_another_number_of_rows_than_results_is_noticed(answered: int, told: str) -> None:
    output = TableOutput(Table(prompt="x"), Input([[3], [4]]), "/out.parquet")
    with pytest.raises(InputChangedError, match=f"has {told} than it had"):
        output.write_file(Taker(), results(answered, [2]))  # type: ignore[arg-type]
