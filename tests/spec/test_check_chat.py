"""What is refused in a chat record that the schema accepts, and what of the API passes because it asks for nothing."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.check_chat import UNSERVED
from airflow_llmengine.spec.check_record import check_record
from airflow_llmengine.spec.content_parts import MEDIA_PARTS, TEXT_PARTS
from airflow_llmengine.spec.results import RecordErrorType
from tests.spec.sample_requests import parsed

INVALID, UNSUPPORTED = RecordErrorType.INVALID_RECORD, RecordErrorType.UNSUPPORTED
REQUEST = parsed()
TOOLS = [{"type": "function", "function": {"name": "clock"}}]
NAMED = {"type": "function", "function": {"name": "clock"}}
URL = {"url": "data:image/png;base64,AAAA"}
SEEN = [{"role": "user", "content": [{"type": "image_url", "image_url": URL}]}]


def chat_fault(**fields: Any) -> tuple[RecordErrorType, str] | None:
    record = {"messages": [{"role": "user", "content": "hi"}], **fields}
    return check_record(ChatCompletionV2Request.model_validate(record), REQUEST)


def part_fault(**part: Any) -> tuple[RecordErrorType, str] | None:
    return chat_fault(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, part]}])


@pytest.mark.parametrize(
    ("fields", "error_type", "said"),
    [
        ({"tools": []}, INVALID, "tools: is empty"),
        ({"tools": [*TOOLS, {"type": "custom", "custom": {"name": "x"}}]}, UNSUPPORTED, "tools[1].type: must be funct"),
        ({"tools": [{"type": "function"}]}, INVALID, "tools[0].function: must be an object with a name"),
        ({"tools": [{"function": {"name": 3}}]}, INVALID, "tools[0].function: must be an object with a name"),
        ({"tools": [{"function": {"name": ""}}]}, INVALID, "tools[0].function: must be an object with a name"),
        ({"tool_choice": "auto"}, INVALID, "tool_choice: there are no tools to choose from"),
        ({"tool_choice": NAMED}, INVALID, "tool_choice: there are no tools to choose from"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, INVALID, "tool_choice: must be written {"),
        ({"tools": TOOLS, "tool_choice": {"function": "clock"}}, INVALID, "tool_choice: must be written {"),
        ({"tools": TOOLS, "tool_choice": {"function": {"name": "x"}}}, INVALID, "tool_choice: names none of the tools"),
        ({"tools": TOOLS, "tool_choice": {"function": {}}}, INVALID, "tool_choice: names none of the tools"),
        (
            {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}},
            INVALID,
            "tool_choice: forces a tool call, and response_format another form",
        ),
        ({"top_logprobs": 3}, INVALID, "top_logprobs: is given without logprobs"),
        ({"top_logprobs": 3, "logprobs": False}, INVALID, "top_logprobs: is given without logprobs"),
        ({"truncate_prompt_tokens": 0}, INVALID, "truncate_prompt_tokens: is 0, which leaves nothing; give at least 1"),
        ({"truncation_side": "left"}, INVALID, "truncation_side: has no effect without truncate_prompt_tokens"),
        ({"user": "ada", "metadata": {"user": "bob"}}, INVALID, "metadata.user: differs from user"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            INVALID,
            "continue_final_message: the answer goes on with a message or opens one",
        ),
        ({"chat_template_kwargs": {"chat_template": "x"}}, INVALID, "chat_template_kwargs.chat_template: is none of"),
        ({"chat_template_kwargs": {"tokenize": True}}, INVALID, "chat_template_kwargs.tokenize: is none of"),
        ({"documents": [{"text": "a"}, {"text": 3}]}, INVALID, "documents[1]: must hold strings alone"),
        (
            {"messages": SEEN, "media_io_kwargs": {"picture": {}}},
            INVALID,
            "media_io_kwargs: must be objects under image",
        ),
        ({"messages": SEEN, "media_io_kwargs": {"image": 3}}, INVALID, "media_io_kwargs: must be objects under image"),
        ({"media_io_kwargs": {"image": {}}}, INVALID, "media_io_kwargs: is for images, sound and videos"),
        ({"mm_processor_kwargs": {"a": 1}}, INVALID, "mm_processor_kwargs: is for images, sound and videos"),
        ({"max_completion_tokens": 4, "max_tokens": 5}, INVALID, "max_completion_tokens: differs from max_tokens"),
    ],
)
def test_chats_that_are_refused(fields: dict[str, Any], error_type: RecordErrorType, said: str) -> None:
    fault = chat_fault(**fields)
    assert fault is not None
    assert fault[0] is error_type
    assert fault[1].startswith(said)


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "assistant", "tool_calls": [{}]}, {"role": "tool", "tool_call_id": "1"}]},
        {"messages": [{"role": "developer", "content": "a"}, {"role": "user", "content": ["b"]}]},
        {"tools": TOOLS},
        {"tools": TOOLS, "tool_choice": None, "parallel_tool_calls": False},
        {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "text"}},
        {"tools": TOOLS, "tool_choice": NAMED},
        {"tools": None, "tool_choice": "none"},
        {"top_logprobs": 0},
        {"top_logprobs": 3, "logprobs": True},
        {"truncation_side": "left", "truncate_prompt_tokens": -1},
        {"user": "ada", "metadata": {"user": "ada", "team": "a"}},
        {"user": "ada", "metadata": {"team": "a"}},
        {"continue_final_message": True},
        {"continue_final_message": True, "add_generation_prompt": False},
        {"documents": [{"title": "a", "text": "b"}], "chat_template_kwargs": {"enable_thinking": False}},
        {"media_io_kwargs": {}, "mm_processor_kwargs": {}},
        {"messages": SEEN, "media_io_kwargs": {"image": {}}, "mm_processor_kwargs": {"a": 1}},
    ],
)
def test_chats_that_pass(fields: dict[str, Any]) -> None:
    assert chat_fault(**fields) is None


@pytest.mark.parametrize(
    ("part", "error_type", "said"),
    [
        ({"type": "text"}, INVALID, ".text: must be a string"),
        ({"type": "refusal", "text": "no"}, INVALID, ".refusal: must be a string"),
        ({"type": "picture"}, INVALID, ".type: must be one of text, "),
        ({"type": "file", "file": {"file_id": "1"}}, UNSUPPORTED, ": vLLM reads no files"),
        ({"type": "image_embeds", "image_embeds": "AAAA"}, UNSUPPORTED, ": tensors are not taken"),
        ({"type": "image_url"}, INVALID, ".image_url: must be an object with a url"),
        ({"type": "image_url", "image_url": "data:,"}, INVALID, ".image_url: must be an object with a url"),
        ({"type": "video_url", "video_url": {"url": 3}}, INVALID, ".video_url: must be an object with a url"),
        ({"type": "input_image", "image_url": URL}, INVALID, ".image_url: must be a URL"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA"}}, INVALID, ".input_audio: must be an object with"),
        ({"type": "image_url", "image_url": {**URL, "detail": "low"}}, UNSUPPORTED, ".image_url.detail: the model has"),
        ({"type": "image_url", "image_url": URL, "detail": "low"}, UNSUPPORTED, ".detail: the model has one"),
    ],
)
def test_parts_that_are_refused_are_named(part: dict[str, Any], error_type: RecordErrorType, said: str) -> None:
    fault = part_fault(**part)
    assert fault is not None
    assert fault[0] is error_type
    assert fault[1].startswith(f"messages[0].content[1]{said}")


@pytest.mark.parametrize(
    "part",
    [
        *({"type": kind, field: "a"} for kind, field in TEXT_PARTS.items()),
        *({"type": kind, kind: URL} for kind in MEDIA_PARTS if kind.endswith("_url")),
        {"type": "input_image", "image_url": URL["url"]},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "image_url", "image_url": {**URL, "detail": "auto"}},
    ],
)
def test_parts_that_pass_whatever_the_model(part: dict[str, Any]) -> None:
    assert part_fault(**part) is None


REFUSED: dict[str, Any] = {
    "audio": {"voice": "alloy"},
    "function_call": "auto",
    "functions": [{"name": "clock"}],
    "modalities": ["text", "audio"],
    "moderation": {"model": "omni-moderation-latest"},
    "prediction": {"type": "content"},
    "prompt_cache_key": "a",
    "prompt_cache_options": {"ttl": "30m"},
    "prompt_cache_retention": "24h",
    "safety_identifier": "a",
    "service_tier": "priority",
    "store": True,
    "verbosity": "low",
    "web_search_options": {},
}


@pytest.mark.parametrize("name", UNSERVED)
def test_what_vllm_does_not_serve_is_refused_unless_it_asks_for_nothing(name: str) -> None:
    fault = chat_fault(**{name: REFUSED[name]})
    assert fault == (UNSUPPORTED, f"{name}: {UNSERVED[name].sentence}")
    for harmless in (None, *UNSERVED[name].asks_for_nothing):
        assert chat_fault(**{name: harmless}) is None


def test_no_fault_tells_the_users_text() -> None:
    secret = "the secret"
    fault = chat_fault(
        messages=[{"role": "user", "content": [{"type": secret}, {"type": "image_url", "image_url": secret}]}],
        tools=[{"type": secret}, {secret: 1}],
        tool_choice={"type": secret},
        documents=[{secret: 1}],
        metadata={"user": secret},
        user="ada",
        service_tier=secret,
        media_io_kwargs={secret: 1},
    )
    assert fault is not None
    assert len(fault[1].split("; ")) > 8
    assert "secret" not in fault[1]


def test_of_many_wrong_parts_only_some_are_named() -> None:
    fault = chat_fault(messages=[{"role": "user", "content": [{"type": "x"}] * 100}])
    assert fault is not None
    assert fault[1].count("content[") == 10
