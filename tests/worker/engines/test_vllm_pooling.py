"""Between pooling records and vLLM, without vLLM: what is asked, what is kept of an answer, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_llmengine.spec.embedding import EmbeddingRequest
from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.spec.scoring import RerankRequest, ScoreRequest
from airflow_llmengine.worker.engines.base import RecordRejectedError
from airflow_llmengine.worker.engines.vllm_faults import fault_of, rejection
from airflow_llmengine.worker.engines.vllm_pooling import Pooling, RequestForm
from airflow_llmengine.worker.engines.vllm_pooling_records import (
    TEXT_FIELDS,
    generates_nothing,
    inputs,
    pooling_answer,
    pooling_request,
    too_long,
    unable,
)

EMBEDDING = EmbeddingRequest(input="a")
SCORE = ScoreRequest(queries="a", documents=["b", "c"])
RERANKING = RerankRequest(query="a", documents=["b"])
SECRET = "what nobody but the user may read"


def usage(tokens: int) -> dict[str, Any]:
    return {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": None}


def test_only_what_was_given_is_asked_under_the_models_served_name() -> None:
    request = EmbeddingRequest.model_validate(
        {"input": ["a"], "model": "hub/name", "user": "ada", "dimensions": 2, "truncate_prompt_tokens": None}
    )
    assert pooling_request(request, "served", {"input", "dimensions"}) == {
        "input": ["a"],
        "dimensions": 2,
        "model": "served",
    }


def test_a_field_that_the_installed_vllm_does_not_know_is_refused() -> None:
    with pytest.raises(RecordRejectedError, match="dimensions: the installed vLLM has no such field") as caught:
        pooling_request(EmbeddingRequest(input="a", dimensions=2), "served", {"input"})
    assert caught.value.error_type is RecordErrorType.UNSUPPORTED


def test_an_answer_is_the_apis_without_what_vllm_adds() -> None:
    document = {"text": "b", "multi_modal": None}
    response = {"id": "x", "results": [{"index": 0, "document": document, "relevance_score": 0.5}], "usage": usage(7)}
    answer = pooling_answer(response, RerankRequest(query="a", documents="b"))
    assert answer.body == {
        "id": "x",
        "results": [{"index": 0, "document": {"text": "b"}, "relevance_score": 0.5}],
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }
    assert (answer.prompt_tokens, answer.completion_tokens) == (7, 0)


@pytest.mark.parametrize(
    ("body", "apart", "together"),
    [
        ({"input": "a"}, ["a"], ["a"]),
        ({"input": ["a", "b"]}, ["a", "b"], ["a", "b"]),
        ({"input": [1, 2]}, [[1, 2]], [[1, 2]]),
        ({"input": [[1], [2, 3]]}, [[1], [2, 3]], [[1], [2, 3]]),
        ({"queries": "a", "documents": ["b", "c"]}, ["a", "b", "c"], ["ab", "ac"]),
        ({"text_1": ["a", "b"], "text_2": ["c", "d"]}, ["a", "b", "c", "d"], ["ac", "bd"]),
        ({"data_1": "a", "data_2": "b"}, ["a", "b"], ["ab"]),
        ({"query": "a", "documents": "b"}, ["a", "b"], ["ab"]),
        # How long the input is after vLLM has cut it is not known here.
        ({"input": "a", "truncate_prompt_tokens": 5}, [], []),
        ({"query": "a", "documents": "b", "max_tokens_per_doc": 5}, [], []),
    ],
)
def test_what_each_run_of_the_model_reads(body: dict[str, Any], apart: list[Any], together: list[Any]) -> None:
    assert list(inputs(body, together=False)) == apart
    assert list(inputs(body, together=True)) == together


def test_refusals_say_what_the_model_does_and_what_is_needed() -> None:
    for request, said, convert in (
        (EMBEDDING, "computes no embeddings", "embed"),
        (SCORE, "scores no texts", "classify"),
        (RERANKING, "scores no texts", "classify"),
    ):
        error = unable(request, ["generate"])
        assert error.error_type is RecordErrorType.UNSUPPORTED
        assert error.message.startswith(f"the model {said}, what it does is generate: ")
        assert f'engine_args {{"runner": "pooling", "convert": "{convert}"}}' in error.message
    assert "generates no text, what it does is classify, embed: " in generates_nothing(["embed", "classify"]).message
    assert too_long(9, 8).message.startswith("the input has 9 tokens, and the model takes 8: ")


@pytest.mark.parametrize("field", TEXT_FIELDS)
def test_a_refusal_quotes_no_text_of_a_pooling_record(field: str) -> None:
    fault = fault_of([], f"can't read {SECRET}, sorry", 400)
    for value in (SECRET, ["a", SECRET]):
        assert "nobody" not in rejection(fault, {field: value}).message


def pooling(**serving: Any) -> Pooling:
    kinds = (EmbeddingRequest, ScoreRequest, RerankRequest)
    known = {"input", "queries", "documents", "query", "encoding_format"}
    fields: dict[str, Any] = {"embedding": None, "scores": None, **serving}
    return Pooling(tasks=("embed",), forms={kind: RequestForm(dict, known) for kind in kinds}, **fields)


def test_each_kind_of_record_goes_to_its_own_serving_object() -> None:
    async def embed(body: Any) -> Any:
        return SimpleNamespace(body=json.dumps({"embedded": body, "data": []}).encode())

    async def score(body: Any) -> Any:
        return SimpleNamespace(body=json.dumps({"scored": body}).encode())

    able = pooling(embedding=embed, scores=score)
    for request, kind in ((EMBEDDING, "embedded"), (SCORE, "scored"), (RERANKING, "scored")):
        body = able.body(request, "small")
        answer = asyncio.run(able.answer(request, body))
        assert answer[kind].items() >= body.items()


@pytest.mark.parametrize("form", [None, "float", "base64"])
def test_numbers_come_as_bytes_and_what_was_asked_in_base64_stays_so(form: Any) -> None:
    numbers = [0.5, -1.25, 3e-20]
    text = base64.b64encode(struct.pack("=3f", *numbers)).decode()

    async def embed(body: Any) -> Any:
        assert body["encoding_format"] == "base64"
        return SimpleNamespace(body=json.dumps({"data": [{"index": 0, "embedding": text}]}).encode())

    request = EmbeddingRequest(input="a", encoding_format=form)
    able = pooling(embedding=embed)
    (item,) = asyncio.run(able.answer(request, able.body(request, "small")))["data"]
    assert item["embedding"] == (text if form == "base64" else [0.5, -1.25, pytest.approx(3e-20)])


@pytest.mark.parametrize(
    ("serving", "able"),
    [
        ({}, ()),
        ({"embedding": object()}, (EMBEDDING,)),
        ({"scores": object()}, (SCORE, RERANKING)),
        ({"embedding": object(), "scores": object()}, (EMBEDDING, SCORE, RERANKING)),
    ],
    ids=["neither", "embedding", "scores", "both"],
)
def test_a_record_of_which_the_model_is_not_able_is_refused(serving: dict[str, Any], able: tuple[Any, ...]) -> None:
    one = pooling(**serving)
    assert one.is_able is bool(able)
    for request in (EMBEDDING, SCORE, RERANKING):
        if request in able:
            assert one.body(request, "small")["model"] == "small"
        else:
            with pytest.raises(RecordRejectedError) as caught:
                one.body(request, "small")
            assert caught.value.error_type is RecordErrorType.UNSUPPORTED


def test_the_longest_input_counts() -> None:
    async def count(text: str) -> int:
        return len(text)

    async def longest(one: Pooling, **body: Any) -> int:
        return await one.longest_input(body, count)

    bi_encoder = pooling(scores=SimpleNamespace(io_processor_name="bi-encoder"))
    cross_encoder = pooling(scores=SimpleNamespace(io_processor_name="cross-encoder"))
    assert asyncio.run(longest(bi_encoder, queries="ab", documents=["c", "def"])) == 3
    assert asyncio.run(longest(cross_encoder, queries="ab", documents=["c", "def"])) == 5
    assert asyncio.run(longest(pooling(), input=[[1, 2, 3, 4], [1]])) == 4
    assert asyncio.run(longest(pooling(), input="abc", truncate_prompt_tokens=2)) == 0
