"""The resulting table of a job: the input's columns that it keeps, and beside them what the job made of each row."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count

import pyarrow

from airflow_llmengine.spec.table import Table, TableFormat
from airflow_llmengine.storage.layout import JOB_SUFFIX
from airflow_llmengine.storage.output import OutputWriter
from airflow_llmengine.storage.output_folder import OutputFolder
from airflow_llmengine.worker.readers.errors import InputChangedError, InputInvalidError
from airflow_llmengine.worker.tables.file_formats import UnwritableTypeError, require_writable, write_file
from airflow_llmengine.worker.tables.result_columns import ResultColumns
from airflow_llmengine.worker.tables.results import RowResult
from airflow_llmengine.worker.tables.row_templates import shown
from airflow_llmengine.worker.tables.rows import Rows, RowsFile

MOST_FILES = 20_000
"""Most files of an output that is a folder: its manifest names each."""

_COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst", ".zstd")
_ENDINGS = (
    ".parquet",
    ".pq",
    ".csv",
    ".tsv",
    ".tab",
    ".txt",
    ".arrow",
    ".feather",
    ".ipc",
    ".jsonl",
    ".ndjson",
    ".json",
)


class TableOutput:
    """Writes the output of a job, one row for each row of its input, in the input's order.

    Made before anything is launched or loaded, so that what can't be is refused in time.

    Args:
        table: What is asked for.
        rows: The input.
        output_data_path: Where the output goes; a folder, with a slash at the end, has a file for each of the input's.

    Raises:
        InputInvalidError: With this input, there can be no such output.
    """

    def __init__(self, table: Table, rows: Rows, output_data_path: str) -> None:
        self.is_folder = output_data_path.endswith("/")
        self.format: TableFormat = table.format_of_output(output_data_path) or "parquet"
        self.schema_columns = None if table.output_schema is None else table.schema_columns
        """What ``output_schema`` makes columns of; None without one."""
        self._rows = rows
        self._made = ResultColumns(table)
        self._kept = _kept_columns(table, rows, is_folder=self.is_folder)
        kept = [rows.schema.field(name) for name in self._kept]
        self.schema = pyarrow.schema([*kept, *self._made.fields], metadata=rows.schema.metadata)
        """The output's columns; in a folder those of each file, without what the names of folders give."""
        self._require_form(table)

    def _require_form(self, table: Table) -> None:
        self._refuse_clashes(table)
        try:
            require_writable(self.format, self.schema)
        except UnwritableTypeError as error:
            raise InputInvalidError(
                f"The output can't be written: {error}; leave that out of table.columns, or write another format, for "
                "example Parquet"
            ) from error
        if not self.schema.names:
            raise InputInvalidError("The output would have no column: name one in table.columns, or a column to make.")
        if self.format in ("csv", "tsv") and len(self.schema.names) == 1:
            raise InputInvalidError(
                f"The output would have one column alone, whose nulls {self.format} can't tell from empty lines: keep "
                "a column of the input in table.columns, or write another format."
            )
        if self.is_folder and len(self._rows.files) > MOST_FILES:
            raise InputInvalidError(
                f"The input has {len(self._rows.files)} files, and an output that is a folder has {MOST_FILES} at "
                "most: write one file, or split the job."
            )

    def _refuse_clashes(self, table: Table) -> None:
        """Refuse a column to make that has the name of one that is there already."""
        # Those of folders are there also where table.columns leaves them out.
        by_folders = self._rows.partition_columns if self.is_folder else ()
        for field, name in table.made_columns:
            if name in by_folders:
                raise InputInvalidError(
                    f"table.{field}: the names of the output's folders give a column {shown(name)} as well; give "
                    "another name, or write one file."
                )
            if name in self._kept:
                raise InputInvalidError(
                    f"table.{field}: the input has a column {shown(name)} as well, which the output keeps; give "
                    "another name, or name those that are kept in table.columns."
                )

    def write_file(self, writer: OutputWriter, results: Iterable[Sequence[RowResult]]) -> None:
        """Write the one file of an output.

        Args:
            writer: Takes the file. It is not closed.
            results: Those of all rows, in order, in pieces of any size.

        Raises:
            InputChangedError: The input has another number of rows than there are results.
            StorageError: The input can't be read, or the output can't be written.
        """
        source = _Results(results)
        with write_file(self.format, writer.write, self.schema) as file:
            for part in self._rows.files:
                for batch in self._joined(part, source):
                    file.write(batch)
            source.require_end()

    def write_folder(self, folder: OutputFolder, results: Iterable[Sequence[RowResult]]) -> None:
        """Write the files of an output that is a folder; see ``write_file``. They are not put in their places."""
        source = _Results(results)
        names = output_names([part.name for part in self._rows.files], self.format)
        for part, name in zip(self._rows.files, names, strict=True):
            with folder.open(name) as output, write_file(self.format, output.write, self.schema) as file:
                for batch in self._joined(part, source):
                    file.write(batch)
                    output.records += batch.num_rows
        source.require_end()

    def _joined(self, part: RowsFile, results: _Results) -> Iterator[pyarrow.RecordBatch]:
        """The rows of a file of the input with their results."""
        for batch in part.batches(self._kept):
            start = 0
            while start < batch.num_rows:
                piece = results.take(batch.num_rows - start)
                kept = batch.slice(start, len(piece)).columns
                yield pyarrow.RecordBatch.from_arrays([*kept, *self._made.arrays(piece)], schema=self.schema)
                start += len(piece)


