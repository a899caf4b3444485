"""What somebody who waits for a job makes of it: one decision, without I/O, for the sensor and its trigger alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["absent", "launched", "running", "stopped", "superseded", "done"]
"""As of ``storage.status``, and ``superseded``: another launch has taken the output over."""

OnTimeout = Literal["cancel", "leave"]
"""What is done with a job past its deadline: it is cancelled, or left to itself."""

Outcome = Literal["wait", "finished", "superseded", "cancelled", "deadline", "pods_ended", "timeout"]
"""``finished``: the job's manifest stands. ``superseded``: another launch took the output over. ``cancelled``: somebody
cancelled the job. ``deadline``: the job's deadline has passed. ``pods_ended``: the job has not finished, and nothing
that runs can finish it. ``timeout``: the sensor's own ``timeout`` has passed."""

PodsState = Literal["unknown", "at_work", "ended"]
"""Of the pods that were left to the sensor. ``unknown``: none were, or the cluster does not say. ``at_work``: one runs,
or will. ``ended``: all have ended, are gone, or will never start."""

POD_END_SECONDS = 60.0
"""So long after it finished a job, a worker's pod is given to end by itself."""

LATE_SHARE = 0.05
"""A projected end is only taken for late if it is so by this share of the time that is left to go: speeds vary."""

MUCH_LATER = 1.5
"""By which factor a lateness has changed much."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What one look at a job's files found. Times are seconds since the epoch."""

    state: State
    launched: float | None = None
    """When the present series of attempts was launched."""
    deadline: float | None = None
    """The series' own deadline."""
    cancelled: float | None = None
    """When somebody asked the job's workers to stop."""
    finished: float | None = None
    """When the job was done, by its worker's clock."""
    pods: PodsState = "unknown"
    records_total: int | None = None
    records_done: int = 0
    records_per_second: float = 0.0
    """Of those replicas that are alive."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How long a sensor waits."""

    first_look: float
    """Seconds since the epoch at which the sensor began to wait."""
    max_runtime_sec: float | None = None
    """Seconds that the job has from its launch, or, as long as there is none, from the first look; None: the job's own
    deadline, from when there is one."""
    timeout: float | None = None
    """Seconds that the sensor waits at most, whatever the job does; None: as long as the job may run."""
    timeout_while_absent: float = float("inf")
    """Seconds that the sensor waits for a launch if neither of the others is given."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about a job."""

    outcome: Outcome
    deadline: float | None = None
    """Seconds since the epoch at which the job must have ended; None: there is none yet."""
    late_seconds: float | None = None
    """How long after the deadline the job will end at its present speed; None: it will not, or nobody can tell."""


def decide(seen: Observation, terms: Terms, now: float) -> Decision:
    """Decide about a job.

    A manifest that stands goes before everything: the work is done, however late; but a pod that has only just done it
    is waited for, so that it can be deleted. A request to cancel that was made after the deadline is taken for its
    consequence, and so for a passed deadline on any clock.

    Args:
        seen: The job.
        terms: How long to wait.
        now: Seconds since the epoch.
    """
    deadline = _deadline(seen, terms)
    if seen.state == "done":
        if seen.pods == "at_work" and seen.finished is not None and now < seen.finished + POD_END_SECONDS:
            return Decision("wait", deadline)
        return Decision("finished", deadline)
    if seen.state == "superseded":
        return Decision("superseded", deadline)
    if seen.cancelled is not None and (deadline is None or seen.cancelled < deadline):
        return Decision("cancelled", deadline)
    if deadline is not None and (now >= deadline or seen.cancelled is not None):
        return Decision("deadline", deadline)
    if seen.pods == "ended":
        return Decision("pods_ended", deadline)
    if now >= _gives_up(seen, terms):
        return Decision("timeout", deadline)
    return Decision("wait", deadline, _lateness(seen, deadline, now))


def is_news(late_seconds: float | None, told: float | None) -> bool:
    """Whether a lateness is worth a warning.

    Args:
        late_seconds: The present one; None: not late.
        told: The one that was warned of last; None: none was.
    """
    if late_seconds is None:
        return False
    return told is None or not told / MUCH_LATER <= late_seconds <= told * MUCH_LATER


def _deadline(seen: Observation, terms: Terms) -> float | None:
    if terms.max_runtime_sec is None:
        return seen.deadline
    return (terms.first_look if seen.launched is None else seen.launched) + terms.max_runtime_sec


def _gives_up(seen: Observation, terms: Terms) -> float:
    if terms.timeout is not None:
        return terms.first_look + terms.timeout
    if terms.max_runtime_sec is None and seen.launched is None:
        return terms.first_look + terms.timeout_while_absent
    return float("inf")


def _lateness(seen: Observation, deadline: float | None, now: float) -> float | None:
    if seen.state != "running" or deadline is None or seen.records_total is None or seen.records_per_second <= 0:
        return None
    seconds_to_go = max(0, seen.records_total - seen.records_done) / seen.records_per_second
    late = now + seconds_to_go - deadline
    return late if late > LATE_SHARE * seconds_to_go else None
