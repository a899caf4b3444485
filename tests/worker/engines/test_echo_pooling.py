"""The stand-in engine's vectors: the same always, close where words are shared, and in every form of the API."""

from __future__ import annotations

import base64
import math
import struct
from typing import Any

import pytest

from airflow_llmengine.spec.embedding import EmbeddingRequest
from airflow_llmengine.spec.scoring import RerankRequest, ScoreRequest
from airflow_llmengine.worker.engines.echo_pooling import DIMENSIONS, pooling_body, texts_of, vector_of


def embedded(value: Any, **fields: Any) -> list[Any]:
    request = EmbeddingRequest.model_validate({"input": value, **fields})
    return [item["embedding"] for item in pooling_body(request, "small", 1)["data"]]


def test_a_vector_hangs_on_the_words_alone() -> None:
    assert embedded("a cat") == embedded(["cat  a"])
    assert embedded("a cat") != embedded("a dog")
    assert embedded([1, 2]) == embedded("1 2")
    (vector,) = embedded("a cat")
    assert len(vector) == DIMENSIONS
    assert math.hypot(*vector) == pytest.approx(1)
    assert [len(one) for one in embedded(["a", "b"], dimensions=100)] == [100, 100]
    assert vector_of(" ") == [0] * DIMENSIONS


@pytest.mark.parametrize(("order", "mark"), [("native", "="), ("little", "<"), ("big", ">")])
@pytest.mark.parametrize(("kind", "code", "close"), [("float32", "f", 1e-6), ("float16", "e", 1e-3)])
def test_base64_holds_the_numbers(order: str, mark: str, kind: str, code: str, close: float) -> None:
    (vector,), (text,) = (
        embedded("a cat"),
        embedded("a cat", encoding_format="base64", embed_dtype=kind, endianness=order),
    )
    assert struct.unpack(f"{mark}{DIMENSIONS}{code}", base64.b64decode(text)) == pytest.approx(vector, abs=close)


@pytest.mark.parametrize("order", ["little", "big"])
def test_bfloat16_is_the_first_half_of_float32(order: str) -> None:
    (vector,), (text,) = (
        embedded("a cat"),
        embedded("a cat", encoding_format="base64", embed_dtype="bfloat16", endianness=order),
    )
    data = base64.b64decode(text)
    halves = [data[at : at + 2] if order == "big" else data[at : at + 2][::-1] for at in range(0, len(data), 2)]
    assert [struct.unpack(">f", half + b"\0\0")[0] for half in halves] == pytest.approx(vector, abs=1e-2)


def test_scores_sort_by_shared_words() -> None:
    documents = ["the moon", "a cat sleeps", "a cat"]
    scored = pooling_body(ScoreRequest(queries="a cat", documents=documents), "small", 1)["data"]
    assert [item["index"] for item in scored] == [0, 1, 2]
    assert scored[0]["score"] < scored[1]["score"] < scored[2]["score"] == pytest.approx(1)
    pairs = pooling_body(ScoreRequest(text_1=["a", "b"], text_2=["a", "b"]), "small", 1)["data"]
    assert [item["score"] for item in pairs] == pytest.approx([1, 1])
    ranked = pooling_body(RerankRequest(query="a cat", documents=documents, top_n=2), "small", 1)
    assert [result["index"] for result in ranked["results"]] == [2, 1]
    assert ranked["results"][0]["document"] == {"text": "a cat"}


def test_the_texts_of_each_kind() -> None:
    assert texts_of(EmbeddingRequest(input=[[1, 2], [3]])) == ["1 2", "3"]
    assert texts_of(ScoreRequest(data_1="a", data_2=["b", "c"])) == ["a", "b", "c"]
    assert texts_of(RerankRequest(query="a", documents="b")) == ["a", "b"]
