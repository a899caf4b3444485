"""Which columns a JSON Schema stands for."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from airflow_llmengine.spec.output_schema import ColumnType, closed, read_columns

STRING = ColumnType("string")
INTEGER = ColumnType("integer")
OPTIONAL = ColumnType("string", nullable=True)
MAYBE_NUMBER = ColumnType("number", nullable=True)


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"


class Point(BaseModel):
    at: int
    note: str | None


class Review(BaseModel):
    mood: Mood
    kind: Literal["short", "long"]
    stars: int = Field(ge=1, le=5)
    share: float
    sure: bool
    tags: list[str]
    points: list[Point]
    first: Point | None
    remark: str | None = None


class Tree(BaseModel):
    children: list[Tree]


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def nested(levels: int) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "string"}
    for _level in range(levels):
        part = {"type": "array", "items": part}
    return part


def test_the_columns_of_a_pydantic_model() -> None:
    point = (("at", INTEGER), ("note", OPTIONAL))
    columns, refused = read_columns(Review.model_json_schema())
    assert refused == []
    assert columns == {
        "mood": STRING,
        "kind": STRING,
        "stars": INTEGER,
        "share": ColumnType("number"),
        "sure": ColumnType("boolean"),
        "tags": ColumnType("list", item=STRING),
        "points": ColumnType("list", item=ColumnType("struct", fields=point)),
        "first": ColumnType("struct", nullable=True, fields=point),
        "remark": OPTIONAL,
    }
    assert list(columns) == list(Review.model_fields)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": ["string", "null"]}, OPTIONAL),
        ({"type": ["integer", "number"]}, ColumnType("number")),
        ({"anyOf": [{"type": "null"}, {"enum": ["a", "b"]}]}, OPTIONAL),
        ({"anyOf": [{"type": "integer"}, {"type": "number", "minimum": 0}, {"type": "null"}]}, MAYBE_NUMBER),
        ({"enum": ["a", None]}, OPTIONAL),
        ({"enum": [1, 2.5]}, ColumnType("number")),
        ({"enum": [True]}, ColumnType("boolean")),
        ({"const": 3}, INTEGER),
        ({"allOf": [{"type": "string"}], "description": "x"}, STRING),
        ({"type": "string", "format": "date-time"}, ColumnType("timestamp")),
        ({"type": ["string", "null"], "format": "date"}, ColumnType("date", nullable=True)),
        ({"type": "string", "format": "email"}, STRING),
        ({"$ref": "#/$defs/a~1b"}, STRING),
        ({"$ref": "#/$defs/a~1b", "description": "x"}, STRING),
        ({"type": "array", "items": {"type": ["string", "null"]}}, ColumnType("list", item=OPTIONAL)),
    ],
)
def test_one_type_and_perhaps_null(part: Any, expected: ColumnType) -> None:
    schema = {**object_of(value=part), "$defs": {"a/b": {"type": "string"}}}
    assert read_columns(schema) == ({"value": expected}, [])


def test_what_may_be_left_out_may_be_null() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert read_columns(schema) == ({"a": OPTIONAL}, [])


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({}, "has no type that a column can have"),
        ({"type": "null"}, "has no type that a column can have"),
        (True, "is no schema of a value"),
        ({"type": ["string", "integer"]}, "allows values of several types"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "allows values of several types"),
        ({"enum": ["a", 1]}, "allows values of several types"),
        ({"enum": [None]}, "allows no value"),
        ({"enum": [[1]]}, "allows a list or an object by name"),
        ({"type": "array"}, "is a list whose items have"),
        ({"type": "array", "prefixItems": [{"type": "string"}], "items": False}, "is a list whose items have"),
        ({"type": "object"}, "is an object of any names"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "is an object of any names"),
        ({**object_of(x={"type": "string"}), "additionalProperties": True}, "would let the model write"),
        ({"$ref": "#/$defs/none"}, "has a $ref to what is not there"),
        ({"$ref": "http://example.org/schema"}, "has a $ref to something outside of the schema"),
        ({"$ref": "#/$defs/s", "minLength": 3}, "has minLength beside $ref"),
        ({"$ref": "#/properties/value"}, "holds itself"),
        (nested(40), "lies below 32 levels of lists and objects"),
        ({"type": [{"x": 1}, "null"]}, "has no type that a column can have"),
    ],
)  # fmt: skip
def test_what_no_column_holds_is_refused(part: Any, reason: str) -> None:
    columns, [refused] = read_columns(
        {**object_of(good={"type": "string"}, value=part), "$defs": {"s": {"type": "string"}}}
    )
    assert str(refused).startswith("table.output_schema.properties.value")
    assert reason in str(refused)
    assert columns == {"good": STRING}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "array", "items": {"type": "string"}}, "table.output_schema: must be the schema"),
        ({"properties": {"a": {"type": "string"}}}, "table.output_schema: must be the schema"),
        ({"anyOf": [object_of(a={"type": "string"}), {"type": "null"}]}, "table.output_schema: must be the schema"),
        ({"type": "object", "properties": {}}, "table.output_schema.properties: is empty"),
        ({"type": "object"}, "table.output_schema.properties: is empty"),
        (object_of(**{"": {"type": "string"}}), "has an empty name"),
        ({**object_of(a={"type": "string"}), "additionalProperties": True}, "table.output_schema.additionalProperties"),
        ({**object_of(a={"type": "string"}), "patternProperties": {"x": {}}}, "table.output_schema.patternProperties"),
        ({**object_of(a={"type": "string"}), "required": ["b"]}, "table.output_schema.required: names 'b', which is"),
        (Tree.model_json_schema(), "holds itself, and a column can't"),
    ],
)  # fmt: skip
def test_what_is_no_schema_of_columns_is_refused(schema: Any, reason: str) -> None:
    [refused] = read_columns(schema)[1]
    assert reason in str(refused)


def test_a_closed_schema_demands_every_column_and_allows_no_other() -> None:
    schema = Review.model_json_schema()
    whole = closed(schema)
    assert whole["required"] == list(Review.model_fields)
    assert whole["additionalProperties"] is False
    assert whole["$defs"]["Point"]["additionalProperties"] is False
    assert read_columns(whole)[0] == {
        name: kind if name != "remark" else OPTIONAL for name, kind in read_columns(schema)[0].items()
    }
    assert "additionalProperties" not in schema


def test_a_few_lines_are_not_read_as_any_number_of_fields() -> None:
    parts: dict[str, Any] = {
        f"d{level}": object_of(**{name: {"$ref": f"#/$defs/d{level + 1}"} for name in "abcd"}) for level in range(9)
    }
    schema = {**object_of(a={"$ref": "#/$defs/d0"}), "$defs": {**parts, "d9": {"type": "string"}}}
    [refused] = read_columns(schema)[1]
    assert "is one of more than 10000 fields" in str(refused)


def test_a_format_that_is_no_text_is_none() -> None:
    assert read_columns(object_of(a={"type": "string", "format": {}}))[0] == {"a": STRING}
