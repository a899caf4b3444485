"""Runs in turn, ratios of runs that followed one another, and the table of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.sides import Measured
from benchmarks.workloads import Workload


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side does once in each pair."""

    side: str
    form: str
    """Which file of the workload it reads: ``prompts`` or ``chats``."""
    without: tuple[str, ...] = ()
    """What of the worker is switched off."""

    @property
    def label(self) -> str:
        """For the table."""
        title = {"generate": "LLM.generate", "chat": "LLM.chat", "run-batch": "run-batch"}.get(self.side, self.side)
        return title + (f" without {' and '.join(self.without)}" if self.without else "")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two turns whose times are divided: above 1, ``ours`` is the faster one."""

    ours: Turn
    theirs: Turn


@dataclass(slots=True)
class Pairs:
    """What was measured of one workload: for each pair, the turns that were completed."""

    workload: Workload
    comparisons: Sequence[Comparison]
    measured: list[dict[Turn, Measured]] = field(default_factory=list)

    @property
    def turns(self) -> list[Turn]:
        """Each once; those that are compared follow one another."""
        found: dict[Turn, None] = {}
        for comparison in self.comparisons:
            found |= {comparison.theirs: None, comparison.ours: None}
        return list(found)

    def run(self, take: Callable[[Turn], Measured | None]) -> None:
        """Go through one pair: all turns, in one order and at the next pair in the other.

        Args:
            take: Takes one turn; None: its side is gone.
        """
        turns = self.turns
        done: dict[Turn, Measured] = {}
        self.measured.append(done)
        for turn in turns if len(self.measured) % 2 else reversed(turns):
            measured = take(turn)
            if measured is not None:
                done[turn] = measured

    def compared(self, comparison: Comparison) -> list[tuple[Measured, Measured]]:
        """Ours and theirs, of each pair in which both were completed."""
        return [
            (done[comparison.ours], done[comparison.theirs])
            for done in self.measured
            if comparison.ours in done and comparison.theirs in done
        ]

    def of(self, turn: Turn) -> list[Measured]:
        """All runs of one turn."""
        return [done[turn] for done in self.measured if turn in done]

    def check(self) -> None:
        """Make sure that all runs completed the same records, and wrote as many tokens.

        Raises:
            AssertionError: They did not; the ratios would mean nothing.
        """
        found = {(run.records, run.completion_tokens) for done in self.measured for run in done.values()}
        assert len(found) <= 1, f"{self.workload.name}: the runs differ in records and tokens of answers: {found}"
        assert {records for records, _ in found} <= {len(self.workload.items)}, f"{self.workload.name}: records lost"


HEADER = (
    "| Workload | Compared | Pairs | Seconds | Ratio: median | from | to | Prompts in cache | Ideal |",
    "|---|---|---|---|---|---|---|---|---|",
)
"""Of the table's columns, in Markdown."""


def rows(pairs: Pairs) -> list[str]:
    """The table's lines for one workload."""
    return [_row(pairs, comparison) for comparison in pairs.comparisons]


def _row(pairs: Pairs, comparison: Comparison) -> str:
    compared = pairs.compared(comparison)
    label = f"{comparison.ours.label} / {comparison.theirs.label}"
    if not compared:
        return f"| {pairs.workload.title} | {label} | 0 | - | - | - | - | - | - |"
    ours, theirs = zip(*compared, strict=True)
    ratios = [their.seconds / our.seconds for our, their in compared]
    seconds = f"{_median_seconds(ours):.2f} / {_median_seconds(theirs):.2f}"
    cached = f"{_cached_share(ours):.0%} / {_cached_share(theirs):.0%}"
    # Where every record differs, the engine alone sets the pace.
    unique = pairs.workload.unique_share
    ideal = f"{1 / unique:.2f}" if unique < 1 else "-"
    return (
        f"| {pairs.workload.title} | {label} | {len(ratios)} | {seconds} | **{statistics.median(ratios):.3f}** "
        f"| {min(ratios):.3f} | {max(ratios):.3f} | {cached} | {ideal} |"
    )


def _median_seconds(runs: Sequence[Measured]) -> float:
    return statistics.median(run.seconds for run in runs)


def _cached_share(runs: Sequence[Measured]) -> float:
    """Which part of the prompts' tokens the engine found in its prefix cache, of the records that it was given."""
    return sum(run.cached_tokens for run in runs) / max(1, sum(run.prompt_tokens for run in runs))


def summary(pairs: Pairs) -> str:
    """What the workload is, in one line."""
    items = pairs.workload.items
    asked = sum(item.max_tokens for item in items)
    prompt = {turn: runs[0].prompt_tokens for turn in pairs.turns if (runs := pairs.of(turn))}
    generated = {turn.label: runs[0].generated for turn in pairs.turns if (runs := pairs.of(turn))}
    counts = ", ".join(f"{label} {count}" for label, count in generated.items())
    tokens = f"{max(prompt.values())} tokens of prompts at most, " if prompt else ""
    return (
        f"{pairs.workload.name}: {len(items)} records, {pairs.workload.unique_share:.0%} of them unique; "
        f"{tokens}{asked} of answers; generated by {counts}"
    )
