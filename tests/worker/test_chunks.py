from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmengine.spec.job_state import PinnedInput
from airflow_llmengine.worker.chunks import (
    ChunkResults,
    Finished,
    cut,
    decode_results,
    encode_results,
    requested_tokens,
    restore_chunk,
    restore_part,
)
from airflow_llmengine.worker.records import RawRecord


def pinned(records: int, tokens: int = 1 << 30, first: int | None = None, share: int = 4096) -> PinnedInput:
    return PinnedInput(
        input_identity="sha256:1",
        input_format="json_lines",
        chunk_records=records,
        chunk_tokens=tokens,
        first_chunk_records=records if first is None else first,
        chunk_share=share,
    )


def raw(index: int, value: object = None, size: int = 40) -> RawRecord:
    return RawRecord(index=index, location=f"line {index + 1}", value=value, size=size)


@given(
    sizes=st.lists(st.integers(0, 4000), max_size=60),
    max_records=st.integers(1, 10),
    max_tokens=st.integers(1, 3000),
)
def test_chunks_hold_every_record_once_in_order_and_keep_both_bounds(
    sizes: list[int], max_records: int, max_tokens: int
) -> None:
    records = [raw(index, {"prompt": "x", "max_tokens": 7}, size) for index, size in enumerate(sizes)]
    chunks = list(cut(records, pinned=pinned(max_records, max_tokens), content=None))
    assert [record for chunk in chunks for record in chunk.records] == records
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    for chunk in chunks:
        assert 1 <= len(chunk.records) <= max_records
        weight = sum(record.size // 4 + 7 for record in chunk.records)
        assert weight <= max_tokens or len(chunk.records) == 1


def test_12700_records_on_64_replicas_differ_by_one_chunk_at_most() -> None:
    """Case 2: the shares, before any helping."""
    records = (raw(index, {"prompt": "x"}) for index in range(12_700))
    chunks = list(cut(records, pinned=pinned(16, 1 << 20), content=None))
    shares = [sum(1 for chunk in chunks if chunk.number % 64 == replica) for replica in range(64)]
    assert max(shares) - min(shares) <= 1
    assert sum(len(chunk.records) for chunk in chunks) == 12_700


@pytest.mark.parametrize(
    ("value", "tokens"),
    [
        ({"prompt": "x"}, 16),
        ({"prompt": "x", "max_tokens": 100}, 100),
        ({"prompt": "x", "max_tokens": 100, "n": 3}, 300),
        ({"messages": []}, 1024),
        ({"messages": [], "max_completion_tokens": 5}, 5),
        ({"body": {"prompt": "x", "max_tokens": 9}}, 9),
        ({"body": {"input": ["x"]}}, 0),
        ({"body": {"query": "x", "documents": ["y"]}}, 0),
        ({"prompt": "x", "max_tokens": "many", "n": True}, 16),
        ({"prompt": "x", "max_tokens": -4}, 16),
        ([1, 2], 0),
        (None, 0),
        ("x", 0),
    ],
)
def test_requested_tokens_takes_anything(value: object, tokens: int) -> None:
    assert requested_tokens(value, None) == tokens


def finished(text: str, prompt_tokens: int = 0, completion_tokens: int = 0) -> Finished:
    element = json.dumps({"text": text}).encode()
    return Finished(element=element, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens)


def test_a_chunk_reads_back_as_it_was_written() -> None:
    results = [
        finished("a\u2028b", prompt_tokens=3, completion_tokens=4),
        Finished(element=b'{"error":{"type":"empty_prompt"}}', error_type="empty_prompt"),
    ]
    header, elements = decode_results(encode_results(7, 1792, results, None))
    assert (header.chunk, header.first, header.records) == (7, 1792, 2)
    assert header.failures == {"empty_prompt": 1}
    assert (header.prompt_tokens, header.completion_tokens) == (3, 4)
    assert elements == [result.element for result in results]


def test_a_truncated_answer_is_one_in_a_chunk_and_in_a_part() -> None:
    results = ChunkResults(number=2, first=20, size=3)
    results.finished = {
        20: finished("whole"),
        21: Finished(element=b'{"choices":[]}', truncated=True),
        22: Finished(element=b'{"text":"x"}', truncated=True),
    }
    assert restore_chunk(results.encode()) == results.finished
    assert decode_results(results.encode())[0].truncated == [21, 22]
    results.saved.add(21)
    part = results.encode_part()
    assert part is not None
    assert restore_part(part) == {index: results.finished[index] for index in (20, 22)}


def test_answers_that_were_there_are_so_in_a_chunk_and_in_a_part() -> None:
    results = ChunkResults(number=2, first=20, size=3)
    results.finished = {
        20: finished("made"),
        21: replace(finished("copied"), repeated=True, truncated=True),
        22: replace(finished("known"), cached=True),
    }
    assert restore_chunk(results.encode()) == results.finished
    header, _ = decode_results(results.encode())
    assert (header.repeated, header.cached) == ([21], [22])
    part = results.encode_part()
    assert part is not None
    assert restore_part(part) == results.finished


def test_a_chunk_of_a_version_that_knew_of_fewer_counts_is_read() -> None:
    head, element = encode_results(0, 0, [finished("a")], None).splitlines()
    newer = {"truncated", "skipped", "repeated", "cached"}
    older = {name: value for name, value in json.loads(head).items() if name not in newer}
    assert restore_chunk(json.dumps(older).encode() + b"\n" + element + b"\n") == {0: finished("a")}


def test_a_chunk_that_counts_more_than_it_holds_is_damaged() -> None:
    head, element = encode_results(0, 0, [finished("a")], None).splitlines()
    for planted, told in (
        ({"truncated": [0], "skipped": [0]}, "failed, skipped and truncated"),
        ({"repeated": [0], "cached": [0]}, "failed, repeated and cached"),
    ):
        with pytest.raises(ValueError, match=f"counts more {told} records than it holds"):
            decode_results(json.dumps({**json.loads(head), **planted}).encode() + b"\n" + element + b"\n")


def test_a_cut_chunk_is_not_taken_for_a_whole_one() -> None:
    data = encode_results(0, 0, [finished("a"), finished("b")], None)
    with pytest.raises(ValueError, match="should hold 2 records, and holds 1"):
        decode_results(data[: data.rindex(b"\n", 0, -1) + 1])


def test_a_part_gives_back_records_with_their_counts() -> None:
    results = ChunkResults(number=2, first=20, size=10)
    usage = {"usage": {"prompt_tokens": 5, "completion_tokens": 6}, "choices": []}
    results.finished[23] = Finished(element=json.dumps(usage).encode(), prompt_tokens=5, completion_tokens=6)
    error = {"error": {"type": "empty_prompt", "message": "line 30", "index": 29}}
    results.finished[29] = Finished(element=json.dumps(error).encode(), error_type="empty_prompt")
    line = {"id": "x", "custom_id": "c", "response": {"body": usage}, "error": None}
    results.finished[21] = Finished(element=json.dumps(line).encode(), prompt_tokens=5, completion_tokens=6)
    part = results.encode_part()
    assert part is not None
    assert restore_part(part) == results.finished


def test_a_part_leaves_out_what_an_earlier_part_holds() -> None:
    results = ChunkResults(number=0, first=0, size=3, finished={1: finished("old")}, saved={1})
    assert results.encode_part() is None
    results.finished[2] = finished("new")
    part = results.encode_part()
    assert part is not None
    assert list(restore_part(part)) == [2]
