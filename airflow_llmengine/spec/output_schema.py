"""What columns a JSON Schema of an object stands for: those that have one type each, and may be null.

The shapes are those that typed models have (pydantic's included): objects, lists, enumerations, ``Optional``, and
references to ``$defs``. A schema that allows what no single column type holds is refused rather than written as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from airflow_llmengine.spec.validation import Refusal
from airflow_llmengine.spec.wire_faults import path_step

OUTPUT_SCHEMA = "table.output_schema"

ColumnKind = Literal["boolean", "integer", "number", "string", "timestamp", "date", "list", "struct"]

_SCALARS: Mapping[str, ColumnKind] = {
    "boolean": "boolean",
    "integer": "integer",
    "number": "number",
    "string": "string",
}

_FORMATS: Mapping[str, ColumnKind] = {"date-time": "timestamp", "date": "date"}
"""Formats of strings that have a type of their own; all others are text."""

MOST_LEVELS = 32
"""Of lists and objects in one another: far above any answer, and far below what readers of tables give up at."""

MOST_FIELDS = 10_000
"""Of all columns together: references in references can make any number of few lines."""

_ONE_TYPE = "say one type for it, or that type and null"

_NO_EFFECT = frozenset(
    {"title", "description", "default", "examples", "deprecated", "$comment", "readOnly", "writeOnly"}
)
"""Keywords that may stand beside a ``$ref`` without changing what it allows."""


@dataclass(frozen=True, slots=True)
class ColumnType:
    """What the values of a column are."""

    kind: ColumnKind
    """``integer`` has 64 bits, ``number`` is a 64-bit float, ``timestamp`` is UTC in microseconds."""
    nullable: bool = False
    """Whether the schema itself allows null, or lets the property be left out."""
    item: ColumnType | None = None
    """Of a list: what its items are."""
    fields: tuple[tuple[str, ColumnType], ...] = ()
    """Of a struct: its fields, in order."""


class _NoColumnError(Exception):
    """A part of the schema has no column type."""

    def __init__(self, path: str, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.refusal = Refusal(path, reason, remedy)


class _Root:
    """The whole schema, to which references refer, and how much was read of it."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema
        self._fields = 0

    def enter(self, path: str, level: int) -> None:
        """Count one more part that has a type, on a level from 0."""
        self._fields += 1
        if level >= MOST_LEVELS:
            raise _NoColumnError(path, f"lies below {MOST_LEVELS} levels of lists and objects", "make it flatter")
        if self._fields > MOST_FIELDS:
            raise _NoColumnError(path, f"is one of more than {MOST_FIELDS} fields", "ask for less in one answer")


