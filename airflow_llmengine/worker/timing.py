"""Times of the job protocol, and the clock: what a test sets to go through an hour in a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from airflow_llmengine.storage.status import HEARTBEAT_TIMEOUT_SECONDS


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of the job protocol, in seconds. Replicas of one job must agree on them."""

    heartbeat_seconds: float = 5.0
    """How often a heartbeat is written, and cancel and supersession are looked for."""
    silence_seconds: float = HEARTBEAT_TIMEOUT_SECONDS
    """An attempt whose heartbeat has stood still for so long is taken for dead, and its chunks are free."""
    look_seconds: float = 30.0
    """How often one replica looks at the others: their heartbeats and failures, and what is left to help with."""
    wait_seconds: float = 2.0
    """How often a replica with nothing else to do looks whether a silent one has died."""
    save_seconds: float = 60.0
    """What is finished of a chunk that is not committed is saved after this time: a killed worker loses no more."""
    wall_clock: Callable[[], float] = time.time
    """Seconds since the epoch."""

    @property
    def doubt_seconds(self) -> float:
        """An attempt that has been silent for so long may be dead: its chunks are waited for."""
        return min(3 * self.heartbeat_seconds, self.silence_seconds)

    @property
    def takeover_seconds(self) -> float:
        """How long an attempt that finds itself replaced by a later one may take to notice."""
        return 2 * self.heartbeat_seconds


class Deadline:
    """A moment, and the time to it; the wall clock is read once, so that its jumps neither take nor give time.

    Args:
        at: Seconds since the epoch.
        timing: The clock.
    """

    def __init__(self, at: float, timing: Timing) -> None:
        self._left = at - timing.wall_clock()
        self._since = time.monotonic()

    @property
    def left(self) -> float:
        """Seconds to it; negative when it has passed."""
        return self._left - (time.monotonic() - self._since)
