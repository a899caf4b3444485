"""Records from JSON lines: one JSON value on each line, and a line ends at a line feed and nowhere else.

A string may hold U+2028, U+0085 and other characters that Python's ``splitlines`` would cut at. Any fault of a line is
that record's alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from airflow_llmengine.worker.readers.decompression import UTF8_BOM
from airflow_llmengine.worker.readers.limits import BLOCK_BYTES, MAX_RECORD_BYTES
from airflow_llmengine.worker.readers.raw_records import load_record, too_large
from airflow_llmengine.worker.readers.scanner import WHITE_SPACE
from airflow_llmengine.worker.records import RawRecord


def read_json_lines(
    read: Callable[[int], bytes],
    name: str,
    first_index: int = 0,
    *,
    limit: int = MAX_RECORD_BYTES,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[RawRecord]:
    """The records of a JSON lines file; blank lines are passed over, but count for the line numbers.

    Args:
        read: Returns at most as many plain bytes as it is asked for, and nothing only at the end.
        name: What locations call the file.
        first_index: Index of its first record in the whole input.
        limit: Most bytes of a line; a longer one is skipped, without being held, and is a row error.
        block_bytes: How much to ask for at a time.
    """
    for index, (number, text, size) in enumerate(plain_lines(read, limit=limit, block_bytes=block_bytes), first_index):
        location = f"line {number} of {name}"
        yield too_large(index, location, size, limit) if text is None else load_record(index, location, text)


def plain_lines(
    read: Callable[[int], bytes], *, limit: int = MAX_RECORD_BYTES, block_bytes: int = BLOCK_BYTES
) -> Iterator[tuple[int, bytes | None, int]]:
    """Each line that is not blank: its number from 1, its text (None if it is above the limit), and its bytes.

    Args:
        read: See ``read_json_lines``, as of the others.
        limit: Most bytes of a line.
        block_bytes: How much to ask for at a time.
    """
    for number, (line, size) in enumerate(_lines(read, limit, block_bytes), start=1):
        # A byte order mark in mid-file comes from files that were joined to one.
        text = None if line is None else line.removeprefix(UTF8_BOM).rstrip(WHITE_SPACE)
        if text is None or text:
            yield number, text, size


def _lines(read: Callable[[int], bytes], limit: int, block_bytes: int) -> Iterator[tuple[bytes | None, int]]:
    """Each line without its end (None if it is above the limit), and its bytes."""
    begun: list[bytes] = []
    size = 0
    while block := read(block_bytes):
        first, *others = block.split(b"\n")
        size += len(first)
        if size > limit:
            begun.clear()
        else:
            begun.append(first)
        if not others:
            continue
        yield (_joined(begun) if size <= limit else None), size
        last = others.pop()
        for line in others:
            yield (line if len(line) <= limit else None), len(line)
        begun, size = [last], len(last)
    if size:
        yield (_joined(begun) if size <= limit else None), size


def _joined(pieces: list[bytes]) -> bytes:
    """The pieces as one, which are let go of: a long line is not to be held twice while it is parsed."""
    whole = b"".join(pieces)
    pieces.clear()
    return whole
