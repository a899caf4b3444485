"""Files without types: CSV, TSV and JSON lines.

What can't be read of them is one row's fault, and not the job's. Cells of CSV and TSV are text, letter for letter as
they stand there: a number in them may be a postal code. An empty cell is a null. Columns of JSON lines have the types
that all of their values fit, for which the file is read once when it is opened.
"""

from __future__ import annotations

import codecs
import csv
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import pyarrow
from typing_extensions import override

from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.storage.errors import StorageChangedError, StorageNotFoundError
from airflow_llmengine.worker.readers.decompression import PlainFile
from airflow_llmengine.worker.readers.errors import InputChangedError, InputInvalidError
from airflow_llmengine.worker.readers.json_lines import plain_lines
from airflow_llmengine.worker.readers.limits import BLOCK_BYTES, MAX_RECORD_BYTES
from airflow_llmengine.worker.readers.unchanged import UnchangedFile
from airflow_llmengine.worker.readers.values import ValueRefusedError, load_value
from airflow_llmengine.worker.tables.broken_rows import readable_cells
from airflow_llmengine.worker.tables.row_files import BATCH_BYTES, MOST_BATCH_ROWS, Row, RowFault, RowFile, empty_batch
from airflow_llmengine.worker.tables.row_templates import shown

MOST_LINE = 2 * MAX_RECORD_BYTES
"""Characters of a line of CSV that are held at most. A row that is too large is an error; this is no row any more."""


