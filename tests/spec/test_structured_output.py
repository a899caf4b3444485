"""Structured output in a record: what asks for it, and what is refused before any engine sees it."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.check_record import check_record
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.results import RecordErrorType, RecordFault
from airflow_llmengine.spec.structured_output import is_structured, structure_fields
from tests.spec.sample_requests import parsed

INVALID, UNSUPPORTED = RecordErrorType.INVALID_RECORD, RecordErrorType.UNSUPPORTED
REQUEST = parsed()
USER = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]


def completion(**fields: Any) -> CompletionV2Request:
    return CompletionV2Request.model_validate({"prompt": "hi", **fields})


def chat(**fields: Any) -> ChatCompletionV2Request:
    return ChatCompletionV2Request.model_validate({"messages": USER, **fields})


def fault_of(record: CompletionV2Request | ChatCompletionV2Request) -> RecordFault | None:
    return check_record(record, REQUEST)


def json_schema(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **fields}}}


PASSES: list[dict[str, Any]] = [
    {"guided_json": {"type": "object"}},
    {"guided_json": {}},
    {"guided_regex": " "},
    {"guided_choice": ["", "a"]},
    {"guided_grammar": 'root ::= "a"'},
    {"response_format": {"type": "json_object"}},
    json_schema({"type": "object"}, strict=True, description="what it is for"),
    {"guided_regex": "a", "response_format": {"type": "text"}},
    {"guided_regex": "a", "guided_json": None, "response_format": None, "ignore_eos": False, "min_tokens": 0},
    {"guided_json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#"}}}},
    # No references, but things that are called so.
    {"guided_json": {"properties": {"$ref": {"type": "string"}}, "enum": [{"$ref": "http://example.com"}]}},
    {"guided_choice": ["a"], "n": 3, "stop": ["b"], "logit_bias": {"5": 1}, "best_of": 4},
    *({"guided_decoding_backend": name} for name in ("auto", "xgrammar", "guidance", "outlines")),
    {"guided_choice": ["a"], "guided_decoding_backend": "xgrammar"},
]

FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"guided_json": {}, "guided_regex": "a"}, "guided_json, guided_regex: an answer can follow only one of them"),
    (
        {"guided_choice": ["a"], "guided_grammar": "g", "response_format": {"type": "json_object"}},
        "guided_choice, guided_grammar, response_format: an answer can follow only one of them",
    ),
    ({"guided_choice": []}, "guided_choice: holds nothing to choose"),
    ({"guided_choice": [""]}, "guided_choice: holds nothing to choose"),
    ({"guided_regex": ""}, "guided_regex: is empty"),
    ({"guided_grammar": " \n"}, "guided_grammar: is empty"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
        "response_format.json_schema: has no schema; give one, or ask for the type json_object",
    ),
    (json_schema(None), "response_format.json_schema: has no schema"),
    ({"guided_json": {"$ref": "http://example.com/a.json"}}, "guided_json: has a $ref to something outside"),
    (
        {"guided_json": {"properties": {"a": {"items": [{"anyOf": [{"$ref": "other.json#/b"}]}]}}}},
        "guided_json: has a $ref to something outside of the schema, which nobody fetches; put that under $defs",
    ),
    (json_schema({"$defs": {"a": {"$ref": "file:///etc/passwd"}}}), "response_format.json_schema.schema: has a $ref"),
    ({"guided_decoding_backend": "the best"}, "guided_decoding_backend: must be one of auto, guidance, "),
    ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos: the text would go on after the end of guided_regex"),
    ({"guided_regex": "a", "min_tokens": 2}, "min_tokens: guided_regex may allow no answer that is so long"),
]


@pytest.mark.parametrize("fields", PASSES)
def test_what_may_be_right_is_left_to_the_engine(fields: dict[str, Any]) -> None:
    assert fault_of(completion(**fields)) is None
    assert fault_of(chat(**fields)) is None


@pytest.mark.parametrize(("fields", "said"), FAULTS)
def test_what_can_not_be_right_is_refused(fields: dict[str, Any], said: str) -> None:
    for fault in (fault_of(completion(**fields)), fault_of(chat(**fields))):
        assert fault is not None
        assert fault[0] is INVALID
        assert fault[1].startswith(said)


def test_an_echo_without_an_answer_has_no_structure() -> None:
    fault = fault_of(completion(echo=True, max_tokens=0, guided_choice=["a"]))
    assert fault is not None
    assert fault[1].startswith("max_tokens: is 0, so that nothing is written that guided_choice could be about")


@pytest.mark.parametrize(
    "structure",
    [
        {"guided_json": {}},
        {"guided_regex": "a"},
        {"guided_choice": ["a"]},
        {"guided_grammar": 'root ::= "a"'},
        {"response_format": {"type": "json_object"}},
        json_schema({}),
    ],
)
def test_beam_search_and_a_forced_tool_call_go_with_no_structure(structure: dict[str, Any]) -> None:
    (name,) = structure
    for record in (
        completion(use_beam_search=True, n=2, **structure),
        chat(tools=TOOLS, tool_choice="required", **structure),
    ):
        fault = fault_of(record)
        assert fault is not None
        assert name in fault[1]
    assert fault_of(completion(use_beam_search=True, n=2, response_format={"type": "text"})) is None


def test_no_fault_tells_what_the_structure_is() -> None:
    for fields in (
        {"guided_json": {"$ref": "the secret", "the secret": 1}, "guided_regex": "the secret"},
        {"guided_decoding_backend": "the secret", "guided_choice": ["the secret"], "guided_grammar": "the secret"},
    ):
        fault = fault_of(completion(**fields))
        assert fault is not None
        assert "secret" not in fault[1]


def test_what_asks_for_structure() -> None:
    assert structure_fields(completion(guided_regex="a", response_format={"type": "text"})) == ["guided_regex"]
    assert not is_structured(completion(response_format={"type": "text"}))
    assert is_structured(chat(response_format={"type": "json_object"}))
    named = {"type": "function", "function": {"name": "look_up"}}
    assert is_structured(chat(tools=TOOLS, tool_choice="required"))
    assert is_structured(chat(tools=TOOLS, tool_choice=named))
    for choice in ("auto", "none", None):
        assert not is_structured(chat(tools=TOOLS, tool_choice=choice))
