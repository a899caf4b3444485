"""Writing the rows of one file, batch by batch, in each format that an output may have."""

from __future__ import annotations

import base64
import io
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import pyarrow
import pyarrow.compute
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet
from typing_extensions import override

from airflow_llmengine.spec.table import TableFormat
from airflow_llmengine.worker.tables.arrow_cells import finisher
from airflow_llmengine.worker.tables.arrow_types import inner_types, with_inner_fields

ROW_GROUP_ROWS = 122_880
"""Most rows of a row group: large enough to be read fast, small enough that several readers share a file."""

ROW_GROUP_BYTES = 64 * 2**20
"""A row group is closed before, when it takes so much in memory."""


_MOST_LEVELS_OF_ARROW = 64
"""Of types in one another: Arrow's own limit, of which it tells only when it writes a row."""


class UnwritableTypeError(Exception):
    """A format has no form for a column; the message names it."""


class FileWriter(ABC):
    """Writes one file, which is whole at the end of the ``with`` block, if that ends without an exception."""

    def __init__(self, sink: _Sink) -> None:
        self._sink = sink

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            # Arrow's writers want to end the file when they are collected as garbage.
            self._sink.take = _leave

    @abstractmethod
    def write(self, batch: pyarrow.RecordBatch) -> None:
        """Take some rows, of the schema that the file was begun with."""

    @abstractmethod
    def close(self) -> None:
        """Write what is left, and the file's end."""


def write_file(format_: TableFormat, take: Callable[[bytes], object], schema: pyarrow.Schema) -> FileWriter:
    """Begin a file.

    Args:
        format_: How to write it.
        take: Called with each piece of the file.
        schema: The columns.
    """
    return _WRITERS[format_](_Sink(take), schema)


def require_writable(format_: TableFormat, schema: pyarrow.Schema) -> None:
    """Make sure that a format has a form for each column, by beginning a file of it.

    Raises:
        UnwritableTypeError: It has none for one of them.
    """
    for field in schema:
        fault = f"the column {field.name!a} is of type {field.type}, which can't be written as {format_}"
        if _is_seen_late(format_, field.type):
            raise UnwritableTypeError(fault)
        alone = pyarrow.schema([field.with_nullable(True)])
        try:
            with write_file(format_, _leave, alone) as writer:
                writer.write(pyarrow.RecordBatch.from_arrays([_sample(format_, field.type)], schema=alone))
        except (pyarrow.ArrowException, NotImplementedError, OSError) as error:
            raise UnwritableTypeError(fault) from error


def _is_seen_late(format_: TableFormat, kind: pyarrow.DataType) -> bool:
    """Whether a format has no form for a type, though a file of it can be begun."""
    match format_:
        case "csv" | "tsv":
            return _is_no_text(kind)
        case "jsonl":
            return _has_name_twice(kind)
        case "arrow" if _has_inner_dictionary(kind) or _levels(kind) > _MOST_LEVELS_OF_ARROW:
            return True
    return bool(pyarrow.types.is_dictionary(kind) and pyarrow.types.is_nested(kind.value_type))


def _sample(format_: TableFormat, kind: pyarrow.DataType) -> pyarrow.Array:
    if format_ in ("csv", "tsv"):
        # It begins a column of any type, and has no form for the cells of some.
        return pyarrow.nulls(1, kind)
    return pyarrow.nulls(0, kind) if pyarrow.types.is_dictionary(kind) else pyarrow.array([], kind)


def _is_no_text(kind: pyarrow.DataType) -> bool:
    types = pyarrow.types
    if types.is_dictionary(kind):
        return _is_no_text(kind.value_type)
    return any(
        is_kind(kind)
        for is_kind in (
            types.is_nested,
            types.is_binary,
            types.is_large_binary,
            types.is_fixed_size_binary,
            types.is_binary_view,
        )
    )


class _Sink(io.RawIOBase):
    """What Arrow writes to."""

    def __init__(self, take: Callable[[bytes], object]) -> None:
        super().__init__()
        self.take = take
        self._size = 0

    @override
    def writable(self) -> bool:
        return True

    @override
    def write(self, data: Any, /) -> int:
        content = bytes(data)
        self.take(content)
        self._size += len(content)
        return len(content)

    @override
    def tell(self) -> int:
        return self._size


