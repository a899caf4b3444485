"""The JSON types of the wire contract, as annotations for pydantic fields.

They read a value as JSON Schema (Draft 2020-12) does, with the contract's one addition: a number or a boolean may
arrive as its canonical string, because a templated Airflow field renders to a string. So ``1.0`` is an integer, ``True``
is never a number, and ``NaN`` is nothing. pydantic's own lax mode takes much more (``"0x10"`` no, but ``" 1_0 "``, ``"on"``
and bytes yes), its strict mode less (``1.0``).

What is usual is read by pydantic's compiled core alone; a Python function is called only for a value that is about to
be refused otherwise. Whatever shapes a field may have, a wrong value is one error of type ``WIRE_FAULT`` whose context
says what was expected; ``validation`` turns it into a sentence.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from types import NoneType
from typing import Any, TypeVar, get_args

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

WIRE_FAULT = "wire_fault"
"""Type of the one error that a value of the wrong kind or out of bounds causes."""

Value = TypeVar("Value")

_INTEGER = re.compile(r"(?:0|-?[1-9][0-9]*)(?:\.0)?", re.ASCII)
_FLAGS = {"true": True, "false": False, "True": True, "False": False}


def read_integer(value: Any) -> int:
    """Read an integer that did not come as a plain one: ``1.0``, ``"4"``, ``"4.0"`` (Python's way to print ``4.0``).

    Raises:
        ValueError: It is no integer: a boolean, a fraction, another type, or a string that is not canonical.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value.removesuffix(".0"))
    raise ValueError("not an integer")


def read_number(value: Any) -> int | float:
    """Read a number from its canonical string: just as Python and JSON print it, and finite.

    Raises:
        ValueError: It is no such string.
    """
    if isinstance(value, str):
        if _INTEGER.fullmatch(value):
            return int(value.removesuffix(".0"))
        number = float(value)
        if isfinite(number) and repr(number) == value:
            return number
    raise ValueError("not a number")


def read_flag(value: Any) -> bool:
    """Read a boolean from its canonical string, as JSON or as Python (and so Jinja) prints it.

    Raises:
        ValueError: It is no such string.
    """
    if isinstance(value, str) and value in _FLAGS:
        return _FLAGS[value]
    raise ValueError("not a boolean")


def _read_token_ids(value: Any) -> list[int]:
    if isinstance(value, list) and value:
        return [read_integer(item) for item in value]
    raise ValueError("not a list of token ids")


def _read_prompt(value: Any) -> list[int] | list[list[int]]:
    if isinstance(value, list) and value and all(isinstance(item, list) for item in value):
        return [_read_token_ids(item) for item in value]
    return _read_token_ids(value)


