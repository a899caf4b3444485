"""What a record may not ask for together with beam search."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.check_beam_search import DROPPED
from airflow_llmengine.spec.check_record import check_record
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.spec.sampling import SamplingFields
from tests.spec.sample_requests import parsed

TAKEN = frozenset(
    {
        "best_of",
        "ignore_eos",
        "length_penalty",
        "model",
        "n",
        "skip_special_tokens",
        "use_beam_search",
        "user",
    }
)
"""Fields that beam search, or what is around it, heeds."""

REFUSED_ANYWAY = frozenset(
    {"early_stopping", "guided_decoding_backend", "guided_whitespace_pattern", "stream", "stream_options"}
)

DROPPED_VALUES: dict[str, Any] = {
    "frequency_penalty": 0.1,
    "guided_choice": ["a"],
    "guided_grammar": "root ::= (1)",
    "guided_json": {},
    "guided_regex": "a",
    "include_stop_str_in_output": True,
    "logit_bias": {"5": 1},
    "min_p": 0.1,
    "min_tokens": 1,
    "presence_penalty": -0.1,
    "repetition_penalty": 1.1,
    "response_format": {"type": "json_object"},
    "seed": 0,
    "stop": "a",
    "stop_token_ids": [5],
    "temperature": 0.5,
    "top_k": 5,
    "top_p": 0.5,
}
"""For each field that it drops a value that would have an effect without it."""

DROPPED_VALUES_OF_A_CHAT: dict[str, Any] = {
    "allowed_token_ids": [5],
    "bad_words": ["a"],
    "prompt_logprobs": 0,
    "thinking_token_budget": 5,
    "tool_choice": "required",
}

WITHOUT_EFFECT: list[dict[str, Any]] = [
    {},
    dict.fromkeys(DROPPED_VALUES),
    {"stop_token_ids": [], "logit_bias": {}, "min_tokens": 0, "include_stop_str_in_output": False},
    {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1, "min_p": 0, "top_p": 1.0, "top_k": -1},
    {"top_k": 0, "temperature": 0, "response_format": {"type": "text"}},
    {"temperature": 1.0},
    {"n": 3, "best_of": 5, "length_penalty": -2.5, "ignore_eos": True, "skip_special_tokens": False},
    {"early_stopping": False, "spaces_between_special_tokens": False},
    {"length_penalty": 50},
]


def faults(**fields: Any) -> list[tuple[RecordErrorType, str] | None]:
    """Of a completion and of a chat."""
    completion = {"prompt": "hi", "use_beam_search": True, **fields}
    chat = {"messages": [{"role": "user", "content": "hi"}], "use_beam_search": True, **fields}
    return [
        check_record(CompletionV2Request.model_validate(completion), parsed()),
        check_record(ChatCompletionV2Request.model_validate(chat), parsed()),
    ]


def test_every_sampling_field_is_heeded_dropped_or_refused_anyway() -> None:
    shared = set(SamplingFields.model_fields)
    assert shared - DROPPED.keys() == TAKEN | REFUSED_ANYWAY | {"spaces_between_special_tokens"}
    assert DROPPED.keys() == DROPPED_VALUES.keys() | DROPPED_VALUES_OF_A_CHAT.keys()
    assert DROPPED_VALUES.keys() == (DROPPED.keys() & shared) | {"logit_bias"}


@pytest.mark.parametrize("name", sorted(DROPPED_VALUES))
def test_what_it_drops_is_refused_and_named(name: str) -> None:
    for fault in faults(**{name: DROPPED_VALUES[name]}):
        assert fault is not None
        assert f"{name}: vLLM's beam search has no such choice" in fault[1]


@pytest.mark.parametrize("name", sorted(DROPPED_VALUES_OF_A_CHAT))
def test_what_it_drops_of_a_chat(name: str) -> None:
    fields = {"messages": [{"role": "user", "content": "hi"}], name: DROPPED_VALUES_OF_A_CHAT[name]}
    fault = check_record(ChatCompletionV2Request.model_validate({**fields, "use_beam_search": True}), parsed())
    assert fault is not None
    assert f"{name}: vLLM's beam search has no such choice" in fault[1]


@pytest.mark.parametrize("fields", WITHOUT_EFFECT)
def test_what_asks_for_nothing_passes(fields: dict[str, Any]) -> None:
    assert faults(**fields) == [None, None]


@pytest.mark.parametrize("penalty", [50.5, -51])
def test_a_length_penalty_that_no_computer_can_apply(penalty: float) -> None:
    for fault in faults(length_penalty=penalty):
        assert fault == (RecordErrorType.UNSUPPORTED, "length_penalty: must be from -50 to 50")


def test_special_tokens_without_spaces() -> None:
    for fault in faults(skip_special_tokens=False, spaces_between_special_tokens=False):
        assert fault is not None
        assert fault[1].startswith("spaces_between_special_tokens: vLLM's beam search")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"echo": True, "logprobs": 0}, "echo: beam search knows no log probabilities of the prompt"),
        ({"echo": True, "max_tokens": 0}, "max_tokens: is 0, which leaves nothing for use_beam_search"),
    ],
)
def test_prompts_are_given_back_without_log_probabilities(fields: dict[str, Any], said: str) -> None:
    record = CompletionV2Request.model_validate({"prompt": "hi", "use_beam_search": True, **fields})
    fault = check_record(record, parsed())
    assert fault is not None
    assert fault[1].startswith(said)


@pytest.mark.parametrize("fields", [{"echo": True}, {"logprobs": 3}, {"echo": False, "logprobs": 0}])
def test_prompts_or_log_probabilities(fields: dict[str, Any]) -> None:
    record = CompletionV2Request.model_validate({"prompt": "hi", "use_beam_search": True, **fields})
    assert check_record(record, parsed()) is None
