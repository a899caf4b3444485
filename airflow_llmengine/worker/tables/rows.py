"""What the output needs of a table's input: the columns that it keeps, file by file, in the order of the records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow


class RowsFile(Protocol):
    """One file of the input."""

    @property
    def name(self) -> str:
        """Its path below the input's root, as it is spelt there: ``region=EU/part-0.parquet``."""
        ...

    def batches(self, columns: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
        """Its rows in order, from the beginning each time it is called, with these columns alone, in this order.

        Batches together have as many rows as the file has records, also where ``columns`` is empty. Types are those of
        ``Rows.schema``, whatever the file itself has.
        """
        ...


class Rows(Protocol):
    """A table that is a job's input. Files after one another, and their rows, are the job's records in order."""

    @property
    def schema(self) -> pyarrow.Schema:
        """All columns as the input has them, with metadata; those that the names of folders give come last."""
        ...

    @property
    def partition_columns(self) -> Sequence[str]:
        """Those of ``schema`` that the names of folders give; none where ``partitioning`` is not asked for."""
        ...

    @property
    def files(self) -> Sequence[RowsFile]:
        """The input's files, in the order of their names; a file without rows is one of them."""
        ...
