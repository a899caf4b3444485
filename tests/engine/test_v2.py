"""V2 completion records on the real engine: each field, turned so that the result must change as the field says."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import RunningEngine
from tests.engine.records import ANSWERED, CAPITAL, END, completion

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

Body = dict[str, Any]
STORY = "Once upon a time there was"
COUNTING = "one two three one two three one two three one two three"


@pytest.fixture
def ask(running: RunningEngine) -> Callable[..., Body]:
    def ask_one(prompt: Any, **fields: Any) -> Body:
        return running.answer(completion(prompt, **fields)).body

    return ask_one


@pytest.fixture(scope="session")
def tokenizer(quickstart_model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(quickstart_model)


def text_of(body: Body, choice: int = 0) -> str:
    text: str = body["choices"][choice]["text"]
    return text


def texts_of(body: Body) -> list[str]:
    return [choice["text"] for choice in body["choices"]]


def test_the_result_is_the_apis_response_object(ask: Callable[..., Body]) -> None:
    body = ask(CAPITAL, max_tokens=4)
    assert body.keys() == {"id", "object", "created", "model", "choices", "usage", "system_fingerprint"}
    assert (body["object"], body["model"]) == ("text_completion", "small")
    (choice,) = body["choices"]
    assert choice == {"index": 0, "text": choice["text"], "logprobs": None, "finish_reason": "length"}
    assert text_of(body).startswith(" Paris")
    assert body["usage"] == {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}


def test_greedy_answers_repeat(ask: Callable[..., Body]) -> None:
    assert text_of(ask(STORY)) == text_of(ask(STORY))


def test_max_tokens(ask: Callable[..., Body]) -> None:
    long, short = ask(STORY, max_tokens=12), ask(STORY, max_tokens=5)
    assert (long["usage"]["completion_tokens"], short["usage"]["completion_tokens"]) == (12, 5)
    assert text_of(long).startswith(text_of(short))


def test_max_tokens_is_16_when_it_is_not_given(ask: Callable[..., Body]) -> None:
    assert ask(STORY)["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("stop", [".", ["never there", "."]])
def test_stop(ask: Callable[..., Body], stop: Any) -> None:
    free, stopped = ask(CAPITAL), ask(CAPITAL, stop=stop)
    assert text_of(stopped) == text_of(free).split(".")[0]
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert stopped["choices"][0]["stop_reason"] == "."


def test_stop_string_in_the_output(ask: Callable[..., Body]) -> None:
    assert text_of(ask(CAPITAL, stop=".", include_stop_str_in_output=True)).endswith("Paris.")


def test_stop_token_ids(ask: Callable[..., Body], tokenizer: Any) -> None:
    (period,) = tokenizer.encode(".")
    stopped = ask(CAPITAL, stop_token_ids=[period])
    assert text_of(stopped) == " Paris"
    assert stopped["choices"][0]["stop_reason"] == period


def test_min_tokens_and_ignore_eos(ask: Callable[..., Body]) -> None:
    counts = [
        ask(ANSWERED, max_tokens=6, **fields)["usage"]["completion_tokens"]
        for fields in ({}, {"min_tokens": 4}, {"ignore_eos": True})
    ]
    assert counts[0] == 1
    assert 4 <= counts[1] <= 6
    assert counts[2] == 6


def test_special_tokens_are_shown_on_request(ask: Callable[..., Body]) -> None:
    hidden, shown = (
        text_of(ask(ANSWERED, max_tokens=2, ignore_eos=True, skip_special_tokens=skip)) for skip in (True, False)
    )
    assert shown == END + hidden


def test_n_choices_for_each_prompt_in_order(ask: Callable[..., Body]) -> None:
    body = ask([CAPITAL, "1, 2, 3, 4,"], n=3, temperature=1, top_k=1, max_tokens=3)
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    assert len(set(texts_of(body)[:3])) == len(set(texts_of(body)[3:])) == 1
    assert (text_of(body, 0)[:6], text_of(body, 3)[:2]) == (" Paris", " 5")
    assert body["usage"]["completion_tokens"] == 18


def test_n_samples_differ(ask: Callable[..., Body]) -> None:
    assert len(set(texts_of(ask(STORY, n=4, temperature=1.5)))) == 4


def test_seed(ask: Callable[..., Body]) -> None:
    first, again, other = (text_of(ask(STORY, temperature=1.5, seed=seed)) for seed in (7, 7, 8))
    assert first == again != other


def test_temperature_of_the_api_when_it_is_not_given(running: RunningEngine) -> None:
    # The model's own generation config has none: then it is 1, and answers differ.
    answers = running.answers(*(completion(STORY, temperature=None) for _ in range(3)))
    assert len({text_of(answer.body) for answer in answers}) == 3


@pytest.mark.parametrize("fields", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_sampling_from_the_likeliest_token_alone_is_greedy(ask: Callable[..., Body], fields: Body) -> None:
    assert text_of(ask(STORY, temperature=2, **fields)) == text_of(ask(STORY))


@pytest.mark.parametrize("fields", [{"top_k": -1}, {"top_p": 1}, {"min_p": 0}])
def test_the_value_that_leaves_all_tokens_changes_nothing(ask: Callable[..., Body], fields: Body) -> None:
    assert text_of(ask(STORY, temperature=1, seed=3, **fields)) == text_of(ask(STORY, temperature=1, seed=3))


@pytest.mark.parametrize("fields", [{"presence_penalty": 2}, {"frequency_penalty": 2}, {"repetition_penalty": 1.8}])
def test_a_penalty_makes_repetition_rarer(ask: Callable[..., Body], fields: Body) -> None:
    free, penalized = (text_of(ask(COUNTING, max_tokens=40, **more)) for more in ({}, fields))
    assert len(set(free.split())) < len(set(penalized.split()))


def test_a_negative_penalty_makes_repetition_likelier(ask: Callable[..., Body]) -> None:
    free, rewarded = (text_of(ask(STORY, max_tokens=40, **more)) for more in ({}, {"frequency_penalty": -2}))
    assert len(set(free.split())) > len(set(rewarded.split()))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_logprobs(ask: Callable[..., Body], count: int) -> None:
    logprobs = ask(CAPITAL, logprobs=count, max_tokens=3)["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == text_of(ask(CAPITAL, max_tokens=3))
    assert [len(top) for top in logprobs["top_logprobs"]] == [max(count, 1)] * 3
    for token, chosen, top in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert top[token] == chosen == max(top.values())
        assert sum(map(math.exp, top.values())) <= 1.0001


def test_echo(ask: Callable[..., Body]) -> None:
    assert text_of(ask(CAPITAL, echo=True)) == CAPITAL + text_of(ask(CAPITAL))


def test_echo_with_log_probabilities_of_the_prompt(ask: Callable[..., Body]) -> None:
    (choice,) = ask(CAPITAL, echo=True, logprobs=1, max_tokens=2)["choices"]
    assert len(choice["logprobs"]["tokens"]) == 7
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert all(value < 0 for value in choice["logprobs"]["token_logprobs"][1:])
    assert choice.keys() == {"index", "text", "logprobs", "finish_reason"}


def test_echo_of_the_prompt_alone(ask: Callable[..., Body]) -> None:
    (choice,) = ask(CAPITAL, echo=True, logprobs=1, max_tokens=0)["choices"]
    assert choice["text"] == CAPITAL
    assert len(choice["logprobs"]["tokens"]) == 5


def test_token_ids_are_answered_as_their_text(ask: Callable[..., Body], tokenizer: Any) -> None:
    capital, counting = tokenizer.encode(CAPITAL), tokenizer.encode("1, 2, 3, 4,")
    assert text_of(ask(capital)) == text_of(ask(CAPITAL))
    assert texts_of(ask([capital, counting])) == [text_of(ask(CAPITAL)), text_of(ask("1, 2, 3, 4,"))]


def test_the_echo_of_token_ids_is_their_text(ask: Callable[..., Body], tokenizer: Any) -> None:
    assert text_of(ask(tokenizer.encode(CAPITAL), echo=True, max_tokens=1)).startswith(CAPITAL)


def test_prompts_reach_the_model_letter_for_letter(ask: Callable[..., Body]) -> None:
    prompt = " {{ 7*7 }} {% raw %}\r\n\ttwo\u2028lines \U0001f600 "
    assert text_of(ask(prompt, echo=True, max_tokens=0)) == prompt


def test_user_and_model(ask: Callable[..., Body]) -> None:
    body = ask(CAPITAL, user="ada", model="small", max_tokens=1)
    assert (body["metadata"], body["model"]) == ({"user": "ada"}, "small")
    assert "metadata" not in ask(CAPITAL, max_tokens=1)


def test_fields_that_are_null_or_ask_for_nothing(ask: Callable[..., Body]) -> None:
    body = ask(
        CAPITAL,
        **dict.fromkeys(("top_k", "stop", "seed", "logprobs", "user", "n", "min_tokens", "stream_options")),
        stream=False,
        best_of=1,
        early_stopping=False,
        guided_decoding_backend="auto",
        logit_bias={},
    )
    assert text_of(body) == text_of(ask(CAPITAL))


def test_many_records_at_once_are_each_answered_with_their_own(running: RunningEngine) -> None:
    numbers = [f"Number {number} is" for number in range(100, 160)]
    answers = running.answers(*(completion(prompt, echo=True, max_tokens=2) for prompt in numbers))
    assert [text_of(answer.body).startswith(prompt) for answer, prompt in zip(answers, numbers, strict=True)] == [
        True
    ] * 60
