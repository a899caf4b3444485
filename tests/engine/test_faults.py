"""Records that the engine can't answer: each costs its own row, the engine goes on, no message quotes the record."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.engines.base import RecordRejectedError
from airflow_llmengine.worker.records import Record
from tests.engine.conftest import RunningEngine
from tests.engine.records import CAPITAL, MAX_MODEL_LEN, chat, completion, unchecked, unchecked_chat, v1

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

LONG = "word " * 20_000
"""Case 3 of the public bug reports; 20 001 tokens, since the space at the end is one of its own."""


def rejected(running: RunningEngine, record: Record) -> RecordRejectedError:
    """The record's error; the engine answers its neighbours, before and after."""

    async def among_others() -> Any:
        return await asyncio.gather(
            running.engine.complete(v1(CAPITAL)),
            running.engine.complete(record),
            running.engine.complete(completion(CAPITAL, max_tokens=2)),
            return_exceptions=True,
        )

    before, error, after = running.run(among_others())
    assert before.body["text"].startswith(" Paris")
    assert after.body["choices"][0]["text"].startswith(" Paris")
    assert running.answer(v1(CAPITAL)).body == before.body
    assert isinstance(error, RecordRejectedError), error
    assert "\n" not in error.message
    return error


@pytest.mark.parametrize(
    ("record", "tokens"),
    [
        (v1(LONG), 20_001),
        (completion(LONG), 20_001),
        (completion(LONG, echo=True, max_tokens=0), 20_001),
        (chat(LONG), 20_031),
        (completion(["short", LONG, "short"]), 20_001),
        (completion([5] * 5000), 5000),
        (completion([[5], [6] * 5000]), 5000),
        (completion([5] * (MAX_MODEL_LEN + 1)), MAX_MODEL_LEN + 1),
        # No room for a single token of the answer.
        (completion([5] * MAX_MODEL_LEN), MAX_MODEL_LEN),
        (completion([5] * MAX_MODEL_LEN, max_tokens=1), MAX_MODEL_LEN),
    ],
    ids=[
        "v1",
        "v2",
        "echo",
        "chat",
        "one of several",
        "ids",
        "one of several ids",
        "one more",
        "all",
        "all, one token",
    ],
)
def test_a_prompt_that_is_too_long_names_both_counts(running: RunningEngine, record: Record, tokens: int) -> None:
    error = rejected(running, record)
    assert error.error_type is RecordErrorType.CONTEXT_LENGTH_EXCEEDED
    assert f"the prompt has {tokens} tokens" in error.message
    assert f"takes {MAX_MODEL_LEN} " in error.message
    assert "word" not in error.message


def test_more_tokens_than_the_model_takes_at_all(running: RunningEngine) -> None:
    error = rejected(running, v1(CAPITAL, max_new_tokens=MAX_MODEL_LEN + 1))
    assert error.error_type is RecordErrorType.CONTEXT_LENGTH_EXCEEDED
    assert str(MAX_MODEL_LEN + 1) in error.message
    assert str(MAX_MODEL_LEN) in error.message


@pytest.mark.parametrize(
    "record",
    [v1(""), unchecked(""), unchecked([]), unchecked(["", "hi"]), unchecked(["hi", ""]), unchecked([[5], []])],
    ids=["v1", "v2", "no prompts", "first of two", "second of two", "no ids"],
)
def test_an_empty_prompt(running: RunningEngine, record: Record) -> None:
    assert rejected(running, record).error_type is RecordErrorType.EMPTY_PROMPT


@pytest.mark.parametrize(
    "record",
    [
        v1("x\ud800y"),
        unchecked("x\ud800y"),
        unchecked(["fine", "x\udc00"]),
        unchecked("fine", stop="\ud800"),
        unchecked_chat(content="x\ud800y"),
        unchecked_chat(content=[{"type": "text", "text": "x\ud800y"}]),
        unchecked_chat(content="fine", name="\ud800"),
    ],
    ids=["v1", "v2", "one of several", "stop", "chat", "part", "name"],
)
def test_half_of_a_surrogate_pair(running: RunningEngine, record: Record) -> None:
    error = rejected(running, record)
    assert error.error_type is RecordErrorType.INVALID_UNICODE
    assert error.message.isascii()


def test_a_whole_surrogate_pair_is_one_character(running: RunningEngine) -> None:
    text = running.answer(completion("\U0001f600", echo=True, max_tokens=0)).body["choices"][0]["text"]
    assert text == "\U0001f600"


@pytest.mark.parametrize(
    ("record", "named"),
    [
        (completion([49_152]), "vocabulary"),
        (completion([5, 2**40]), "vocabulary"),
        (unchecked([-1]), "prompt: "),
        (completion(CAPITAL, min_p=5), "min_p"),
        (completion(CAPITAL, repetition_penalty=-1), "repetition_penalty"),
        (completion(CAPITAL, min_tokens=50), "min_tokens"),
        (completion(CAPITAL, min_tokens=-1), "min_tokens"),
        (completion(CAPITAL, stop_token_ids=[99_999]), "stop_token_ids"),
        (completion(CAPITAL, stop=[""]), "stop"),
        (completion(CAPITAL, top_p=0), "top_p"),
        (completion(CAPITAL, seed=2**70), "seed"),
        (completion(CAPITAL, n=3), "greedy"),
        (completion(CAPITAL, suffix="the end"), "suffix"),
        (completion(CAPITAL, max_tokens=0), "max_tokens"),
        (chat("hi", top_logprobs=3), "logprobs"),
        (chat("hi", min_p=5), "min_p"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_vllm_refuses_is_told_in_its_words(running: RunningEngine, record: Record, named: str) -> None:
    error = rejected(running, record)
    assert error.error_type is RecordErrorType.REJECTED_BY_ENGINE
    assert named in error.message


def test_no_log_line_shows_a_prompt_or_an_answer(
    running: RunningEngine, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    private = "my most private sentence, and none of yours"
    with caplog.at_level(logging.INFO):
        running.answers(v1(private), completion(private), chat(private))
        for record in (
            v1(private * 600),
            completion(private, min_p=5),
            chat(private, min_p=5),
        ):
            rejected(running, record)
    captured = capfd.readouterr()
    for place in (caplog.text, captured.out, captured.err):
        assert "private" not in place


def test_a_cancelled_record_is_aborted_in_vllm(running: RunningEngine) -> None:
    async def cancel_in_mid_run() -> tuple[int, int]:
        tasks = [
            asyncio.create_task(running.engine.complete(record))
            for record in (
                v1("Tell a long story.", max_new_tokens=2000),
                completion(["Tell a long story.", "Another."], n=2, temperature=1, max_tokens=2000, ignore_eos=True),
                chat("Tell a long story.", max_tokens=2000, ignore_eos=True),
            )
        ]
        await asyncio.sleep(1)
        before = running.unfinished()
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError] * 3
        await asyncio.sleep(0.2)
        return before, running.unfinished()

    before, after = running.run(cancel_in_mid_run())
    assert before >= 5
    assert after == 0
    assert running.answer(v1(CAPITAL)).body["text"].startswith(" Paris")


def test_a_record_that_times_out_is_cancelled(running: RunningEngine) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(0.5):
            await running.engine.complete(completion("Tell a story.", max_tokens=2000, ignore_eos=True))

    with pytest.raises(TimeoutError):
        running.run(in_time())
