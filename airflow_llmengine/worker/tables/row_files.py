"""The files of a table, whatever format they have: their columns, and their rows as cells or as Arrow's batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow

from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.storage.filesystem import FileEntry, Location

BATCH_BYTES = 8 * 2**20
"""About how much of a table is held at a time, as it is in memory."""

MOST_BATCH_ROWS = 4096
"""Of a text file."""


@dataclass(frozen=True, slots=True)
class RowFault:
    """Why a row can't be read: its record is an error."""

    error_type: RecordErrorType
    reason: str
    """The end of a sentence that begins with the row's place, without what stands in the row."""
    cells: Mapping[str, Any] = field(default_factory=dict)
    """What can be read all the same, for the output alone."""


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of a row that were asked for."""

    cells: Mapping[str, Any]
    """By column; None for a null."""
    size: int = 0
    """Bytes that it takes in a text file, about."""


class RowFile(ABC):
    """One file.

    Args:
        location: Where it is.
        entry: What it was when it was listed.
        name: Its path below the input's root.

    Errors of all methods are ``InputInvalidError``, ``InputChangedError`` and ``StorageError``.
    """

    def __init__(self, location: Location, entry: FileEntry, name: str) -> None:
        self.location = location
        self.entry = entry
        self.name = name

    @abstractmethod
    def read_schema(self) -> pyarrow.Schema:
        """Find out what columns it has."""

    @abstractmethod
    def rows(self, columns: Sequence[str]) -> Iterator[Row | RowFault]:
        """Its rows in order, with the cells of these columns; of a column that it has not, null."""

    @abstractmethod
    def batches(self, schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
        """Its rows in order, with the columns of this schema alone, and of its types; nulls where it has none.

        Of a row that can't be read, the cells are null that can't.
        """


def conform(batch: pyarrow.RecordBatch, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    """A batch with the columns of a schema, in its order and with its types; nulls where it has none."""
    if not schema.names:
        return empty_batch(batch.num_rows)
    known = set(batch.schema.names)
    arrays = [
        batch.column(field.name) if field.name in known else pyarrow.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    # It widens what is narrower here than elsewhere.
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def empty_batch(rows: int) -> pyarrow.RecordBatch:
    """So many rows without any column."""
    return pyarrow.RecordBatch.from_struct_array(pyarrow.array([{}] * rows, pyarrow.struct([])))
