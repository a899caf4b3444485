"""Who is at work, judged by one's own clock alone."""

from __future__ import annotations

import os
import subprocess

import pytest

from airflow_llmengine.spec.job_state import Claim, Heartbeat, ReplicaPhase
from airflow_llmengine.worker.attempts import Attempts
from airflow_llmengine.worker.process_identity import ProcessIdentity
from airflow_llmengine.worker.timing import Timing

TIMING = Timing(heartbeat_seconds=5, silence_seconds=60)


def beat(replica: int, attempt: str, updated: float, phase: ReplicaPhase = "generating") -> Heartbeat:
    return Heartbeat(
        replica=replica, replicas=4, attempt=attempt, phase=phase, host="elsewhere", pid=1, started=0.0, updated=updated
    )


def claim(replica: int, attempt: str) -> Claim:
    return Claim(replica=replica, attempt=attempt, host="elsewhere", pid=1, claimed=0.0)


def test_a_heartbeat_that_moves_holds_its_claims_however_wrong_its_clock() -> None:
    attempts = Attempts(TIMING)
    attempts.observe([beat(1, "a", updated=5e6)], 0)
    for now in range(1, 600, 50):
        attempts.observe([beat(1, "a", updated=1e6 + now)], now)
        assert attempts.holder_state(claim(1, "a"), now + 4) == "at work"


@pytest.mark.parametrize(("after", "state"), [(14, "at work"), (15, "silent"), (59, "silent"), (60, "gone")])
def test_a_heartbeat_that_stands_still_loses_them(after: float, state: str) -> None:
    attempts = Attempts(TIMING)
    attempts.observe([beat(1, "a", updated=5)], 990)
    # By the wall clock it is old, or of the future: that says nothing.
    attempts.observe([beat(1, "a", updated=1e11)], 1000)
    attempts.observe([beat(1, "a", updated=1e11)], 1000 + after)
    assert attempts.holder_state(claim(1, "a"), 1000 + after) == state


def test_an_attempt_that_was_never_seen_to_move_may_have_died_long_ago() -> None:
    """A retry with fewer replicas finds the heartbeats of the dead, and must not leave their chunks to them."""
    attempts = Attempts(TIMING)
    attempts.observe([beat(1, "a", 5)], 0)
    assert attempts.holder_state(claim(1, "a"), 0) == "silent"
    assert attempts.holder_state(claim(1, "a"), 60) == "gone"


@pytest.mark.parametrize("phase", ["done", "partial", "failed"])
def test_an_attempt_that_has_ended_holds_nothing(phase: ReplicaPhase) -> None:
    attempts = Attempts(TIMING)
    attempts.observe([beat(1, "a", 5, phase)], 0)
    assert attempts.holder_state(claim(1, "a"), 0) == "gone"


def test_a_later_attempt_of_the_replica_ends_the_earlier_ones_claims_once_that_has_had_time_to_see_it() -> None:
    attempts = Attempts(TIMING)
    attempts.observe([beat(1, "a", 1)], 0)
    attempts.observe([beat(1, "b", 2)], 3)
    assert attempts.holder_state(claim(1, "a"), 4) == "silent"
    assert attempts.holder_state(claim(1, "a"), 13) == "gone"
    assert attempts.holder_state(claim(1, "b"), 13) == "at work"


def test_a_claim_whose_heartbeat_was_never_seen_is_waited_for() -> None:
    attempts = Attempts(TIMING)
    assert attempts.holder_state(claim(2, "x"), 100) == "silent"
    assert attempts.holder_state(claim(2, "x"), 130) == "silent"
    assert attempts.holder_state(claim(2, "x"), 160) == "gone"


def test_a_process_that_is_seen_to_be_gone_holds_nothing_at_once() -> None:
    own = ProcessIdentity.own()
    assert not own.is_seen_to_be_gone()
    ended = subprocess.Popen(["true"])
    ended.wait()
    gone = ProcessIdentity(own.host, ended.pid, own.pid_namespace)
    assert gone.is_seen_to_be_gone()
    # Another machine's processes can't be looked for, whatever their numbers.
    assert not ProcessIdentity("elsewhere", ended.pid, own.pid_namespace).is_seen_to_be_gone()
    assert not ProcessIdentity(own.host, ended.pid, "another namespace").is_seen_to_be_gone()
    assert not ProcessIdentity(own.host, ended.pid, None).is_seen_to_be_gone()
    attempts = Attempts(TIMING)
    attempts.observe([beat(1, "a", 1)], 0)
    held = Claim(replica=1, attempt="a", host=own.host, pid=ended.pid, pid_namespace=own.pid_namespace, claimed=0.0)
    assert attempts.holder_state(held, 0) == "gone"
    assert attempts.holder_state(held.model_copy(update={"pid": os.getpid()}), 0) == "silent"
