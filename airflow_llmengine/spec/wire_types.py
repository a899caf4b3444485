"""The JSON types of the wire contract, as annotations for pydantic fields.

They read a value as JSON Schema (Draft 2020-12) does, with the contract's one addition: a number or a boolean may
arrive as its canonical string, because a templated Airflow field renders to a string. So ``1.0`` is an integer,
``True`` is never a number, and ``NaN`` is nothing. pydantic's own two modes are something else: the lax one takes
``True`` for 1 and bytes for a string, the strict one refuses ``1.0``.

What is usual is read by pydantic's compiled core alone; a Python function is called only for a value that would be
refused otherwise. Whatever shapes a field may have, a wrong value is one error of type ``WIRE_FAULT`` whose context
says what was expected; ``validation`` turns it into a sentence.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import NoneType
from typing import Any, TypeVar, get_args

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from airflow_llmengine.spec.wire_faults import (
    Fault,
    is_json,
    json_faults,
    message_faults,
    read_flag,
    read_integer,
    read_number,
)

WIRE_FAULT = "wire_fault"
"""Type of the one error that a value of the wrong kind or out of bounds causes.

Its context has ``expected`` (what the value must be), and either ``kind`` (by which ``wire_faults`` knows more) or,
where Python found the fault, ``at`` (the place below the field) and ``unicode`` (whether it is a lone surrogate).
"""

Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class WireType:
    """A JSON type, as an annotation. Null is allowed where the annotated type includes ``None``."""

    schema: CoreSchema
    """How the core reads a value that is not null, its errors summed up."""
    nullable: bool | None = None
    """Says otherwise about null."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Called by pydantic for the annotated field."""
        nullable = NoneType in get_args(source) if self.nullable is None else self.nullable
        return core_schema.nullable_schema(self.schema) if nullable else self.schema


@dataclass(frozen=True, eq=False)
class Choice:
    """An annotation for a ``Literal`` or a ``StrEnum``, which are read as they are, with the contract's error."""

    values: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Called by pydantic for the annotated field."""
        expected = ("one of " if len(self.values) > 1 else "") + ", ".join(self.values)
        return _summed_up("choice", expected, handler(source))


def _summed_up(kind: str, expected: str, schema: CoreSchema) -> CoreSchema:
    """The schema, with whatever errors it has turned into one."""
    return core_schema.custom_error_schema(
        schema,
        custom_error_type=WIRE_FAULT,
        custom_error_message="must be {expected}",
        custom_error_context={"expected": expected, "kind": kind},
    )


def _first_of(*choices: CoreSchema) -> CoreSchema:
    return core_schema.union_schema([*choices], mode="left_to_right")


def _or_read(native: CoreSchema, read: Callable[[Any], Any]) -> CoreSchema:
    """What the core takes by itself, else what ``read`` makes of it, if the core takes that."""
    return _first_of(native, core_schema.chain_schema([core_schema.no_info_plain_validator_function(read), native]))


def _checked(schema: CoreSchema, find: Callable[[Any], Iterator[Fault]]) -> CoreSchema:
    """What the core takes, unless ``find`` finds a fault in it."""

    def refuse(value: Value) -> Value:
        for at, expected in find(value):
            context = {"expected": expected or "text that UTF-8 can carry", "at": at, "unicode": not expected}
            raise PydanticCustomError(WIRE_FAULT, "must be {expected}", context)
        return value

    return core_schema.no_info_after_validator_function(refuse, schema)


def _json_only(value: Any) -> Iterator[Fault]:
    return iter(()) if is_json(value) else json_faults(value)


def _list_of(item: CoreSchema, minimum: int | None = None, maximum: int | None = None) -> CoreSchema:
    """Stops at the first wrong item: a list may have millions."""
    return core_schema.list_schema(item, strict=True, min_length=minimum, max_length=maximum, fail_fast=True)


def _read_integers(value: Any) -> list[int]:
    if isinstance(value, list):
        return [read_integer(item) for item in value]
    raise ValueError("not a list")


def _read_prompt(value: Any) -> list[int] | list[list[int]]:
    if isinstance(value, list) and value and isinstance(value[0], list):
        return [_read_integers(item) for item in value]
    return _read_integers(value)


_TEXT = core_schema.str_schema(strict=True, max_length=sys.maxsize)
"""The bound never binds: it makes the core look at the string as UTF-8, which finds lone surrogates."""

_NUMBER = _first_of(core_schema.int_schema(strict=True), core_schema.float_schema(strict=True, allow_inf_nan=False))

_JSON_OBJECT = core_schema.dict_schema(core_schema.str_schema(strict=True), strict=True)

_TOKEN_IDS = _list_of(core_schema.int_schema(strict=True), minimum=1)

TEXT = WireType(_summed_up("text", "a string", _TEXT))
"""A string that UTF-8 can carry."""

TEXT_NOT_EMPTY = WireType(
    _summed_up(
        "text", "a string that is not empty", core_schema.str_schema(strict=True, min_length=1, max_length=sys.maxsize)
    )
)
"""A string of at least one character."""

TEXT_NOT_NULL = WireType(TEXT.schema, nullable=False)
"""A string that may be left out but can't be null."""