def is_unicode(text: str) -> bool:
    """Whether the string can be written as UTF-8: JSON's escapes can spell half a surrogate pair, which can't."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_TEXT = core_schema.str_schema(strict=True, max_length=sys.maxsize)
"""The length bound never binds: it makes the core look at the string as UTF-8, which finds lone surrogates."""


def _or_read(native: list[CoreSchema], read: Any) -> CoreSchema:
    """What the core takes by itself, else what ``read`` makes of it, if the core takes that."""
    again = core_schema.chain_schema([core_schema.no_info_plain_validator_function(read), _first_of(native)])
    return _first_of([*native, again])


def _first_of(choices: list[CoreSchema]) -> CoreSchema:
    return choices[0] if len(choices) == 1 else core_schema.union_schema([*choices], mode="left_to_right")


def _in_bounds(minimum: int | None, maximum: int | None) -> str:
    if minimum is not None and maximum is not None:
        return f" from {minimum} to {maximum}"
    if minimum is not None:
        return f" of at least {minimum}"
    return "" if maximum is None else f" of at most {maximum}"


class WireType:
    """A JSON type. Null is allowed where the Python type that it annotates includes ``None``, unless said otherwise."""

    nullable: bool | None = None

    @property
    def expected(self) -> str:
        """What a value must be, as it stands in messages after "must be"."""
        raise NotImplementedError

    def schema(self) -> CoreSchema:
        """How the core reads a value that is not null."""
        raise NotImplementedError

    def wire_schema(self) -> CoreSchema:
        """``schema``, with its errors summed up in one."""
        return self._summed_up(self.schema())

    def _summed_up(self, schema: CoreSchema) -> CoreSchema:
        return core_schema.custom_error_schema(
            schema,
            custom_error_type=WIRE_FAULT,
            custom_error_message="must be {expected}",
            custom_error_context={"expected": self.expected, "type": self},
        )

    def item_faults(self, value: Any) -> Iterator[tuple[str, str]]:
        """Which items make a list a wrong value: each one's place, and what it must be (empty: a lone surrogate)."""
        return iter(())

    def canonical(self, text: str) -> str | None:
        """How a string would have to be written to be taken, where it plainly means a value of this type."""
        return None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Called by pydantic for the annotated field."""
        nullable = NoneType in get_args(source) if self.nullable is None else self.nullable
        schema = self.wire_schema()
        return core_schema.nullable_schema(schema) if nullable else schema


@dataclass(frozen=True)
class Text(WireType):
    """A string that UTF-8 can carry."""

    nullable: bool | None = None

    @property
    def expected(self) -> str:
        """See ``WireType``."""
        return "a string"

    def schema(self) -> CoreSchema:
        """See ``WireType``."""
        return _TEXT


@dataclass(frozen=True)
class Flag(WireType):
    """A boolean: true or false, or their canonical strings."""

    @property
    def expected(self) -> str:
        """See ``WireType``."""
        return "true or false"

    def schema(self) -> CoreSchema:
        """See ``WireType``."""
        return _or_read([core_schema.bool_schema(strict=True)], read_flag)

    def canonical(self, text: str) -> str | None:
        """See ``WireType``."""
        return text.strip().lower() if text.strip().lower() in _FLAGS else None


@dataclass(frozen=True)
class Integer(WireType):
    """A whole number in closed bounds."""

    minimum: int | None = None
    maximum: int | None = None

    @property
    def expected(self) -> str:
        """See ``WireType``."""
        return "an integer" + _in_bounds(self.minimum, self.maximum)

    def schema(self) -> CoreSchema:
        """See ``WireType``."""
        return _or_read([core_schema.int_schema(strict=True, ge=self.minimum, le=self.maximum)], read_integer)

    def canonical(self, text: str) -> str | None:
        """See ``WireType``."""
        try:
            return str(int(text))
        except ValueError:
            return None


@dataclass(frozen=True)
class Number(WireType):
    """A finite number in bounds. One that came whole stays an ``int``: a large one has no equal ``float``."""

    minimum: int | None = None
    maximum: int | None = None
    above: int | None = None
    """The number must be greater than this."""

    @property
    def expected(self) -> str:
        """See ``WireType``."""
        if self.above is not None:
            return f"a number above {self.above}" + ("" if self.maximum is None else f" and up to {self.maximum}")
        return "a number" + _in_bounds(self.minimum, self.maximum)

    def schema(self) -> CoreSchema:
        """See ``WireType``."""
        return _or_read(
            [
                core_schema.int_schema(strict=True, ge=self.minimum, le=self.maximum, gt=self.above),
                core_schema.float_schema(
                    strict=True, ge=self.minimum, le=self.maximum, gt=self.above, allow_inf_nan=False
                ),
            ],
            read_number,
        )

    def canonical(self, text: str) -> str | None:
        """See ``WireType``."""
        try:
            number = float(text)
        except ValueError:
            return None
        return repr(number) if isfinite(number) else None


@dataclass(frozen=True)
class Quantity(WireType):
    """A string (its syntax is ``check``'s business) or a number."""

    @property
    def expected(self) -> str:
        """See ``WireType``."""
        return 'a quantity such as "500m" or "16Gi", or a number'

    def schema(self) -> CoreSchema:
        """See ``WireType``."""
        return _first_of([_TEXT, *_NUMBERS])


_NUMBERS: list[CoreSchema] = [
    core_schema.int_schema(strict=True),
    core_schema.float_schema(strict=True, allow_inf_nan=False),
]


@dataclass(frozen=True)
class Choice(WireType):
    """One of a few strings."""

    values: tuple[str, ...]

    @property
    def expected(self) -> str:
        """See ``WireType``."""
        return ("one of " if len(self.values) > 1 else "") + ", ".join(self.values)

    def schema(self) -> CoreSchema:
        """See ``WireType``."""
        return core_schema.literal_schema([*self.values])

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Keep the annotated type's own reading: a ``StrEnum`` gives its members."""
        return self._summed_up(handler(source))


def _text_faults(value: Any) -> Iterator[tuple[str, str]]:
    for place, item in enumerate(value if isinstance(value, list) else ()):
        if not isinstance(item, str):
            yield f"[{place}]", "a string"
        elif not is_unicode(item):
            yield f"[{place}]", ""


def _integer_faults(value: Any, expected: str) -> Iterator[tuple[str, str]]:
    for place, item in enumerate(value if isinstance(value, list) else ()):
        try:
            read_integer(item)
        except ValueError:
            yield f"[{place}]", expected


@dataclass(frozen=True)
class TextList(WireType):
    """A list of strings."""

    minimum: int | None = None
    maximum: int | None = None

    @property
    def expected(self) -> str:
        """See ``WireType``."""
        return "a list of strings"

    def schema(self) -> CoreSchema:
        """See ``WireType``."""
        return core_schema.list_schema(
            _TEXT, strict=True, min_length=self.minimum, max_length=self.maximum, fail_fast=True
        )

    def item_faults(self, value: Any) -> Iterator[tuple[str, str]]:
        """See ``WireType``."""
        return _text_faults(value)


@dataclass(frozen=True)
class IntegerList(WireType):
    """A list of integers."""

    @property
    def expected(self) -> str:
        """See ``WireType``."""
        return "a list of integers"

    def schema(self) -> CoreSchema:
        """See ``WireType``."""
        return core_schema.list_schema(Integer().schema(), strict=True, fail_fast=True)

    def item_faults(self, value: Any) -> Iterator[tuple[str, str]]:
        """See ``WireType``."""
        return _integer_faults(value, "an integer")


@dataclass(frozen=True)
class StopSequences(WireType):
    """A string, or a list of 1 to 4."""

    @property
    def expected(self) -> str:
        """See ``WireType``."""
        return "a string or a list of 1 to 4 strings"

    def schema(self) -> CoreSchema:
        """See ``WireType``."""
        return _first_of([_TEXT, TextList(1, 4).schema()])

    def item_faults(self, value: Any) -> Iterator[tuple[str, str]]:
        """See ``WireType``."""
        return _text_faults(value)


@dataclass(frozen=True)
class Prompt(WireType):
    """A string, strings, token ids, or lists of token ids. An empty list is a list of no strings."""

    @property
    def expected(self) -> str:
        """See ``WireType``."""
        return "a string, a list of strings, a list of token ids, or a list of lists of token ids, none of them empty"

    def schema(self) -> CoreSchema:
        """See ``WireType``."""
        ids = core_schema.list_schema(core_schema.int_schema(strict=True), strict=True, min_length=1, fail_fast=True)
        id_lists = core_schema.list_schema(ids, strict=True, min_length=1, fail_fast=True)
        read = core_schema.no_info_plain_validator_function(_read_prompt)
        return _first_of([_TEXT, TextList().schema(), ids, id_lists, read])

    def item_faults(self, value: Any) -> Iterator[tuple[str, str]]:
        """See ``WireType``. What the list was meant to be is told by its first item."""
        if isinstance(value, list) and value:
            if isinstance(value[0], str):
                yield from _text_faults(value)
            elif not isinstance(value[0], list):
                yield from _integer_faults(value, "a token id")
            else:
                for place, ids in enumerate(value):
                    if isinstance(ids, list) and ids:
                        yield from ((f"[{place}]{at}", fault) for at, fault in _integer_faults(ids, "a token id"))
                    else:
                        yield f"[{place}]", "a list of at least one token id"


@dataclass(frozen=True)
class MapOf(WireType):
    """An object with any keys whose values are of one type. Each wrong value is an error of its own."""

    values: WireType

    @property
    def expected(self) -> str:
        """See ``WireType``."""
        return "an object"

    def wire_schema(self) -> CoreSchema:
        """See ``WireType``."""
        return core_schema.dict_schema(Text().wire_schema(), self.values.wire_schema(), strict=True)


@dataclass(frozen=True)
class FreeObject(WireType):
    """An object with any JSON in it."""

    @property
    def expected(self) -> str:
        """See ``WireType``."""
        return "an object"

    def wire_schema(self) -> CoreSchema:
        """See ``WireType``."""
        free = core_schema.dict_schema(Text().wire_schema(), core_schema.any_schema(), strict=True)
        return core_schema.no_info_after_validator_function(refuse_other_than_json, free)


@dataclass(frozen=True)
class FreeList(WireType):
    """A list of objects with any JSON in them."""

    @property
    def expected(self) -> str:
        """See ``WireType``."""
        return "a list of objects"

    def wire_schema(self) -> CoreSchema:
        """See ``WireType``."""
        item = core_schema.dict_schema(strict=True)
        free = self._summed_up(core_schema.list_schema(item, strict=True, fail_fast=True))
        return core_schema.no_info_after_validator_function(refuse_other_than_json, free)


@dataclass(frozen=True)
class Messages(FreeList):
    """The messages of a chat: objects with a ``role`` and a ``content`` that is a string, a list of parts, or null."""

    def wire_schema(self) -> CoreSchema:
        """See ``WireType``."""
        return core_schema.no_info_after_validator_function(_refuse_other_than_messages, super().wire_schema())


def _refuse_other_than_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for place, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise wire_fault("a string", f"[{place}].role")
        content = message.get("content")
        if isinstance(content, str) or content is None:
            continue
        if not isinstance(content, list):
            raise wire_fault("a string, a list of parts, or null", f"[{place}].content")
        for part_place, part in enumerate(content):
            if not isinstance(part, str) and not (isinstance(part, dict) and isinstance(part.get("type"), str)):
                raise wire_fault("an object with a type", f"[{place}].content[{part_place}]")
    return messages


@dataclass(frozen=True)
class ToolChoice(WireType):
    """Which tool a chat may call: a word, or an object that names one."""

    @property
    def expected(self) -> str:
        """See ``WireType``."""
        return "none, auto, required, or an object that names a function"

    def schema(self) -> CoreSchema:
        """See ``WireType``."""
        return _first_of([core_schema.literal_schema(["none", "auto", "required"]), FreeObject().wire_schema()])


def wire_fault(expected: str, at: str = "", *, unicode: bool = False) -> PydanticCustomError:
    """The error for a fault at the place ``at`` (``[3].role``) below the field. ``unicode``: a lone surrogate."""
    return PydanticCustomError(WIRE_FAULT, "must be {expected}", {"expected": expected, "at": at, "unicode": unicode})


def refuse_other_than_json(value: Value) -> Value:
    """Return the value if all in it is JSON that UTF-8 can carry.

    Raises:
        PydanticCustomError: For the first place that is not.
    """
    for at, fault in json_faults(value):
        raise wire_fault(fault or "text that UTF-8 can carry", at, unicode=not fault)
    return value


def json_faults(value: Any) -> Iterator[tuple[str, str]]:
    """Where a value is not JSON: the place below it, and what it should be there (empty for a lone surrogate).

    Goes without recursion, since the depth is the user's.
    """
    pending = [("", value)]
    while pending:
        at, item = pending.pop()
        if isinstance(item, str):
            if not (item.isascii() or is_unicode(item)):
                yield at, ""
        elif isinstance(item, dict):
            for key, inner in item.items():
                if not isinstance(key, str):
                    yield at, "an object with strings as keys"
                elif not is_unicode(key):
                    yield at, ""
                else:
                    pending.append((at + path_step(key), inner))
        elif isinstance(item, list):
            pending += [(f"{at}[{place}]", inner) for place, inner in enumerate(item)]
        elif isinstance(item, float):
            if not isfinite(item):
                yield at, "a finite number"
        elif item is not None and not isinstance(item, int):
            yield at, "JSON"


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
LONGEST_SHOWN = 60
"""Characters of a name or a value that a message shows."""


def path_step(key: str | int) -> str:
    """One step of a wire path: ``.name``, ``[3]``, or ``["any.key"]`` in one line."""
    if isinstance(key, int):
        return f"[{key}]"
    if len(key) > LONGEST_SHOWN:
        key = key[: LONGEST_SHOWN - 3] + "..."
    return f".{key}" if _NAME.fullmatch(key) else f'["{ascii(key)[1:-1]}"]'
