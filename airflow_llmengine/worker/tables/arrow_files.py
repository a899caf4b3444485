"""Files that have types of their own: Parquet, and Arrow's IPC format.

Of Parquet the needed columns alone are read, a few rows of a row group at a time: a row group may be larger than the
memory. That is done by the file reader, not by Arrow's scanner, which holds whole row groups, several ahead.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
from typing_extensions import override

from airflow_llmengine.storage.errors import StorageChangedError, StorageNotFoundError
from airflow_llmengine.worker.readers.errors import InputChangedError, InputInvalidError
from airflow_llmengine.worker.tables.arrow_cells import CellFault, cells_of
from airflow_llmengine.worker.tables.random_access import RandomAccessFile
from airflow_llmengine.worker.tables.row_files import (
    BATCH_BYTES,
    Row,
    RowFault,
    RowFile,
    conform,
    empty_batch,
)
from airflow_llmengine.worker.tables.row_templates import shown

READ_BYTES = 4 * 2**20
"""How much of a column of a row group is asked for at once."""

MOST_ROWS = 512
"""Of a batch. What a file says of its size does not bound them: a text that stands once in a dictionary, such as the
document that many rows ask about, is a text in each row of a batch.
"""

_MAGIC_OF_FILES = b"ARROW1"
"""How an IPC file begins; a stream does not."""


class ArrowFile(RowFile):
    """A file of which Arrow makes batches."""

    format_name: str

    @override
    def rows(self, columns: Sequence[str]) -> Iterator[Row | RowFault]:
        for batch in self._read(columns):
            here = set(batch.schema.names)
            nothing = [None] * batch.num_rows
            cells = [cells_of(batch.column(name)) if name in here else nothing for name in columns]
            if not columns:
                yield from (Row({}) for _row in range(batch.num_rows))
            for values in zip(*cells, strict=True):
                row = dict(zip(columns, values, strict=True))
                faults = (
                    RowFault(cell.error_type, f"the column {shown(name)} {cell.reason}")
                    for name, cell in row.items()
                    if isinstance(cell, CellFault)
                )
                yield next(faults, None) or Row(row)

    @override
    def batches(self, schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
        for batch in self._read(schema.names):
            yield conform(batch, schema)

    @abstractmethod
    def _read(self, columns: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
        """Its rows, with those of the columns that it has, and perhaps others."""

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """The file for Arrow, with Arrow's errors in words."""
        try:
            with RandomAccessFile(self.location, self.entry) as file:
                yield pyarrow.PythonFile(file, mode="r")
        except (StorageNotFoundError, StorageChangedError) as error:
            raise InputChangedError(f"The input was changed while the job read it: {error}") from error
        except (pyarrow.ArrowException, OSError, EOFError) as error:
            # Its text may quote what is in the file.
            raise InputInvalidError(
                f"{self.name} can't be read as {self.format_name} ({type(error).__name__}): it is damaged, or "
                "something else; write it again, or give table.input_format."
            ) from error


class ParquetFile(ArrowFile):
    """Parquet."""

    format_name = "Parquet"

    @override
    def read_schema(self) -> pyarrow.Schema:
        with self._opened() as file:
            return pyarrow.parquet.ParquetFile(file).schema_arrow

    @override
    def _read(self, columns: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
        with self._opened() as file:
            parquet = pyarrow.parquet.ParquetFile(file, buffer_size=READ_BYTES, pre_buffer=False)
            known = [name for name in columns if name in parquet.schema_arrow.names]
            if not known:
                yield from _rows_alone(parquet.metadata.num_rows)
                return
            for group in range(parquet.num_row_groups):
                rows = _rows_at_once(parquet.metadata.row_group(group), known)
                yield from parquet.iter_batches(rows, row_groups=[group], columns=known)


class ArrowIPCFile(ArrowFile):
    """Arrow's IPC format, as a file or as a stream. Batches are read whole, as they were written."""

    format_name = "Arrow IPC"

    @override
    def read_schema(self) -> pyarrow.Schema:
        with self._opened() as file:
            return self._reader(file, None).schema

    @override
    def _read(self, columns: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
        with self._opened() as file:
            names = self._reader(file, None).schema.names
            file.seek(0)
            # At least one column, since the number of rows is asked for too.
            places = [place for place, name in enumerate(names) if name in columns] or [0]
            reader = self._reader(file, places if names else None)
            for batch in _batches_of(reader):
                for start in range(0, batch.num_rows, MOST_ROWS):
                    yield batch.slice(start, MOST_ROWS)

    @staticmethod
    def _reader(file: Any, places: list[int] | None) -> Any:
        options = pyarrow.ipc.IpcReadOptions(included_fields=places)
        is_file = file.read(len(_MAGIC_OF_FILES)) == _MAGIC_OF_FILES
        file.seek(0)
        return (pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream)(file, options=options)


def _batches_of(reader: Any) -> Iterator[pyarrow.RecordBatch]:
    if isinstance(reader, pyarrow.ipc.RecordBatchFileReader):
        yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
    else:
        yield from reader


def _rows_at_once(group: Any, columns: Sequence[str]) -> int:
    """How many rows of a row group are about as much as may be held of these columns."""
    # Of a struct or a list there is a chunk for each of its leaves, below the column's name.
    starts = tuple(f"{name}." for name in columns)
    chunks = (group.column(place) for place in range(group.num_columns))
    size: int = sum(chunk.total_uncompressed_size for chunk in chunks if f"{chunk.path_in_schema}.".startswith(starts))
    rows: int = group.num_rows * BATCH_BYTES // max(1, size)
    return max(1, min(MOST_ROWS, rows))


def _rows_alone(rows: int) -> Iterator[pyarrow.RecordBatch]:
    for start in range(0, rows, MOST_ROWS):
        yield empty_batch(min(MOST_ROWS, rows - start))
