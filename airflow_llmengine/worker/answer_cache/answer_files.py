"""The files of a cache: Parquet, an answer in each row. A file appears whole and is never changed.

Any program that reads Parquet can read them: ``key`` names what the answer depends on, ``body`` is the answer as JSON
without what only its place in an output gives it, such as ``id``.
"""

from __future__ import annotations

import io
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar

import numpy
from typing_extensions import override

from airflow_llmengine.storage.errors import StorageError
from airflow_llmengine.storage.filesystem import FileEntry, Location
from airflow_llmengine.worker.answers.keys import KEY_BYTES

T = TypeVar("T")

FORMAT_VERSION = 1
"""Of the files; a part of the name of the folder that they lie in, so that no program meets files of a later one."""

GROUP_ANSWERS = 4096
"""Most answers of a row group, which is what is read at once to get one of them."""

GROUP_BYTES = 8 * 2**20
"""Most bytes of their bodies, but for a single answer that is larger."""

READ_WHOLE_BYTES = 2**20
"""A file up to this size is read by one request."""

_NAME = re.compile(r"answers-(\d{8}T\d{6})-[0-9a-f]{16}\.parquet")
_VERSION_KEY = b"llmengine.answers"


class DamagedFileError(Exception):
    """A file is not one of answers, or not whole; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """A row."""

    key: bytes
    body: bytes
    """JSON in UTF-8, one object."""
    prompt_tokens: int
    completion_tokens: int
    truncated: bool
    written: float
    """Seconds since the epoch."""


def new_name(written: float) -> str:
    """A name that no other file has; it tells when the newest answer in it was written."""
    moment = datetime.fromtimestamp(written, UTC)
    return f"answers-{moment:%Y%m%dT%H%M%S}-{secrets.token_hex(8)}.parquet"


def written_by_name(name: str) -> float | None:
    """Seconds since the epoch, as the name tells; None if it is no name of a file of answers."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    try:
        return datetime.strptime(match[1], "%Y%m%dT%H%M%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


@cache
def _schema() -> Any:
    import pyarrow

    return pyarrow.schema(
        [
            pyarrow.field("key", pyarrow.binary(KEY_BYTES), nullable=False),
            pyarrow.field("body", pyarrow.string(), nullable=False),
            pyarrow.field("prompt_tokens", pyarrow.int64(), nullable=False),
            pyarrow.field("completion_tokens", pyarrow.int64(), nullable=False),
            pyarrow.field("truncated", pyarrow.bool_(), nullable=False),
            pyarrow.field("written", pyarrow.timestamp("ms", "UTC"), nullable=False),
        ],
        metadata={_VERSION_KEY: str(FORMAT_VERSION)},
    )


class AnswerFileWriter:
    """Makes the content of one file, group by group."""

    def __init__(self) -> None:
        from pyarrow import parquet

        self._buffer = io.BytesIO()
        self._writer = parquet.ParquetWriter(
            self._buffer,
            _schema(),
            compression={"key": "none", "body": "zstd"} | dict.fromkeys(_schema().names[2:], "zstd"),
            use_dictionary=False,
            write_statistics=["written"],
        )
        self.answers = 0

    @property
    def bytes_written(self) -> int:
        """Bytes of all groups so far, as they are stored."""
        return self._buffer.tell()

    def add(self, answers: Sequence[KeptAnswer]) -> None:
        """Write answers, as one group or several."""
        for group in _groups(answers):
            self._writer.write_table(_table(group), row_group_size=len(group))
            self.answers += len(group)

    def add_table(self, table: Any) -> None:
        """The same from rows of other files, as pyarrow has them."""
        if table.num_rows:
            fitting = table.num_rows * GROUP_BYTES // max(1, table.nbytes)
            self._writer.write_table(table, row_group_size=max(1, min(GROUP_ANSWERS, fitting)))
            self.answers += table.num_rows

    def close(self) -> bytes:
        """The whole file."""
        self._writer.close()
        return self._buffer.getvalue()


def encode_file(answers: Sequence[KeptAnswer]) -> bytes:
    """The content of a file of these answers, in their order."""
    writer = AnswerFileWriter()
    writer.add(answers)
    return writer.close()


def _groups(answers: Sequence[KeptAnswer]) -> Iterator[list[KeptAnswer]]:
    group: list[KeptAnswer] = []
    size = 0
    for answer in answers:
        if group and (len(group) == GROUP_ANSWERS or size + len(answer.body) > GROUP_BYTES):
            yield group
            group, size = [], 0
        group.append(answer)
        size += len(answer.body)
    if group:
        yield group


def _table(answers: Sequence[KeptAnswer]) -> Any:
    import pyarrow

    schema = _schema()
    milliseconds = pyarrow.array([round(answer.written * 1000) for answer in answers], pyarrow.int64())
    columns = [
        pyarrow.array([answer.key for answer in answers], schema.field("key").type),
        pyarrow.array([answer.body for answer in answers], pyarrow.binary()).cast(pyarrow.string()),
        pyarrow.array([answer.prompt_tokens for answer in answers], pyarrow.int64()),
        pyarrow.array([answer.completion_tokens for answer in answers], pyarrow.int64()),
        pyarrow.array([answer.truncated for answer in answers], pyarrow.bool_()),
        milliseconds.cast(schema.field("written").type),
    ]
    return pyarrow.table(columns, schema=schema)


@dataclass(frozen=True, slots=True)
class FileSummary:
    """What a file's end tells."""

    answers: int
    oldest: float
    """When its oldest answer was written, in seconds since the epoch."""
    newest: float


class Group:
    """The answers of one row group, decoded one by one as they are asked for."""

    def __init__(self, table: Any) -> None:
        self.bytes_held: int = table.nbytes
        # One by one, pyarrow makes an object of each value; a table of a file is of one chunk, or of a few.
        columns = {name: table[name].combine_chunks() for name in table.column_names}
        keys = columns["key"]
        start = keys.offset * KEY_BYTES
        self._keys = memoryview(keys.buffers()[1])[start : start + len(keys) * KEY_BYTES]
        bodies = columns["body"]
        offsets = numpy.frombuffer(bodies.buffers()[1], numpy.int32)
        self._offsets = offsets[bodies.offset : bodies.offset + len(bodies) + 1]
        self._bodies = memoryview(bodies.buffers()[2] or b"")
        self._prompt_tokens = columns["prompt_tokens"].to_numpy()
        self._completion_tokens = columns["completion_tokens"].to_numpy()
        self._truncated = columns["truncated"].to_numpy(zero_copy_only=False)
        self._written = columns["written"].to_numpy(zero_copy_only=False).astype(numpy.int64)

    def __len__(self) -> int:
        return len(self._keys) // KEY_BYTES

    def key(self, row: int) -> bytes:
        """The key of one row."""
        return bytes(self._keys[row * KEY_BYTES : (row + 1) * KEY_BYTES])

    def answer(self, row: int) -> KeptAnswer:
        """One row."""
        return KeptAnswer(
            key=self.key(row),
            body=bytes(self._bodies[self._offsets[row] : self._offsets[row + 1]]),
            prompt_tokens=int(self._prompt_tokens[row]),
            completion_tokens=int(self._completion_tokens[row]),
            truncated=bool(self._truncated[row]),
            written=int(self._written[row]) / 1000,
        )


class AnswerFile:
    """One file, for reading: by ranges, so that bodies that nobody wants stay where they are. Safe for threads.

    Args:
        location: Where it is.
        entry: As it was listed.

    Raises:
        DamagedFileError: It is none.
        StorageError: It can't be read.
    """

    def __init__(self, location: Location, entry: FileEntry) -> None:
        from pyarrow import ArrowException, parquet

        self._location = location
        self._entry = entry
        try:
            file = parquet.ParquetFile(_Ranges(location, entry))
            metadata, schema = file.metadata, file.schema_arrow
        except StorageError:
            raise
        except (ArrowException, OSError, ValueError) as error:
            raise DamagedFileError(f"it can't be read as Parquet ({type(error).__name__})") from error
        if not schema.equals(_schema()) or (schema.metadata or {}).get(_VERSION_KEY) != str(FORMAT_VERSION).encode():
            raise DamagedFileError("its columns are not those of a file of answers")
        self._metadata = metadata
        self.group_sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]

    def summary(self) -> FileSummary:
        """How many answers it has and how old they are."""
        oldest, newest = float("inf"), 0.0
        for group in range(self._metadata.num_row_groups):
            statistics = self._metadata.row_group(group).column(_schema().names.index("written")).statistics
            if statistics is None or not statistics.has_min_max:
                raise DamagedFileError("it does not tell when its answers were written")
            oldest = min(oldest, statistics.min.timestamp())
            newest = max(newest, statistics.max.timestamp())
        return FileSummary(self._metadata.num_rows, oldest, newest)

    def keys(self) -> numpy.ndarray[Any, numpy.dtype[numpy.uint64]]:
        """All keys: two numbers each."""
        column = self._read(lambda file: file.read(columns=["key"], use_threads=False)["key"])
        parts = [
            numpy.frombuffer(part.buffers()[1], numpy.uint64).reshape(-1, 2)[part.offset : part.offset + len(part)]
            for part in column.chunks
            if len(part)
        ]
        return numpy.concatenate(parts) if parts else numpy.empty((0, 2), numpy.uint64)

    def group(self, number: int) -> Group:
        """One row group."""
        try:
            return Group(self.table(number))
        except (ValueError, IndexError, TypeError) as error:
            raise DamagedFileError(f"it can't be read any further ({type(error).__name__})") from error

    def table(self, number: int) -> Any:
        """One row group as pyarrow has it."""
        return self._read(lambda file: file.read_row_group(number, use_threads=False))

    def _read(self, read: Callable[[Any], T]) -> T:
        from pyarrow import ArrowException, parquet

        try:
            # One reader for each call: one alone is not for several threads.
            return read(parquet.ParquetFile(_Ranges(self._location, self._entry), metadata=self._metadata))
        except StorageError:
            raise
        except (ArrowException, OSError, ValueError) as error:
            raise DamagedFileError(f"it can't be read any further ({type(error).__name__})") from error


class _Ranges(io.RawIOBase):
    """A file of a store for who seeks and reads: each read is one request, unless the file is small."""

    def __init__(self, location: Location, entry: FileEntry) -> None:
        super().__init__()
        self._location = location
        self._entry = entry
        self._whole: bytes | None = None
        self._at = 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._entry.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    @override
    def tell(self) -> int:
        return self._at

    @override
    def read(self, size: int | None = -1, /) -> bytes:
        end = self._entry.size if size is None or size < 0 else min(self._entry.size, self._at + size)
        data = self._range(self._at, end) if end > self._at else b""
        self._at += len(data)
        return data

    def _range(self, start: int, end: int) -> bytes:
        if self._whole is None and self._entry.size <= READ_WHOLE_BYTES:
            self._whole = self._location.read_part(0, self._entry.size, self._entry.identity)
        if self._whole is not None:
            return self._whole[start:end]
        return self._location.read_part(start, end, self._entry.identity)


def now() -> float:
    """Seconds since the epoch, to the millisecond, as files keep them."""
    return round(time.time(), 3)
