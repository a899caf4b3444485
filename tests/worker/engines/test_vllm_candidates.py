"""Which answers are asked for, and which of them are kept."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.engines.base import RecordRejectedError
from airflow_llmengine.worker.engines.vllm_candidates import Candidates, EngineSampling

ENGINE = EngineSampling(temperature=1, max_logprobs=20, gives_log_probabilities=True)
GREEDY_MODEL = replace(ENGINE, temperature=0)


def completion(**fields: Any) -> CompletionV2Request:
    return CompletionV2Request.model_validate({"prompt": "a", **fields})


def chat(**fields: Any) -> ChatCompletionV2Request:
    return ChatCompletionV2Request.model_validate({"messages": [], **fields})


def asked(record: CompletionV2Request | ChatCompletionV2Request) -> dict[str, Any]:
    """What is asked in addition to what the record asks."""
    candidates = Candidates.of(record, ENGINE)
    assert candidates is not None
    body = record.given()
    return {name: value for name, value in candidates.asked(body).items() if body.get(name, ...) != value}


def scored(*log_probs: float, text: str = "", prompt: int = 0) -> dict[str, Any]:
    """A completion's choice; its first log probabilities may be those of so many tokens of the prompt."""
    choice: dict[str, Any] = {"index": 9, "text": text, "logprobs": {"token_logprobs": list(log_probs)}}
    return choice | {"prompt_logprobs": [None] * prompt} if prompt else choice


def kept(record: CompletionV2Request | ChatCompletionV2Request, *choices: dict[str, Any]) -> list[dict[str, Any]]:
    candidates = Candidates.of(record, ENGINE)
    assert candidates is not None
    response = {"choices": list(choices), "usage": {"completion_tokens": 99}}
    candidates.keep(response)
    assert response["usage"] == {"completion_tokens": 99}
    return response["choices"]  # type: ignore[return-value]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 3},
        {"n": 3, "best_of": None},
        {"n": 3, "best_of": 3},
        {"best_of": 5, "temperature": 0},
        {"use_beam_search": False},
    ],
)
def test_a_record_that_keeps_all_that_is_generated(fields: dict[str, Any]) -> None:
    assert Candidates.of(completion(**fields), ENGINE) is None
    assert Candidates.of(chat(**fields), ENGINE) is None


def test_the_prompt_alone_needs_no_candidates() -> None:
    assert Candidates.of(completion(best_of=5, echo=True, max_tokens=0), ENGINE) is None


@pytest.mark.parametrize("fields", [{"best_of": 5}, {"best_of": 5, "temperature": None}])
def test_the_models_own_generation_config_may_be_greedy(fields: dict[str, Any]) -> None:
    assert Candidates.of(completion(**fields), GREEDY_MODEL) is None
    assert Candidates.of(completion(**fields), ENGINE) is not None


def test_several_of_the_same_are_left_for_vllm_to_refuse() -> None:
    assert asked(completion(n=2, best_of=5, temperature=0)) == {"n": 5, "logprobs": 0}


@pytest.mark.parametrize(
    ("record", "more"),
    [
        (completion(best_of=4), {"n": 4, "logprobs": 0}),
        (completion(best_of=4, n=2, logprobs=3), {"n": 4}),
        (chat(best_of=4, n=2), {"n": 4, "logprobs": True}),
        (chat(best_of=4, n=2, logprobs=True, top_logprobs=2), {"n": 4}),
        (chat(best_of=4, n=2, top_logprobs=2), {"n": 4}),
        (completion(use_beam_search=True, n=2), {"temperature": 0}),
        (completion(use_beam_search=True, n=2, best_of=5), {"n": 5, "temperature": 0}),
        (completion(use_beam_search=True), {"n": 1, "temperature": 0}),
    ],
)
def test_what_is_asked_to_rank_by(record: CompletionV2Request | ChatCompletionV2Request, more: dict[str, Any]) -> None:
    assert asked(record) == more


def test_the_highest_mean_log_probabilities_are_kept_in_descending_order() -> None:
    # A sum would choose those of one token.
    best = kept(
        completion(n=3, best_of=4),
        scored(-0.9, text="third"),
        scored(-0.5, -0.5, -0.5, text="second"),
        scored(-2, text="last"),
        scored(-0.1, -0.3, -0.5, -0.6, text="first"),
    )
    assert best == [{"index": at, "text": text} for at, text in enumerate(("first", "second", "third"))]


