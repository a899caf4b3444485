"""Which attempts are at work, by their heartbeats: pure, and by one's own clock alone.

Clocks of several machines differ, and jump. So what is looked at is not how old a heartbeat says that it is, but how
long it has stood still while this process watched.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from airflow_llmengine.spec.job_state import Claim, Heartbeat
from airflow_llmengine.worker.process_identity import ProcessIdentity
from airflow_llmengine.worker.timing import Timing

HolderState = Literal["at work", "silent", "gone"]
"""What is known of who holds a claim. ``silent``: it may be dead, and more time will tell."""

ENDED = ("done", "partial", "failed")
"""Phases of a heartbeat after which its attempt does nothing more."""


@dataclass(slots=True)
class _Seen:
    attempt: str
    updated: float
    ended: bool
    first: float
    """When this attempt was first seen."""
    changed: float | None = None
    """When its heartbeat was last seen to change; None until then: it may have stood still for days."""


class Attempts:
    """What one attempt knows of the others."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._seen: dict[int, _Seen] = {}
        self._unseen: dict[str, float] = {}

    def observe(self, heartbeats: Iterable[Heartbeat], now: float) -> None:
        """Look at all heartbeats.

        Args:
            heartbeats: The latest of each replica.
            now: This process's monotonic clock.
        """
        for beat in heartbeats:
            seen = self._seen.get(beat.replica)
            if seen is None or seen.attempt != beat.attempt:
                # In the place of another that was seen, it has just begun.
                changed = None if seen is None else now
                self._seen[beat.replica] = _Seen(beat.attempt, beat.updated, beat.phase in ENDED, now, changed)
            elif seen.updated != beat.updated or seen.ended != (beat.phase in ENDED):
                seen.updated, seen.ended, seen.changed = beat.updated, beat.phase in ENDED, now

    def holder_state(self, claim: Claim, now: float) -> HolderState:
        """Whether the attempt that holds a claim is at work, by what was observed so far."""
        if ProcessIdentity(claim.host, claim.pid, claim.pid_namespace).is_seen_to_be_gone():
            return "gone"
        seen = self._seen.get(claim.replica)
        if seen is None:
            # An attempt shows itself before it claims; its heartbeat is listed late, or was lost.
            return self._unproven(now - self._unseen.setdefault(claim.attempt, now))
        if seen.attempt != claim.attempt:
            # A later attempt of the same replica has begun; the earlier one stops when it sees that.
            return "gone" if now - seen.first >= self._timing.takeover_seconds else "silent"
        if seen.ended:
            return "gone"
        if seen.changed is None:
            return self._unproven(now - seen.first)
        return "at work" if now - seen.changed < self._timing.doubt_seconds else self._unproven(now - seen.changed)

    def _unproven(self, silent_for: float) -> HolderState:
        """Nothing was seen of it for so long: it may be dead, and is taken for it in the end."""
        return "gone" if silent_for >= self._timing.silence_seconds else "silent"
