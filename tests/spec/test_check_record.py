"""What ``check_record`` refuses in a record that the schema accepts, and what it lets pass."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.check_record import check_record
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.results import RecordErrorType
from tests.spec.sample_requests import parsed

INVALID, UNSUPPORTED, EMPTY = (
    RecordErrorType.INVALID_RECORD,
    RecordErrorType.UNSUPPORTED,
    RecordErrorType.EMPTY_PROMPT,
)
REQUEST = parsed({"served_model_name": "small"})
USER = [{"role": "user", "content": "hi"}]


def completion_fault(**fields: Any) -> tuple[RecordErrorType, str] | None:
    return check_record(CompletionV2Request.model_validate({"prompt": "hi", **fields}), REQUEST)


def chat_fault(**fields: Any) -> tuple[RecordErrorType, str] | None:
    return check_record(ChatCompletionV2Request.model_validate({"messages": USER, **fields}), REQUEST)


SHARED_FAULTS: list[tuple[dict[str, Any], RecordErrorType, str]] = [
    ({"model": "other"}, INVALID, "model: is not the job's; leave it out, or give org/model or small"),
    ({"stream": True}, INVALID, "stream: a batch has no stream; leave it out"),
    ({"stream": "true"}, INVALID, "stream: a batch has no stream; leave it out"),
    ({"stream_options": {"include_usage": True}}, INVALID, "stream_options: a batch has no stream"),
    ({"n": 3, "best_of": 2}, INVALID, "best_of: is 2, less than n, which is 3"),
    ({"best_of": 0}, INVALID, "best_of: is 0, less than n, which is 1"),
    ({"length_penalty": 0.5}, INVALID, "length_penalty: is for beam search alone"),
    ({"length_penalty": 0.5, "use_beam_search": False}, INVALID, "length_penalty: is for beam search alone"),
    ({"logit_bias": {"the secret": 1}}, INVALID, "logit_bias: has a key that is no token id"),
    ({"logit_bias": {"-1": 1}}, INVALID, "logit_bias: has a key that is no token id"),
    ({"logit_bias": {"5": 1, "6": -101}}, INVALID, "logit_bias: a bias must be from -100 to 100"),
    ({"logit_bias": {"5": 101}}, INVALID, "logit_bias: a bias must be from -100 to 100"),
    ({"seed": -1}, INVALID, "seed: vLLM takes -1 for no seed"),
    ({"early_stopping": True}, UNSUPPORTED, "early_stopping: vLLM's beam search has no such choice"),
    ({"guided_whitespace_pattern": " "}, UNSUPPORTED, "guided_whitespace_pattern: nothing in today's vLLM reads it"),
    ({"max_tokens": 0}, INVALID, "max_tokens: is 0, which asks for nothing; give at least 1"),
]

SHARED_PASSES: list[dict[str, Any]] = [
    {},
    {"model": "org/model"},
    {"model": "small"},
    {"stream": False, "stream_options": {}, "use_beam_search": False, "early_stopping": False},
    {"stream": None, "stream_options": None, "best_of": None, "guided_json": None, "logit_bias": None},
    {"stream_options": {"include_usage": False}, "length_penalty": 1.0, "logit_bias": {}},
    {"best_of": 1, "n": 1, "response_format": {"type": "text"}, "guided_decoding_backend": "auto"},
    {"n": 3},
    {"n": 3, "best_of": 3},
    {"n": 3, "best_of": 20},
    {"n": None, "best_of": 2},
    {"n": 3, "best_of": None},
    {"logit_bias": {"0": -100, "5": 100}},
    {"seed": -2},
    {"max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1, "stop": ["a"], "seed": 1},
    {"presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.1, "user": "u"},
    {"stop_token_ids": [1], "ignore_eos": True, "min_tokens": 2, "skip_special_tokens": False},
    {"spaces_between_special_tokens": False, "include_stop_str_in_output": True, "add_special_tokens": False},
    {"max_tokens": None},
]


@pytest.mark.parametrize(("fields", "error_type", "said"), SHARED_FAULTS)
def test_what_can_not_be_run_is_refused(fields: dict[str, Any], error_type: RecordErrorType, said: str) -> None:
    for fault in (completion_fault(**fields), chat_fault(**fields)):
        assert fault is not None
        assert fault[0] is error_type
        assert fault[1].startswith(said)
        assert fault[1].isprintable()


@pytest.mark.parametrize("fields", SHARED_PASSES)
def test_what_can_be_run_and_what_asks_for_nothing_passes(fields: dict[str, Any]) -> None:
    assert completion_fault(**fields) is None
    assert chat_fault(**fields) is None


@pytest.mark.parametrize(
    ("fields", "error_type", "said"),
    [
        ({"prompt": None}, INVALID, "prompt: is null"),
        ({"prompt": ""}, EMPTY, "prompt: is empty"),
        ({"prompt": []}, EMPTY, "prompt: is empty"),
        ({"prompt": ["a", ""]}, EMPTY, "prompt[1]: is empty"),
        ({"max_tokens": 0, "echo": False}, INVALID, "max_tokens: is 0"),
    ],
)
def test_completions_that_are_refused(fields: dict[str, Any], error_type: RecordErrorType, said: str) -> None:
    fault = completion_fault(**fields)
    assert fault is not None
    assert fault[0] is error_type
    assert fault[1].startswith(said)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": ["a", "b"]},
        {"prompt": [1, 2]},
        {"prompt": [[1], [2, 0]]},
        {"prompt": " "},
        {"suffix": "z"},
        {"max_tokens": 0, "echo": True},
        {"echo": True, "logprobs": 5},
    ],
)
def test_completions_that_pass(fields: dict[str, Any]) -> None:
    assert completion_fault(**fields) is None


@pytest.mark.parametrize(
    ("fields", "error_type", "said"),
    [
        ({"messages": []}, EMPTY, "messages: is empty"),
        ({"max_completion_tokens": 0}, INVALID, "max_completion_tokens: is 0"),
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
        {"logprobs": True, "top_logprobs": 3, "max_completion_tokens": 4},
        {"max_completion_tokens": 4, "max_tokens": 4},
        {"chat_template_kwargs": {"enable_thinking": False}, "continue_final_message": True, "echo": True},
    ],
)
def test_chats_that_pass(fields: dict[str, Any]) -> None:
    assert chat_fault(**fields) is None


def test_everything_wrong_is_said_at_once() -> None:
    fault = completion_fault(prompt=None, stream=True, guided_whitespace_pattern=" ", model="other")
    assert fault is not None
    assert fault[0] is INVALID
    assert [part.partition(":")[0] for part in fault[1].split("; ") if ":" in part] == [
        "prompt",
        "model",
        "guided_whitespace_pattern",
        "stream",
    ]


def test_each_fault_of_a_batch_line_names_the_field_under_its_body() -> None:
    record = CompletionV2Request.model_validate({"prompt": "", "stream": True})
    fault = check_record(record, REQUEST, "body.")
    assert fault == (EMPTY, "body.prompt: is empty; body.stream: a batch has no stream; leave it out")


def test_without_a_served_name_only_the_model_is_named() -> None:
    record = CompletionV2Request.model_validate({"prompt": "a", "model": "x"})
    fault = check_record(record, parsed())
    assert fault is not None
    assert fault[1].endswith("or give org/model")


def test_no_fault_tells_the_users_text() -> None:
    fault = chat_fault(
        messages=[{"role": "user", "content": [{"type": "the secret", "text": "the secret"}]}],
        guided_regex="the secret",
        chat_template="the secret",
        tools=[{"the secret": 1}],
    )
    assert fault is not None
    assert "secret" not in fault[1]