def read_columns(schema: Mapping[str, Any]) -> tuple[dict[str, ColumnType], list[Refusal]]:
    """The columns of an object's properties, in their order, and what is refused of the schema.

    Properties that are refused are left out of the columns.
    """
    columns: dict[str, ColumnType] = {}
    try:
        whole = _Root(schema)
        root, nullable = _resolved(schema, whole, OUTPUT_SCHEMA, ())[:2]
    except _NoColumnError as error:
        return {}, [error.refusal]
    if nullable or root.get("type") != "object":
        return {}, [Refusal(OUTPUT_SCHEMA, "must be the schema of an object", 'give "type": "object" and properties')]
    properties = root.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return {}, [Refusal(f"{OUTPUT_SCHEMA}.properties", "is empty", "give a property for each column")]
    refusals = list(_open_object_refusals(root, OUTPUT_SCHEMA))
    for name, part in properties.items():
        path = f"{OUTPUT_SCHEMA}.properties{path_step(name)}"
        if not name:
            refusals.append(Refusal(path, "has an empty name", "give the column a name"))
            continue
        try:
            column = _column(part, whole, path, (), 0)
        except _NoColumnError as error:
            refusals.append(error.refusal)
        else:
            columns[name] = column if name in _required(root) else replace(column, nullable=True)
    unknown = [name for name in _required(root) if name not in properties]
    refusals += [
        Refusal(f"{OUTPUT_SCHEMA}.required", f"names {name!a}, which is no property", "leave it out")
        for name in unknown
    ]
    return columns, refusals


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with every property of its objects required, and no others allowed.

    So the model writes each column, with null only where the schema allows it, and nothing that has no column.
    """
    return {name: _closed(name, value) for name, value in _with_all_required(schema).items()}


def _closed(keyword: str, value: Any) -> Any:
    """The value of one keyword, with the schemas in it closed."""
    if keyword in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
        return {name: closed(part) if isinstance(part, Mapping) else part for name, part in value.items()}
    if keyword == "items" and isinstance(value, Mapping):
        return closed(value)
    if keyword in ("anyOf", "oneOf", "allOf") and isinstance(value, list):
        return [closed(part) if isinstance(part, Mapping) else part for part in value]
    return value


def _with_all_required(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or schema.get("type", "object") != "object":
        return schema
    return {**schema, "required": list(properties), "additionalProperties": False}


def _column(part: Any, root: _Root, path: str, above: tuple[str, ...], level: int) -> ColumnType:
    root.enter(path, level)
    part, nullable, above = _resolved(part, root, path, above)
    if "enum" in part or "const" in part:
        values = part["enum"] if "enum" in part else [part["const"]]
        return _of_values(values, path, nullable)
    kind = part.get("type")
    form = part.get("format")
    if kind == "string" and isinstance(form, str) and form in _FORMATS:
        return ColumnType(_FORMATS[form], nullable)
    if isinstance(kind, str) and kind in _SCALARS:
        return ColumnType(_SCALARS[kind], nullable)
    if kind == "array":
        items = part.get("items")
        if not isinstance(items, Mapping) or "prefixItems" in part:
            raise _NoColumnError(path, "is a list whose items have no one type", "give items one schema")
        return ColumnType("list", nullable, item=_column(items, root, f"{path}.items", above, level + 1))
    if kind == "object":
        properties = part.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            raise _NoColumnError(path, "is an object of any names", "name its fields under properties")
        for refusal in _open_object_refusals(part, path):
            raise _NoColumnError(refusal.path, refusal.reason, refusal.remedy or "")
        required = _required(part)
        fields = []
        for name, inner in properties.items():
            field = _column(inner, root, f"{path}.properties{path_step(name)}", above, level + 1)
            fields.append((name, field if name in required else replace(field, nullable=True)))
        return ColumnType("struct", nullable, fields=tuple(fields))
    raise _NoColumnError(path, "has no type that a column can have", _ONE_TYPE)


def _resolved(
    part: Any, root: _Root, path: str, above: tuple[str, ...]
) -> tuple[Mapping[str, Any], bool, tuple[str, ...]]:
    """A schema without references and alternatives, whether it allows null, and which references led to it."""
    nullable = False
    while True:
        if not isinstance(part, Mapping):
            raise _NoColumnError(path, "is no schema of a value", _ONE_TYPE)
        if "$ref" in part:
            reference = part["$ref"]
            if reference in above:
                raise _NoColumnError(path, "holds itself, and a column can't", "leave the recursion out")
            above = (*above, reference)
            beside = {name: value for name, value in part.items() if name not in _NO_EFFECT | {"$ref", "$defs"}}
            if beside:
                name = next(iter(beside))
                raise _NoColumnError(path, f"has {name} beside $ref", f"put {name} into what it refers to")
            part = _referred(reference, root.schema, path)
            continue
        choices = next((part[name] for name in ("anyOf", "oneOf", "allOf") if name in part), None)
        if choices is not None:
            others, null = _without_null(choices)
            if len(others) > 1 and {"integer", "number"}.issuperset(map(_kind_of, others)):
                others = [{"type": "number"}]
            if len(others) != 1 or "type" in part or (null and "allOf" in part):
                raise _NoColumnError(path, "allows values of several types", _ONE_TYPE)
            nullable, part = nullable or null, others[0]
            continue
        kind = part.get("type")
        if isinstance(kind, list):
            kinds = [name for name in kind if name != "null"]
            if len(kinds) == 2 and "integer" in kinds and "number" in kinds:
                kinds = ["number"]
            if len(kinds) != 1:
                raise _NoColumnError(path, "allows values of several types", _ONE_TYPE)
            return {**part, "type": kinds[0]}, nullable or "null" in kind, above
        return part, nullable, above


def _kind_of(choice: Any) -> str:
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    return kind if isinstance(kind, str) else ""


def _without_null(choices: Any) -> tuple[list[Any], bool]:
    if not isinstance(choices, list):
        return [], False
    others = [choice for choice in choices if not (isinstance(choice, Mapping) and choice.get("type") == "null")]
    return others, len(others) < len(choices)


def _referred(reference: Any, root: Mapping[str, Any], path: str) -> Any:
    steps = reference.split("/") if isinstance(reference, str) else [""]
    found: Any = root
    if steps[0] != "#":
        raise _NoColumnError(path, "has a $ref to something outside of the schema", "put that under $defs")
    for written in steps[1:]:
        step = written.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or step not in found:
            raise _NoColumnError(path, "has a $ref to what is not there", "put that under $defs")
        found = found[step]
    return found


def _of_values(values: Any, path: str, nullable: bool) -> ColumnType:
    """The type of an enumeration."""
    given = values if isinstance(values, list) else []
    kinds: set[ColumnKind] = set()
    for value in given:
        match value:
            case None:
                nullable = True
            case bool():
                kinds.add("boolean")
            case int():
                kinds.add("integer")
            case float():
                kinds.add("number")
            case str():
                kinds.add("string")
            case _:
                raise _NoColumnError(path, "allows a list or an object by name", "say its type instead")
    if kinds == {"integer", "number"}:
        kinds = {"number"}
    if len(kinds) != 1:
        raise _NoColumnError(path, "allows values of several types" if kinds else "allows no value", _ONE_TYPE)
    return ColumnType(kinds.pop(), nullable)


def _open_object_refusals(part: Mapping[str, Any], path: str) -> Iterator[Refusal]:
    """Refuse what would let the model write properties for which there is no column."""
    if part.get("additionalProperties", False) is not False:
        yield Refusal(
            f"{path}.additionalProperties", "would let the model write what has no column", "name all under properties"
        )
    if "patternProperties" in part:
        yield Refusal(f"{path}.patternProperties", "has no column of its own", "name all under properties")


def _required(part: Mapping[str, Any]) -> frozenset[str]:
    required = part.get("required")
    return frozenset(name for name in required if isinstance(name, str)) if isinstance(required, list) else frozenset()
