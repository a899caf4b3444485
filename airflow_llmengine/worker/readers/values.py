"""Parsing one JSON value, strictly: what two readers could understand differently is refused, not guessed.

The standard library's parser decides; on top of it are refused: bytes that are not UTF-8, lone surrogates (they are no
text, and can't be written to the output), NaN and infinities, numbers that a 64-bit float can't hold, keys that stand
twice in one object, and more arrays and objects, or deeper ones, than any request has. No message holds any text of
the value.

pydantic's parser, which is several times as fast, goes first: what it takes, the other takes for the same, but that it
does not tell of keys that stand twice, nor of numbers that are too large. Both are seen in what it made of the text.
Whatever it does not take is read again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from pydantic_core import from_json

from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.readers.limits import MAX_CONTAINERS, MAX_NESTING, MAX_RECORD_BYTES
from airflow_llmengine.worker.readers.scanner import structure_fault

_NOT_PLAIN = object()

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


class ValueRefusedError(ValueError):
    """A JSON value is not taken.

    Args:
        error_type: What the record's error is called.
        reason: What is wrong and what to do, as the end of a sentence that begins with the value's place.
        is_syntax: Whether the text is not even made of JSON's pieces, so that in a larger document what follows it
            can't be trusted.
        custom_id: The record's ``custom_id``, where it could be read.
    """

    def __init__(
        self,
        error_type: RecordErrorType,
        reason: str,
        *,
        is_syntax: bool = False,
        custom_id: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.error_type = error_type
        self.reason = reason
        self.is_syntax = is_syntax
        self.custom_id = custom_id


def load_value(raw: bytes) -> Any:
    """The value of a JSON text: dict, list, str, int, float, bool or None.

    Raises:
        ValueRefusedError: See the module's description.
    """
    # Counting is much faster than following the brackets, and nearly always enough.
    if raw.count(b"[") + raw.count(b"{") > MAX_NESTING:
        fault = structure_fault(raw, most_nested=MAX_NESTING, most=MAX_CONTAINERS)
        if fault == "depth":
            raise _invalid_json(f"arrays and objects are nested more than {MAX_NESTING} deep")
        if fault == "number":
            raise _invalid_json(f"it holds more than {MAX_CONTAINERS} arrays and objects")
    value = _load_plain(raw)
    if value is not _NOT_PLAIN:
        return value
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueRefusedError(
            RecordErrorType.INVALID_UNICODE, f"byte {error.start + 1} of it is not UTF-8: write the file in UTF-8"
        ) from None
    try:
        value = _decode(text)
    except json.JSONDecodeError as error:
        raise _syntax_error(error) from None
    except ValueRefusedError:
        raise
    except ValueError:
        # Python converts no more digits than this, since that takes quadratic time.
        raise _invalid_json("an integer has thousands of digits: write it as a string") from None
    if _SURROGATE_ESCAPE.search(text):
        refuse_lone_surrogates(value)
    return value


def _load_plain(raw: bytes) -> Any:
    """The value of a text in which nothing is to be refused, if that is quickly seen; else ``_NOT_PLAIN``."""
    if b"\\\\" in raw:
        # It can't be counted then which quotes are escaped.
        return _NOT_PLAIN
    try:
        value = from_json(raw, allow_inf_nan=False, cache_strings="keys")
    except ValueError:
        return _NOT_PLAIN
    # Of keys that stand twice one is missing in the value: it has fewer strings than were written.
    return value if 2 * _count_strings(value) == raw.count(b'"') - raw.count(b'\\"') else _NOT_PLAIN


def _count_strings(value: Any) -> int:
    """How many strings a value holds, keys among them; too many if it holds a number that is infinite."""
    strings = 0
    values: Iterable[Any] = (value,)
    if type(value) is dict:
        strings, values = len(value), value.values()
    elif type(value) is list:
        values = value
    for inner in values:
        kind = type(inner)
        if kind is str:
            strings += 1
        elif kind is dict or kind is list:
            strings += _count_strings(inner)
        elif kind is float and math.isinf(inner):
            strings += MAX_RECORD_BYTES
    return strings


def refuse_lone_surrogates(value: Any) -> None:
    """Refuse a value that holds half of a surrogate pair in any string.

    Raises:
        ValueRefusedError: It does.
    """
    if is_text(value):
        return
    custom_id = value.get("custom_id") if isinstance(value, dict) else None
    raise ValueRefusedError(
        RecordErrorType.INVALID_UNICODE,
        "a string holds one half of a surrogate pair (an escape from \\ud800 to \\udfff) without the other: "
        "write the whole pair or leave it out",
        custom_id=custom_id if isinstance(custom_id, str) and is_text(custom_id) else None,
    )


def is_text(value: Any) -> bool:
    """Whether all strings in a JSON value can be written in UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _invalid_json(reason: str) -> ValueRefusedError:
    return ValueRefusedError(RecordErrorType.INVALID_JSON, reason)


def _syntax_error(error: json.JSONDecodeError) -> ValueRefusedError:
    what = error.msg.removesuffix(" at").removesuffix(" starting").rstrip(": ")
    if error.pos >= len(error.doc.rstrip()):
        what = "it ends too early"
    where = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno} of it, column {error.colno}"
    reason = f"it is not valid JSON: {what[0].lower()}{what[1:]} at {where}"
    return ValueRefusedError(RecordErrorType.INVALID_JSON, reason, is_syntax=True)


def _refuse_constant(name: str) -> NoReturn:
    raise _invalid_json(f"{name.removeprefix('-')} is not a number in JSON: write null or leave the field out")


def _finite_float(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise _invalid_json("a number is too large for a 64-bit float")
    return number


def _object_of_unique_keys(members: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(members)
    if len(result) != len(members):
        raise _invalid_json("an object has one key twice, and it is not certain which is meant: leave one out")
    return result


_decode = json.JSONDecoder(
    object_pairs_hook=_object_of_unique_keys, parse_float=_finite_float, parse_constant=_refuse_constant
).decode
