"""What the table of the record fields says is what ``check_record`` and the worker's translation do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.check_record import check_record
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.record_fields import CHAT_FIELDS, COMPLETION_FIELDS, CONTENT_FIELDS, Becomes, RecordField
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request, CreateBatchCompletionsV1RequestContent
from airflow_llmengine.worker.engines.vllm_records import chat_request, completion_request
from airflow_llmengine.worker.records import PromptRecord

JOB = CreateBatchCompletionsV1Request.model_validate(
    {"input_data_path": "in", "output_data_path": "out", "model_config": {"model": "small"}}
)

GIVEN: Mapping[str, Any] = {
    "add_generation_prompt": False,
    "add_special_tokens": False,
    "allowed_token_ids": [5],
    "audio": {"voice": "low"},
    "bad_words": ["no"],
    "best_of": 2,
    "chat_template": "{{ messages }}",
    "chat_template_kwargs": {"kind": "short"},
    "continue_final_message": True,
    "documents": [{"title": "t", "text": "x"}],
    "early_stopping": True,
    "echo": True,
    "frequency_penalty": 0.5,
    "function_call": "auto",
    "functions": [{"name": "f"}],
    "guided_choice": ["yes", "no"],
    "guided_decoding_backend": "auto",
    "guided_grammar": 'root ::= "a"',
    "guided_json": {"type": "object"},
    "guided_regex": "[a-z]+",
    "guided_whitespace_pattern": " ?",
    "ignore_eos": True,
    "include_reasoning": False,
    "include_stop_str_in_output": True,
    "length_penalty": 2,
    "logit_bias": {"5": -100},
    "logprobs": 2,
    "max_completion_tokens": 7,
    "max_tokens": 7,
    "media_io_kwargs": {"image": {"a": 1}},
    "messages": [{"role": "user", "content": "hi"}],
    "metadata": {"a": "b"},
    "min_p": 0.1,
    "min_tokens": 2,
    "mm_processor_kwargs": {"a": 1},
    "modalities": ["audio"],
    "model": "small",
    "moderation": {"a": 1},
    "n": 2,
    "parallel_tool_calls": False,
    "prediction": {"type": "content"},
    "presence_penalty": 0.5,
    "prompt": "hi",
    "prompt_cache_key": "k",
    "prompt_cache_options": {"a": 1},
    "prompt_cache_retention": "24h",
    "prompt_logprobs": 1,
    "reasoning_effort": "low",
    "repetition_penalty": 1.2,
    "response_format": {"type": "json_object"},
    "return_token_ids": True,
    "safety_identifier": "s",
    "seed": 3,
    "service_tier": "priority",
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "stop": ["."],
    "stop_token_ids": [5],
    "store": True,
    "stream": True,
    "stream_options": {"include_usage": True},
    "suffix": "after",
    "temperature": 0.5,
    "thinking_token_budget": 9,
    "tool_choice": "auto",
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "top_k": 5,
    "top_logprobs": 2,
    "top_p": 0.5,
    "truncate_prompt_tokens": 9,
    "truncation_side": "left",
    "use_beam_search": True,
    "user": "u",
    "verbosity": "low",
    "web_search_options": {"a": 1},
}
"""A value of each field that asks for something."""

OF_A_CHAT: Mapping[str, Any] = {"logprobs": True}
"""Where a chat's field takes another kind of value."""

WITH_AN_IMAGE: Mapping[str, Any] = {
    "role": "user",
    "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
}

TOGETHER: Mapping[str, Mapping[str, Any]] = {
    "length_penalty": {"use_beam_search": True},
    "media_io_kwargs": {"messages": [WITH_AN_IMAGE]},
    "mm_processor_kwargs": {"messages": [WITH_AN_IMAGE]},
    "tool_choice": {"tools": GIVEN["tools"]},
    "top_logprobs": {"logprobs": True},
    "truncation_side": {"truncate_prompt_tokens": 9},
}
"""What a field can't be given without."""


def record_of(name: str, model: type[Any], values: Mapping[str, Any]) -> Any:
    required = {"messages": GIVEN["messages"]} if model is ChatCompletionV2Request else {"prompt": GIVEN["prompt"]}
    return model.model_validate({**required, **TOGETHER.get(name, {}), name: values[name]})


EACH = [
    *(pytest.param(field, CompletionV2Request, id=f"completion-{field.name}") for field in COMPLETION_FIELDS.values()),
    *(pytest.param(field, ChatCompletionV2Request, id=f"chat-{field.name}") for field in CHAT_FIELDS.values()),
]


@pytest.mark.parametrize(("field", "model"), EACH)
def test_a_field_becomes_what_the_table_says(field: RecordField, model: type[Any]) -> None:
    is_chat = model is ChatCompletionV2Request
    values = {**GIVEN, **OF_A_CHAT} if is_chat else GIVEN
    record = record_of(field.name, model, values)
    fault = check_record(record, JOB)
    if field.becomes is Becomes.REFUSED:
        assert fault is not None
        assert fault[1].startswith(f"{field.name}: ")
        return
    assert fault is None
    known = [*values, "structured_outputs"]
    body = chat_request(record, "small", known) if is_chat else completion_request(record, "small", known)
    if field.becomes is Becomes.FIELD:
        assert field.field is not None
        assert body[field.field] == values[field.name]
    elif field.becomes is Becomes.TRANSLATED:
        assert field.field in body
        assert field.name not in body
    elif field.name != "model":
        assert field.name not in body


@pytest.mark.parametrize("field", CONTENT_FIELDS.values(), ids=lambda field: field.name)
def test_a_field_of_a_v1_content_becomes_what_the_table_says(field: RecordField) -> None:
    values = {
        **GIVEN,
        "prompts": [],
        "max_new_tokens": 7,
        "stop_sequences": ["."],
        "return_token_log_probs": True,
    }
    required = {"prompts": [], "max_new_tokens": 1, "temperature": 0}
    content = CreateBatchCompletionsV1RequestContent.model_validate({**required, field.name: values[field.name]})
    body = completion_request(PromptRecord("hi", content), "small", GIVEN)
    assert field.field in body
    if field.becomes is Becomes.FIELD:
        assert body[field.field] == values[field.name]
    else:
        assert (field.field, body[field.field]) in {("prompt", "hi"), ("logprobs", 0)}


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (CompletionV2Request, COMPLETION_FIELDS),
        (ChatCompletionV2Request, CHAT_FIELDS),
        (CreateBatchCompletionsV1RequestContent, CONTENT_FIELDS),
    ],
)
def test_the_table_has_every_field_and_no_other(model: type[Any], fields: Mapping[str, RecordField]) -> None:
    assert sorted(fields) == sorted(model.model_fields)