class TextFile(RowFile):
    """A file whose rows are parsed one by one."""

    @override
    def rows(self, columns: Sequence[str]) -> Iterator[Row | RowFault]:
        for row in self._parsed():
            if isinstance(row, RowFault):
                yield row
            else:
                yield Row({name: row.cells.get(name) for name in columns}, row.size)

    @override
    def batches(self, schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
        for rows in _in_batches(self._parsed()):
            if not schema.names:
                yield empty_batch(len(rows))
                continue
            yield pyarrow.RecordBatch.from_arrays([self._array(rows, field) for field in schema], schema=schema)

    @abstractmethod
    def _parsed(self) -> Iterator[Row | RowFault]:
        """All rows with all cells."""

    def _array(self, rows: Sequence[Row | RowFault], field: pyarrow.Field) -> pyarrow.Array:
        values = [row.cells.get(field.name) for row in rows]
        if (array := as_array(values, field.type)) is not None:
            return array
        # Types are those of rows that can be read.
        fitting = [
            value if isinstance(row, Row) or as_array([value], field.type) is not None else None
            for row, value in zip(rows, values, strict=True)
        ]
        if (array := as_array(fitting, field.type)) is None:
            raise InputInvalidError(
                f"{self.name}: the column {shown(field.name)} holds what is no {field.type}, as which it began: run "
                "the job again on files that stay as they are."
            )
        return array

    @contextmanager
    def _opened(self) -> Iterator[PlainFile]:
        try:
            with PlainFile(UnchangedFile(self.location, self.entry), self.name) as file:
                yield file
        except (StorageNotFoundError, StorageChangedError) as error:
            raise InputChangedError(f"The input was changed while the job read it: {error}") from error


class DelimitedFile(TextFile):
    """CSV or TSV with a header, as RFC 4180 has it: cells in quotes may hold delimiters, line feeds and quotes."""

    delimiter: str

    @override
    def read_schema(self) -> pyarrow.Schema:
        with self._opened() as file:
            for cells in self._records(file):
                if not all(map(_is_unicode, cells)):
                    raise InputInvalidError(f"{self.name}: the names of its columns are not UTF-8: write it in UTF-8.")
                return pyarrow.schema([(name, pyarrow.string()) for name in cells])
        raise InputInvalidError(f"{self.name} is empty: its first line must be the names of the columns.")

    @override
    def _parsed(self) -> Iterator[Row | RowFault]:
        with self._opened() as file:
            records = self._records(file)
            names = next(records, [])
            for cells in records:
                if len(cells) != len(names):
                    reason = f"it has {len(cells)} cells, and the header has {len(names)}"
                    yield RowFault(RecordErrorType.INVALID_RECORD, reason)
                    continue
                size = sum(map(len, cells))
                if size > MAX_RECORD_BYTES:
                    reason = f"it takes {size} bytes, and a row may take {MAX_RECORD_BYTES} at most"
                    yield RowFault(RecordErrorType.RECORD_TOO_LARGE, reason)
                    continue
                broken = next((name for name, cell in zip(names, cells, strict=True) if not _is_unicode(cell)), None)
                if broken is not None:
                    reason = f"the column {shown(broken)} is not UTF-8: write the file in UTF-8"
                    whole = {name: cell or None for name, cell in zip(names, cells, strict=True) if _is_unicode(cell)}
                    yield RowFault(RecordErrorType.INVALID_UNICODE, reason, whole)
                    continue
                yield Row({name: cell or None for name, cell in zip(names, cells, strict=True)}, size)

    def _records(self, file: PlainFile) -> Iterator[list[str]]:
        # The limit is one of the whole process; nothing else in a worker reads CSV.
        csv.field_size_limit(MAX_RECORD_BYTES)
        lines = _Lines(file, self.name)
        reader = csv.reader(lines, delimiter=self.delimiter)
        begun = 1
        try:
            for cells in reader:
                if lines.asked_past_end:
                    # It would be a row that swallows all others behind it.
                    raise InputInvalidError(
                        f"{self.name} can't be read on from line {begun}: a quote is not closed before the file ends. "
                        "Close or double it, or write the file again if it is cut."
                    )
                begun = reader.line_num + 1
                if cells:
                    yield cells
        except csv.Error as error:
            if "new-line" in str(error):
                reason, remedy = "a carriage return stands alone", "end lines in line feeds, or put it into quotes"
            else:
                reason, remedy = str(error), "look for a quote that is not closed, or doubled"
            raise InputInvalidError(
                f"{self.name} can't be read on from line {reader.line_num} ({reason}): {remedy}."
            ) from None


class CSVFile(DelimitedFile):
    """Cells between commas."""

    delimiter = ","


class TSVFile(DelimitedFile):
    """Cells between tabs."""

    delimiter = "\t"


class JSONLinesFile(TextFile):
    """An object on each line; a name that a line leaves out is null there."""

    @override
    def read_schema(self) -> pyarrow.Schema:
        schema = pyarrow.schema([])
        found: list[pyarrow.Schema] = []
        for rows in _in_batches(self._parsed()):
            cells = [row.cells for row in rows if isinstance(row, Row)]
            names = dict.fromkeys(name for row in cells for name in row)
            fields = [pyarrow.field(name, self._type([row.get(name) for row in cells], name)) for name in names]
            here = pyarrow.schema(fields)
            schema = self._widened(schema, here)
            if here not in found:
                found.append(here)
        if any(are_wider(schema, here) for here in found):
            self.require_fit(schema)
        return schema

    def require_fit(self, schema: pyarrow.Schema) -> None:
        """Make sure that every cell can be held by types that were made wider for other rows, or for other files.

        A wider type may hold less: a 64-bit float does not hold all whole numbers of 64 bits.

        Raises:
            InputInvalidError: One can't; it names the column.
        """
        for rows in _in_batches(self._parsed()):
            for field in schema:
                if as_array([row.cells.get(field.name) for row in rows if isinstance(row, Row)], field.type) is None:
                    raise self._mixed(field.name)

    def _type(self, values: list[Any], name: str) -> pyarrow.DataType:
        try:
            return pyarrow.array(values).type
        except (pyarrow.ArrowException, OverflowError):
            raise self._mixed(name) from None

    def _widened(self, one: pyarrow.Schema, other: pyarrow.Schema) -> pyarrow.Schema:
        try:
            return pyarrow.unify_schemas([one, other], promote_options="permissive")
        except pyarrow.ArrowException:
            differing = (
                name
                for name in other.names
                if name in one.names and not _have_common_type(one.field(name), other.field(name))
            )
            raise self._mixed(next(differing, "")) from None

    def _mixed(self, name: str) -> InputInvalidError:
        return InputInvalidError(
            f"{self.name}: the column {shown(name)} holds values of types that no column can have together, such as "
            "numbers and texts, or whole numbers that are too large for that: write it as one type, for example as "
            "text."
        )

    @override
    def _parsed(self) -> Iterator[Row | RowFault]:
        with self._opened() as file:
            for _number, line, size in plain_lines(file.read):
                yield _row(line, size)


def _row(line: bytes | None, size: int) -> Row | RowFault:
    if line is None:
        reason = f"it takes {size} bytes, and a row may take {MAX_RECORD_BYTES} at most"
        return RowFault(RecordErrorType.RECORD_TOO_LARGE, reason)
    try:
        value = load_value(line)
    except ValueRefusedError as refused:
        return RowFault(refused.error_type, refused.reason, readable_cells(line))
    if not isinstance(value, dict):
        return RowFault(RecordErrorType.INVALID_RECORD, "a row must be an object: a name and a value each")
    return Row(value, size)


def are_wider(schema: pyarrow.Schema, other: pyarrow.Schema) -> bool:
    """Whether a column of ``other`` has another type in ``schema``, which has all of its columns."""
    return any(field.type != schema.field(field.name).type and not pyarrow.types.is_null(field.type) for field in other)


def as_array(values: list[Any], kind: pyarrow.DataType) -> pyarrow.Array | None:
    """Values of Python as an array of a type; None where it does not hold them."""
    try:
        return pyarrow.array(values, kind)
    except (pyarrow.ArrowException, OverflowError):
        return None


def _have_common_type(one: pyarrow.Field, other: pyarrow.Field) -> bool:
    try:
        pyarrow.unify_schemas([pyarrow.schema([one]), pyarrow.schema([other])], promote_options="permissive")
    except pyarrow.ArrowException:
        return False
    return True


class _Lines:
    """A file's lines with their ends. Bytes that are not UTF-8 become surrogates, which no text has."""

    def __init__(self, file: PlainFile, name: str) -> None:
        self._lines = _text_lines(file, name)
        self.asked_past_end = False
        """Whether one more line was asked for than there are."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        line = next(self._lines, None)
        if line is None:
            self.asked_past_end = True
            raise StopIteration
        return line


def _text_lines(file: PlainFile, name: str) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    begun: list[str] = []
    size = number = 0
    while block := file.read(BLOCK_BYTES):
        first, *others = decoder.decode(block).split("\n")
        begun.append(first)
        size += len(first)
        if size > MOST_LINE:
            raise InputInvalidError(
                f"{name} can't be read on from line {number + 1}, which has more than {MOST_LINE} characters: look for "
                "line feeds that are missing, or give table.input_format if it is no text."
            )
        if others:
            yield "".join(begun) + "\n"
            last = others.pop()
            yield from (f"{line}\n" for line in others)
            begun, size, number = [last], len(last), number + 1 + len(others)
    begun.append(decoder.decode(b"", final=True))
    if rest := "".join(begun):
        yield rest


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _in_batches(rows: Iterator[Row | RowFault]) -> Iterator[list[Row | RowFault]]:
    """So many rows as may be held."""
    held: list[Row | RowFault] = []
    size = 0
    for row in rows:
        held.append(row)
        size += 0 if isinstance(row, RowFault) else row.size
        if len(held) == MOST_BATCH_ROWS or size >= BATCH_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held
