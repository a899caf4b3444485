"""Embeddings, scores and rerankings on a real model that pools, and what a model of the other kind says to them."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from airflow_llmengine.spec.embedding import EmbeddingRequest
from airflow_llmengine.spec.pooling import PoolingFields
from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.spec.scoring import RerankRequest, ScoreRequest
from airflow_llmengine.worker.engines.base import RecordRejectedError
from airflow_llmengine.worker.engines.vllm import VLLMEngine
from airflow_llmengine.worker.records import Record
from tests.engine.conftest import RunningEngine
from tests.engine.records import CAPITAL, END, chat, completion, job, v1

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

Body = dict[str, Any]
Vector = np.ndarray[Any, np.dtype[Any]]
LIMIT = 64
"""Tokens that this engine's model takes."""

DIMENSIONS = 576
"""Of the model's vectors."""

CLOSE = 2e-5
"""vLLM and transformers add the same numbers in another order."""

TEXTS = ["The cat sat on the mat.", "Quantum", "Ein grüner Baum \U0001f333 steht vor dem Haus, und niemand sieht ihn."]


@pytest.fixture(scope="module")
def pooling_model(quickstart_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights as a Sentence Transformers model: mean of all tokens, length 1, any number of dimensions.

    Its tokenizer ends each text with a special token.
    """
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    directory = tmp_path_factory.mktemp("pooling")
    for path in quickstart_model.iterdir():
        if path.name not in ("config.json", "tokenizer.json"):
            (directory / path.name).symlink_to(path)
    config = json.loads((quickstart_model / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "is_matryoshka": True}))
    tokenizer = Tokenizer.from_file(str(quickstart_model / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, tokenizer.token_to_id(END))]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds.items())
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": DIMENSIONS, "pooling_mode_mean_tokens": True}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return directory


@pytest.fixture(scope="module")
def pooling(pooling_model: Path) -> Iterator[RunningEngine]:
    """An engine with that model."""
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        engine = VLLMEngine(job(pooling_model, max_model_len=LIMIT))
        try:
            runner.run(engine.start())
            yield RunningEngine(engine, runner)
        finally:
            runner.run(engine.stop())


@pytest.fixture(scope="module")
def reference(pooling_model: Path) -> dict[str, Vector]:
    """The mean of the last hidden states of each text's tokens, by transformers alone."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(pooling_model)
    model = AutoModel.from_pretrained(pooling_model, dtype=torch.float32)
    with torch.inference_mode():
        return {
            text: model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(dim=0).numpy()
            for text in TEXTS
        }


@pytest.fixture(scope="module")
def tokenizer(pooling_model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(pooling_model)


def record_of(request: PoolingFields) -> Record:
    assert isinstance(request, EmbeddingRequest | ScoreRequest | RerankRequest)
    return Record(0, "line 1", request, custom_id="c", is_batch_line=True)


def embedding(value: Any, **fields: Any) -> Record:
    return record_of(EmbeddingRequest.model_validate({"input": value, **fields}))


def score(**fields: Any) -> Record:
    return record_of(ScoreRequest.model_validate(fields))


def rerank(query: str, documents: Any, **fields: Any) -> Record:
    return record_of(RerankRequest.model_validate({"query": query, "documents": documents, **fields}))


def vectors(engine: RunningEngine, value: Any, **fields: Any) -> Vector:
    body = engine.answer(embedding(value, **fields)).body
    assert [item["index"] for item in body["data"]] == list(range(len(body["data"])))
    return np.array([item["embedding"] for item in body["data"]])


def scores(engine: RunningEngine, **fields: Any) -> list[float]:
    return [item["score"] for item in engine.answer(score(**fields)).body["data"]]


def rejection(engine: RunningEngine, record: Record) -> RecordRejectedError:
    with pytest.raises(RecordRejectedError) as caught:
        engine.answer(record)
    return caught.value


def assert_close(found: Any, expected: Any, tolerance: float = CLOSE) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=tolerance)


def normalised(vector: Vector) -> Vector:
    return np.asarray(vector / np.linalg.norm(vector))


def test_the_results_are_the_apis_response_objects(pooling: RunningEngine) -> None:
    answer = pooling.answer(embedding(["a", "b"], user="ada", dimensions=2))
    assert answer.body.keys() == {"id", "object", "created", "model", "data", "usage", "metadata"}
    assert (answer.body["object"], answer.body["model"]) == ("list", "small")
    assert [item.keys() for item in answer.body["data"]] == [{"index", "object", "embedding"}] * 2
    assert {item["object"] for item in answer.body["data"]} == {"embedding"}
    # A letter, and the token that ends each text.
    assert answer.body["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    assert (answer.prompt_tokens, answer.completion_tokens) == (4, 0)
    assert answer.body["metadata"] == {"user": "ada"}

    scored = pooling.answer(score(queries="a", documents=["b", "c"])).body
    assert scored.keys() == {"id", "object", "created", "model", "data", "usage"}
    assert [item.keys() for item in scored["data"]] == [{"index", "object", "score"}] * 2
    assert scored["usage"].keys() == {"prompt_tokens", "total_tokens"}

    ranked = pooling.answer(rerank("a", ["b", "c"])).body
    assert ranked.keys() == {"id", "model", "results", "usage"}
    assert [result.keys() for result in ranked["results"]] == [{"index", "document", "relevance_score"}] * 2
    assert {result["document"]["text"] for result in ranked["results"]} == {"b", "c"}


def test_embeddings_are_those_of_transformers(pooling: RunningEngine, reference: dict[str, Vector]) -> None:
    found = vectors(pooling, TEXTS)
    assert found.shape == (len(TEXTS), DIMENSIONS)
    for vector, text in zip(found, TEXTS, strict=True):
        assert_close(vector, normalised(reference[text]))


def test_use_activation_false_leaves_out_the_normalisation(
    pooling: RunningEngine, reference: dict[str, Vector]
) -> None:
    (vector,) = vectors(pooling, TEXTS[0], use_activation=False)
    assert_close(vector, reference[TEXTS[0]], 2e-4)
    assert not 0.99 < np.linalg.norm(vector) < 1.01


def test_dimensions_are_the_first_ones_normalised_again(pooling: RunningEngine) -> None:
    (whole,), (first,) = vectors(pooling, TEXTS[0]), vectors(pooling, TEXTS[0], dimensions=3)
    assert_close(first, normalised(whole[:3]))


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, "<f4"),
        ({"endianness": "big"}, ">f4"),
        ({"embed_dtype": "float16"}, "<f2"),
        ({"embed_dtype": "float16", "endianness": "big"}, ">f2"),
    ],
    ids=str,
)
def test_base64_is_the_same_vector(pooling: RunningEngine, fields: Body, kind: str) -> None:
    body = pooling.answer(embedding(TEXTS, encoding_format="base64", **fields)).body
    found = np.array([np.frombuffer(base64.b64decode(item["embedding"]), kind) for item in body["data"]])
    assert_close(found, vectors(pooling, TEXTS), 1e-6 if kind.endswith("4") else 1e-3)


