"""Structured output between records and vLLM, without vLLM."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.engines.base import RecordRejectedError
from airflow_llmengine.worker.engines.vllm_faults import fault_of, rejection
from airflow_llmengine.worker.engines.vllm_records import chat_request, completion_request
from airflow_llmengine.worker.engines.vllm_structure import require_followed

KNOWN = frozenset({"prompt", "messages", "structured_outputs", "response_format", "max_tokens"})
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}


def record(**fields: Any) -> CompletionV2Request:
    return CompletionV2Request.model_validate({"prompt": "p", **fields})


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"guided_json": SCHEMA}, {"structured_outputs": {"json": SCHEMA}}),
        ({"guided_regex": "a+"}, {"structured_outputs": {"regex": "a+"}}),
        ({"guided_choice": ["a"]}, {"structured_outputs": {"choice": ["a"]}}),
        ({"guided_grammar": "g"}, {"structured_outputs": {"grammar": "g"}}),
        ({"guided_grammar": None, "guided_decoding_backend": "auto"}, {}),
        ({"response_format": FORM}, {"response_format": FORM}),
        ({"response_format": {"type": "text"}, "guided_regex": "a"}, None),
    ],
)
def test_what_vllm_is_sent(fields: dict[str, Any], sent: dict[str, Any] | None) -> None:
    sent = {"response_format": {"type": "text"}, "structured_outputs": {"regex": "a"}} if sent is None else sent
    messages = [{"role": "user", "content": "p"}]
    chat = ChatCompletionV2Request.model_validate({"messages": messages, **fields})
    assert completion_request(record(**fields), "m", KNOWN) == {"model": "m", "prompt": "p", **sent}
    assert chat_request(chat, "m", KNOWN) == {"model": "m", "messages": messages, **sent}


def test_a_library_that_is_not_the_engines() -> None:
    for name in ("auto", "guidance"):
        require_followed(record(guided_decoding_backend=name), "guidance")
    with pytest.raises(RecordRejectedError, match=r"^guided_decoding_backend: .* and there guidance; .* to xgrammar$"):
        require_followed(record(guided_decoding_backend="xgrammar"), "guidance")


@pytest.mark.parametrize(
    "fields",
    [{"guided_json": {"not": {}}}, {"response_format": {**FORM, "json_schema": {"name": "n", "schema": {"not": {}}}}}],
)
def test_a_schema_of_which_a_part_would_be_left_out(fields: dict[str, Any]) -> None:
    require_followed(record(**fields), "guidance")
    with pytest.raises(
        RecordRejectedError, match=f"^{next(iter(fields))}: xgrammar, .* takes no notice of not;"
    ) as caught:
        require_followed(record(**fields), "xgrammar")
    assert caught.value.error_type is RecordErrorType.UNSUPPORTED


def said(message: str, body: dict[str, Any], status: int = 400, kinds: frozenset[str] = frozenset()) -> Any:
    return rejection(fault_of(kinds, message, status), {"prompt": "p", **body})


def test_a_refusal_names_the_field_and_not_the_place_in_somebodys_source() -> None:
    error = said(
        "Failed to transform json schema into a grammar: [07:53:54] /project/cpp/converter.cc:4950: Unsupported type",
        {"structured_outputs": {"json": {"type": "strin"}}},
    )
    assert error.error_type is RecordErrorType.REJECTED_BY_ENGINE
    assert error.message == "guided_json: Failed to transform json schema into a grammar: Unsupported type"


def test_keywords_that_the_library_does_not_know() -> None:
    error = said("The provided JSON schema contains features not supported by xgrammar.", {"response_format": FORM})
    assert error.message.startswith("response_format: the schema has keywords that xgrammar")


def test_a_refusal_quotes_no_pattern_and_no_grammar() -> None:
    pattern = "(a private pattern of the user"
    error = said(f"Failed to transform regex: '{pattern}'", {"structured_outputs": {"regex": pattern}})
    assert "private" not in error.message


def test_what_is_not_about_the_structure_is_told_as_ever() -> None:
    error = said("min_p must be in [0, 1], got 5.", {"structured_outputs": {"regex": "a"}})
    assert error.message == "min_p must be in [0, 1], got 5."


def test_an_engine_that_gives_up_on_a_structure_is_no_passing_fault() -> None:
    gave_up = frozenset({"GenerationError", "Exception"})
    error = said("Internal server error", {"structured_outputs": {"grammar": "g"}}, 500, gave_up)
    assert error.error_type is RecordErrorType.REJECTED_BY_ENGINE
    assert error.message.startswith("guided_grammar: vLLM can't compile it")
    assert said("Internal server error", {}, 500, gave_up).error_type is RecordErrorType.INTERNAL
    assert said("Boom", {"structured_outputs": {"regex": "g"}}, 500).error_type is RecordErrorType.INTERNAL
