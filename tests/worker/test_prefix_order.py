"""Which records belong together, what it is worth to bring them together, and that none waits for ever."""

from __future__ import annotations

import random
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmengine.worker.engines.base import PrefixCache
from airflow_llmengine.worker.prefix_order import Sweep, prompt_key, shared_tokens, tokens_of, worth_of_order
from tests.worker.prompt_records import chat_record, prompt_record


def key_of(record: Any) -> Any:
    key = prompt_key(record)
    assert key is not None
    return key


def documents(count: int, questions: int, *, characters: int = 2000, seed: int = 1) -> list[str]:
    """Questions about documents, shuffled."""
    chance = random.Random(seed)
    texts = ["".join(chance.choices("abcdefgh ", k=characters)) for _ in range(count)]
    prompts = [f"{text}\nQuestion {number}?" for text in texts for number in range(questions)]
    chance.shuffle(prompts)
    return prompts


@given(st.lists(st.text(alphabet="ab", max_size=6), min_size=1, max_size=40))
def test_sorted_texts_stand_beside_the_one_with_which_they_share_most(texts: list[str]) -> None:
    keys = sorted(key_of(prompt_record(index, text * 8)) for index, text in enumerate(texts))
    for place, key in enumerate(keys[1:], 1):
        beside = shared_tokens(keys[place - 1], key)
        assert beside == max(shared_tokens(other, key) for other in keys[:place])


@given(st.text(alphabet="ab€", max_size=64), st.text(alphabet="ab€", max_size=64))
def test_what_two_prompts_share_is_counted_in_tokens(one: str, other: str) -> None:
    same = next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    assert shared_tokens(key_of(prompt_record(0, one)), key_of(prompt_record(1, other))) == same // 4


def test_chats_are_sorted_by_what_a_template_writes_first() -> None:
    rules = {"role": "system", "content": "rules " * 20}
    question, other = {"role": "user", "content": "What?"}, {"role": "user", "content": "Why?"}
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
    plain, plain_too = key_of(chat_record(0, rules, question)), key_of(chat_record(1, rules, other))
    with_tools = key_of(chat_record(2, rules, question, tools=tools))
    assert shared_tokens(plain, plain_too) >= tokens_of(("", rules["content"]))
    assert shared_tokens(plain, with_tools) == 0
    in_parts = {"role": "system", "content": [{"type": "text", "text": rules["content"]}]}
    assert key_of(chat_record(3, in_parts, question)) == plain


def test_token_ids_are_compared_id_by_id() -> None:
    one, other = key_of(prompt_record(0, [7, 300, 70_000, 5])), key_of(prompt_record(1, [7, 300, 70_000, 261]))
    assert tokens_of(one) == 4
    assert shared_tokens(one, other) == 3
    assert shared_tokens(one, key_of(prompt_record(2, "text"))) == 0


@pytest.mark.parametrize(
    "record",
    [
        prompt_record(0, "text", echo=True, logprobs=1),
        chat_record(0, {"role": "user", "content": "text"}, prompt_logprobs=1),
        chat_record(0, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}),
    ],
)
def test_where_order_is_of_no_use_there_is_no_key(record: Any) -> None:
    assert prompt_key(record) is None


def test_sorting_is_worth_what_the_cache_would_have_forgotten() -> None:
    records = [prompt_record(index, prompt) for index, prompt in enumerate(documents(50, 8))]
    in_all = 50 * 8 * 500
    # Seven of eight questions find their document.
    assert worth_of_order(records, PrefixCache(tokens=2000, block_tokens=16)) > 0.75
    assert worth_of_order(records, PrefixCache(tokens=in_all * 2, block_tokens=16)) == 0
    in_order = sorted(records, key=key_of)
    assert worth_of_order(in_order, PrefixCache(tokens=2000, block_tokens=16)) < 0.01


@pytest.mark.parametrize("prefix", ["", "You are an assistant. " * 100])
def test_what_all_have_in_common_stays_in_the_cache_in_any_order(prefix: str) -> None:
    chance = random.Random(3)
    records = [prompt_record(index, prefix + "".join(chance.choices("abcdefgh ", k=200))) for index in range(300)]
    assert worth_of_order(records, PrefixCache(tokens=5000, block_tokens=16)) < 0.01


@settings(max_examples=50)
@given(st.data())
def test_a_sweep_gives_each_entry_once_and_none_later_than_two_sweeps(data: st.DataObject) -> None:
    sweep: Sweep[int] = Sweep()
    given_at: dict[int, int] = {}
    added_at: dict[int, int] = {}
    most = 0
    for _ in range(data.draw(st.integers(1, 60))):
        if data.draw(st.booleans()):
            added_at[len(added_at)] = len(given_at)
            sweep.add((0, data.draw(st.text(alphabet="abc", max_size=2))), len(added_at) - 1, len(added_at) - 1)
            most = max(most, len(sweep))
        elif len(sweep):
            entry = sweep.pop()
            assert entry not in given_at
            given_at[entry] = len(given_at)
        assert len(sweep) == len(added_at) - len(given_at)
    while len(sweep):
        given_at[sweep.pop()] = len(given_at)
    assert given_at.keys() == added_at.keys()
    # A sweep is of those that wait and of as many that join it.
    assert all(given_at[entry] - added_at[entry] <= 4 * most for entry in added_at)


def test_what_comes_too_late_for_a_sweep_waits_for_the_next() -> None:
    sweep: Sweep[str] = Sweep()
    for index, letter in enumerate("cmz"):
        sweep.add((0, letter), index, letter)
    assert [sweep.pop(), sweep.pop()] == ["c", "m"]
    for index, letter in enumerate("anb", 3):
        sweep.add((0, letter), index, letter)
    assert [sweep.pop() for _ in range(4)] == ["n", "z", "a", "b"]


def test_a_sweep_starves_nobody_though_what_comes_is_always_before_it() -> None:
    sweep: Sweep[str] = Sweep()
    for index, letter in enumerate("mz"):
        sweep.add((0, letter), index, letter)
    given_out = []
    for index in range(2, 20):
        sweep.add((0, f"n{index:02}"), index, "new")
        given_out.append(sweep.pop())
    assert "z" in given_out[:6]


def test_those_that_begin_alike_come_one_after_the_other_while_new_ones_come() -> None:
    """The look-ahead is a quarter of all: eight questions of a document are met in few stretches, and not in eight."""
    prompts = documents(100, 8, characters=40)
    sweep: Sweep[str] = Sweep()
    given_out = []
    for index, prompt in enumerate(prompts):
        sweep.add((0, prompt), index, prompt[:40])
        if index >= 200:
            given_out.append(sweep.pop())
    while len(sweep):
        given_out.append(sweep.pop())
    stretches = sum(1 for _document, _prompts in groupby(given_out))
    assert stretches < 400
    assert sum(1 for _document, _prompts in groupby(prompt[:40] for prompt in prompts)) > 780
