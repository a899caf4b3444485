"""What vLLM says of a record becomes a typed row error that quotes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.engines.vllm_faults import fault_of, fault_of_fields, rejection

SECRET = "what nobody but the user may read"


@pytest.mark.parametrize(
    ("message", "status", "kind"),
    [
        ("This model's maximum context length is 8 tokens.", 400, RecordErrorType.CONTEXT_LENGTH_EXCEEDED),
        ("prompt is longer than the maximum model length of 8.", 400, RecordErrorType.CONTEXT_LENGTH_EXCEEDED),
        ("max_tokens=9 cannot be greater than max_model_len=8.", 400, RecordErrorType.CONTEXT_LENGTH_EXCEEDED),
        ("The decoder prompt cannot be empty", 400, RecordErrorType.EMPTY_PROMPT),
        ("Internal server error", 500, RecordErrorType.INTERNAL),
        ("The engine is currently busy", 503, RecordErrorType.INTERNAL),
        ("min_p must be in [0, 1]", 400, RecordErrorType.REJECTED_BY_ENGINE),
        ("not implemented", 501, RecordErrorType.INTERNAL),
    ],
)
def test_the_kind_of_a_fault(message: str, status: int, kind: RecordErrorType) -> None:
    assert fault_of([], message, status).kind is kind


def test_a_missing_template_is_told_by_the_exceptions_class() -> None:
    fault = fault_of({"ValueError", "ChatTemplateResolutionError"}, "As of transformers v4.44 ...", 400)
    error = rejection(fault, {})
    assert error.error_type is RecordErrorType.MISSING_CHAT_TEMPLATE
    assert "model_config.chat_template" in error.message


@pytest.mark.parametrize("message", ["max_tokens must be at least 1, got 0.", "maximum context length is 8 tokens."])
def test_counts_decide_whether_a_prompt_is_too_long(message: str) -> None:
    fault = fault_of([], message, 400)
    assert fault.tokens_matter
    error = rejection(fault, {}, prompt_tokens=8, limit=8)
    assert error.error_type is RecordErrorType.CONTEXT_LENGTH_EXCEEDED
    assert "8 tokens" in error.message
    assert rejection(fault, {}, prompt_tokens=7, limit=8).error_type is fault.kind


def test_a_sentence_is_one_line_without_the_refused_value() -> None:
    fault = fault_of([], f"stop is\n  wrong (parameter=stop, value=['{SECRET}'])", 400)
    assert rejection(fault, {}).message == "stop is wrong"


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": SECRET},
        {"prompt": ["a", f"before {SECRET} after"]},
        {"messages": [{"role": "user", "content": SECRET}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": SECRET}]}]},
        {"messages": [{"role": "tool", "tool_calls": [{"function": {"arguments": SECRET}}]}]},
        # White space may differ.
        {"prompt": SECRET.replace(" ", "\n")},
        # A part of it is enough.
        {"prompt": "x" * 1000 + SECRET[:25]},
    ],
)
def test_a_sentence_that_quotes_the_record_is_left_out(body: dict[str, Any]) -> None:
    error = rejection(fault_of([], f"can't read {SECRET}, sorry", 400), body)
    assert "nobody" not in error.message
    assert "quotes the record" in error.message


def test_then_the_field_with_the_structure_is_named_all_the_same() -> None:
    fault = fault_of([], f"Grammar error: can't read {SECRET}", 400)
    error = rejection(fault, {"prompt": "a", "structured_outputs": {"grammar": SECRET}})
    assert error.message.startswith("guided_grammar: vLLM refuses it, and what it says is left out")
    assert "nobody" not in error.message


def test_a_short_text_counts_only_in_quotes() -> None:
    fault = fault_of([], "top_p must be 'at most 1'", 400)
    assert rejection(fault, {"prompt": "must"}).message == "top_p must be 'at most 1'"
    assert "top_p" not in rejection(fault, {"prompt": "at most 1"}).message


def test_the_name_of_a_role_is_no_private_text() -> None:
    fault = fault_of([], "unknown role 'nobody'", 400)
    assert rejection(fault, {"messages": [{"role": "nobody", "content": "hi"}]}).message == "unknown role 'nobody'"


def test_a_very_long_sentence_is_cut() -> None:
    assert len(rejection(fault_of([], "token " * 1000, 400), {}).message) < 500


def test_a_fault_that_says_nothing() -> None:
    assert "nothing that can be shown" in rejection(fault_of([], "", 500), {}).message


def test_faults_of_fields_name_each_field_once_and_no_value() -> None:
    class Request(BaseModel):
        prompt: str | list[int]
        seed: int

    with pytest.raises(ValidationError) as caught:
        Request.model_validate({"prompt": {"text": SECRET}, "seed": SECRET})
    message = rejection(fault_of_fields(caught.value), {}).message
    assert message.count("prompt: ") == message.count("seed: ") == 1
    assert "nobody" not in message
