"""Chat records and the lines of OpenAI batch files, which no schema of the contract describes."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from airflow_llmengine.spec.batch_line import ENDPOINTS, BatchLine, Endpoint
from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.embedding import EmbeddingRequest
from airflow_llmengine.spec.scoring import RerankRequest, ScoreRequest
from airflow_llmengine.spec.validation import record_error_of
from airflow_llmengine.spec.wire_model import WireModel


def message_of(model: type[WireModel], value: Any, prefix: str = "") -> str:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(value)
    return record_error_of(caught.value, model, prefix)[1]


def line_with(**fields: Any) -> dict[str, Any]:
    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a"}, **fields}
    return {name: value for name, value in line.items() if value is not ...}


def test_messages_are_passed_through_letter_for_letter() -> None:
    messages = [
        {"role": "system", "content": "{{ 7*7 }}"},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": " grün\u2028 "}, "plain"]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "42", "more": [1.5, None, True, {"x": []}]},
        {"role": "assistant"},
    ]
    record = ChatCompletionV2Request.model_validate({"messages": messages, "temperature": "0.5"})
    assert record.given() == {"messages": messages, "temperature": 0.5}
    assert ChatCompletionV2Request.model_validate(record.given()) == record


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({}, "messages: is required"),
        ({"messages": None}, "messages: must be a list of objects, not null"),
        ({"messages": "hi"}, "messages: must be a list of objects, not a string"),
        ({"messages": ["hi"]}, "messages[0]: must be an object"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role: must be a string"),
        ({"messages": [{"role": "user"}, {"role": None}]}, "messages[1].role: must be a string"),
        (
            {"messages": [{"role": "user", "content": 3}]},
            "messages[0].content: must be a string, a list of parts, or null",
        ),
        ({"messages": [{"role": "user", "content": {"a": 1}}]}, "messages[0].content: must be a string, a list"),
        (
            {"messages": [{"role": "user", "content": [{"text": "a"}]}]},
            "messages[0].content[0]: must be an object with a",
        ),
        ({"messages": [{"role": "user", "content": [3]}]}, "messages[0].content[0]: must be an object with a type"),
        ({"messages": [{"role": "user", "x": float("nan")}]}, "messages[0].x: must be a finite number"),
        ({"messages": [{"role": "user", "x": (1,)}]}, "messages[0].x: must be JSON"),
        ({"messages": [{1: 2}]}, "messages[0]: must be an object with strings as keys"),
        ({"messages": [], "n": 0}, "n: must be an integer from 1 to 128, not 0"),
        ({"messages": [], "logprobs": 1}, "logprobs: must be true or false, not 1"),
        ({"messages": [], "top_logprobs": 21}, "top_logprobs: must be an integer from 0 to 20, not 21"),
        ({"messages": [], "tools": {}}, "tools: must be a list of objects, not an object"),
        ({"messages": [], "tools": [1]}, "tools[0]: must be an object"),
        ({"messages": [], "tool_choice": "maybe"}, "tool_choice: must be none, auto, required, or an object"),
        ({"messages": [], "reasoning_effort": "huge"}, "reasoning_effort: must be one of none, minimal, low,"),
        ({"messages": [], "model": None}, "model: must be a string, not null"),
        ({"messages": [], "prompt": "x"}, "prompt: unknown field"),
    ],
)
def test_chats_that_are_no_chats(value: dict[str, Any], said: str) -> None:
    assert message_of(ChatCompletionV2Request, value).startswith(said)


def test_a_deeply_nested_message_is_read() -> None:
    inner: Any = "x"
    for _ in range(50_000):
        inner = [inner]
    record = ChatCompletionV2Request.model_validate({"messages": [{"role": "user", "deep": inner}]})
    assert record.given()["messages"][0]["role"] == "user"


def test_chats_take_the_sampling_fields_of_completions() -> None:
    left_out = {"prompt", "suffix"}
    assert set(CompletionV2Request.model_fields) - left_out <= set(ChatCompletionV2Request.model_fields)


def test_a_batch_line_tells_what_its_body_is() -> None:
    for url, model in {
        "/v1/completions": CompletionV2Request,
        "/v1/chat/completions": ChatCompletionV2Request,
        "/v1/embeddings": EmbeddingRequest,
        "/v1/score": ScoreRequest,
        "/score": ScoreRequest,
        "/v1/rerank": RerankRequest,
        "/v2/rerank": RerankRequest,
        "/rerank": RerankRequest,
    }.items():
        assert BatchLine.model_validate(line_with(url=url)).body_model is model


def test_type_checkers_know_every_endpoint() -> None:
    assert get_args(Endpoint) == tuple(ENDPOINTS)


def test_the_body_of_a_batch_line_stays_as_it_is() -> None:
    assert BatchLine.model_validate(line_with()).body == {"prompt": "a"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"url": "/v1/nothing"},
            f"url: must be one of {', '.join(ENDPOINTS)}, not '/v1/nothing'",
        ),
        ({"url": "/v1/responses"}, "url: must be one of /v1/completions, /v1/chat/completions"),
        ({"url": ...}, "url: is required"),
        ({"url": None}, "url: must be one of"),
        ({"method": "GET"}, "method: must be POST, not 'GET'"),
        ({"method": ...}, "method: is required"),
        ({"custom_id": 7}, "custom_id: must be a string that is not empty, not 7"),
        ({"custom_id": ""}, "custom_id: must be a string that is not empty, not ''"),
        ({"custom_id": None}, "custom_id: must be a string that is not empty, not null"),
        ({"custom_id": ...}, "custom_id: is required"),
        ({"custom_id": "\ud800"}, "custom_id: holds half of a surrogate pair"),
        ({"body": "text"}, "body: must be an object, not a string"),
        ({"body": ...}, "body: is required"),
        ({"body": {"prompt": "\ud800"}}, "body.prompt: holds half of a surrogate pair"),
    ],
)
def test_batch_lines_that_are_refused_name_the_field(fields: dict[str, Any], said: str) -> None:
    assert message_of(BatchLine, line_with(**fields)).startswith(said)


def test_the_faults_of_a_body_stand_under_it() -> None:
    message = message_of(CompletionV2Request, {"promt": "a", "stream": 3}, prefix="body.")
    assert message.split("; ") == [
        "body.stream: must be true or false, not 3",
        "body.prompt: is required",
        "body.promt: unknown field",
        "did you mean prompt?",
    ]
