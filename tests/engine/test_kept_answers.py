"""Answers of the real engine, kept and found again: an output does not tell which of its results are such."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.job_state import JobHandle
from airflow_llmengine.storage.filesystem import Location, Storage
from airflow_llmengine.worker.answer_cache.consultation import Consultation
from airflow_llmengine.worker.answer_cache.kept_answers import AnswerKeeper
from airflow_llmengine.worker.answer_cache.known_answers import KnownAnswers
from airflow_llmengine.worker.answers.keys import AnswerKeys, lasts
from airflow_llmengine.worker.chunks import Chunk
from airflow_llmengine.worker.elements import ElementWriter
from airflow_llmengine.worker.engines.base import Answer
from airflow_llmengine.worker.readers.validate import to_record
from airflow_llmengine.worker.records import RawRecord, Record
from tests.engine.conftest import RunningEngine
from tests.engine.records import job
from tests.engine.varied_records import Generator

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.fixture
def folder(tmp_path: Path) -> Location:
    return Storage().location(str(tmp_path / "cache"))


def raw_records() -> Iterator[RawRecord]:
    called = {
        "messages": [{"role": "user", "content": "What is the weather in Oslo?"}],
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "temperature": 0,
        "max_tokens": 24,
    }
    for index, value in enumerate([*Generator(7, greedy=True).records(12, 8), called]):
        yield RawRecord(index, f"line {index + 1}", value, size=len(json.dumps(value)))


def test_what_was_kept_is_written_like_what_was_generated(
    running: RunningEngine, folder: Location, tmp_path: Path
) -> None:
    request = job(tmp_path)
    writer = ElementWriter(JobHandle(path="out.jsonl", fingerprint="f" * 24, generation=1), created=1234.5)
    keeper, keys = AnswerKeeper(folder, b"{}"), AnswerKeys()
    written: dict[int, Any] = {}
    raws = list(raw_records())
    records = [record for raw in raws if isinstance(record := to_record(raw, request, None), Record)]

    async def all_of_them() -> list[Answer | BaseException]:
        return await asyncio.gather(*map(running.engine.complete, records), return_exceptions=True)

    for record, answer in zip(records, running.run(all_of_them()), strict=True):
        key = keys.of(record)
        if isinstance(answer, Answer) and key is not None and lasts(record):
            keeper.keep(record.index, key, answer)
            written[record.index] = writer.answer(record, answer)
    keeper.close()
    assert len(written) > 15
    consultation = Consultation(KnownAnswers(folder), lambda raw: to_record(raw, request, None))
    found = {
        raw.index: writer.answer(record, answer)
        for raw, record, answer in consultation.records_of(Chunk(0, raws), ())
        if isinstance(record, Record) and answer is not None
    }
    assert found == written
