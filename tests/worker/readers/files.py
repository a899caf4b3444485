"""Input files for the readers' tests, in every dress that they may wear."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import zstandard

from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.readers import InputInvalidError, InputReader, open_input
from airflow_llmengine.worker.records import RawRecord

AWKWARD_SIZES = (1, 2, 3, 7, 64, 2**18)
"""Block sizes that cut characters, escapes and numbers anywhere."""


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def zstd_of_unknown_size(data: bytes) -> bytes:
    """A frame as a pipe writes it: its header doesn't tell how much follows."""
    compressor = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    return compressor.compress(data) + compressor.flush()


def in_pieces(compress: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Compress as several members or frames, one of them empty, cut where it hurts."""

    def compressed(data: bytes) -> bytes:
        cuts = [0, len(data) // 3, len(data) // 3, len(data) // 3 + 1, len(data)]
        return b"".join(compress(data[a:b]) for a, b in pairwise(cuts))

    return compressed


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data,
    "gzip": gzip.compress,
    "gzip of several members": in_pieces(gzip.compress),
    "zstd": zstd,
    "zstd of unknown size": zstd_of_unknown_size,
    "zstd of several frames": in_pieces(zstd),
    "zstd after a skippable frame": lambda data: b"\x5a\x2a\x4d\x18\x03\0\0\0abc" + zstd(data),
}


class Dribble(io.BytesIO):
    """A file that returns a few bytes at a time, however many are asked for, as a socket may."""

    def __init__(self, data: bytes, size: int) -> None:
        super().__init__(data)
        self._size = size

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(self._size if size is None or size < 0 else min(size, self._size))


def read_of(data: bytes) -> Callable[[int], bytes]:
    """A reader's source over these bytes."""
    return io.BytesIO(data).read


def endless(pieces: Iterable[bytes]) -> Callable[[int], bytes]:
    """A reader's source over pieces that are made as they are read; they may be longer than asked for."""
    iterator: Iterator[bytes] = iter(pieces)
    return lambda _size: next(iterator, b"")


def json_lines(*values: Any) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def request_for(path: Path | str, **fields: Any) -> CreateBatchCompletionsV1Request:
    return CreateBatchCompletionsV1Request.model_validate(
        {
            "input_data_path": str(path),
            "output_data_path": "/nowhere/out.json",
            "model_config": {"model": "tiny", "served_model_name": "tiny-chat"},
            **fields,
        }
    )


def opened(path: Path | str) -> InputReader:
    return open_input(Storage(), request_for(path))


def opened_bytes(folder: Path, data: bytes, name: str = "input") -> InputReader:
    path = folder / name
    path.write_bytes(data)
    return opened(path)


def values(records: Iterable[RawRecord]) -> list[Any]:
    """The values of records without an error, which number from 0."""
    found = list(records)
    assert [record.index for record in found] == list(range(len(found)))
    assert [record.error for record in found] == [None] * len(found)
    return [record.value for record in found]


def outcomes(records: Iterable[RawRecord]) -> list[Any]:
    """Of each record its value, or its error's type as text."""
    found = list(records)
    assert [record.index for record in found] == list(range(len(found)))
    return [record.value if record.error is None else f"! {record.error.type}" for record in found]


def until_refused(items: Iterator[Any]) -> tuple[list[Any], InputInvalidError]:
    """What comes before the input is refused, and the refusal."""
    found: list[Any] = []
    try:
        found.extend(items)
    except InputInvalidError as error:
        return found, error
    raise AssertionError("the input was taken to its end")
