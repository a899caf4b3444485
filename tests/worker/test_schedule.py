"""What a replica takes next: the decisions by themselves."""

from __future__ import annotations

import pytest

from airflow_llmengine.worker.attempts import HolderState
from airflow_llmengine.worker.schedule import Outlook, help_order, is_own, outlook


def test_each_chunk_is_one_replicas_own() -> None:
    for replicas in (1, 3, 64):
        for chunk in range(200):
            assert [is_own(chunk, replica, replicas) for replica in range(replicas)].count(True) == 1


def test_helpers_begin_at_places_of_their_own() -> None:
    free = {0, 10, 20, 30, 40, 50, 60, 70}
    orders = [help_order(free, chunks=80, replica=replica, replicas=4) for replica in range(4)]
    assert [order[0] for order in orders] == [0, 20, 40, 60]
    assert all(sorted(order) == sorted(free) for order in orders)
    assert orders[3] == [60, 70, 0, 10, 20, 30, 40, 50]


@pytest.mark.parametrize(
    ("states", "replicas", "expected"),
    [
        ({}, 4, Outlook("done")),
        ({3: "at work"}, 4, Outlook("done")),
        ({3: "at work", 5: "silent"}, 4, Outlook("wait")),
        ({3: "at work", 5: "silent", 6: None, 7: "gone"}, 4, Outlook("help", [6, 7])),
        ({3: "at work"}, 1, Outlook("wait")),
        ({}, 1, Outlook("done")),
    ],
)
def test_the_outlook(states: dict[int, HolderState | None], replicas: int, expected: Outlook) -> None:
    assert outlook(states, chunks=10, replica=0, replicas=replicas) == expected
