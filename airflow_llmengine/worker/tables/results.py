"""What the result of one row is: from its element in a chunk to the values of the columns that the job makes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, NoReturn

from airflow_llmengine.spec.output_schema import ColumnKind, ColumnType
from airflow_llmengine.spec.results import RecordError, RecordErrorType
from airflow_llmengine.spec.wire_faults import path_step

_INT64 = range(-(2**63), 2**63)

TRUNCATED = "truncated: max_tokens cut the completion before it was whole; raise max_tokens"
"""What the error column says of a row whose typed columns are null for that reason. It does not count as failed."""


@dataclass(frozen=True, slots=True)
class RowResult:
    """One row's result. Everything is None that a row has not."""

    completion: str | None = None
    values: Mapping[str, Any] | None = None
    """Of a job with ``output_schema``: by column, as Arrow takes them."""
    error: str | None = None
    """The error's type and message: why there is no completion, or why there are no values."""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    unfit: str | None = None
    """Why an answer that was not cut is not what ``output_schema`` asks for: never with the model's text."""


class UnfitValueError(Exception):
    """A value is not of its column's type; the message says where, and not what it is."""


def read_row(
    element: bytes, columns: Mapping[str, ColumnType] | None, *, truncated: bool = False, skipped: bool = False
) -> RowResult:
    """Read a row's element.

    Args:
        element: As a chunk has it: a V2 response or an error, as JSON.
        columns: Those that ``output_schema`` makes; None: there is no such schema.
        truncated: Whether it is structured output that ``max_tokens`` cut.
        skipped: Whether there was nothing to ask.

    Raises:
        ValueError: It is nothing that a worker writes.
    """
    if skipped:
        return RowResult()
    body = json.loads(element)
    if isinstance(body, dict) and "error" in body:
        error = RecordError.model_validate(body["error"])
        return RowResult(error=valid_text(f"{error.type.value}: {error.message}"))
    try:
        choice, usage = body["choices"][0], body["usage"]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        finish_reason, prompt, written = choice["finish_reason"], usage["prompt_tokens"], usage["completion_tokens"]
    except (LookupError, TypeError):
        raise ValueError("one of its lines is no answer to a row") from None
    values, error_text, unfit = None, None, None
    if columns is not None and truncated:
        error_text = TRUNCATED
    elif columns is not None:
        try:
            values = read_values(text, columns)
        except UnfitValueError as fault:
            unfit = str(fault)
            error_text = f"{RecordErrorType.INVALID_OUTPUT.value}: {unfit}"
    completion = None if text is None else valid_text(text)
    return RowResult(completion, values, error_text, finish_reason, prompt, written, unfit)


def read_values(text: str | None, columns: Mapping[str, ColumnType]) -> dict[str, Any]:
    """The columns' values in an answer.

    Raises:
        UnfitValueError: The answer is no object of that schema.
    """
    try:
        value = json.loads(text or "", parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise UnfitValueError("the completion is not JSON, though output_schema asks for it") from None
    if not isinstance(value, dict):
        raise UnfitValueError("the completion is no JSON object, though output_schema asks for one")
    return {name: fitted(value.get(name), column, path_step(name)) for name, column in columns.items()}


def fitted(value: Any, column: ColumnType, path: str) -> Any:
    """A JSON value as its column takes it.

    Raises:
        UnfitValueError: It has another type, or can't be held by it.
    """
    if value is None:
        if not column.nullable:
            raise UnfitValueError(f"{_shown(path)} is missing or null in the completion")
        return None
    match column.kind:
        case "boolean" if isinstance(value, bool):
            return value
        case "integer" if isinstance(value, int | float) and not isinstance(value, bool):
            if isinstance(value, float) and not value.is_integer():
                raise UnfitValueError(f"{_shown(path)} is no whole number in the completion")
            if int(value) not in _INT64:
                raise UnfitValueError(f"{_shown(path)} is a number that a column of 64-bit integers can't hold")
            return int(value)
        case "number" if isinstance(value, int | float) and not isinstance(value, bool):
            return _finite(value, path)
        case "string" if isinstance(value, str):
            return valid_text(value)
        case "timestamp" | "date" if isinstance(value, str):
            return _moment(value, column.kind, path)
        case "list" if isinstance(value, list) and column.item is not None:
            item = column.item
            return [fitted(one, item, f"{path}[{place}]") for place, one in enumerate(value)]
        case "struct" if isinstance(value, dict):
            return {name: fitted(value.get(name), inner, path + path_step(name)) for name, inner in column.fields}
    raise UnfitValueError(f"{_shown(path)} is no {_WORDS[column.kind]} in the completion")


def valid_text(text: str) -> str:
    """A text that can be written in UTF-8: a lone surrogate, which JSON can escape, becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


_WORDS = {
    "boolean": "true or false",
    "integer": "number",
    "number": "number",
    "string": "text",
    "timestamp": "date and time",
    "date": "date",
    "list": "list",
    "struct": "object",
}


def _finite(value: float, path: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise UnfitValueError(f"{_shown(path)} is a number that a column of 64-bit floats can't hold")
    return number


def _moment(value: str, kind: ColumnKind, path: str) -> datetime | date:
    """A date, or a date and time, which is in UTC where it says no offset."""
    try:
        if kind == "date":
            return date.fromisoformat(value)
        moment = datetime.fromisoformat(value)
        return moment.astimezone(UTC) if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        # A grammar of dates has a February with 31 days.
        raise UnfitValueError(f"{_shown(path)} is no {_WORDS[kind]} in the completion") from None


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _shown(path: str) -> str:
    return path.removeprefix(".")
