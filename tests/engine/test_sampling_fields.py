"""Sampling fields that vLLM's own server lacks, drops or hides: each turned so that the result must change as it says.

The fields that vLLM has as they are stand in ``test_v2``; ``test_tested_fields`` knows which field is tested where.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import decoders, processors

from airflow_llmengine.spec.results import RecordErrorType
from tests.engine.conftest import RunningEngine
from tests.engine.records import BEGIN, CAPITAL, END, MAX_MODEL_LEN, chat, completion, v1
from tests.engine.test_faults import rejected
from tests.engine.test_v2 import STORY, Body, ask, text_of, texts_of, tokenizer

__all__ = ["ask", "tokenizer"]

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

CHOICES = "<|im_start|>user\nName a colour.<|im_end|>\n<|im_start|>assistant\n"
"""The model may end its answer to this after more or fewer tokens."""


def log_probs_of(choice: Body) -> list[float]:
    """Of the chosen tokens; of a completion, or of a chat."""
    logprobs = choice["logprobs"]
    if "content" in logprobs:
        return [token["logprob"] for token in logprobs["content"]]
    return list(logprobs["token_logprobs"])


def mean(choice: Body) -> float:
    log_probs = log_probs_of(choice)
    return sum(log_probs) / len(log_probs)


def said(choice: Body) -> str:
    return choice["message"]["content"] if "message" in choice else choice["text"]  # type: ignore[no-any-return]


def best_first(choices: list[Body]) -> list[str]:
    return [said(choice) for choice in sorted(choices, key=mean, reverse=True)]


def serving(running: RunningEngine) -> Any:
    """VLLM's serving objects."""
    assert running.engine._serving is not None
    return running.engine._serving


def test_best_of_keeps_the_highest_mean_log_probabilities_in_descending_order(ask: Callable[..., Body]) -> None:
    fields = {"temperature": 1.2, "seed": 5, "max_tokens": 8, "stop": "."}
    candidates = ask(STORY, n=5, logprobs=0, **fields)
    best = ask(STORY, n=2, best_of=5, **fields)
    assert texts_of(best) == best_first(candidates["choices"])[:2]
    assert texts_of(best) != texts_of(candidates)[:2]
    assert [choice["index"] for choice in best["choices"]] == [0, 1]
    # All that was generated is counted, and what was needed to choose is not shown.
    assert best["usage"] == candidates["usage"]
    assert [choice["logprobs"] for choice in best["choices"]] == [None, None]
    assert best == ask(STORY, n=2, best_of=5, **fields) | {name: best[name] for name in ("id", "created")}


def test_best_of_for_each_prompt_with_echo_and_log_probabilities(ask: Callable[..., Body]) -> None:
    fields = {"prompt": [STORY, CAPITAL], "temperature": 1.2, "seed": 5, "max_tokens": 6}
    candidates = ask(n=3, logprobs=0, **fields)["choices"]
    best = ask(best_of=3, logprobs=2, **fields)["choices"]
    assert [said(choice) for choice in best] == [best_first(candidates[:3])[0], best_first(candidates[3:])[0]]
    assert [mean(choice) for choice in best] == pytest.approx(
        [max(map(mean, candidates[at : at + 3])) for at in (0, 3)]
    )
    echoed = ask(best_of=3, echo=True, **fields)["choices"]
    assert [said(choice) for choice in echoed] == [STORY + said(best[0]), CAPITAL + said(best[1])]
    assert {choice["logprobs"] for choice in echoed} == {None}


def test_best_of_in_a_chat(running: RunningEngine) -> None:
    fields = {"temperature": 1.2, "seed": 5, "max_tokens": 8}
    candidates, best = (
        running.answer(chat("Name a colour.", **fields, **more)).body
        for more in ({"n": 5, "logprobs": True}, {"n": 2, "best_of": 5})
    )
    assert [said(choice) for choice in best["choices"]] == best_first(candidates["choices"])[:2]
    assert {choice["logprobs"] for choice in best["choices"]} == {None}
    assert best["usage"]["completion_tokens"] == candidates["usage"]["completion_tokens"]


