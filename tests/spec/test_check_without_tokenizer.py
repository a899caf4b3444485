"""What of a record needs a tokenizer."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.check_pooling_record import check_pooling_record
from airflow_llmengine.spec.check_record import check_record
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.embedding import EmbeddingRequest
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.spec.scoring import RerankRequest


def job(**model: Any) -> CreateBatchCompletionsV1Request:
    return CreateBatchCompletionsV1Request.model_validate(
        {"input_data_path": "in", "output_data_path": "out", "model_config": {"model": "m", **model}}
    )


WITH, WITHOUT = job(), job(skip_tokenizer_init=True)


def completion(**fields: Any) -> CompletionV2Request:
    return CompletionV2Request.model_validate({"prompt": [1, 2], "max_tokens": 4, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prompt": [[1], [2, 3]], "n": 2, "best_of": 2},
        {"stop_token_ids": [1], "logit_bias": {"1": 5}, "min_tokens": 1, "seed": 1, "ignore_eos": False},
        {"echo": False, "stop": None, "skip_special_tokens": True, "logprobs": None, "use_beam_search": False},
        {"response_format": {"type": "text"}},
    ],
)
def test_ids_pass_and_what_asks_for_nothing(fields: dict[str, Any]) -> None:
    assert check_record(completion(**fields), WITHOUT) is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"prompt": "text"}, "prompt: is text"),
        ({"prompt": ["one", "two"]}, "prompt: is text"),
        ({"echo": True}, "echo: can't be had without a tokenizer"),
        ({"logprobs": 0}, "logprobs: can't be had without a tokenizer"),
        ({"stop": "x"}, "stop: can't be had without a tokenizer"),
        ({"stop": ["x"]}, "stop: can't be had without a tokenizer"),
        ({"skip_special_tokens": False}, "skip_special_tokens: can't be had without a tokenizer"),
        ({"spaces_between_special_tokens": False}, "spaces_between_special_tokens: can't be had without a tokenizer"),
        ({"include_stop_str_in_output": True}, "include_stop_str_in_output: can't be had without a tokenizer"),
        ({"use_beam_search": True, "best_of": 2, "temperature": 0}, "use_beam_search: can't be had without"),
        ({"best_of": 3}, "best_of: can't be had without a tokenizer"),
        ({"suffix": "x"}, "suffix: can't be had without a tokenizer"),
        ({"guided_regex": "a+"}, "guided_regex: can't be had without a tokenizer"),
        ({"response_format": {"type": "json_object"}}, "response_format: can't be had without a tokenizer"),
    ],
    ids=str,
)
def test_what_is_about_text_is_refused(fields: dict[str, Any], said: str) -> None:
    fault = check_record(completion(**fields), WITHOUT)
    assert fault is not None
    assert fault[0] is RecordErrorType.UNSUPPORTED
    assert said in fault[1]
    assert check_record(completion(**fields), WITH) is None, "only because there is no tokenizer"


def test_a_chat_is_refused() -> None:
    chat = ChatCompletionV2Request.model_validate({"messages": [{"role": "user", "content": "hi"}]})
    fault = check_record(chat, WITHOUT)
    assert fault is not None
    assert fault[1].startswith("messages: is text, and with skip_tokenizer_init")
    assert check_record(chat, WITH) is None


def test_embeddings_are_of_ids() -> None:
    assert check_pooling_record(EmbeddingRequest(input=[1, 2]), WITHOUT) is None
    fault = check_pooling_record(EmbeddingRequest(input=["a"]), WITHOUT)
    assert fault is not None
    assert fault[1].startswith("input: is text")
    rerank = RerankRequest.model_validate({"query": "q", "documents": ["a"]})
    fault = check_pooling_record(rerank, WITHOUT)
    assert fault is not None
    assert "is of texts" in fault[1]
    assert check_pooling_record(rerank, WITH) is None
