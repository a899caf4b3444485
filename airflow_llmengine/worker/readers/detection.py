"""What an input file is: found out from its first bytes, never from its name.

The files that people write leave room for doubt only where they are broken, or begin with something longer than the
head that is looked at. In doubt, a file is taken for JSON lines, where a fault costs one record and not the job; but a
file whose every line would be a fault for one and the same reason is refused as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from io import BytesIO

from airflow_llmengine.worker.readers.errors import InputCutError, InputInvalidError
from airflow_llmengine.worker.readers.scanner import WHITE_SPACE, JSONScanner
from airflow_llmengine.worker.readers.values import ValueRefusedError, load_value


class InputFormat(StrEnum):
    """How records stand in the input. The values are written to ``input.json``."""

    V1_CONTENT = "v1_content"
    """One object with ``prompts`` and the parameters that all of them share."""
    JSON_ARRAY = "json_array"
    """One array of records."""
    JSON_DOCUMENT = "json_document"
    """One object, which is one record."""
    JSON_LINES = "json_lines"
    """One record on each line. An empty file is this too."""
    TABLE = "table"
    """Rows of a table, of which templates make records. It is told, and never found out."""


PROMPTS_KEY = "prompts"
"""The key that makes a document a V1 content object."""


def detect_format(head: bytes, name: str) -> InputFormat:
    """Tell what a file is.

    Args:
        head: The file's first plain bytes: all of them, or ``HEAD_BYTES``.
        name: What messages call the file.

    Raises:
        InputInvalidError: It is a sequence of JSON values over several lines each: neither JSON lines nor one document.
    """
    content = head.lstrip(WHITE_SPACE)
    if content.startswith(b"["):
        return _detect_after_bracket(content, name)
    if content.startswith(b"{"):
        return _detect_after_brace(content, name)
    return InputFormat.JSON_LINES


def _detect_after_bracket(content: bytes, name: str) -> InputFormat:
    end = _first_value_end(content)
    if end is None or not content[end:].strip(WHITE_SPACE):
        return InputFormat.JSON_ARRAY
    if b"\n" in content[:end]:
        raise _several_documents(name)
    # A line that is an array, with more lines after it: no record, but the others may be.
    return InputFormat.JSON_LINES


def _detect_after_brace(content: bytes, name: str) -> InputFormat:
    end = _first_value_end(content)
    one_line = b"\n" not in content[:end]
    if end is not None and not content[end:].strip(WHITE_SPACE):
        if PROMPTS_KEY in _top_level_keys(content):
            return InputFormat.V1_CONTENT
        if _is_json(content[:end]):
            return InputFormat.JSON_DOCUMENT
        return InputFormat.JSON_LINES if one_line or _has_record_line(content) else InputFormat.JSON_DOCUMENT
    if end is not None and one_line:
        return InputFormat.JSON_LINES
    if _has_record_line(content):
        # Its first line is broken, for instance by a line feed within a string, or was only half written.
        return InputFormat.JSON_LINES
    if end is not None:
        raise _several_documents(name)
    if PROMPTS_KEY in _top_level_keys(content):
        return InputFormat.V1_CONTENT
    if one_line:
        # One line that is broken, or longer than the head.
        return InputFormat.JSON_LINES
    return InputFormat.JSON_DOCUMENT


def _several_documents(name: str) -> InputInvalidError:
    return InputInvalidError(
        f"{name} holds several JSON values that stand on more than one line each: "
        "write each record on one line (JSON lines), or all of them as one array."
    )


def _scanner(content: bytes) -> JSONScanner:
    read: Callable[[int], bytes] = BytesIO(content).read
    return JSONScanner(read, "", block_bytes=len(content))


def _first_value_end(content: bytes) -> int | None:
    """Where the first value ends; None if it does not end here."""
    scanner = _scanner(content)
    try:
        scanner.take_value()
    except InputCutError:
        return None
    return scanner.position


def _top_level_keys(content: bytes) -> set[str]:
    """The keys of the object that begins here, as far as they can be read."""
    scanner = _scanner(content)
    keys = set()
    try:
        for raw_key in scanner.members():
            keys.add(str(load_value(raw_key)))
            scanner.take_value(limit=0)
    except (InputInvalidError, ValueRefusedError):
        pass
    return keys


def _is_json(content: bytes) -> bool:
    try:
        load_value(content)
    except ValueRefusedError as refused:
        return not refused.is_syntax
    return True


def _has_record_line(content: bytes) -> bool:
    """Whether a line is an object of its own, as in JSON lines, and not an indented part of a larger one."""
    return any(line.startswith(b"{") and _is_object(line) for line in content.split(b"\n"))


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
