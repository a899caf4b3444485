"""A job's input that is a table: its rows become records, one by one, in the order of the files' names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow
from typing_extensions import override

from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.table import FORMATS, Table, TableFormat, format_of_name
from airflow_llmengine.storage.filesystem import FileEntry, Storage
from airflow_llmengine.storage.inputs import input_identity, list_input, names_below
from airflow_llmengine.worker.readers.detection import InputFormat
from airflow_llmengine.worker.readers.errors import InputInvalidError
from airflow_llmengine.worker.readers.reader import InputReader
from airflow_llmengine.worker.readers.unchanged import require_unchanged
from airflow_llmengine.worker.records import RawRecord
from airflow_llmengine.worker.tables.arrow_cells import holds_bytes, require_time_zones
from airflow_llmengine.worker.tables.arrow_files import ArrowIPCFile, ParquetFile
from airflow_llmengine.worker.tables.partition_folders import partition_types, partition_values
from airflow_llmengine.worker.tables.row_files import Row, RowFault, RowFile
from airflow_llmengine.worker.tables.row_records import RowRecords
from airflow_llmengine.worker.tables.row_templates import no_such_column, shown
from airflow_llmengine.worker.tables.text_files import CSVFile, JSONLinesFile, TSVFile, are_wider

_FILES: Mapping[TableFormat, type[RowFile]] = {
    "parquet": ParquetFile,
    "csv": CSVFile,
    "tsv": TSVFile,
    "arrow": ArrowIPCFile,
    "jsonl": JSONLinesFile,
}

_COMPRESSED = re.compile(r"\.(gz|zst)$", re.IGNORECASE)
"""Endings of text files that are read as they are."""

_AT_ONCE = 8
"""Files whose columns are looked up at the same time."""


class TableFile:
    """One file of a table, with the columns that its folders give; see ``rows.RowsFile``."""

    def __init__(self, file: RowFile, schema: pyarrow.Schema, partitions: Mapping[str, str | None]) -> None:
        self._file = file
        self._schema = schema
        self._partitions = partitions
        self._constants = {
            name: pyarrow.scalar(value, pyarrow.string()).cast(schema.field(name).type)
            for name, value in partitions.items()
        }

    @property
    def name(self) -> str:
        """Its path below the input's root, as it is spelt there."""
        return self._file.name

    def rows(self, columns: Sequence[str]) -> Iterator[Row | RowFault]:
        """Its rows in order, with the cells of these columns."""
        here = [name for name in columns if name not in self._constants]
        constants = {name: self._constants[name].as_py() for name in columns if name in self._constants}
        for row in self._file.rows(here):
            yield row if not constants or isinstance(row, RowFault) else Row({**row.cells, **constants}, row.size)

    def batches(self, columns: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
        """Its rows in order, with these columns alone, in this order, of the table's types."""
        here = [name for name in columns if name not in self._constants]
        schema = pyarrow.schema([self._schema.field(name) for name in here])
        wanted = pyarrow.schema([self._schema.field(name) for name in columns])
        for batch in self._file.batches(schema):
            if len(here) == len(columns):
                yield batch
                continue
            arrays = [
                batch.column(name) if name in here else pyarrow.repeat(self._constants[name], batch.num_rows)
                for name in columns
            ]
            yield pyarrow.RecordBatch.from_arrays(arrays, schema=wanted)


class TableInput(InputReader):
    """The rows of one file, or of several in the order of their names, as records. It is ``rows.Rows`` too.

    Args:
        storage: Where they are.
        request: The job, whose ``input_data_path`` names them.
        table: How rows become records.

    Raises:
        InputInvalidError: No job can be made of it: a file can't be read, a column is not there, or a template is none.
        StorageError: A file does not exist or can't be read.
    """

    def __init__(self, storage: Storage, request: CreateBatchCompletionsV1Request, table: Table) -> None:
        if request.input_data_path is None:
            raise InputInvalidError("A job with a table needs input_data_path: the table's files.")
        self._storage = storage
        self._url = request.input_data_path
        entries = list_input(storage, self._url)
        self.format = InputFormat.TABLE
        self.identity = input_identity(storage, entries)
        self.content = None
        names = names_below(storage.location(self._url), entries)
        files = _open_files(storage, entries, names, table.input_format)
        partitions = partition_values(names) if table.partitioning == "hive" else [{} for _name in names]
        types = partition_types(partitions)
        self.partition_columns: Sequence[str] = list(types)
        """The columns that the names of folders give."""
        self.schema = _schema_of(files, types)
        """All columns; those that the names of folders give come last."""
        self.files = [TableFile(file, self.schema, values) for file, values in zip(files, partitions, strict=True)]
        """The files, in the order of their names."""
        _require_columns(table, self.schema)
        self._records = RowRecords(table, self.schema.names)
        _require_text(self._records, self.schema)

    @override
    def records(self) -> Iterator[RawRecord]:
        index = 0
        for file in self.files:
            for number, row in enumerate(file.rows(self._records.columns), start=1):
                yield self._records.record(index, f"row {number} of {file.name}", row)
                index += 1

    @override
    def check_unchanged(self) -> None:
        require_unchanged(self._storage, self._url, self.identity)


def _open_files(
    storage: Storage, entries: Sequence[FileEntry], names: Sequence[str], given: TableFormat | None
) -> list[RowFile]:
    formats = [given or _format_of(name) for name in names]
    for name, found in zip(names, formats, strict=True):
        if found != formats[0]:
            raise InputInvalidError(
                f"{names[0]} is {formats[0]}, and {name} is {found}: a table has files of one format; name those that "
                f"are meant by a glob, for example *.{formats[0]}."
            )
    return [
        _FILES[found](storage.location(entry.url), entry, name)
        for entry, name, found in zip(entries, names, formats, strict=True)
    ]


def _format_of(name: str) -> TableFormat:
    found = format_of_name(_COMPRESSED.sub("", name))
    if found is None:
        raise InputInvalidError(
            f"{name} has an ending that says no format of a table: give table.input_format ({', '.join(FORMATS)})."
        )
    return found


def _schema_of(files: Sequence[RowFile], partitions: Mapping[str, pyarrow.DataType]) -> pyarrow.Schema:
    with ThreadPoolExecutor(min(_AT_ONCE, len(files)), thread_name_prefix="table-schema") as pool:
        schemas = list(pool.map(lambda file: file.read_schema(), files))
    schema = schemas[0]
    for file, other in zip(files, schemas, strict=True):
        twice = next((name for name, times in Counter(other.names).items() if times > 1), None)
        if twice is not None:
            raise InputInvalidError(f"{file.name} has two columns {shown(twice)}: give one of them another name.")
        if not other.equals(schema):
            schema = _with(schema, other, file, files[0])
    for file, other in zip(files, schemas, strict=True):
        if isinstance(file, JSONLinesFile) and are_wider(schema, other):
            file.require_fit(schema)
    if len(files) > 1:
        schema = _with_wide_indices(schema)
    for name, kind in partitions.items():
        if name in schema.names:
            raise InputInvalidError(
                f"The column {shown(name)} is in the files and in the names of their folders: leave partitioning out."
            )
        schema = schema.append(pyarrow.field(name, kind))
    return schema


def _with(schema: pyarrow.Schema, other: pyarrow.Schema, file: RowFile, first: RowFile) -> pyarrow.Schema:
    both = [name for name in other.names if name in schema.names]
    differing = [
        (name, *types)
        for name in both
        if (types := (schema.field(name).type, other.field(name).type))[0] != types[1]
        and not _are_dictionaries_of_one_type(*types)
        and pyarrow.null() not in types
    ]
    # Types of text files are found out and not given, so that wider ones can be taken.
    if differing and not isinstance(file, JSONLinesFile):
        raise _two_types(*differing[0], first, file)
    try:
        merged = pyarrow.unify_schemas([schema, other], promote_options="permissive")
    except pyarrow.ArrowException:
        raise _two_types(*differing[0], first, file) from None
    # Where a file has not the column, it is null.
    fields = [field if field.name in both else field.with_nullable(True) for field in merged]
    return pyarrow.schema(fields, metadata=merged.metadata)


def _with_wide_indices(schema: pyarrow.Schema) -> pyarrow.Schema:
    """The dictionaries of several files have as many values together as the narrow indices of one may not hold."""
    fields = [
        field.with_type(pyarrow.dictionary(pyarrow.int32(), field.type.value_type, ordered=field.type.ordered))
        if pyarrow.types.is_dictionary(field.type) and field.type.index_type.bit_width < 32
        else field
        for field in schema
    ]
    return pyarrow.schema(fields, metadata=schema.metadata)


def _are_dictionaries_of_one_type(one: pyarrow.DataType, other: pyarrow.DataType) -> bool:
    """Whether they differ in the width of their indices alone, which follows from how many values a file has."""
    if not (pyarrow.types.is_dictionary(one) and pyarrow.types.is_dictionary(other)):
        return False
    return bool(one.value_type == other.value_type and one.ordered == other.ordered)


def _two_types(
    name: str, one: pyarrow.DataType, other: pyarrow.DataType, first: RowFile, file: RowFile
) -> InputInvalidError:
    return InputInvalidError(
        f"The column {shown(name)} is of type {one} in {first.name} and of type {other} in {file.name}: write all "
        "files with one type."
    )


def _require_columns(table: Table, schema: pyarrow.Schema) -> None:
    named = [("columns", name) for name in table.columns or ()]
    named += [(f"parameter_columns.{parameter}", name) for parameter, name in table.parameter_columns.items()]
    for field, name in named:
        if name not in schema.names:
            raise InputInvalidError(f"table.{field} names {shown(name)}, {no_such_column(name, schema.names)}")


def _require_text(records: RowRecords, schema: pyarrow.Schema) -> None:
    """Refuse columns that a template names or uses, and that can't become text here."""
    for name in records.named_columns:
        kind = schema.field(name).type
        if holds_bytes(kind):
            raise InputInvalidError(
                f"The column {shown(name)} holds bytes, which are no text that a prompt could have: write it as text."
            )
    for name in records.columns:
        require_time_zones(schema.field(name).type)