class _Gathered(FileWriter):
    """Gathers rows until there are enough to be written together."""

    def __init__(self, sink: _Sink, schema: pyarrow.Schema) -> None:
        super().__init__(sink)
        self._schema = schema
        self._batches: list[pyarrow.RecordBatch] = []
        self._rows = self._bytes = 0

    @override
    def write(self, batch: pyarrow.RecordBatch) -> None:
        while batch.num_rows:
            piece = batch.slice(0, ROW_GROUP_ROWS - self._rows)
            batch = batch.slice(piece.num_rows)
            self._batches.append(piece)
            self._rows += piece.num_rows
            self._bytes += piece.nbytes
            if self._rows >= ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
                self._flush()

    @override
    def close(self) -> None:
        self._flush()

    def _flush(self) -> None:
        if self._batches:
            self.write_group(pyarrow.Table.from_batches(self._batches, self._schema))
        self._batches = []
        self._rows = self._bytes = 0

    @abstractmethod
    def write_group(self, rows: pyarrow.Table) -> None:
        """Write these rows together."""


class _Parquet(_Gathered):
    def __init__(self, sink: _Sink, schema: pyarrow.Schema) -> None:
        super().__init__(sink, schema)
        self._writer = pyarrow.parquet.ParquetWriter(sink, schema, compression="zstd")

    @override
    def write_group(self, rows: pyarrow.Table) -> None:
        self._writer.write_table(rows, row_group_size=rows.num_rows)

    @override
    def close(self) -> None:
        super().close()
        self._writer.close()


class _Arrow(_Gathered):
    """Arrow's file format, in which a dictionary may grow from one batch to the next, and not become another."""

    def __init__(self, sink: _Sink, schema: pyarrow.Schema) -> None:
        super().__init__(sink, schema)
        options = pyarrow.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
        self._writer = pyarrow.ipc.new_file(sink, schema, options=options)
        self._dictionaries = {
            place: pyarrow.array([], field.type.value_type)
            for place, field in enumerate(schema)
            if pyarrow.types.is_dictionary(field.type)
        }

    @override
    def write_group(self, rows: pyarrow.Table) -> None:
        for place in self._dictionaries:
            rows = rows.set_column(place, rows.schema.field(place), self._with_grown_dictionary(place, rows[place]))
        for batch in rows.combine_chunks().to_batches():
            self._writer.write_batch(batch)

    @override
    def close(self) -> None:
        super().close()
        self._writer.close()

    def _with_grown_dictionary(self, place: int, column: pyarrow.ChunkedArray) -> pyarrow.Array:
        known = self._dictionaries[place]
        values = pyarrow.concat_arrays([_without_dictionary(chunk) for chunk in column.chunks])
        distinct = values.unique().drop_null()
        new = distinct.filter(pyarrow.compute.invert(pyarrow.compute.is_in(distinct, value_set=known)))
        known = self._dictionaries[place] = pyarrow.concat_arrays([known, new])
        indices = pyarrow.compute.index_in(values, value_set=known).cast(column.type.index_type)
        return pyarrow.DictionaryArray.from_arrays(indices, known, ordered=column.type.ordered)


class _Csv(FileWriter):
    def __init__(self, sink: _Sink, schema: pyarrow.Schema, delimiter: str) -> None:
        super().__init__(sink)
        fields = [field.with_type(_written_in_csv(field.type)) for field in schema]
        self._schema = pyarrow.schema(fields)
        options = pyarrow.csv.WriteOptions(delimiter=delimiter)
        self._writer = pyarrow.csv.CSVWriter(sink, self._schema, write_options=options)

    @override
    def write(self, batch: pyarrow.RecordBatch) -> None:
        arrays = [
            _without_dictionary(column).cast(field.type)
            for column, field in zip(batch.columns, self._schema, strict=True)
        ]
        self._writer.write_batch(pyarrow.RecordBatch.from_arrays(arrays, schema=self._schema))

    @override
    def close(self) -> None:
        self._writer.close()


class _JsonLines(FileWriter):
    """Rows as JSON objects.

    What JSON has no form for is text: decimals and times as Arrow writes them, binary in base64. Numbers that are not
    finite are null, a map is a list of pairs, and bytes in a text that are not UTF-8 are U+FFFD.
    """

    def __init__(self, sink: _Sink, schema: pyarrow.Schema) -> None:
        super().__init__(sink)
        self._names = schema.names
        self._types = [_written_in_json(field.type) for field in schema]

    @override
    def write(self, batch: pyarrow.RecordBatch) -> None:
        columns = [
            _json_values(_without_dictionary(column).cast(kind))
            for column, kind in zip(batch.columns, self._types, strict=True)
        ]
        rows = zip(*columns, strict=True)
        self._sink.write("".join(_line(dict(zip(self._names, row, strict=True))) for row in rows).encode())

    @override
    def close(self) -> None:
        """There is no end to write."""


