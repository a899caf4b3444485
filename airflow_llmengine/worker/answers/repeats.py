"""Records of one attempt that ask the same: the first goes to the engine, and the others get what comes of it. Pure."""

from __future__ import annotations

from typing import Generic, TypeVar

from airflow_llmengine.worker.answers.keys import AnswerKeys
from airflow_llmengine.worker.answers.known_outcomes import KnownOutcomes
from airflow_llmengine.worker.answers.outcomes import Outcome, holds_for_others
from airflow_llmengine.worker.records import Record

W = TypeVar("W")

MOST_WAITING = 8192
"""Records that may wait for another one's answer. They take no place in the engine, but memory, and so do the chunks
that stay open for them."""


class Repeats(Generic[W]):
    """Who waits for whom, and what is known already.

    Args:
        keys: Tell which records ask the same.
        known: Remembers what came of them.
    """

    def __init__(self, keys: AnswerKeys, known: KnownOutcomes) -> None:
        self._keys = keys
        self._known = known
        self._waiting: dict[bytes, list[W]] = {}
        """By the key of a record that is in flight."""
        self._again: set[bytes] = set()
        """Keys whose record in flight is asked in place of one that failed."""
        self.waiting = 0
        """How many wait."""

    @property
    def full(self) -> bool:
        """Whether nobody more should be let wait."""
        return self.waiting >= MOST_WAITING

    def key(self, record: Record) -> bytes | None:
        """What the record shares with those that ask the same; None: it is generated for itself."""
        return self._keys.of(record)

    def known(self, key: bytes) -> Outcome | None:
        """What came of a record that asked the same."""
        return self._known.get(key)

    def wait(self, key: bytes, one: W) -> bool:
        """Wait for the record of this key that is in flight; False if none is, so that this one now is."""
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = []
            return False
        waiting.append(one)
        self.waiting += 1
        return True

    def settle(self, key: bytes, outcome: Outcome) -> list[W]:
        """The record of this key that was in flight is finished: who gets the same, in the order in which they came.

        Where it was an error that may be over, nobody does: ``instead`` tells who goes to the engine in its place.
        """
        if not holds_for_others(outcome):
            return []
        self._known.add(key, outcome)
        return self._release(key)

    def instead(self, key: bytes) -> list[tuple[W, bytes | None]]:
        """After ``settle``: who goes to the engine next, each with the key that others wait for.

        At first it is one, and the rest go on waiting. Should that fail as well, all of them are on their own: one
        after the other, they would keep an engine idle for as long as each takes to fail.
        """
        waiting = self._waiting.get(key)
        if not waiting or key in self._again:
            return [(one, None) for one in self._release(key)]
        self._again.add(key)
        self.waiting -= 1
        return [(waiting.pop(0), key)]

    def _release(self, key: bytes) -> list[W]:
        self._again.discard(key)
        waiting = self._waiting.pop(key)
        self.waiting -= len(waiting)
        return waiting

    def close(self) -> None:
        """Forget everything, and free the disk."""
        self._known.close()
