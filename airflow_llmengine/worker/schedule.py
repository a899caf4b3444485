"""Which chunk a replica takes next: pure, so that a simulation of many replicas runs the same code.

A replica does its own share first (chunk *c* is replica *c mod N*'s), so that replicas don't fight over chunks while
all have enough. Then it helps: it takes what nobody works on, beginning at a place of its own, so that helpers too keep
out of one another's way.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from airflow_llmengine.worker.attempts import HolderState

Decision = Literal["help", "wait", "done"]


def is_own(chunk: int, replica: int, replicas: int) -> bool:
    """Whether a chunk belongs to a replica's own share."""
    return chunk % replicas == replica


def help_order(free: Collection[int], *, chunks: int, replica: int, replicas: int) -> Sequence[int]:
    """In which order a replica goes through the chunks that nobody works on.

    Args:
        free: The chunks.
        chunks: How many the whole input has.
        replica: The replica's number.
        replicas: How many there are.
    """
    ordered = sorted(free)
    start = bisect_left(ordered, replica * chunks // replicas)
    return [*ordered[start:], *ordered[:start]]


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a replica that has done its own share does next."""

    decision: Decision
    """``help``: take one of ``free``. ``wait``: somebody may have died over a chunk. ``done``: there is nothing left
    that is not in the hands of a replica at work."""
    free: Sequence[int] = ()
    """In the order in which to try them."""


def outlook(states: Mapping[int, HolderState | None], *, chunks: int, replica: int, replicas: int) -> Outlook:
    """Decide by the chunks that are neither committed nor one's own.

    Args:
        states: By chunk, what is known of who holds it; None: nobody does.
        chunks: How many the whole input has.
        replica: The replica's number.
        replicas: How many there are.
    """
    free = [chunk for chunk, state in states.items() if state in (None, "gone")]
    if free:
        return Outlook("help", help_order(free, chunks=chunks, replica=replica, replicas=replicas))
    # A single replica puts the output together itself, so it also waits for what is left of other attempts.
    return Outlook("wait" if "silent" in states.values() or (replicas == 1 and states) else "done")
