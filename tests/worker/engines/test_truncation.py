"""Which answers count as truncated."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.worker.engines.truncation import is_truncated

CHOICE: dict[str, Any] = {"guided_choice": ["a", "ab", "yes"]}
OBJECT: dict[str, Any] = {"response_format": {"type": "json_object"}}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def completion(*texts: str, reason: str = "length", **fields: Any) -> bool:
    record = CompletionV2Request.model_validate({"prompt": "p", **fields})
    return is_truncated(record, [{"text": text, "finish_reason": reason} for text in texts])


def chat(content: str | None, **fields: Any) -> bool:
    record = ChatCompletionV2Request.model_validate({"messages": [{"role": "user", "content": "p"}], **fields})
    return is_truncated(record, [{"message": {"content": content}, "finish_reason": "length"}])


@pytest.mark.parametrize(
    "fields", [CHOICE, OBJECT, {"guided_json": {}}, {"guided_regex": "a"}, {"guided_grammar": "g"}]
)
def test_structured_output_that_ends_at_the_limit(fields: dict[str, Any]) -> None:
    assert completion('{"a', **fields)
    assert chat('{"a', **fields)
    assert not completion('{"a', reason="stop", **fields)


def test_text_that_ends_at_the_limit() -> None:
    assert not completion("any text")
    assert not completion("any text", response_format={"type": "text"})
    assert not chat("any text", tools=TOOLS, tool_choice="auto")


def test_one_choice_of_several() -> None:
    assert completion("yes", "ye", **CHOICE)
    assert not completion("yes", "yes", **CHOICE)


def test_a_choice_is_whole_where_no_other_goes_on_with_it() -> None:
    assert not completion("ab", **CHOICE)
    assert completion("a", **CHOICE)
    assert completion("y", **CHOICE)
    # With the prompt in front it is told no more.
    assert completion("p yes", echo=True, **CHOICE)


@pytest.mark.parametrize(
    ("text", "is_cut"), [('{"a": [1]}', False), ("[]", False), ("12", True), ('"a"', True), ("{", True)]
)
def test_json_is_whole_where_its_bracket_is_closed(text: str, is_cut: bool) -> None:
    assert completion(text, guided_json={}) is is_cut
    assert completion(text, **OBJECT) is is_cut


def test_a_forced_tool_call_and_reasoning_that_are_cut() -> None:
    named = {"type": "function", "function": {"name": "f"}}
    assert chat("<tool_call>", tools=TOOLS, tool_choice="required")
    assert chat("", tools=TOOLS, tool_choice=named)
    assert chat(None, **CHOICE)
