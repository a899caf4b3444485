"""What xgrammar takes no notice of in a schema, shown by xgrammar itself: no engine is needed.

A case that turns red when xgrammar is upgraded is one that it has learnt: take it out of ``xgrammar_schemas``.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import xgrammar

from airflow_llmengine.worker.engines.xgrammar_schemas import not_enforced

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

Schema = dict[str, Any]
INTEGER: Schema = {"type": "integer"}
STRING: Schema = {"type": "string"}
PAIR: Schema = {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}}

LEFT_OUT: list[tuple[Schema, Any, str]] = [
    ({**STRING, "not": {"const": "a"}}, "a", "not"),
    ({**STRING, "if": {"const": "a"}, "then": {"maxLength": 0}}, "a", "if"),
    ({**PAIR, "dependentRequired": {"a": ["b"]}}, {"a": 1}, "dependentRequired"),
    ({**PAIR, "dependencies": {"a": ["b"]}}, {"a": 1}, "dependencies"),
    ({**PAIR, "dependentSchemas": {"a": {"required": ["b"]}}}, {"a": 1}, "dependentSchemas"),
    ({"type": "array", "items": INTEGER, "uniqueItems": True}, [1, 1], "uniqueItems"),
    ({"items": INTEGER, "contains": {"const": 1}}, [2], "contains"),
    ({"$dynamicRef": "#/$defs/s", "$defs": {"s": STRING}}, 1, "$dynamicRef"),
    ({"$ref": "#s", "$defs": {"s": {"$anchor": "s", **STRING}}}, 1, "a $ref that is no path from the root (#/...)"),
    ({"$ref": "#/$defs/s", "maxLength": 1, "$defs": {"s": STRING}}, "ab", "maxLength beside $ref"),
    ({"anyOf": [INTEGER], "minimum": 3}, 1, "minimum beside anyOf"),
    ({**PAIR, "required": ["a"], "anyOf": [{**PAIR, "required": ["b"]}]}, {"b": 1}, "required beside anyOf"),
    ({"anyOf": [{"required": ["a"]}]}, {"b": 1}, "required without type"),
    ({"minimum": 5}, 3, "minimum without type"),
    ({"maxLength": 2}, "abc", "maxLength without type"),
    ({"pattern": "^a$"}, "b", "pattern without type"),
    ({"minItems": 1}, [], "minItems without type"),
    ({"minProperties": 1}, {}, "minProperties without type"),
    ({"patternProperties": {"^a": INTEGER}}, {"a": "x"}, "patternProperties without type"),
    ({**STRING, "format": "date", "pattern": "^2"}, "1000-01-01", "pattern beside format"),
    ({**STRING, "pattern": "^(?!a)[ab]$"}, "a", "look-around in a pattern"),
]

ENFORCED: list[tuple[Schema, Any]] = [
    ({**STRING, "maxLength": 2}, "abc"),
    ({**STRING, "pattern": "^a+$"}, "b"),
    ({**STRING, "format": "date"}, "x"),
    ({**INTEGER, "minimum": 5}, 3),
    ({"type": ["string", "null"], "maxLength": 2}, "abc"),
    ({"type": "array", "items": INTEGER, "minItems": 2, "uniqueItems": False}, [1]),
    ({"items": INTEGER, "minItems": 1}, []),
    ({"properties": {"a": INTEGER}, "required": ["a"]}, {}),
    ({"type": "object", "additionalProperties": INTEGER, "minProperties": 2}, {"a": 1}),
    ({"enum": ["a"], "type": "string", "maxLength": 1}, "b"),
    ({"const": "a", "anyOf": [STRING]}, "b"),
    ({"type": "object", "anyOf": [{**PAIR, "required": ["a"]}]}, {"b": 1}),
    ({"$ref": "#/$defs/s", "description": "d", "default": 1, "$defs": {"s": STRING}}, 1),
    ({"oneOf": [STRING, INTEGER], "title": "t"}, []),
]


def accepts(schema: Schema, value: Any) -> bool:
    tokens = xgrammar.TokenizerInfo([bytes([code]) for code in range(256)], stop_token_ids=[0])
    compiled = xgrammar.GrammarCompiler(tokens).compile_json_schema(json.dumps(schema))
    matcher = xgrammar.GrammarMatcher(compiled)
    return bool(matcher.accept_string(json.dumps(value)) and matcher.accept_token(0))


@pytest.mark.parametrize(("schema", "value", "words"), LEFT_OUT, ids=lambda case: case if isinstance(case, str) else "")
def test_what_is_refused_would_be_left_out(schema: Schema, value: Any, words: str) -> None:
    assert words in not_enforced(schema)
    assert accepts(schema, value)


@pytest.mark.parametrize(("schema", "value"), ENFORCED, ids=str)
def test_what_is_enforced_is_not_refused(schema: Schema, value: Any) -> None:
    assert not_enforced(schema) == set()
    assert not accepts(schema, value)


def test_schemas_are_looked_for_where_they_can_be_and_nowhere_else() -> None:
    deep = {"type": "array", "items": {"anyOf": [{"type": "object", "properties": {"if": {"not": {}}}}]}}
    assert not_enforced(deep) == {"not"}
    assert not_enforced({"enum": [{"not": 1}], "default": {"if": 1}, "examples": [{"$dynamicRef": 1}]}) == set()
