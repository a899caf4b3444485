"""The cells of a row as a template sees them, and how they become text.

A column's cell is what it is: a text, a number, ``true`` or ``false``, a date, a list, a struct. What is written into
the prompt is

- a text letter for letter;
- a number in the shortest form that says which it is, a decimal with all digits of its scale;
- ``true`` or ``false``;
- a date as ``2024-05-31``, a timestamp as ``2024-05-31 17:00:00+02:00`` with the offset of its zone, if it has one, and
  microseconds where they are not 0 (finer parts are cut off);
- a list, a struct or a whole row as JSON;
- bytes not at all, since they are no text.

A null or NaN within a list or a struct is ``null`` in JSON. Taken out by itself it is undefined: it can be asked for
(``is defined``, ``default``), and written it follows ``on_null`` like a cell.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NoReturn
from uuid import UUID

from jinja2 import Undefined


class NullUsedError(Exception):
    """A template writes a null that is within a list or a struct."""


class NoTextError(Exception):
    """A template writes what has no form as text; the message says what kind of value that is."""


class InnerNull(Undefined):
    """A null within a list or a struct, taken out by itself: undefined, but for that using it tells of a null."""

    __slots__ = ()

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise NullUsedError

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __neg__ = __pos__ = __pow__ = __rpow__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __call__ = __getitem__ = __int__ = __float__ = _refuse


class NullToTell(InnerNull):
    """One that may not be written."""

    __slots__ = ()

    def __str__(self) -> str:
        raise NullUsedError

    def __iter__(self) -> Iterator[str]:
        raise NullUsedError

    def __len__(self) -> int:
        raise NullUsedError


class EmptyNull(InnerNull):
    """One that is written as an empty text."""

    __slots__ = ()

    def __str__(self) -> str:
        return ""

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class Cells:
    """A row or a struct: its cells by name, and no methods that would hide one from a template.

    ``{{ address.items }}`` is the field ``items``; a Python dictionary would give its method.
    """

    __slots__ = ("_cells",)

    def __init__(self, cells: Mapping[str, Any]) -> None:
        self._cells = cells

    def __getitem__(self, name: str) -> Any:
        return self._cells[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    def __contains__(self, name: object) -> bool:
        return name in self._cells

    def __str__(self) -> str:
        return as_json(self)


def is_null(value: Any) -> bool:
    """Whether a cell has no value: null, NaN, or a timestamp that is none."""
    return value is None or (isinstance(value, float | Decimal) and value != value)


def nested(value: Any, null: InnerNull) -> Any:
    """A list or a struct as templates see it.

    Args:
        value: As Arrow or JSON gives it.
        null: What stands for a null in it.
    """
    if isinstance(value, dict):
        return Cells({name: nested(inner, null) for name, inner in value.items()})
    if isinstance(value, list):
        return [nested(inner, null) for inner in value]
    return null if is_null(value) else value


def as_text(value: Any) -> Any:
    """What is written where a template has ``{{ value }}``.

    Raises:
        NullUsedError: It is a null.
        NoTextError: It has no form as text.
    """
    match value:
        case str() | Undefined():
            # Undefined values see to themselves.
            return value
        case bool():
            return "true" if value else "false"
        case None:
            raise NullUsedError
        case list() | tuple() | Mapping() | Cells():
            return as_json(value)
        case int():
            return value
        case float() | Decimal():
            if value != value:
                raise NullUsedError
            return _written(value)
        case date() | time() | timedelta() | UUID():
            return str(value)
        case _:
            raise NoTextError(_kind(value))


def as_json(value: Any, indent: int | None = None) -> str:
    """A value as JSON, nulls included."""
    separators = None if indent is not None else (", ", ": ")
    return json.dumps(_plain(value), ensure_ascii=False, indent=indent, separators=separators)


def _plain(value: Any) -> Any:
    match value:
        case bool() | str() | int():
            return value
        case None | InnerNull():
            return None
        case Undefined():
            return str(value)
        case float():
            return value if math.isfinite(value) else None if math.isnan(value) else _written(value)
        case Decimal():
            return None if value.is_nan() else _written(value)
        case Mapping():
            return {_key(name): _plain(inner) for name, inner in value.items()}
        case Cells():
            return {_key(name): _plain(value[name]) for name in value}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case date() | time() | timedelta() | UUID():
            return str(value)
        case _:
            raise NoTextError(_kind(value))


def _key(name: Any) -> str:
    """The key of a map, which may be of any type, as JSON has it."""
    return name if isinstance(name, str) else str(as_text(name))


def as_parameter(value: Any) -> Any:
    """A cell as the value of a sampling parameter: what JSON has.

    Raises:
        NoTextError: JSON has no such value.
    """
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, dict):
        return {_key(name): as_parameter(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [as_parameter(inner) for inner in value]
    if isinstance(value, bytes):
        raise NoTextError(_kind(value))
    return str(value) if isinstance(value, date | datetime | time | timedelta | UUID) else value


def _written(value: float | Decimal) -> str:
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _kind(value: Any) -> str:
    return "bytes" if isinstance(value, bytes | bytearray | memoryview) else f"a Python {type(value).__name__}"
