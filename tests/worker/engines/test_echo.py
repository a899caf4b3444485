"""The stand-in engine: its answers, its settings, and the ways in which it fails on purpose."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request, CreateBatchCompletionsV1RequestContent
from airflow_llmengine.spec.results import CompletionOutput, RecordErrorType
from airflow_llmengine.worker.engines.base import Answer, EngineDiedError, RecordRejectedError
from airflow_llmengine.worker.engines.echo import EchoEngine
from airflow_llmengine.worker.records import PromptRecord, Record


def job(**model: Any) -> CreateBatchCompletionsV1Request:
    return CreateBatchCompletionsV1Request.model_validate(
        {"input_data_path": "in.jsonl", "output_data_path": "out.json", "model_config": {"model": "stand-in", **model}}
    )


def completion(index: int = 0, **fields: Any) -> Record:
    return Record(index, f"line {index + 1}", CompletionV2Request.model_validate(fields))


def chat(**fields: Any) -> Record:
    return Record(0, "line 1", ChatCompletionV2Request.model_validate(fields))


def v1(prompt: str, **fields: Any) -> Record:
    content = CreateBatchCompletionsV1RequestContent.model_validate(
        {"prompts": [], "max_new_tokens": 4, "temperature": 0, **fields}
    )
    return Record(0, "element 0", PromptRecord(prompt, content))


def answer(record: Record, engine: EchoEngine | None = None) -> Answer:
    return asyncio.run((engine or EchoEngine(job())).complete(record))


def test_a_v1_prompt_comes_back_letter_for_letter() -> None:
    result = answer(v1(" two\u2028 words\n"))
    assert CompletionOutput.model_validate(result.body) == CompletionOutput(
        text=" two\u2028 words\n", num_prompt_tokens=2, num_completion_tokens=2, tokens=None
    )
    assert (result.prompt_tokens, result.completion_tokens) == (2, 2)


def test_v1_tokens_are_the_words_and_together_the_text() -> None:
    tokens = answer(v1(" two  words\n", return_token_log_probs=True)).body["tokens"]
    assert [token["token"] for token in tokens] == [" two", "  words\n"]


def test_each_prompt_has_n_choices_in_order() -> None:
    result = answer(completion(prompt=["one", "two words"], n=2))
    assert [(choice["index"], choice["text"]) for choice in result.body["choices"]] == [
        (0, "one"),
        (1, "one"),
        (2, "two words"),
        (3, "two words"),
    ]
    assert result.body["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}


@pytest.mark.parametrize(("prompt", "texts"), [([1, 2], ["1 2"]), ([[1, 2], [3]], ["1 2", "3"])])
def test_token_ids_come_back_as_numbers(prompt: Any, texts: list[str]) -> None:
    assert [choice["text"] for choice in answer(completion(prompt=prompt)).body["choices"]] == texts


@pytest.mark.parametrize("content", ["the last", [{"type": "text", "text": "the "}, {"type": "text", "text": "last"}]])
def test_a_chat_is_answered_with_its_last_message(content: Any) -> None:
    result = answer(chat(messages=[{"role": "system", "content": "a"}, {"role": "user", "content": content}]))
    assert result.body["object"] == "chat.completion"
    assert result.body["choices"][0]["message"] == {"role": "assistant", "content": "the last", "refusal": None}


def test_the_served_name_is_given_back() -> None:
    body = answer(completion(prompt="one"), EchoEngine(job(served_model_name="small"))).body
    assert body["model"] == "small"


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [("", RecordErrorType.EMPTY_PROMPT), ("llmengine-echo:reject this", RecordErrorType.REJECTED_BY_ENGINE)],
)
def test_a_rejected_record_leaves_the_engine_alive(prompt: str, kind: RecordErrorType) -> None:
    engine = EchoEngine(job())
    with pytest.raises(RecordRejectedError) as caught:
        answer(completion(prompt=["fine", prompt]), engine)
    assert caught.value.error_type is kind
    assert "this" not in caught.value.message
    assert answer(completion(prompt="next"), engine).body["choices"][0]["text"] == "next"


def test_a_dead_engine_answers_nothing_more() -> None:
    engine = EchoEngine(job())
    for prompt in ("llmengine-echo:die", "next"):
        with pytest.raises(EngineDiedError):
            answer(completion(prompt=prompt), engine)


def test_capacity_and_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMENGINE_ECHO_CAPACITY", "2")
    monkeypatch.setenv("LLMENGINE_ECHO_SECONDS_PER_RECORD", "0.1")

    async def four_at_once() -> float:
        engine = EchoEngine(job())
        assert engine.capacity == 2
        started = time.monotonic()
        await asyncio.gather(*(engine.complete(completion(index, prompt="word")) for index in range(4)))
        return time.monotonic() - started

    assert asyncio.run(four_at_once()) >= 0.2


def test_the_log_names_each_generated_record_and_no_cancelled_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "generated.log"
    monkeypatch.setenv("LLMENGINE_ECHO_LOG", str(log))

    async def run() -> None:
        engine = EchoEngine(job())
        await engine.start()
        await engine.complete(completion(7, prompt="word"))
        cancelled = asyncio.create_task(engine.complete(completion(8, prompt="word")))
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        with pytest.raises(RecordRejectedError):
            await engine.complete(completion(9, prompt=""))
        await engine.stop()
        await engine.stop()

    asyncio.run(run())
    assert log.read_text() == f"7 {os.getpid()}\n"


def test_loading_takes_as_long_as_it_is_set_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMENGINE_ECHO_LOAD_SECONDS", "0.1")
    started = time.monotonic()
    asyncio.run(EchoEngine(job()).start())
    assert time.monotonic() - started >= 0.1


@pytest.mark.parametrize("value", ["many", "0", "-1", "nan", "inf"])
def test_a_setting_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("LLMENGINE_ECHO_CAPACITY", value)
    with pytest.raises(ValueError, match=f"LLMENGINE_ECHO_CAPACITY is '{value}'"):
        EchoEngine(job())
