"""Walking through a JSON document of any size, value by value, without holding more than one of them.

The scanner knows just enough of JSON to find where a value ends: strings, brackets and what lies between. The values
themselves are parsed by ``values.load_value``, which is the same code for every kind of input, so that an element of an
array and a line of JSON lines with the same bytes are the same record, or fail with the same message.

This is not done by ijson, because it changes what it reads: its C backend (3.6) turns a lone surrogate into a question
mark and two of them into one foreign character, keeps the last of two equal keys, has either Decimals for floats or no
integers above 64 bits, and with any fault inside one element the rest of the document is lost. Nor by growing a text
and trying ``raw_decode`` on it again: it can't tell a broken element from one that is not complete yet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple, NoReturn

from airflow_llmengine.worker.readers.errors import InputCutError, InputInvalidError
from airflow_llmengine.worker.readers.limits import BLOCK_BYTES, MAX_RECORD_BYTES

WHITE_SPACE: Final = b" \t\r\n"

_QUOTE, _COLON, _COMMA = b'":,'
_OPENING = b"[{"
_ARRAY_START, _ARRAY_END = b"[]"
_OBJECT_START, _OBJECT_END = b"{}"

# All repeats are possessive: each byte is looked at once, and nothing is kept to come back to.
_REST_OF_STRING = rb'[^"\\]*+(?:\\.[^"\\]*+)*+'
_TO_STRING_END = re.compile(_REST_OF_STRING, re.DOTALL)
_TO_BRACKET = re.compile(rb'[^"\[\]{}]*+(?:"' + _REST_OF_STRING + rb'"[^"\[\]{}]*+)*+', re.DOTALL)
_WHITE_SPACE_RUN = re.compile(rb"[ \t\r\n]*+")
_SEPARATOR = re.compile(rb"[ \t\r\n]*+([,\]])[ \t\r\n]*+")
_BARE_RUN = re.compile(rb'[^ \t\r\n\[\]{}",:]*+')


class ScannedValue(NamedTuple):
    """One JSON value as it stands in the document, not parsed yet."""

    raw: bytes | None
    """Its bytes; None when it has more than the limit and was skipped."""
    start: int
    """Position of its first byte in the plain document, from 0."""
    size: int
    """Bytes it takes."""


class JSONScanner:
    """A cursor in a JSON document.

    Args:
        read: Returns at most as many bytes as it is asked for, and nothing only at the end.
        name: What messages call the document.
        block_bytes: How much to ask for at a time.

    Raises:
        InputInvalidError: The document is not JSON; the message names the byte. ``InputCutError`` where it is JSON
            as far as it goes, and ends too early.
    """

    def __init__(self, read: Callable[[int], bytes], name: str, *, block_bytes: int = BLOCK_BYTES) -> None:
        self._read = read
        self._name = name
        self._block_bytes = block_bytes
        self._buffer = b""
        self._cursor = 0
        self._buffer_start = 0

    @property
    def position(self) -> int:
        """Where the cursor is: bytes from the beginning of the plain document."""
        return self._buffer_start + self._cursor

    def peek(self) -> int | None:
        """The next byte that is not white space, which is where the cursor is then; None at the end."""
        if self._cursor < len(self._buffer) and self._buffer[self._cursor] not in WHITE_SPACE:
            return self._buffer[self._cursor]
        while True:
            self._cursor = _end_of(_WHITE_SPACE_RUN, self._buffer, self._cursor)
            if self._cursor < len(self._buffer):
                return self._buffer[self._cursor]
            if not self._refill(self._cursor):
                return None

    def take_value(self, limit: int = MAX_RECORD_BYTES) -> ScannedValue:
        """The value at the cursor, which is behind it then. Skips white space first.

        Args:
            limit: Most bytes to keep; a longer value is passed over without being held.
        """
        first = self.peek()
        if first is None:
            self._cut("where a value is missing")
        start = self.position
        end = self._end_in_buffer(first)
        if end is not None and end - self._cursor <= limit:
            raw = self._buffer[self._cursor : end]
            self._cursor = end
            return ScannedValue(raw, start, len(raw))
        kept = _KeptBytes(limit)
        value_start = self._cursor
        if first in _OPENING:
            value_start = self._pass_brackets(kept)
        elif first == _QUOTE:
            self._cursor += 1
            value_start = self._pass_string_end(value_start, kept)
        else:
            value_start = self._pass_bare_run(value_start, kept)
        kept.add(self._buffer[value_start : self._cursor])
        if kept.size == 0:
            self.fail("a value is missing")
        return ScannedValue(kept.joined(), start, kept.size)

    def elements(self, limit: int = MAX_RECORD_BYTES) -> Iterator[ScannedValue]:
        """The elements of the array at the cursor, which is behind the array when they end."""
        if self.peek() != _ARRAY_START:
            self.fail("an array is missing")
        self._cursor += 1
        if self._passes(_ARRAY_END):
            return
        while True:
            value = self.take_value(limit)
            # What follows is looked at first: a number at the end of a cut document may not be whole.
            last = self._pass_separator()
            yield value
            if last:
                return

    def members(self) -> Iterator[bytes]:
        """The keys, as they are written, of the object at the cursor, which is behind the object when they end.

        At each key the cursor is before its value, which must be taken before the next key is asked for.
        """
        if self.peek() != _OBJECT_START:
            self.fail("an object is missing")
        self._cursor += 1
        if self._passes(_OBJECT_END):
            return
        while True:
            if self.peek() != _QUOTE:
                self.fail("a key in double quotes is missing")
            key = self.take_value().raw
            if not self._passes(_COLON):
                self.fail("a colon is missing")
            if key is None:
                self.fail("a key is too long")
            yield key
            if self._passes(_OBJECT_END):
                return
            self._pass_comma("}")

    def expect_end(self) -> None:
        """Make sure that nothing but white space follows."""
        if self.peek() is not None:
            self.fail("something follows the end of the document")

    def fail(self, what: str) -> NoReturn:
        """Refuse the document because of what is at the cursor, or because it ends there."""
        if self.peek() is None:
            self._cut("within an array or an object")
        raise InputInvalidError(f"{self._name} is not a valid JSON document: {what} at byte {self.position}.")

    def _cut(self, where: str) -> NoReturn:
        raise InputCutError(f"{self._name} is cut: it ends at byte {self.position}, {where}; write the file again.")

    def _passes(self, byte: int) -> bool:
        if self.peek() != byte:
            return False
        self._cursor += 1
        return True

    def _pass_separator(self) -> bool:
        """Pass the comma after an element, or the array's end; whether it was the end."""
        match = _SEPARATOR.match(self._buffer, self._cursor)
        if match:
            self._cursor = match.end()
            return match[1] == b"]"
        if self._passes(_ARRAY_END):
            return True
        self._pass_comma("]")
        return False

    def _pass_comma(self, closing: str) -> None:
        if not self._passes(_COMMA):
            self.fail(f"a comma or {closing} is missing")

    def _refill(self, keep_from: int) -> bool:
        """Read on, keeping what stands from ``keep_from`` on; whether there was anything."""
        block = self._read(self._block_bytes)
        if not block:
            return False
        self._buffer_start += keep_from
        self._buffer = self._buffer[keep_from:] + block
        self._cursor -= keep_from
        return True

    def _refill_within_value(self, value_start: int, keep_from: int, kept: _KeptBytes) -> int:
        """Read on within a value, and return where in the buffer its part that isn't in ``kept`` begins."""
        kept.add(self._buffer[value_start:keep_from])
        if not self._refill(keep_from):
            self._cursor = len(self._buffer)
            self._cut("within a value")
        return 0

    def _end_in_buffer(self, first: int) -> int | None:
        """Where the value at the cursor ends, if that is easily seen in what is read already: the usual case, fast."""
        buffer, cursor = self._buffer, self._cursor + 1
        if first == _QUOTE:
            cursor = _end_of(_TO_STRING_END, buffer, cursor)
            return cursor + 1 if cursor < len(buffer) and buffer[cursor] == _QUOTE else None
        if first not in _OPENING:
            return None
        depth = 1
        while depth:
            cursor = _end_of(_TO_BRACKET, buffer, cursor)
            if cursor == len(buffer) or buffer[cursor] == _QUOTE:
                return None
            depth += 1 if buffer[cursor] in _OPENING else -1
            cursor += 1
        return cursor

    def _pass_brackets(self, kept: _KeptBytes) -> int:
        value_start = self._cursor
        depth = 0
        while True:
            self._cursor = _end_of(_TO_BRACKET, self._buffer, self._cursor)
            if self._cursor == len(self._buffer):
                value_start = self._refill_within_value(value_start, self._cursor, kept)
                continue
            byte = self._buffer[self._cursor]
            self._cursor += 1
            if byte == _QUOTE:
                value_start = self._pass_string_end(value_start, kept)
            elif byte in _OPENING:
                depth += 1
            else:
                depth -= 1
                if depth == 0:
                    return value_start

    def _pass_string_end(self, value_start: int, kept: _KeptBytes) -> int:
        while True:
            self._cursor = _end_of(_TO_STRING_END, self._buffer, self._cursor)
            if self._cursor < len(self._buffer) and self._buffer[self._cursor] == _QUOTE:
                self._cursor += 1
                return value_start
            # At the end of the buffer, or at a backslash whose other half is not read yet.
            value_start = self._refill_within_value(value_start, self._cursor, kept)

    def _pass_bare_run(self, value_start: int, kept: _KeptBytes) -> int:
        while True:
            self._cursor = _end_of(_BARE_RUN, self._buffer, self._cursor)
            if self._cursor < len(self._buffer):
                return value_start
            kept.add(self._buffer[value_start : self._cursor])
            value_start = 0
            if not self._refill(self._cursor):
                # A bare value may end with the document.
                return self._cursor


def structure_fault(raw: bytes, *, most_nested: int, most: int) -> Literal["depth", "number"] | None:
    """Which limit the arrays and objects of a JSON text exceed first, if any; the text need not be valid.

    Args:
        raw: The text.
        most_nested: How deep they may be nested.
        most: How many there may be.
    """
    depth = cursor = opened = 0
    while True:
        cursor = _end_of(_TO_BRACKET, raw, cursor)
        if cursor == len(raw) or raw[cursor] == _QUOTE:
            return None
        if raw[cursor] in _OPENING:
            depth += 1
            opened += 1
            if depth > most_nested:
                return "depth"
            if opened > most:
                return "number"
        else:
            depth -= 1
        cursor += 1


def _end_of(pattern: re.Pattern[bytes], data: bytes, start: int) -> int:
    """Where the run that begins at ``start`` ends; it may be empty."""
    match = pattern.match(data, start)
    return match.end() if match else start


class _KeptBytes:
    """Collects the bytes of one value, and lets go of them when they are too many."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self.size = 0

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.size > self._limit:
            self._pieces.clear()
        else:
            self._pieces.append(piece)

    def joined(self) -> bytes | None:
        if self.size > self._limit:
            return None
        return b"".join(self._pieces)