FLAG = WireType(_summed_up("flag", "true or false", _or_read(core_schema.bool_schema(strict=True), read_flag)))
"""A boolean."""

QUANTITY = WireType(
    _summed_up("quantity", 'a quantity such as "500m" or "16Gi", or a number', _first_of(_TEXT, _NUMBER))
)
"""A string, whose syntax is ``check``'s business, or a number."""

TEXT_LIST = WireType(_summed_up("strings", "a list of strings", _list_of(_TEXT)))
"""A list of strings."""

TEXT_OR_TEXTS = WireType(_summed_up("strings", "a string or a list of strings", _first_of(_TEXT, _list_of(_TEXT))))
"""A string, or strings."""

INTEGER_LIST = WireType(
    _summed_up(
        "integers", "a list of integers", _or_read(_list_of(core_schema.int_schema(strict=True)), _read_integers)
    )
)
"""A list of integers."""

PROMPT = WireType(
    _summed_up(
        "prompt",
        "a string, a list of strings, a list of token ids, or a list of lists of token ids",
        _first_of(
            _TEXT, _list_of(_TEXT), _or_read(_first_of(_TOKEN_IDS, _list_of(_TOKEN_IDS, minimum=1)), _read_prompt)
        ),
    )
)
"""A string, strings, token ids, or lists of token ids. An empty list is a list of no strings."""

STOP_SEQUENCES = WireType(
    _summed_up("strings", "a string or a list of 1 to 4 strings", _first_of(_TEXT, _list_of(_TEXT, 1, 4)))
)
"""A string, or up to four."""

FREE_OBJECT = WireType(_checked(_summed_up("object", "an object", _JSON_OBJECT), _json_only))
"""An object with any JSON in it."""

_OBJECTS = _summed_up("objects", "a list of objects", _list_of(_JSON_OBJECT))

FREE_OBJECT_LIST = WireType(_checked(_OBJECTS, _json_only))
"""A list of objects with any JSON in them."""

MESSAGES = WireType(_checked(FREE_OBJECT_LIST.schema, message_faults))
"""The messages of a chat."""

TOOL_CHOICE = WireType(
    _summed_up(
        "tool_choice",
        "none, auto, required, or an object that names a function",
        _first_of(core_schema.literal_schema(["none", "auto", "required"]), FREE_OBJECT.schema),
    )
)
"""Which tool a chat may call."""


def integer(minimum: int | None = None, maximum: int | None = None) -> WireType:
    """A whole number in closed bounds."""
    bounded = core_schema.int_schema(strict=True, ge=minimum, le=maximum)
    return WireType(_summed_up("integer", "an integer" + _in_bounds(minimum, maximum), _or_read(bounded, read_integer)))


def number(minimum: int | None = None, maximum: int | None = None, *, above: int | None = None) -> WireType:
    """A finite number in closed bounds, or greater than ``above``.

    One that came whole stays an ``int``: a large one has no equal ``float``.
    """
    bounded = _first_of(
        core_schema.int_schema(strict=True, ge=minimum, le=maximum, gt=above),
        core_schema.float_schema(strict=True, ge=minimum, le=maximum, gt=above, allow_inf_nan=False),
    )
    bounds = _in_bounds(minimum, maximum) if above is None else f" above {above}" + _in_bounds(None, maximum)
    return WireType(_summed_up("number", "a number" + bounds, _or_read(bounded, read_number)))


def map_of(values: WireType) -> WireType:
    """An object with any keys whose values are of one type. Each wrong value is an error of its own."""
    return WireType(core_schema.dict_schema(TEXT.schema, values.schema, strict=True))


def _in_bounds(minimum: int | None, maximum: int | None) -> str:
    if minimum is not None and maximum is not None:
        return f" from {minimum} to {maximum}"
    if minimum is not None:
        return f" of at least {minimum}"
    return "" if maximum is None else f" of at most {maximum}"
