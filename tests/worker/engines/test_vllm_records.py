"""Between records and vLLM's API, without vLLM."""

from __future__ import annotations

import math
from typing import Any

import pytest

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.request import CreateBatchCompletionsV1RequestContent
from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.engines.base import RecordRejectedError
from airflow_llmengine.worker.engines.vllm_records import chat_request, completion_request, v1_answer, v2_answer
from airflow_llmengine.worker.records import PromptRecord

EVERY_FIELD = frozenset({*CompletionV2Request.model_fields, *ChatCompletionV2Request.model_fields})


def v1(**fields: Any) -> PromptRecord:
    content = {"prompts": [], "max_new_tokens": 8, "temperature": 0, **fields}
    return PromptRecord("a prompt", CreateBatchCompletionsV1RequestContent.model_validate(content))


def test_v1_fields_under_the_apis_names() -> None:
    record = v1(stop_sequences=["."], presence_penalty=1, frequency_penalty=0, top_k=5, top_p=0.5)
    assert completion_request(record, "small", EVERY_FIELD) == {
        "model": "small",
        "prompt": "a prompt",
        "max_tokens": 8,
        "temperature": 0,
        "stop": ["."],
        "presence_penalty": 1,
        "frequency_penalty": 0,
        "top_k": 5,
        "top_p": 0.5,
    }


def test_what_v1_does_not_give_is_not_sent() -> None:
    sent = {"model": "small", "prompt": "a prompt", "max_tokens": 8, "temperature": 0}
    assert completion_request(v1(), "small", EVERY_FIELD) == sent
    assert completion_request(v1(top_p=None, return_token_log_probs=False), "small", EVERY_FIELD) == sent


def test_token_log_probabilities_ask_for_no_alternatives() -> None:
    assert completion_request(v1(return_token_log_probs=True), "small", EVERY_FIELD)["logprobs"] == 0


def test_v2_sends_what_was_given_and_the_served_name() -> None:
    record = CompletionV2Request.model_validate(
        {"prompt": "a", "model": "org/name", "user": "ada", "n": 2, "best_of": 2, "top_k": None, "stream": False}
    )
    assert completion_request(record, "small", EVERY_FIELD) == {"model": "small", "prompt": "a", "n": 2}


def test_chat_sends_its_messages_as_they_are() -> None:
    messages = [{"role": "user", "content": "a", "name": "ada"}]
    record = ChatCompletionV2Request.model_validate({"messages": messages, "max_completion_tokens": 3})
    assert chat_request(record, "small", EVERY_FIELD) == {
        "model": "small",
        "messages": messages,
        "max_completion_tokens": 3,
    }


def test_a_field_that_the_engine_does_not_know_is_refused() -> None:
    record = CompletionV2Request.model_validate({"prompt": "a", "min_p": 0.5, "top_k": 3})
    with pytest.raises(RecordRejectedError, match="min_p, top_k: the installed vLLM has no such field") as caught:
        completion_request(record, "small", {"prompt"})
    assert caught.value.error_type is RecordErrorType.UNSUPPORTED


def completion_response(**choice: Any) -> dict[str, Any]:
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": "small",
        "choices": [{"index": 0, "text": "b", "finish_reason": "stop", **choice}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


@pytest.mark.parametrize("log_prob", [-math.inf, -9999.0, math.nan, None])
def test_a_log_probability_that_is_not_finite_is_null(log_prob: float | None) -> None:
    logprobs = {"tokens": ["b", "."], "token_logprobs": [log_prob, -0.5]}
    answer = v1_answer(completion_response(logprobs=logprobs), with_tokens=True)
    assert answer.body == {
        "text": "b",
        "num_prompt_tokens": 3,
        "num_completion_tokens": 2,
        "tokens": [{"token": "b", "log_prob": None}, {"token": ".", "log_prob": -0.5}],
    }


def test_tokens_are_null_when_they_were_not_asked_for() -> None:
    answer = v1_answer(completion_response(), with_tokens=False)
    assert answer.body["tokens"] is None
    assert (answer.prompt_tokens, answer.completion_tokens) == (3, 2)


def test_a_v2_answer_has_the_apis_nulls_and_no_others() -> None:
    record = CompletionV2Request.model_validate({"prompt": "a"})
    answer = v2_answer(completion_response(prompt_logprobs=[None], stop_reason="."), record)
    assert answer.body["choices"] == [
        {"index": 0, "text": "b", "finish_reason": "stop", "logprobs": None, "stop_reason": "."}
    ]


def test_a_chat_answer_keeps_what_its_message_has() -> None:
    record = ChatCompletionV2Request.model_validate({"messages": [{"role": "user", "content": "a"}]})
    response = completion_response(message={"role": "assistant", "tool_calls": [{"id": "1"}]})
    (choice,) = v2_answer(response, record).body["choices"]
    assert choice["message"] == {"role": "assistant", "tool_calls": [{"id": "1"}], "content": None, "refusal": None}
