"""How full an engine was, by what it says of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FULL = 0.95
"""Which part of the sequences that it may run at once makes an engine full."""


@dataclass(frozen=True, slots=True)
class Fullness:
    """Of one run, from the first step that was full to the last."""

    until_full: int
    """Steps before the first full one; all of them if none was."""
    steps: int
    """From that one on."""
    least: float
    """The least part of the sequences that could run which did run in one of those."""
    not_full: int
    """Those steps in which it was less than ``FULL``."""


def fullness(steps: Sequence[Sequence[float]], *, records: int, capacity: int) -> Fullness:
    """Compare each step with the most that could run in it: the engine's places, or the records that are left.

    Args:
        steps: As in ``Measured.steps``.
        records: How many are generated in all, each as one sequence.
        capacity: How many sequences the engine runs at once.
    """
    shares = []
    left = records
    for _, ran, ended, _ in steps:
        shares.append(1.0 if left <= 0 else ran / min(capacity, left))
        left -= round(ended)
    first = next((number for number, share in enumerate(shares) if share >= FULL), len(shares))
    later = shares[first:]
    return Fullness(
        until_full=first,
        steps=len(later),
        least=min(later, default=0.0),
        not_full=sum(share < FULL for share in later),
    )
