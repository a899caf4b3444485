"""What can be told of a line of JSON that is refused as a row: the cells that stand there whole, for people to find it.

Nothing is guessed: a name that stands twice has no cell, a value is one only where a comma or the end of the object
follows it, and text that is not Unicode is none.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, Final

from airflow_llmengine.worker.readers.limits import MAX_CONTAINERS, MAX_NESTING
from airflow_llmengine.worker.readers.scanner import structure_fault
from airflow_llmengine.worker.readers.values import is_text

_UNSURE: Final = object()
"""In place of what is not certain."""

_SPACE = re.compile(r"[ \t\r\n]*")


def readable_cells(line: bytes) -> dict[str, Any]:
    """The cells of a line that is to be an object and is not one that can be taken; none where there is nothing."""
    if structure_fault(line, most_nested=MAX_NESTING, most=MAX_CONTAINERS) is not None:
        return {}
    text = line.decode("utf-8", "surrogateescape")
    found: dict[str, Any] = {}
    try:
        for name, value in _members(text):
            found[name] = _UNSURE if name in found else value
    except (ValueError, IndexError, RecursionError):
        # What stands before the fault was read.
        pass
    return {name: value for name, value in found.items() if _is_certain(value) and is_text([name, value])}


def _members(text: str) -> Iterator[tuple[str, Any]]:
    """The object's names and values, as far as they can be read."""
    place = _behind(text, "{", 0)
    while True:
        name, place = _decode(text, _past_space(text, place))
        if not isinstance(name, str):
            return
        value, place = _decode(text, _past_space(text, _behind(text, ":", place)))
        place = _past_space(text, place)
        if text[place] not in ",}":
            return
        yield name, value
        if text[place] == "}":
            return
        place += 1


def _past_space(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return match.end() if match else place


def _behind(text: str, mark: str, place: int) -> int:
    place = _past_space(text, place)
    if text[place] != mark:
        raise ValueError(f"{mark} is missing")
    return place + 1


def _is_certain(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    return all(map(_is_certain, value)) if isinstance(value, list) else value is not _UNSURE


def _object(members: list[tuple[str, Any]]) -> Any:
    cells = dict(members)
    return cells if len(cells) == len(members) else _UNSURE


def _integer(digits: str) -> Any:
    try:
        return int(digits)
    except ValueError:
        # Python converts no more than some thousands of digits.
        return _UNSURE


def _float(digits: str) -> Any:
    number = float(digits)
    return number if math.isfinite(number) else _UNSURE


_decode = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=lambda _name: _UNSURE, parse_int=_integer, parse_float=_float
).raw_decode
