from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tracemalloc
from collections.abc import Iterator
from functools import partial

import pytest
import zstandard

from airflow_llmengine.worker.readers import InputCutError, InputInvalidError
from airflow_llmengine.worker.readers.decompression import UTF8_BOM, PlainFile
from tests.worker.readers.files import (
    AWKWARD_SIZES,
    COMPRESSIONS,
    Dribble,
    in_pieces,
    until_refused,
    zstd,
    zstd_of_unknown_size,
)

TEXT = '{"prompt": "Zürich 東京 😀"}\n'.encode() * 50


def plain(data: bytes, *, stored_block: int = 2**20, block: int = 1000) -> bytes:
    return b"".join(blocks(PlainFile(Dribble(data, stored_block), "x.json"), block))


def blocks(file: PlainFile, size: int) -> Iterator[bytes]:
    while block := file.read(size):
        yield block


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("bom", [b"", UTF8_BOM], ids=["", "bom"])
def test_content_is_the_same_in_every_compression(compression: str, bom: bytes) -> None:
    stored = COMPRESSIONS[compression](bom + TEXT)
    for size in AWKWARD_SIZES:
        assert plain(stored, stored_block=size) == TEXT
        assert plain(stored, block=size) == TEXT


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_an_empty_file_is_empty(compression: str) -> None:
    assert plain(COMPRESSIONS[compression](b"")) == b""


def test_only_the_mark_at_the_beginning_is_taken_off() -> None:
    assert plain(UTF8_BOM + b"1" + UTF8_BOM) == b"1" + UTF8_BOM
    assert plain(UTF8_BOM) == b""


def test_peeking_reads_nothing_away() -> None:
    file = PlainFile(Dribble(gzip.compress(TEXT), 7), "x.json")
    assert file.peek(10) == TEXT[:10]
    assert file.peek(100) == TEXT[:100]
    assert file.read(5) == TEXT[:5]
    assert file.peek(2**20) == TEXT[5:]
    assert b"".join(blocks(file, 33)) == TEXT[5:]
    assert file.peek(1) == b""


@pytest.mark.parametrize("compress", [gzip.compress, zstd, zstd_of_unknown_size, in_pieces(gzip.compress)])
def test_a_cut_compressed_file_is_never_taken_for_its_end(compress: object) -> None:
    assert callable(compress)
    stored = compress(TEXT)
    whole_members = [
        end for end in range(1, len(stored)) if stored[end:].startswith((b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"))
    ]
    for end in range(5, len(stored)):
        if end in whole_members:
            continue
        file = PlainFile(io.BytesIO(stored[:end]), "x.json")
        read, error = until_refused(blocks(file, 64))
        assert TEXT.startswith(b"".join(read))
        # Of a second gzip member's mark the library wants two bytes to know it.
        if end - 1 not in whole_members:
            assert isinstance(error, InputCutError)
            assert str(error).startswith("x.json is cut: it ends within its ")


def test_what_stands_before_the_cut_is_read() -> None:
    first, second = b"1" * 5000, b"2" * 5000
    for compress in (gzip.compress, zstd):
        file = PlainFile(io.BytesIO(compress(first) + compress(second)[:-3]), "x.json")
        assert file.peek(2**20).startswith(first)
        read, error = until_refused(blocks(file, 2**20))
        assert isinstance(error, InputCutError)
        assert b"".join(read).startswith(first)


@pytest.mark.parametrize("compress", [gzip.compress, zstd_of_unknown_size])
def test_damaged_data_is_refused(compress: object) -> None:
    assert callable(compress)
    stored = bytearray(compress(TEXT))
    stored[-2] ^= 0xFF  # in the checksum
    with pytest.raises(InputInvalidError, match=r"^x\.json has damaged (gzip|zstd) data"):
        plain(bytes(stored))


@pytest.mark.parametrize("compress", [gzip.compress, zstd])
def test_something_else_after_the_compressed_data_is_refused(compress: object) -> None:
    assert callable(compress)
    with pytest.raises(InputInvalidError, match="damaged"):
        plain(compress(TEXT) + b'{"prompt": "not compressed"}')


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (bz2.compress(TEXT), "bzip2 data"),
        (lzma.compress(TEXT), "xz data"),
        (b"PK\x03\x04" + bytes(30), "a zip archive"),
        (b"PAR1\x15\x04\x15", "a Parquet file"),
        (gzip.compress(lzma.compress(TEXT)), "xz data"),
        ("\ufeff[]".encode("utf-16-le"), "text in UTF-16"),
        ("\ufeff[]".encode("utf-16-be"), "text in UTF-16"),
        ("\ufeff[]".encode("utf-32-le"), "text in UTF-32"),
        (gzip.compress(gzip.compress(TEXT)), "compressed twice"),
        (zstd(gzip.compress(TEXT)), "compressed twice"),
    ],
    # Bytes in a name would hold the time at which they were compressed.
    ids=lambda value: value if isinstance(value, str) else "data",
)
def test_what_is_not_read_is_named(data: bytes, what: str) -> None:
    with pytest.raises(InputInvalidError, match=rf"^x\.json is {what}"):
        plain(data)


@pytest.mark.parametrize("compress", [partial(gzip.compress, compresslevel=1), zstd])
def test_memory_does_not_depend_on_how_well_it_was_compressed(compress: object) -> None:
    assert callable(compress)
    stored = compress(b" " * 150_000_000)
    file = PlainFile(io.BytesIO(stored), "x.json")
    tracemalloc.start()
    try:
        length = sum(len(block) for block in blocks(file, 2**18))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert length == 150_000_000
    assert peak < 70_000_000


def test_closing_closes_the_stored_file() -> None:
    stored = io.BytesIO(gzip.compress(TEXT))
    with PlainFile(stored, "x.json") as file:
        file.read(10)
    assert stored.closed


def test_a_zstd_file_of_a_huge_window_says_so() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=31)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = compressor.compress(b"a" * 1000) + compressor.flush()
    with pytest.raises(InputInvalidError, match="more memory to be decompressed than the 128 MiB"):
        PlainFile(io.BytesIO(data), "x").read(10)


def test_a_file_of_nothing_but_tiny_frames_is_read_to_its_end() -> None:
    frames = b"".join(zstd(b"%d," % number) for number in range(5_000))
    assert plain(frames, stored_block=1000) == b"".join(b"%d," % number for number in range(5_000))