def test_token_ids_are_embedded_as_they_are(pooling: RunningEngine, tokenizer: Any) -> None:
    ids = [tokenizer.encode(text) for text in TEXTS]
    assert_close(vectors(pooling, ids), vectors(pooling, TEXTS))
    assert_close(vectors(pooling, ids[1]), vectors(pooling, TEXTS[1]))


def test_special_tokens_are_left_out_on_request(pooling: RunningEngine, tokenizer: Any) -> None:
    without = vectors(pooling, TEXTS[0], add_special_tokens=False)
    assert_close(without, vectors(pooling, tokenizer.encode(TEXTS[0])[:-1]))
    assert np.abs(without - vectors(pooling, TEXTS[0])).max() > 1e-3


@pytest.mark.parametrize(("side", "kept"), [("left", slice(-4, None)), ("right", slice(0, 4))])
def test_a_long_input_is_cut_on_request(pooling: RunningEngine, tokenizer: Any, side: str, kept: slice) -> None:
    cut = vectors(pooling, tokenizer.encode(TEXTS[2]), truncate_prompt_tokens=4, truncation_side=side)
    assert_close(cut, vectors(pooling, tokenizer.encode(TEXTS[2])[kept]))


def test_what_fits_is_kept_on_request(pooling: RunningEngine) -> None:
    assert pooling.answer(embedding([5] * 100, truncate_prompt_tokens=-1)).prompt_tokens == LIMIT