_WRITERS: Mapping[TableFormat, Callable[[_Sink, pyarrow.Schema], FileWriter]] = {
    "parquet": _Parquet,
    "arrow": _Arrow,
    "csv": lambda sink, schema: _Csv(sink, schema, ","),
    "tsv": lambda sink, schema: _Csv(sink, schema, "\t"),
    "jsonl": _JsonLines,
}


def _leave(data: bytes) -> None:
    """Take nothing."""


def _without_dictionary(array: pyarrow.Array) -> pyarrow.Array:
    return array.dictionary_decode() if pyarrow.types.is_dictionary(array.type) else array


def _written_in_csv(kind: pyarrow.DataType) -> pyarrow.DataType:
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    return pyarrow.string() if pyarrow.types.is_string_view(kind) else kind


def _written_in_json(kind: pyarrow.DataType) -> pyarrow.DataType:
    """The type of which Python's values are those to write."""
    types = pyarrow.types
    if types.is_dictionary(kind):
        return _written_in_json(kind.value_type)
    if types.is_temporal(kind) or types.is_decimal(kind):
        return pyarrow.string()
    return with_inner_fields(kind, _inner)


def _json_values(column: pyarrow.Array) -> list[Any]:
    """A column's values in Python, with narrow floats as short as they are."""
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        # Parquet and Arrow don't look at what they call UTF-8, and JSON has nothing else.
        texts = _texts_as_bytes(column.type)
        values = [_with_valid_texts(value, column.type) for value in column.cast(texts).to_pylist()]
    finish = finisher(column.type)
    return values if finish is None else [None if value is None else finish(value) for value in values]


def _is_text(kind: pyarrow.DataType) -> bool:
    types = pyarrow.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _texts_as_bytes(kind: pyarrow.DataType) -> pyarrow.DataType:
    if _is_text(kind):
        return pyarrow.large_binary()
    return with_inner_fields(kind, lambda field: field.with_type(_texts_as_bytes(field.type)))


def _with_valid_texts(value: Any, kind: pyarrow.DataType) -> Any:
    """A value of ``_texts_as_bytes`` with its texts, of which what is not UTF-8 is U+FFFD."""
    types = pyarrow.types
    if value is None:
        return None
    if _is_text(kind):
        return value.decode("utf-8", "replace")
    if types.is_struct(kind):
        return {field.name: _with_valid_texts(value[field.name], field.type) for field in kind}
    if types.is_map(kind):
        return [(_with_valid_texts(key, kind.key_type), _with_valid_texts(item, kind.item_type)) for key, item in value]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [_with_valid_texts(item, kind.value_type) for item in value]
    return value


def _inner(field: pyarrow.Field) -> pyarrow.Field:
    # Casting minds the nulls below a null of what holds them.
    return field.with_type(_written_in_json(field.type)).with_nullable(True)


def _has_inner_dictionary(kind: pyarrow.DataType) -> bool:
    """Whether there is a dictionary somewhere below the column itself."""
    return any(pyarrow.types.is_dictionary(one) or _has_inner_dictionary(one) for one in inner_types(kind))


def _levels(kind: pyarrow.DataType) -> int:
    """How many types are in one another in this one."""
    if pyarrow.types.is_dictionary(kind):
        return _levels(kind.value_type)
    return 1 + max(map(_levels, inner_types(kind)), default=0)


def _has_name_twice(kind: pyarrow.DataType) -> bool:
    """Whether there is a struct with two fields of one name."""
    twice = pyarrow.types.is_struct(kind) and len({field.name for field in kind}) < kind.num_fields
    return twice or any(map(_has_name_twice, inner_types(kind)))


def _line(row: dict[str, Any]) -> str:
    try:
        return _encode(row) + "\n"
    except ValueError:
        return _encode(_without_non_finite(row)) + "\n"


def _without_non_finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _without_non_finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_without_non_finite(item) for item in value]
    return value


def _as_json(value: object) -> str:
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else str(value)


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_as_json).encode
