"""The plain bytes of an input file, whatever it is compressed with: found out by content, never by name.

gzip (also of several members, as ``cat a.gz b.gz`` makes them) and zstd (also of several frames) are read in pieces;
memory does not depend on the size of the file, nor on how well it was compressed. A compressed file that is cut is an
error, never an early end.
"""

from __future__ import annotations

import gzip
import zlib
from types import TracebackType
from typing import Final, Protocol, Self

import zstandard

from airflow_llmengine.worker.readers.errors import InputCutError, InputInvalidError
from airflow_llmengine.worker.readers.limits import BLOCK_BYTES

UTF8_BOM: Final = b"\xef\xbb\xbf"

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGICS = (b"\x28\xb5\x2f\xfd", *(bytes([0x50 + nibble]) + b"\x2a\x4d\x18" for nibble in range(16)))
_OTHER_FORMATS = {
    b"\xfd7zXZ\x00": "xz data",
    b"BZh91AY&SY": "bzip2 data",
    b"PK\x03\x04": "a zip archive",
    b"\x04\x22\x4d\x18": "lz4 data",
    b"\xff\x06\x00\x00sNaPpY": "snappy data",
    b"PAR1\x15": "a Parquet file",
    b"ARROW1\x00\x00": "an Arrow file",
    b"Obj\x01": "an Avro file",
    b"SQLite format 3\x00": "an SQLite database",
}
_OTHER_ENCODINGS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_MAGIC_BYTES = 16

_ZSTD_FEED_BYTES = 1024
"""The decompressor returns at once all that it is fed, at most 32 KiB a byte: this bounds it to 32 MiB."""


class Readable(Protocol):
    """What is needed of an open binary file. A read may return less than asked; nothing at all means the end."""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes."""

    def close(self) -> None:
        """Free what the file holds."""


class PlainFile:
    """An input file's plain bytes, without compression and byte order mark.

    Args:
        file: The file as it is stored; closed with this object.
        name: What messages call it.

    Raises:
        InputInvalidError: It is in a format or an encoding that isn't read, or its compressed data are damaged.
        InputCutError: It ends within its compressed data. All that stands before the cut was returned.
    """

    def __init__(self, file: Readable, name: str) -> None:
        self._file = file
        self._name = name
        self._plain: _Peekable | None = None

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; nothing only at the end."""
        return self._decompressed().read(size)

    def peek(self, size: int) -> bytes:
        """The next ``size`` bytes, less only if the file ends before; they are read again afterwards."""
        return self._decompressed().peek(size)

    def close(self) -> None:
        """Close the stored file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _decompressed(self) -> _Peekable:
        if self._plain is None:
            stored = _Peekable(self._file)
            magic = stored.peek(_MAGIC_BYTES)
            if magic.startswith(_GZIP_MAGIC):
                plain = _Peekable(_GzipSource(stored, self._name))
            elif magic.startswith(_ZSTD_MAGICS):
                plain = _Peekable(_ZstdSource(stored, self._name))
            else:
                plain = stored
            self._refuse_what_is_no_text(plain, compressed=plain is not stored)
            if plain.peek(len(UTF8_BOM)) == UTF8_BOM:
                plain.read(len(UTF8_BOM))
            self._plain = plain
        return self._plain

    def _refuse_what_is_no_text(self, plain: _Peekable, *, compressed: bool) -> None:
        magic = plain.peek(_MAGIC_BYTES)
        if compressed and magic.startswith((_GZIP_MAGIC, *_ZSTD_MAGICS)):
            raise InputInvalidError(f"{self._name} is compressed twice: compress it once, with gzip or zstd.")
        for start, what in _OTHER_FORMATS.items():
            if magic.startswith(start):
                raise InputInvalidError(
                    f"{self._name} is {what}: write the records as JSON lines or one JSON document, "
                    "plain or compressed with gzip or zstd."
                )
        for start, what in _OTHER_ENCODINGS.items():
            if magic.startswith(start):
                raise InputInvalidError(f"{self._name} is text in {what}: write it in UTF-8.")


class _Source(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Peekable:
    """A source whose next bytes can be looked at first."""

    def __init__(self, source: _Source) -> None:
        self._source = source
        self._ahead = b""

    def read(self, size: int, /) -> bytes:
        if not self._ahead:
            return self._source.read(size)
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        return data

    def peek(self, size: int) -> bytes:
        pieces = [self._ahead]
        length = len(self._ahead)
        while length < size:
            try:
                piece = self._source.read(size - length)
            except InputInvalidError:
                # What stands before the fault is good; the fault is met again by whoever reads as far.
                if length == 0:
                    raise
                break
            if not piece:
                break
            pieces.append(piece)
            length += len(piece)
        self._ahead = b"".join(pieces)
        return self._ahead[:size]


def _damaged(name: str, method: str) -> InputInvalidError:
    return InputInvalidError(f"{name} has damaged {method} data, or something else after them: write the file again.")


def _cut(name: str, method: str) -> InputCutError:
    return InputCutError(f"{name} is cut: it ends within its {method} data; write the file again.")


class _GzipSource:
    def __init__(self, stored: _Peekable, name: str) -> None:
        # GzipFile asks its file for nothing but read().
        self._gzip = gzip.GzipFile(fileobj=stored, mode="rb")  # type: ignore[call-overload]
        self._name = name

    def read(self, size: int, /) -> bytes:
        try:
            # read1 and not read: what was decompressed before a fault is returned before the fault is raised.
            data: bytes = self._gzip.read1(size)
        except EOFError:
            raise _cut(self._name, "gzip") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise _damaged(self._name, "gzip") from error
        return data


class _ZstdSource:
    """Frame after frame of a zstd file.

    The library's own stream reader is not used, because it takes a cut frame for the end.
    """

    def __init__(self, stored: _Peekable, name: str) -> None:
        self._stored = stored
        self._name = name
        self._compressed = memoryview(b"")
        self._plain = memoryview(b"")
        self._frame: zstandard.ZstdDecompressionObj | None = None

    def read(self, size: int, /) -> bytes:
        while not self._plain:
            if not self._compressed:
                self._compressed = memoryview(self._stored.read(BLOCK_BYTES))
                if not self._compressed:
                    if self._frame is not None:
                        raise _cut(self._name, "zstd")
                    return b""
            self._decompress()
        data, self._plain = bytes(self._plain[:size]), self._plain[size:]
        return data

    def _decompress(self) -> None:
        if self._frame is None:
            self._frame = zstandard.ZstdDecompressor().decompressobj()
        before = self._compressed
        fed, self._compressed = before[:_ZSTD_FEED_BYTES], before[_ZSTD_FEED_BYTES:]
        try:
            self._plain = memoryview(self._frame.decompress(fed))
        except zstandard.ZstdError as error:
            if "memory" in str(error):
                raise InputInvalidError(
                    f"{self._name} needs more memory to be decompressed than the 128 MiB that it may have: compress it "
                    "with zstd without --long, or with --long=27."
                ) from error
            raise _damaged(self._name, "zstd") from error
        if self._frame.eof:
            # A view, not a copy: a file may be made of nothing but tiny frames.
            self._compressed = before[len(fed) - len(self._frame.unused_data) :]
            self._frame = None