def test_the_best_of_several_greedy_answers_is_the_greedy_one(ask: Callable[..., Body]) -> None:
    greedy, best = ask(STORY), ask(STORY, best_of=5)
    assert texts_of(best) == texts_of(greedy)
    # Not what would be the same five times.
    assert best["usage"] == greedy["usage"]


def total(body: Body) -> float:
    return sum(log_probs_of(body["choices"][0]))


def test_beam_search_finds_what_is_likelier_than_the_greedy_answer(ask: Callable[..., Body]) -> None:
    greedy, searched = (
        ask(STORY, max_tokens=12, logprobs=0, **fields) for fields in ({}, {"use_beam_search": True, "best_of": 4})
    )
    assert len(log_probs_of(searched["choices"][0])) == 12
    assert total(searched) > total(greedy) + 0.5
    assert searched["usage"]["completion_tokens"] == 4 * 12
    # One beam goes the way of greedy decoding.
    assert texts_of(ask(STORY, max_tokens=12, use_beam_search=True)) == texts_of(greedy)


def test_the_best_n_of_the_beams_are_kept_for_each_prompt(ask: Callable[..., Body]) -> None:
    all_beams = ask([STORY, CHOICES], max_tokens=6, use_beam_search=True, n=4, logprobs=0)["choices"]
    best = ask([STORY, CHOICES], max_tokens=6, use_beam_search=True, n=2, best_of=4)["choices"]
    assert [said(choice) for choice in best] == [said(all_beams[at]) for at in (0, 1, 4, 5)]
    assert [choice["index"] for choice in best] == [0, 1, 2, 3]
    scores = [sum(log_probs_of(choice)) for choice in all_beams[:4]]
    assert scores == sorted(scores, reverse=True)
    assert len({said(choice) for choice in all_beams[:4]}) == 4


def test_beam_search_lists_the_likeliest_tokens_and_the_chosen_ones(ask: Callable[..., Body]) -> None:
    choices = ask(STORY, max_tokens=6, use_beam_search=True, n=4, logprobs=1)["choices"]
    places = [
        (token, log_prob, likeliest)
        for choice in choices
        for token, log_prob, likeliest in zip(*(choice["logprobs"][name] for name in LISTS), strict=True)
    ]
    assert all(likeliest.get(token) == log_prob for token, log_prob, likeliest in places)
    # The chosen one is not always the likeliest.
    assert {len(likeliest) for _, _, likeliest in places} == {1, 2}


LISTS = ("tokens", "token_logprobs", "top_logprobs")


def test_beam_search_in_a_chat(running: RunningEngine) -> None:
    greedy, searched = (
        running.answer(chat("Tell me a story.", max_tokens=12, logprobs=True, top_logprobs=2, **fields)).body
        for fields in ({}, {"use_beam_search": True, "best_of": 4})
    )
    assert total(searched) > total(greedy)
    (choice,) = searched["choices"]
    assert {len(token["top_logprobs"]) for token in choice["logprobs"]["content"]} == {2}


def test_length_penalty(ask: Callable[..., Body]) -> None:
    shortest, longest = (
        ask(CHOICES, max_tokens=16, use_beam_search=True, best_of=4, length_penalty=penalty)["choices"][0]
        for penalty in (-20, 20)
    )
    assert (shortest["finish_reason"], longest["finish_reason"]) == ("stop", "length")
    assert len(said(shortest)) < len(said(longest))


def test_beam_search_with_echo_and_to_the_end_of_the_tokens(ask: Callable[..., Body]) -> None:
    fields = {"use_beam_search": True, "best_of": 3, "max_tokens": 16}
    free, echoed, endless = (
        ask(CHOICES, **fields, **more)
        for more in ({"length_penalty": -20}, {"echo": True, "length_penalty": -20}, {"ignore_eos": True})
    )
    assert text_of(echoed) == CHOICES + text_of(free)
    assert free["choices"][0]["finish_reason"] == "stop"
    assert endless["usage"]["completion_tokens"] == 3 * 16


