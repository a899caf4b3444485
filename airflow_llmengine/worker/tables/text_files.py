"""Files without types: CSV, TSV and JSON lines.

What can't be read of them is one row's fault, and not the job's. Cells of CSV and TSV are text, letter for letter as
they stand there: a number in them may be a postal code. An empty cell is a null. Columns of JSON lines have the types
that all of their values fit, for which the file is read once when it is opened.
"""

from __future__ import annotations

import codecs
import csv
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow
from typing_extensions import override

from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.storage.errors import StorageChangedError, StorageNotFoundError
from airflow_llmengine.worker.readers.decompression import PlainFile
from airflow_llmengine.worker.readers.errors import InputChangedError, InputInvalidError
from airflow_llmengine.worker.readers.json_lines import read_json_lines
from airflow_llmengine.worker.readers.limits import BLOCK_BYTES, MAX_RECORD_BYTES
from airflow_llmengine.worker.readers.unchanged import UnchangedFile
from airflow_llmengine.worker.tables.row_files import BATCH_BYTES, MOST_BATCH_ROWS, Row, RowFault, RowFile, empty_batch
from airflow_llmengine.worker.tables.row_templates import shown

_NO_CELLS: Mapping[str, Any] = {}


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
            cells = [_NO_CELLS if isinstance(row, RowFault) else row.cells for row in rows]
            if not schema.names:
                yield empty_batch(len(rows))
                continue
            arrays = [self._array([row.get(field.name) for row in cells], field) for field in schema]
            yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)

    @abstractmethod
    def _parsed(self) -> Iterator[Row | RowFault]:
        """All rows with all cells."""

    def _array(self, values: list[Any], field: pyarrow.Field) -> pyarrow.Array:
        try:
            return pyarrow.array(values, field.type)
        except (pyarrow.ArrowException, OverflowError):
            raise InputInvalidError(
                f"{self.name}: the column {shown(field.name)} holds what is no {field.type}, as which it began: run "
                "the job again on files that stay as they are."
            ) from None

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
                    yield RowFault(RecordErrorType.INVALID_UNICODE, reason)
                    continue
                yield Row({name: cell or None for name, cell in zip(names, cells, strict=True)}, size)

    def _records(self, file: PlainFile) -> Iterator[list[str]]:
        # The limit is one of the whole process; nothing else in a worker reads CSV.
        csv.field_size_limit(MAX_RECORD_BYTES)
        reader = csv.reader(_text_lines(file), delimiter=self.delimiter)
        try:
            for cells in reader:
                if cells:
                    yield cells
        except csv.Error as error:
            raise InputInvalidError(
                f"{self.name} can't be read on from line {reader.line_num} ({error}): look for a quote that is not "
                "closed, or doubled."
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
        for rows in _in_batches(self._parsed()):
            cells = [row.cells for row in rows if isinstance(row, Row)]
            names = dict.fromkeys(name for row in cells for name in row)
            fields = [pyarrow.field(name, self._type([row.get(name) for row in cells], name)) for name in names]
            schema = self._widened(schema, pyarrow.schema(fields))
        return schema

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
            "numbers and texts, or a whole number of more than 64 bits: write it as one type, for example as text."
        )

    @override
    def _parsed(self) -> Iterator[Row | RowFault]:
        with self._opened() as file:
            for raw in read_json_lines(file.read, self.name):
                if raw.error is not None:
                    yield RowFault(raw.error.type, raw.error.message.removeprefix(f"{raw.location}: ").rstrip("."))
                elif not isinstance(raw.value, dict):
                    yield RowFault(RecordErrorType.INVALID_RECORD, "a row must be an object: a name and a value each")
                else:
                    yield Row(raw.value, raw.size)


def _have_common_type(one: pyarrow.Field, other: pyarrow.Field) -> bool:
    try:
        pyarrow.unify_schemas([pyarrow.schema([one]), pyarrow.schema([other])], promote_options="permissive")
    except pyarrow.ArrowException:
        return False
    return True


def _text_lines(file: PlainFile) -> Iterator[str]:
    """The file's lines with their ends. Bytes that are not UTF-8 become surrogates, which no text has."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    begun: list[str] = []
    while block := file.read(BLOCK_BYTES):
        first, *others = decoder.decode(block).split("\n")
        begun.append(first)
        if others:
            yield "".join(begun) + "\n"
            last = others.pop()
            yield from (f"{line}\n" for line in others)
            begun = [last]
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