class _Results:
    """The results of the rows, to be taken from in any portions."""

    def __init__(self, pieces: Iterable[Sequence[RowResult]]) -> None:
        self._pieces = iter(pieces)
        self._piece: Sequence[RowResult] = ()

    def take(self, most: int) -> Sequence[RowResult]:
        """At least one result, and at most so many."""
        while not self._piece:
            piece = next(self._pieces, None)
            if piece is None:
                raise InputChangedError("The input has more rows than it had when the job read it: launch it again.")
            self._piece = piece
        taken, self._piece = self._piece[:most], self._piece[most:]
        return taken

    def require_end(self) -> None:
        """Make sure that all of them were taken."""
        if self._piece or any(self._pieces):
            raise InputChangedError("The input has fewer rows than it had when the job read it: launch it again.")


def output_names(names: Sequence[str], format_: TableFormat) -> list[str]:
    """What the files of an output that is a folder are called, after those of the input.

    The folders keep their names, as they may say a column's value. The ending is that of the output's format. Names
    that readers pass over, such as those that begin with ``_``, get ``part`` in front of them. Of two that would be
    called the same, the second keeps its ending, too.
    """
    found: dict[str, None] = {}
    for name in names:
        again = (f"{name}-{number}" for number in count(2))
        candidates = (_output_name(stem, format_) for stem in chain((_without_ending(name), name), again))
        found[next(candidate for candidate in candidates if candidate not in found)] = None
    return list(found)


def _output_name(stem: str, format_: TableFormat) -> str:
    *folders, file = stem.split("/")
    parts = [part + "_" if part.endswith(JOB_SUFFIX) else part for part in folders] + [file]
    seen = [part if part and part[0] not in "._" else f"part{part}" for part in parts]
    return f"{'/'.join(seen)}.{format_}"


def _without_ending(name: str) -> str:
    for endings in (_COMPRESSIONS, _ENDINGS):
        stem, ending = posixpath.splitext(name)
        if ending.lower() in endings:
            name = stem
    return name


def _kept_columns(table: Table, rows: Rows, *, is_folder: bool) -> list[str]:
    """The input's columns that the output's files have, in the input's order."""
    by_folders = set(rows.partition_columns) if is_folder else set[str]()
    return [
        name
        for name in rows.schema.names
        if (table.columns is None or name in table.columns) and name not in by_folders
    ]
