"""From a model's validation errors to sentences that a person can act on.

Each is one line, names the field by its path on the wire, and shows a wrong value only where it can't be the user's
text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from math import isfinite
from typing import Any, get_args

from pydantic import ValidationError

from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.spec.wire_faults import (
    LONGEST_SHOWN,
    MOST_SHOWN,
    canonical,
    is_unicode,
    item_faults,
    path_step,
    shown_number,
)
from airflow_llmengine.spec.wire_model import WireModel
from airflow_llmengine.spec.wire_types import WIRE_FAULT

LONE_SURROGATE = "holds half of a surrogate pair (an escape such as \\ud800 alone), which UTF-8 can't carry"
"""Why a string that is not Unicode is refused."""

MOST_REFUSALS = 100
"""Of the faults of one document, this many are put into words."""

PRIVATE_FIELDS = frozenset({"body", "content", "chat_template"})
"""Fields of a request or a batch line that hold the user's text; of a record, each may."""

OTHER_NAMES: Mapping[str, str] = {
    "max_completion_tokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "stop_sequence": "stop",
    "stop_sequences": "stop",
}
"""What fields of a record are called elsewhere: in V1, in chats, by other APIs. Letters alone would mislead."""

_OBJECT_ERRORS = frozenset({"model_type", "model_attributes_type", "dict_type"})


@dataclass(frozen=True)
class Refusal:
    """Why a request or a record can't be run."""

    path: str
    """The field by its path on the wire, for example ``model_config.num_shards``; empty for the whole document."""
    reason: str
    """What is wrong with it."""
    remedy: str | None = None
    """What to do or use instead, where that is not plain from the reason."""
    error_type: RecordErrorType = field(default=RecordErrorType.INVALID_RECORD, compare=False)
    """What kind of record error it is, if it concerns a record."""

    def __str__(self) -> str:
        """One line."""
        line = f"{self.path}: {self.reason}" if self.path else self.reason
        return f"{line}; {self.remedy}" if self.remedy else line


class RequestInvalidError(ValueError):
    """The request can't be run. Its text is one line for each refusal."""

    def __init__(self, refusals: list[Refusal]) -> None:
        super().__init__("\n".join(map(str, refusals)))
        self.refusals = refusals
        """All that is wrong."""

    def __reduce__(self) -> tuple[type[RequestInvalidError], tuple[list[Refusal]]]:
        """Rebuild from the refusals when it is handed from one process to another."""
        return type(self), (self.refusals,)


def parse_request(data: Mapping[str, Any] | str | bytes) -> CreateBatchCompletionsV1Request:
    """Read a request and check it against the contract's schema; what goes beyond that is ``check``'s business.

    Args:
        data: The request, or its JSON text.

    Raises:
        RequestInvalidError: With everything that is wrong.
    """
    if isinstance(data, str | bytes):
        data = parse_json(data, "the request")
    try:
        return CreateBatchCompletionsV1Request.model_validate(data)
    except ValidationError as error:
        refusals = refusals_of(error, CreateBatchCompletionsV1Request)
    raise RequestInvalidError(refusals)


def parse_json(text: str | bytes, what: str) -> Any:
    """Parse a document that a person wrote.

    Args:
        text: Its JSON text.
        what: What messages call it, for example ``the request``.

    Raises:
        RequestInvalidError: It is no JSON, or not UTF-8.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")
        return json.loads(
            text.removeprefix("\ufeff"),
            parse_constant=_refuse_constant,
            parse_int=_parse_integer,
            object_pairs_hook=refuse_duplicates,
        )
    except UnicodeDecodeError as error:
        reason = f"{what} is not UTF-8 (byte {error.start})"
    except json.JSONDecodeError as error:
        reason = f"{what} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}"
    except RecursionError:
        reason = f"{what} is nested too deeply"
    except ValueError as error:
        reason = f"{what} is not JSON: {error}"
    raise RequestInvalidError([Refusal("", reason)])


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _parse_integer(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:
        # Python converts no more digits than some thousands, since that takes quadratic time.
        raise ValueError(f"a number has {len(digits)} digits") from None


def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON text by its names and values, for ``json.loads``.

    Raises:
        ValueError: A name is given twice.
    """
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the field {path_step(twice).lstrip('.')} is given twice in one object")
    return fields


def refusals_of(error: ValidationError, model: type[WireModel], most: int = MOST_REFUSALS) -> list[Refusal]:
    """Put a model's validation errors into words, in the order of its fields.

    Args:
        error: What ``model.model_validate`` raised.
        model: The model.
        most: Of more errors than these, only the number is told.
    """
    lines = error.errors(include_url=False)
    refusals = [refusal for line in lines[:most] for refusal in _refusals_of_line(line, model)]
    if len(lines) > most:
        refusals.append(Refusal("", f"{len(lines) - most} more faults"))
    return refusals


def record_error_of(error: ValidationError, model: type[WireModel], prefix: str = "") -> tuple[RecordErrorType, str]:
    """Sum up a record's validation errors as its error type and one sentence.

    Args:
        error: What ``model.model_validate`` raised.
        model: The record's model.
        prefix: Path of the record in what the user wrote, for example ``body.``.
    """
    refusals = refusals_of(error, model, MOST_SHOWN)
    unicode = any(refusal.error_type is RecordErrorType.INVALID_UNICODE for refusal in refusals)
    sentence = "; ".join(f"{prefix}{refusal}" if refusal.path else str(refusal) for refusal in refusals)
    return (RecordErrorType.INVALID_UNICODE if unicode else RecordErrorType.INVALID_RECORD), sentence