def test_each_prompt_keeps_its_own() -> None:
    best = kept(
        completion(prompt=["a", "b"], best_of=2),
        scored(-3, text="a worse"),
        scored(-2, text="a better"),
        scored(-0.1, text="b better"),
        scored(-0.2, text="b worse"),
    )
    assert best == [{"index": 0, "text": "a better"}, {"index": 1, "text": "b better"}]


def test_the_log_probabilities_of_an_echoed_prompt_count_for_nothing() -> None:
    worse = scored(None, -0.1, -0.1, -2, text="worse", prompt=3)  # type: ignore[arg-type]
    better = scored(None, -9, -9, -1, -1, -1, text="better", prompt=3)  # type: ignore[arg-type]
    (best,) = kept(completion(best_of=2, echo=True), worse, better)
    assert best["text"] == "better"


def test_what_has_no_log_probability_ranks_last() -> None:
    texts = [
        choice["text"]
        for choice in kept(
            completion(best_of=4, n=3, logprobs=1),
            scored(math.nan, text="nan"),
            scored(-9999.0, text="impossible"),
            scored(text="empty"),
            scored(-1, text="good"),
        )
    ]
    assert texts == ["good", "impossible", "nan"]


def test_log_probabilities_stay_if_they_were_asked_for() -> None:
    (best,) = kept(completion(best_of=2, logprobs=0), scored(-2), scored(-1))
    assert best["logprobs"] == {"token_logprobs": [-1]}
    content = [[{"token": "a", "logprob": -2}], [{"token": "b", "logprob": -1}]]
    for fields, has in (({"logprobs": True}, True), ({"logprobs": False}, False), ({}, False)):
        (best,) = kept(chat(best_of=2, **fields), *({"logprobs": {"content": one}} for one in content))
        assert best.get("logprobs") == ({"content": content[1]} if has else None)


def test_beams_are_kept_in_vllms_order() -> None:
    choices = ({"index": at, "text": text, "logprobs": None} for at, text in enumerate("abcdef"))
    best = kept(completion(prompt=["x", "y"], n=2, best_of=3, use_beam_search=True), *choices)
    assert [(choice["index"], choice["text"]) for choice in best] == [(0, "a"), (1, "b"), (2, "d"), (3, "e")]


@pytest.mark.parametrize(
    ("count", "listed"),
    [
        (0, [{"c": -3}, {"a": -1}]),
        (1, [{"a": -1, "c": -3}, {"a": -1}]),
        (2, [{"a": -1, "b": -2, "c": -3}, {"a": -1, "b": -2}]),
    ],
)
def test_beams_list_as_many_likeliest_tokens_as_asked_for_and_the_chosen_one(
    count: int, listed: list[dict[str, float]]
) -> None:
    one_too_many = dict(list({"a": -1, "b": -2, "d": -2.5}.items())[: count + 1])
    logprobs = {"tokens": ["c", "a"], "token_logprobs": [-3, -1], "top_logprobs": [one_too_many] * 2}
    (best,) = kept(completion(use_beam_search=True, logprobs=count), {"logprobs": logprobs})
    assert best["logprobs"]["top_logprobs"] == listed


def test_a_beam_needs_twice_its_width_of_log_probabilities() -> None:
    assert Candidates.of(completion(use_beam_search=True, best_of=10), ENGINE) is not None
    with pytest.raises(RecordRejectedError, match="22 as max_logprobs in engine_args") as raised:
        Candidates.of(completion(use_beam_search=True, n=11), ENGINE)
    assert raised.value.error_type is RecordErrorType.UNSUPPORTED


@pytest.mark.parametrize(("field", "value"), [("best_of", 2), ("use_beam_search", True)])
def test_logits_are_nothing_to_rank_by(field: str, value: Any) -> None:
    with pytest.raises(RecordRejectedError, match=f"{field}: .*logprobs_mode"):
        Candidates.of(completion(**{field: value}), replace(ENGINE, gives_log_probabilities=False))
    assert Candidates.of(completion(), replace(ENGINE, gives_log_probabilities=False)) is None
