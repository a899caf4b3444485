"""The stand-in engine's answers to those who ask for JSON of a schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from airflow_llmengine.worker.engines.echo_structure import structured_text

REVIEW: dict[str, Any] = {
    "type": "object",
    "properties": {
        "sentiment": {"$ref": "#/$defs/Sentiment"},
        "score": {"type": "integer", "minimum": 1, "maximum": 5},
        "share": {"type": "number"},
        "words": {"type": "array", "items": {"type": "string", "maxLength": 3}, "minItems": 2},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "sure": {"type": ["boolean", "null"]},
        "kind": {"const": "review"},
        "day": {"type": "string", "format": "date"},
        "moment": {"type": "string", "format": "date-time"},
    },
    "required": ["sentiment", "score", "share", "words", "note", "sure", "kind", "day", "moment"],
    "additionalProperties": False,
    "$defs": {"Sentiment": {"enum": ["positive", "neutral", "negative"]}},
}


def test_answers_are_of_the_schema_and_differ_by_prompt() -> None:
    answers = [structured_text(f"review {number}", REVIEW) for number in range(50)]
    for answer in answers:
        jsonschema.validate(json.loads(answer), REVIEW)
    assert {json.loads(answer)["sentiment"] for answer in answers} == {"positive", "neutral", "negative"}
    assert {json.loads(answer)["score"] for answer in answers} == {1, 2, 3, 4, 5}
    assert structured_text("review 7", REVIEW) == answers[7]


@pytest.mark.parametrize("prompt", ['{"score": "of another type"}', "{}"])
def test_a_prompt_that_is_an_object_is_the_answer(prompt: str) -> None:
    assert structured_text(prompt, REVIEW) == prompt
