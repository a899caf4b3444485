"""The table of keys: what it finds, and how little memory it takes."""

from __future__ import annotations

import sys
from hashlib import blake2b

from hypothesis import given
from hypothesis import strategies as st

from airflow_llmengine.worker.answers.key_table import KeyTable


def key(number: int) -> bytes:
    return blake2b(number.to_bytes(8), digest_size=16).digest()


# Of few different bytes, so that keys share parts, and one key's end with another's beginning looks like a third.
few = st.lists(st.sampled_from(b"\0\1"), min_size=8, max_size=10).map(bytes)


@given(st.lists(st.tuples(few, st.integers(0, 2**48 - 1)), max_size=40), few)
def test_it_finds_the_places_of_a_key_and_no_others(entries: list[tuple[bytes, int]], other: bytes) -> None:
    table = KeyTable()
    for one, place in entries:
        table.add(one, place)
    assert len(table) == len(entries)
    for wanted in {other, *(one for one, _place in entries)}:
        assert list(table.find(wanted)) == [place for one, place in entries if one[:8] == wanted[:8]]


def test_a_key_takes_few_bytes() -> None:
    table = KeyTable()
    keys = 200_000
    for number in range(keys):
        table.add(key(number), number)
    buckets = [bucket for bucket in table._buckets if bucket is not None]
    assert sum(map(sys.getsizeof, buckets)) + sys.getsizeof(table._buckets) < 40 * keys
    # And what they hold themselves: the rest does not grow with the keys.
    assert sum(map(len, buckets)) == 12 * keys
