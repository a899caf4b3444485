"""V1 records on the real engine."""

from __future__ import annotations

import math

import pytest

from airflow_llmengine.spec.results import CompletionOutput
from tests.engine.conftest import RunningEngine
from tests.engine.records import BEGIN, CAPITAL, END, v1

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]


def answer(running: RunningEngine, prompt: str, **fields: object) -> CompletionOutput:
    return CompletionOutput.model_validate(running.answer(v1(prompt, **fields)).body)


def test_the_model_knows_the_capital_of_france(running: RunningEngine) -> None:
    result = answer(running, CAPITAL)
    assert result.text.startswith(" Paris")
    assert (result.num_prompt_tokens, result.num_completion_tokens, result.tokens) == (5, 8, None)


def test_counts_are_given_apart_from_the_body(running: RunningEngine) -> None:
    result = running.answer(v1(CAPITAL, max_new_tokens=3))
    assert (result.prompt_tokens, result.completion_tokens) == (5, 3)


def test_every_generated_token_has_its_log_probability_in_order(running: RunningEngine) -> None:
    result = answer(running, CAPITAL, return_token_log_probs=True)
    assert result.tokens is not None
    assert len(result.tokens) == result.num_completion_tokens == 8
    assert "".join(token.token for token in result.tokens) == result.text
    assert all(token.log_prob is not None and -20 < token.log_prob <= 0 for token in result.tokens)
    # Greedy decoding takes the likeliest token; for this prompt it is likelier than all the others together.
    first = result.tokens[0].log_prob
    assert first is not None
    assert math.exp(first) > 0.5


def test_generation_ends_at_a_stop_sequence_whose_tokens_are_still_listed(running: RunningEngine) -> None:
    free = answer(running, CAPITAL)
    result = answer(running, CAPITAL, stop_sequences=["never there", "."], return_token_log_probs=True)
    assert result.text == free.text.split(".")[0]
    assert result.tokens is not None
    assert len(result.tokens) == result.num_completion_tokens
    assert result.tokens[-1].token == "."


@pytest.mark.parametrize("fields", [{"top_k": 1}, {"top_p": 1e-6}])
def test_sampling_from_the_likeliest_token_alone_is_greedy(running: RunningEngine, fields: dict[str, float]) -> None:
    assert answer(running, CAPITAL, temperature=1, **fields).text == answer(running, CAPITAL).text


def test_temperature_makes_answers_differ(running: RunningEngine) -> None:
    answers = running.answers(*(v1("Once upon a time", temperature=1, max_new_tokens=16) for _ in range(4)))
    assert len({result.body["text"] for result in answers}) == 4


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_a_penalty_makes_repetition_rarer(running: RunningEngine, penalty: str) -> None:
    prompt = "one two three one two three one two three one two three"
    free, penalized = running.answers(v1(prompt, max_new_tokens=40), v1(prompt, max_new_tokens=40, **{penalty: 2}))
    assert len(set(free.body["text"].split())) < len(set(penalized.body["text"].split()))


def test_special_tokens_are_shown_on_request(running: RunningEngine) -> None:
    prompt = "".join(f"{BEGIN}user\n{letter}{END}\n" for letter in "ABCDEF")
    hidden, shown = running.answers(
        v1(prompt, max_new_tokens=2), v1(prompt, max_new_tokens=2, skip_special_tokens=False)
    )
    assert shown.body["text"] == BEGIN + hidden.body["text"]


def test_each_of_the_prompts_has_its_own_answer(running: RunningEngine) -> None:
    prompts = [CAPITAL, "1, 2, 3, 4,"]
    texts = [result.body["text"] for result in running.answers(*map(v1, prompts))]
    assert [text[:2] for text in texts] == [" P", " 5"]
