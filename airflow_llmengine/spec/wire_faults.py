"""Where a value is not what the wire contract asks for, found by looking at it in Python.

pydantic's compiled core tells that a value is wrong; these tell what is wrong with it, for messages. Only the free
objects and the messages of a chat are looked through here when they are right, too: the core does not look into them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any

_INTEGER = re.compile(r"0|-?[1-9][0-9]*", re.ASCII)

FLAGS: Mapping[str, bool] = {"true": True, "false": False, "True": True, "False": False}
"""A boolean's canonical strings: as JSON, and as Python (and so Jinja) prints it."""

LONGEST_SHOWN = 60
"""Characters of a name or a value that a message shows."""

MOST_SHOWN = 10
"""Of the wrong items of one list, this many are named."""

_LEAST_INTEGER, _GREATEST_INTEGER = -(2**63), 2**63 - 1

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)

Fault = tuple[str, str]
"""A place below a value (``[3].role``; empty for the value itself), and what must be there; empty for Unicode."""


def read_integer(value: Any) -> int:
    """Read an integer as JSON Schema does (``4.0`` is one), or from its canonical string.

    Raises:
        ValueError: It is no integer: a boolean, a fraction, another type, or a string that is not canonical.
    """
    if isinstance(value, str):
        value = read_number(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise ValueError("not an integer")


def read_number(value: Any) -> int | float:
    """Read a number from its canonical string: just as Python and JSON print it, and finite.

    Raises:
        ValueError: It is no such string.
    """
    if isinstance(value, str):
        if _INTEGER.fullmatch(value):
            return int(value)
        number = float(value)
        if isfinite(number) and repr(number) == value:
            return number
    raise ValueError("not a number")


def read_flag(value: Any) -> bool:
    """Read a boolean from its canonical string.

    Raises:
        ValueError: It is no such string.
    """
    if isinstance(value, str) and value in FLAGS:
        return FLAGS[value]
    raise ValueError("not a boolean")


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can carry the string: JSON's escapes can spell half of a surrogate pair, which it can't."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def exceeds_64_bits(value: Any) -> bool:
    """Whether a field's value is, or as a list or a map holds, an integer that 64 bits with a sign can't hold."""
    if isinstance(value, int):
        return not _LEAST_INTEGER <= value <= _GREATEST_INTEGER
    if isinstance(value, dict):
        return any(map(exceeds_64_bits, value.values()))
    if isinstance(value, list) and value:
        if isinstance(value[0], int):
            return bool(min(value) < _LEAST_INTEGER or max(value) > _GREATEST_INTEGER)
        if isinstance(value[0], list):
            return any(map(exceeds_64_bits, value))
    return False


def is_json(value: Any) -> bool:
    """Whether a value is JSON that UTF-8 can carry. Goes without recursion, since its depth is the user's."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            if not (item.isascii() or is_unicode(item)):
                return False
        elif isinstance(item, dict):
            for key in item:
                if not (isinstance(key, str) and (key.isascii() or is_unicode(key))):
                    return False
            pending += item.values()
        elif isinstance(item, list):
            pending += item
        elif isinstance(item, float):
            if not isfinite(item):
                return False
        elif item is not None and not isinstance(item, int):
            return False
    return True


def json_faults(value: Any) -> Iterator[Fault]:
    """Where a value for which ``is_json`` is false is no JSON."""
    pending = [("", value)]
    while pending:
        at, item = pending.pop()
        if isinstance(item, str):
            if not is_unicode(item):
                yield at, ""
        elif isinstance(item, dict):
            for key, inner in item.items():
                if not isinstance(key, str):
                    yield at, "an object with strings as keys"
                elif not is_unicode(key):
                    yield at + path_step(key), ""
                else:
                    pending.append((at + path_step(key), inner))
        elif isinstance(item, list):
            pending += [(f"{at}[{place}]", inner) for place, inner in enumerate(item)]
        elif isinstance(item, float):
            if not isfinite(item):
                yield at, "a finite number"
        elif item is not None and not isinstance(item, int):
            yield at, "JSON"


def message_faults(messages: list[dict[str, Any]]) -> Iterator[Fault]:
    """Which messages lack a ``role``, or have a ``content`` that is neither text, nor a list of parts, nor null."""
    for place, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            yield f"[{place}].role", "a string"
        content = message.get("content")
        if isinstance(content, list):
            for part_place, part in enumerate(content):
                if not isinstance(part, str) and not (isinstance(part, dict) and isinstance(part.get("type"), str)):
                    yield f"[{place}].content[{part_place}]", "an object with a type"
        elif content is not None and not isinstance(content, str):
            yield f"[{place}].content", "a string, a list of parts, or null"


def item_faults(kind: str, value: Any) -> Iterator[Fault]:
    """Which items make a list a wrong value of its kind."""
    return _ITEM_FAULTS[kind](value) if kind in _ITEM_FAULTS and isinstance(value, list) else iter(())


def canonical(kind: str, text: str) -> str | None:
    """How a string would have to be written, where it plainly means a value of the kind and is not written so."""
    try:
        written = _CANONICAL[kind](text) if kind in _CANONICAL else text
    except (ValueError, KeyError):
        return None
    return None if written == text else written


def path_step(key: str | int) -> str:
    """One step of a wire path: ``.name``, ``[3]``, or ``["any.key"]``, in one line."""
    if isinstance(key, int):
        return f"[{key}]"
    if len(key) > LONGEST_SHOWN:
        key = key[: LONGEST_SHOWN - 3] + "..."
    return f".{key}" if _NAME.fullmatch(key) else f'["{ascii(key)[1:-1]}"]'


def shown_number(value: float) -> str:
    """A number in one short line, however many digits it has."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    return repr(value)


def _string_faults(value: list[Any]) -> Iterator[Fault]:
    for place, item in enumerate(value):
        if not isinstance(item, str):
            yield f"[{place}]", "a string"
        elif not is_unicode(item):
            yield f"[{place}]", ""


def _integer_faults(value: list[Any], expected: str = "an integer") -> Iterator[Fault]:
    for place, item in enumerate(value):
        try:
            read_integer(item)
        except ValueError:
            yield f"[{place}]", expected


def _object_faults(value: list[Any]) -> Iterator[Fault]:
    for place, item in enumerate(value):
        if not isinstance(item, dict):
            yield f"[{place}]", "an object"
        elif not all(isinstance(key, str) for key in item):
            yield f"[{place}]", "an object with strings as keys"


def _prompt_faults(value: list[Any]) -> Iterator[Fault]:
    """What the list was meant to be is told by its first item."""
    if value and isinstance(value[0], str):
        yield from _string_faults(value)
    elif value and not isinstance(value[0], list):
        yield from _integer_faults(value, "a token id")
    for place, ids in enumerate(value if value and isinstance(value[0], list) else ()):
        if isinstance(ids, list) and ids:
            yield from ((f"[{place}]{at}", expected) for at, expected in _integer_faults(ids, "a token id"))
        else:
            yield f"[{place}]", "a list of at least one token id"


def _canonical_number(text: str) -> str:
    number = float(text)
    if not isfinite(number):
        raise ValueError("not a number")
    return repr(number).removesuffix(".0")


_ITEM_FAULTS: Mapping[str, Callable[[list[Any]], Iterator[Fault]]] = {
    "strings": _string_faults,
    "integers": _integer_faults,
    "objects": _object_faults,
    "prompt": _prompt_faults,
}

_CANONICAL: Mapping[str, Callable[[str], str]] = {
    "integer": lambda text: str(int(text)),
    "number": _canonical_number,
    "flag": lambda text: str(FLAGS[text.strip().lower()]).lower(),
}