def test_the_temperature_has_no_say_in_beam_search(ask: Callable[..., Body]) -> None:
    fields = {"use_beam_search": True, "n": 3, "max_tokens": 12}
    answers = [ask(CHOICES, temperature=temperature, **fields)["choices"] for temperature in (0, 1, 1, None)]
    assert answers == [answers[0]] * 4


def test_a_beam_search_that_is_cancelled_leaves_nothing_in_the_engine(running: RunningEngine) -> None:
    searches = [
        completion(STORY, use_beam_search=True, n=8, max_tokens=400, ignore_eos=True),
        completion([STORY, CAPITAL], use_beam_search=True, n=4, max_tokens=400, ignore_eos=True),
        chat("Tell me a story.", use_beam_search=True, n=4, max_tokens=400, ignore_eos=True),
    ]

    async def cancel_in_mid_run() -> tuple[int, int, int]:
        tasks = [asyncio.create_task(running.engine.complete(record)) for record in searches]
        before = 0
        while before < 12:
            await asyncio.sleep(0.01)
            before = running.unfinished()
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError] * 3
        await asyncio.sleep(0.2)
        after = running.unfinished()
        # Nor does any search begin its next step.
        await asyncio.sleep(0.5)
        return before, after, running.unfinished()

    assert running.run(cancel_in_mid_run())[1:] == (0, 0)
    assert running.answer(v1(CAPITAL)).body["text"].startswith(" Paris")


def test_vllms_beam_search_takes_what_the_check_expects() -> None:
    # One that it takes as of some version is not to be refused with it any longer: ``spec/check_beam_search``.
    from vllm.sampling_params import BeamSearchParams

    assert set(BeamSearchParams.__struct_fields__) == {
        "beam_width",
        "max_tokens",
        "ignore_eos",
        "temperature",
        "length_penalty",
        "include_stop_str_in_output",
        "structured_outputs",  # Of vLLM's offline class only.
        "skip_special_tokens",
        "watermarking",
    }


def test_more_beams_than_the_engine_gives_log_probabilities_for(running: RunningEngine) -> None:
    error = rejected(running, completion(STORY, use_beam_search=True, n=11))
    assert error.error_type is RecordErrorType.UNSUPPORTED
    assert "22 as max_logprobs in engine_args" in error.message


def test_logit_bias_bans_and_forces_tokens(ask: Callable[..., Body], running: RunningEngine, tokenizer: Any) -> None:
    (paris,), (the,) = tokenizer.encode(" Paris"), tokenizer.encode(" the")
    free, banned, forced = (ask(CAPITAL, logit_bias=bias) for bias in ({}, {str(paris): -100}, {str(the): 100}))
    assert " Paris" in text_of(free)
    assert " Paris" not in text_of(banned)
    assert text_of(forced) == " the" * 16
    told = running.answer(chat(CAPITAL, max_tokens=3, logit_bias={str(the): 99.5})).body
    assert said(told["choices"][0]) == " the the the"


def test_special_tokens_are_added_to_the_prompt(
    ask: Callable[..., Body], running: RunningEngine, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.tokenizers.hf import get_cached_tokenizer

    # The model's own tokenizer adds none.
    adding = copy.deepcopy(tokenizer)
    adding.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, 1)]
    )
    renderer = serving(running).completion.online_renderer.renderer
    monkeypatch.setattr(renderer, "tokenizer", get_cached_tokenizer(adding))
    given, left_out, default = (
        ask(CAPITAL, max_tokens=1, **fields)["usage"]["prompt_tokens"]
        for fields in ({"add_special_tokens": True}, {"add_special_tokens": False}, {})
    )
    assert (given, left_out, default) == (6, 5, 6)


