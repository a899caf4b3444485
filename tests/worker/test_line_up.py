"""The line-up: each record once, in the order that is asked for, and no more of them than may wait."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmengine.worker.line_up import CHUNKS_AHEAD, Extent, LineUp
from tests.worker.prompt_records import prompt_record, work, works
from tests.worker.test_prefix_order import documents

PLENTY = Extent(records=10**6, bytes=10**9, chunks=10**6)


def take_all(line_up: LineUp) -> list[int]:
    indices = []
    while (taken := line_up.next()) is not None:
        indices.append(taken[0].index)
    return indices


@settings(max_examples=40)
@given(st.data())
def test_whatever_happens_each_record_is_given_once_with_its_chunk(data: st.DataObject) -> None:
    line_up = LineUp()
    coming = [
        work(number, [prompt_record(4 * number + place, text) for place, text in enumerate(texts)], doubtful=doubtful)
        for number, (texts, doubtful) in enumerate(
            data.draw(st.lists(st.tuples(st.lists(st.text(max_size=3), min_size=1, max_size=4), st.booleans())))
        )
    ]
    records = {record.index: one for one in coming for record in one.todo}
    given_out: dict[int, int] = {}
    todo = list(reversed(coming))
    while todo or len(line_up):
        step = data.draw(st.sampled_from(["add", "take", "sort", "unsort"]))
        if step == "add" and todo:
            line_up.add(todo.pop())
        elif step == "sort" and not line_up.sorted:
            line_up.sort()
        elif step == "unsort":
            line_up.unsort()
        elif (taken := line_up.next()) is not None:
            record, chunk = taken
            assert record.index not in given_out
            assert chunk is records[record.index]
            given_out[record.index] = len(given_out)
        lined_up = {index for one in coming if one not in todo for index in (r.index for r in one.todo)}
        left = lined_up - given_out.keys()
        assert len(line_up) == len(left)
        assert line_up.chunks == len({records[index].results.number for index in left})
    assert given_out.keys() == records.keys()
    assert line_up.bytes == 0
    assert line_up.next() is None


def test_records_are_given_as_they_came_until_they_are_sorted() -> None:
    line_up = LineUp()
    prompts = ["b" * 99 + "1", "a" * 99 + "1", "b" * 99 + "2", "a" * 99 + "2"]
    for one in works(prompts, size=2):
        line_up.add(one)
    assert line_up.next()[0].index == 0  # type: ignore[index]
    line_up.sort()
    assert take_all(line_up) == [1, 3, 2]


def test_records_that_are_not_sorted_any_more_are_given_as_they_came() -> None:
    line_up = LineUp()
    for one in works(["b", "a", "d", "c"], size=2):
        line_up.add(one)
    line_up.sort()
    assert line_up.next()[0].index == 1  # type: ignore[index]
    line_up.unsort()
    assert take_all(line_up) == [0, 2, 3]


@pytest.mark.parametrize("mark", ["alone", "doubtful"])
def test_a_chunk_over_which_an_attempt_died_comes_first_in_its_own_order(mark: str) -> None:
    """Its first record is the one under suspicion."""
    line_up = LineUp()
    line_up.sort()
    line_up.add(work(0, [prompt_record(0, "a"), prompt_record(1, "b")]))
    suspected = [prompt_record(3, "z"), prompt_record(2, "y")]
    line_up.add(work(1, suspected, **{mark: True}))
    assert take_all(line_up) == [3, 2, 0, 1]


def test_a_chunk_that_is_made_again_is_not_sorted() -> None:
    line_up = LineUp()
    again = work(0, [prompt_record(0, "z"), prompt_record(1, "y")])
    again.results.round_number = 1
    line_up.add(again)
    line_up.add(work(1, [prompt_record(2, "b"), prompt_record(3, "a")]))
    line_up.sort()
    later = work(2, [prompt_record(5, "x"), prompt_record(4, "w")])
    later.results.round_number = 1
    line_up.add(later)
    assert take_all(line_up) == [0, 1, 5, 4, 3, 2]


def test_beside_a_chunk_over_which_an_attempt_died_few_others_are_claimed() -> None:
    line_up = LineUp()
    line_up.add(work(0, [prompt_record(0, "a")], doubtful=True))
    assert line_up.wanted(PLENTY) == CHUNKS_AHEAD - 1
    line_up.add(work(1, [prompt_record(1, "a")]))
    assert line_up.wanted(PLENTY) > CHUNKS_AHEAD


@pytest.mark.parametrize(
    "extent",
    [
        Extent(records=500, bytes=10**9, chunks=10**6),
        Extent(records=10**6, bytes=4000, chunks=10**6),
        Extent(records=10**6, bytes=10**9, chunks=20),
        Extent(records=0, bytes=0, chunks=0),
    ],
)
def test_as_much_waits_as_may_and_at_least_one_chunk_beside_the_first(extent: Extent) -> None:
    chance = random.Random(1)
    line_up = LineUp()
    coming = works(documents(200, 8, characters=20), size=8)
    taken = 0
    most = 0
    while taken < 1600:
        for _ in range(min(line_up.wanted(extent), len(coming))):
            line_up.add(coming.pop())
        assert len(line_up) <= max(extent.records, CHUNKS_AHEAD * 8) + 8
        assert line_up.bytes <= max(extent.bytes, CHUNKS_AHEAD * 8 * 40) + 8 * 40
        assert line_up.chunks <= max(extent.chunks, CHUNKS_AHEAD)
        most = max(most, line_up.chunks)
        for _ in range(chance.randint(1, 20)):
            taken += line_up.next() is not None
    assert most >= CHUNKS_AHEAD
    assert most >= min(extent.chunks, extent.records // 8, extent.bytes // (8 * 40))


def test_a_prompt_of_ids_takes_more_than_its_text() -> None:
    line_up = LineUp()
    line_up.add(work(0, [prompt_record(0, [1, 2, 3])]))
    of_ids = line_up.bytes
    line_up.next()
    line_up.add(work(1, [prompt_record(1, "x" * 12)]))
    assert of_ids > 3 * line_up.bytes