def _refusals_of_line(line: Any, root: type[WireModel]) -> Iterator[Refusal]:
    place = _Place.find(line["loc"], root)
    kind, value, context = line["type"], line["input"], line.get("ctx", {})
    if kind == WIRE_FAULT:
        yield from _wire_refusals(place, value, context)
    elif kind == "missing":
        yield Refusal(place.path, "is required")
    elif kind == "extra_forbidden":
        yield _unknown_field(place)
    elif kind in _OBJECT_ERRORS:
        subject = "" if place.path else "the document "
        yield Refusal(place.path, f"{subject}must be an object, not {place.show(value)}")
    elif kind == "list_type":
        yield Refusal(place.path, f"must be a list, not {place.show(value)}")
    elif kind == "literal_error":
        yield Refusal(place.path, f"must be {context['expected']}, not {place.show(value)}")
    elif kind in ("union_tag_invalid", "union_tag_not_found"):
        tags = ", ".join(_tag(model) for model in place.models)
        yield Refusal(
            f"{place.path}.type", f"must be one of {tags}" if "tag" in context else f"is required: one of {tags}"
        )
    elif kind == "string_unicode":
        yield Refusal(place.path, f"the name of a field {LONE_SURROGATE}", None, RecordErrorType.INVALID_UNICODE)
    elif kind == "invalid_key":
        yield Refusal(place.path, "the name of a field must be a string")
    else:
        yield Refusal(place.path, str(line["msg"]))


def _wire_refusals(place: _Place, value: Any, context: Mapping[str, Any]) -> Iterator[Refusal]:
    if "at" in context:
        yield _refusal_at(place.path + context["at"], "" if context["unicode"] else context["expected"])
        return
    if isinstance(value, str) and not is_unicode(value):
        yield _refusal_at(place.path, "")
        return
    items = list(islice(item_faults(context["kind"], value), MOST_SHOWN))
    if items:
        yield from (_refusal_at(place.path + at, expected) for at, expected in items)
        return
    written = canonical(context["kind"], value) if isinstance(value, str) and not place.private else None
    remedy = None if written is None else f"write it as {written}"
    yield Refusal(place.path, f"must be {context['expected']}, not {place.show(value)}", remedy)


def _refusal_at(path: str, expected: str) -> Refusal:
    if expected:
        return Refusal(path, f"must be {expected}")
    return Refusal(path, LONE_SURROGATE, error_type=RecordErrorType.INVALID_UNICODE)


def _unknown_field(place: _Place) -> Refusal:
    name = str(place.key)[:LONGEST_SHOWN]
    known = [wire_name for model in place.parents for wire_name in wire_names(model)]
    # In V1 itself the nearest is right: there the other name is none of a field.
    meant = [other for other in (OTHER_NAMES.get(name),) if other in known]
    near = meant or get_close_matches(name, known, n=1, cutoff=0.6)
    if near:
        return Refusal(place.path, "unknown field", f"did you mean {near[0]}?")
    elsewhere = [path for model in place.parents for path in _paths_to(name, model)]
    if elsewhere:
        return Refusal(place.path, "unknown field", f"did you mean {elsewhere[0]}?")
    return Refusal(
        place.path, "unknown field", f"the nearest known field is {get_close_matches(name, known, 1, 0.0)[0]}"
    )


def wire_names(model: type[WireModel]) -> list[str]:
    """A model's fields by their names on the wire, in order."""
    return [info.alias or name for name, info in model.model_fields.items()]


def _paths_to(name: str, model: type[WireModel]) -> Iterator[str]:
    """Where below a model a field of this name is known."""
    for field_name, info in model.model_fields.items():
        for inner in _models_in(info.annotation):
            if name in wire_names(inner):
                yield f"{info.alias or field_name}.{name}"


def _models_in(annotation: Any) -> tuple[type[WireModel], ...]:
    """The object models that an annotation such as ``A | B | None`` names."""
    if isinstance(annotation, type) and issubclass(annotation, WireModel):
        return (annotation,)
    return tuple(model for part in get_args(annotation) for model in _models_in(part))


def _tag(model: type[WireModel]) -> str:
    """The ``type`` that tells a model from its alternatives."""
    return str(get_args(model.model_fields["type"].annotation)[0])


@dataclass
class _Place:
    """Where in a document a validation error is."""

    path: str
    private: bool
    models: tuple[type[WireModel], ...]
    """The object models of which one must stand there; none where it is not an object of the contract."""
    parents: tuple[type[WireModel], ...] = ()
    key: str | int = ""

    @classmethod
    def find(cls, location: tuple[str | int, ...], root: type[WireModel]) -> _Place:
        """Follow pydantic's location, which has steps of its own for alternatives and for keys."""
        place = cls("", root.private_text or not location, (root,))
        for step in location:
            if len(place.models) > 1:
                place.models = tuple(model for model in place.models if _tag(model) == step)
            elif step != "[key]":
                place._go(step)
        place.path = place.path.removeprefix(".")
        return place

    def _go(self, key: str | int) -> None:
        self.path += path_step(key)
        self.parents, self.key, self.models = self.models, key, ()
        for parent in self.parents:
            for name, info in parent.model_fields.items():
                if key == (info.alias or name):
                    self.models = _models_in(info.annotation)
        self.private |= key in PRIVATE_FIELDS or any(model.private_text for model in self.models)

    def show(self, value: Any) -> str:
        """A wrong value in one short line; of private text only its kind."""
        match value:
            case None:
                return "null"
            case bool():
                return str(value).lower()
            case str():
                return "a string" if self.private or len(value) > LONGEST_SHOWN else ascii(value)
            case float() if not isfinite(value):
                return str(value)
            case int() | float():
                return shown_number(value)
            case list() | tuple():
                return "a list"
            case dict():
                return "an object"
            case _:
                return f"a Python {type(value).__name__}"