def test_a_score_is_how_close_two_vectors_are(pooling: RunningEngine) -> None:
    query, *documents = vectors(pooling, TEXTS)
    expected = [float(query @ document) for document in documents]
    for first, second in (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")):
        assert_close(scores(pooling, **{first: TEXTS[0], second: TEXTS[1:]}), expected)
    # N with N: each with its own.
    both = scores(pooling, queries=[TEXTS[0], TEXTS[1]], documents=[TEXTS[0], TEXTS[2]])
    assert_close(both, [1, float(documents[0] @ documents[1])])


def test_a_reranking_is_sorted_by_the_score(pooling: RunningEngine) -> None:
    documents = ["Stock prices fell sharply.", "The cat sat on a mat.", "Rain"]
    scored = scores(pooling, queries=TEXTS[0], documents=documents)
    body = pooling.answer(rerank(TEXTS[0], documents)).body
    assert [result["index"] for result in body["results"]] == sorted(range(3), key=lambda index: -scored[index])
    assert body["results"][0]["document"] == {"text": documents[1]}
    for result in body["results"]:
        assert result["relevance_score"] == pytest.approx(scored[result["index"]], abs=2e-5)
    assert pooling.answer(rerank(TEXTS[0], documents, top_n=1)).body["results"] == body["results"][:1]


@pytest.mark.parametrize("field", ["max_tokens_per_query", "max_tokens_per_doc"])
def test_a_side_of_a_score_is_cut_on_request(pooling: RunningEngine, field: str) -> None:
    long = "The cat sat on the mat and looked at the door"
    whole = scores(pooling, queries=long, documents=long)
    cut = scores(pooling, queries=long, documents=long, **{field: 2})
    expected = scores(pooling, queries="The cat", documents=long)
    assert whole == pytest.approx([1], abs=2e-5)
    assert cut == pytest.approx(expected, abs=2e-5)
    assert cut[0] < 0.999


@pytest.mark.parametrize(
    ("record", "tokens"),
    [
        (embedding([5] * 65), 65),
        (embedding([[5], [5] * 70]), 70),
        (embedding(" word" * 90), 91),
        (embedding(["a", " word" * 90], add_special_tokens=False), 90),
        (score(queries="a", documents=["b", " word" * 90]), 91),
        (rerank(" word" * 70, ["b"]), 71),
    ],
    ids=lambda value: "" if isinstance(value, Record) else str(value),
)
def test_an_input_that_is_too_long_names_both_counts(pooling: RunningEngine, record: Record, tokens: int) -> None:
    error = rejection(pooling, record)
    assert error.error_type is RecordErrorType.CONTEXT_LENGTH_EXCEEDED
    assert error.message.startswith(f"the input has {tokens} tokens, and the model takes {LIMIT}: ")


def test_the_longest_input_is_embedded(pooling: RunningEngine) -> None:
    assert pooling.answer(embedding([5] * LIMIT)).prompt_tokens == LIMIT


@pytest.mark.parametrize("value", ["", ["a", ""], [[]], [[5], []]])
def test_an_input_without_tokens_that_no_check_has_seen(pooling: RunningEngine, value: Any) -> None:
    request = EmbeddingRequest.model_construct(input=value, add_special_tokens=False)
    assert rejection(pooling, record_of(request)).error_type is RecordErrorType.EMPTY_PROMPT


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"dimensions": DIMENSIONS + 1}, "dimensions"),
        ({"input": [10**7]}, "out of vocabulary"),
        ({"truncate_prompt_tokens": LIMIT + 1}, "truncate_prompt_tokens"),
    ],
    ids=str,
)
def test_what_the_model_does_not_have_is_an_error_of_its_record(
    pooling: RunningEngine, fields: Body, said: str
) -> None:
    error = rejection(pooling, embedding(**{"value": fields.pop("input", "a"), **fields}))
    assert error.error_type is RecordErrorType.REJECTED_BY_ENGINE
    assert said in error.message


@pytest.mark.parametrize("record", [v1("a"), completion("a"), chat("a")], ids=["v1", "completion", "chat"])
def test_a_pooling_model_says_that_it_generates_nothing(pooling: RunningEngine, record: Record) -> None:
    error = rejection(pooling, record)
    assert error.error_type is RecordErrorType.UNSUPPORTED
    assert error.message.startswith("the model generates no text, what it does is embed")


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (embedding("a"), "the model computes no embeddings, what it does is generate"),
        (score(queries="a", documents="b"), "the model scores no texts, what it does is generate"),
        (rerank("a", ["b"]), "the model scores no texts, what it does is generate"),
    ],
    ids=["embedding", "score", "reranking"],
)
def test_a_model_that_generates_says_that_it_does_not_pool(running: RunningEngine, record: Record, said: str) -> None:
    error = rejection(running, record)
    assert error.error_type is RecordErrorType.UNSUPPORTED
    assert error.message.startswith(said)
    assert '"runner": "pooling"' in error.message


def test_many_records_at_once_are_each_answered_with_their_own(pooling: RunningEngine) -> None:
    numbers = [f"Number {number}" for number in range(100, 148)]
    together = pooling.answers(*(embedding(text, dimensions=8) for text in numbers))
    alone = vectors(pooling, numbers, dimensions=8)
    for answer, vector in zip(together, alone, strict=True):
        assert_close(answer.body["data"][0]["embedding"], vector)
    assert pooling.unfinished() == 0


def test_the_engines_go_on_after_all_of_this(pooling: RunningEngine, running: RunningEngine) -> None:
    assert vectors(pooling, "a").shape == (1, DIMENSIONS)
    assert running.answer(v1(CAPITAL)).body["text"].startswith(" Paris")