def test_spaces_between_special_tokens(
    ask: Callable[..., Body], running: RunningEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The model's own tokenizer never has any; one that sets words apart does.
    backend = serving(running).client.output_processor.tokenizer.backend_tokenizer
    monkeypatch.setattr(backend, "decoder", decoders.WordPiece())
    fields = {"max_tokens": 3, "ignore_eos": True, "skip_special_tokens": False, "logit_bias": {"2": 100}}
    apart, together = (text_of(ask(CAPITAL, spaces_between_special_tokens=yes, **fields)) for yes in (True, False))
    assert apart == f" {END}" * 3
    assert together == f" {END}{END}{END}"


def test_a_suffix_where_the_model_takes_one(
    ask: Callable[..., Body], running: RunningEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer = serving(running).completion.online_renderer.renderer
    monkeypatch.setattr(renderer, "render_completion_suffix", "{} {}".format)
    assert text_of(ask("The capital of", suffix="France is")) == text_of(ask(CAPITAL))


def test_the_log_probabilities_of_an_echoed_prompt_are_those_of_its_tokens(ask: Callable[..., Body]) -> None:
    # The last token of one prompt is what the model was asked for in the other.
    prompt = ask(f"{CAPITAL} Paris", echo=True, logprobs=0, max_tokens=0)["choices"][0]["logprobs"]
    answer = ask(CAPITAL, logprobs=0, max_tokens=1)["choices"][0]["logprobs"]
    assert prompt["token_logprobs"][0] is None
    assert prompt["tokens"][-1:] == answer["tokens"] == [" Paris"]
    assert prompt["token_logprobs"][-1:] == pytest.approx(answer["token_logprobs"], abs=1e-3)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"top_p": 0}, "top_p"),
        ({"min_p": 1.5}, "min_p"),
        ({"min_p": -0.5}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"min_tokens": 2**62}, "min_tokens"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": [2**62]}, "stop_token_ids"),
        ({"logit_bias": {"49152": 1}}, "logit_bias"),
        ({"logit_bias": {str(10**17): 1}}, "logit_bias"),
        ({"prompt": [49_152]}, "vocabulary"),
        ({"prompt": [49_152], "echo": True, "logprobs": 1, "max_tokens": 0}, "vocabulary"),
        ({"prompt": ["a"] * 1025}, "1024"),
        ({"best_of": 5, "n": 2}, "greedy"),
        ({"prompt": CAPITAL, "suffix": "the end", "echo": True}, "suffix"),
    ],
    ids=str,
)
def test_values_out_of_bounds_cost_their_own_row(running: RunningEngine, fields: Body, named: str) -> None:
    error = rejected(running, completion(**{"prompt": CAPITAL, **fields}))
    assert error.error_type is RecordErrorType.REJECTED_BY_ENGINE
    assert named in error.message


def test_more_tokens_than_fit(running: RunningEngine) -> None:
    error = rejected(running, completion(CAPITAL, max_tokens=2**62))
    assert error.error_type is RecordErrorType.CONTEXT_LENGTH_EXCEEDED
    assert str(MAX_MODEL_LEN) in error.message


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": 2**62},
        {"top_p": 1e-300},
        {"min_p": 1e-300},
        {"temperature": 1e-300},
        {"temperature": 1e-4},
        {"repetition_penalty": 1e300},
        {"repetition_penalty": 1e-300},
        {"seed": 2**63 - 1, "n": 3},
        {"seed": -(2**63), "n": 3},
        {"seed": -1},
        {"n": 128, "max_tokens": 1},
        {"logit_bias": dict.fromkeys(map(str, range(3000)), 100)},
        {"logit_bias": {"5": -100, "6": 100}, "top_k": 1, "min_tokens": 4},
        {"stop_token_ids": list(range(3000))},
        {"stop": ["x" * 5000]},
        {"use_beam_search": True, "best_of": 10, "length_penalty": 50, "max_tokens": 2},
        {"use_beam_search": True, "best_of": 10, "length_penalty": -50, "max_tokens": 2},
    ],
    ids=lambda fields: " ".join(f"{name}={str(value)[:10]}" for name, value in fields.items()),
)
def test_extreme_values_that_mean_something_leave_the_engine_alive(running: RunningEngine, fields: Body) -> None:
    before = running.answer(v1(CAPITAL)).body
    body = running.answer(completion(**{"prompt": CAPITAL, "temperature": 1, "max_tokens": 4, **fields})).body
    assert len(body["choices"]) == fields.get("n", 1)
    assert running.answer(v1(CAPITAL)).body == before
