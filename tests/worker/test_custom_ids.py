"""Names of batch lines that are given twice are counted, in little memory, whatever the names are."""

from __future__ import annotations

import tracemalloc

import pytest

from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.job_state import JobHandle
from airflow_llmengine.spec.results import RecordError, RecordErrorType
from airflow_llmengine.worker.custom_ids import SHOWN_PAIRS, CustomIds
from airflow_llmengine.worker.elements import ElementWriter
from airflow_llmengine.worker.engines.base import Answer
from airflow_llmengine.worker.records import Record

HANDLE = JobHandle(path="/out.jsonl", fingerprint="0123456789abcdef01234567", generation=1)
WRITER = ElementWriter(HANDLE, created=0)
TRAP = '{"x":","response":","custom_id":"'
"""A text that looks like what is around a name."""


def element(index: int, custom_id: str | None, *, failed: bool = False, is_batch_line: bool = True) -> bytes:
    if failed:
        error = RecordError(type=RecordErrorType.INVALID_RECORD, message=TRAP, index=index, custom_id=custom_id)
        return WRITER.error(error, is_batch_line=is_batch_line).element
    request = CompletionV2Request(prompt="a")
    record = Record(index, "line 1", request, custom_id=custom_id, is_batch_line=is_batch_line)
    return WRITER.answer(record, Answer({"created": 0, "choices": [{"text": TRAP}]}, 1, 1)).element


def found(names: list[str | None], **fields: bool) -> CustomIds:
    custom_ids = CustomIds()
    # In pieces, as chunks are.
    for first in range(0, len(names), 3):
        custom_ids.add(
            first, [element(index, name, **fields) for index, name in enumerate(names[first : first + 3], first)]
        )
    return custom_ids


@pytest.mark.parametrize("failed", [False, True])
def test_names_that_a_record_before_has_are_counted_and_told_by_their_places(failed: bool) -> None:
    custom_ids = found(["a", "b", "c", "b", "d", "a", "a"], failed=failed)
    assert custom_ids.repeated == 3
    assert custom_ids.pairs() == [(1, 3), (0, 5), (0, 6)]


@pytest.mark.parametrize(
    "names",
    [
        ["a", "A", " a", "aa", ""],
        ['","response":', '","response":x', "x", "\\", "\\\\", '"', "'"],
        [TRAP, TRAP + "x", TRAP[1:]],
        ["é", "e\u0301", "\u2028", "\U0001f600", "\\ud83d\\ude00", "\n", "\\n"],
        ["x" * 5000, "x" * 4999 + "y", "x" * 5001],
        [None, None, None],
    ],
    ids=range(6),
)
def test_names_that_differ_are_not_counted_and_each_is_counted_when_it_comes_again(names: list[str | None]) -> None:
    assert found(names).repeated == 0
    again = found([*names, *names])
    named = [index for index, name in enumerate(names) if name is not None]
    assert again.repeated == len(named)
    assert again.pairs() == [(index, index + len(names)) for index in named][:SHOWN_PAIRS]


def test_an_answer_and_an_error_of_one_name_are_two_lines_of_it() -> None:
    custom_ids = CustomIds()
    custom_ids.add(7, [element(7, "a"), element(8, "a", failed=True)])
    assert custom_ids.pairs() == [(7, 8)]


def test_records_that_are_no_batch_lines_have_no_names() -> None:
    assert found([None, None], is_batch_line=False).repeated == 0
    assert found(["a", "a"], is_batch_line=False, failed=True).repeated == 0
    # What looks like one may be the user's own.
    chat = b'{"id":"chatcmpl-1","metadata":{"kind":"x","custom_id":"a"},"response":null}'
    custom_ids = CustomIds()
    custom_ids.add(0, [chat, chat])
    assert custom_ids.repeated == 0


def test_long_names_take_no_more_memory_than_short_ones() -> None:
    elements = [element(index, f"{index}" + "x" * 1000) for index in range(5000)]
    tracemalloc.start()
    try:
        custom_ids = CustomIds()
        custom_ids.add(0, elements)
        assert custom_ids.repeated == 0
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 60 * len(elements)
    assert most < 100 * len(elements)
