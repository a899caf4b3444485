"""Claims on storage: one holder at a time, whoever tries."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_llmengine.spec.job_state import Heartbeat, JobHandle, ReplicaPhase
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.job_directory import JobDirectory, JobScratch
from airflow_llmengine.worker.claims import Claims
from airflow_llmengine.worker.timing import Timing

TIMING = Timing(heartbeat_seconds=0.01, silence_seconds=0.05)


@pytest.fixture
def scratch(tmp_path: Path) -> JobScratch:
    path = str(tmp_path / "out.json")
    return JobDirectory(Storage(), path).scratch(JobHandle(path=path, fingerprint="f", generation=1))


def claims_of(scratch: JobScratch, replica: int, attempt: str, timing: Timing = TIMING) -> Claims:
    claims = Claims(scratch, replica=replica, attempt=attempt, timing=timing)
    beat(scratch, replica, attempt)
    claims.refresh()
    return claims


def beat(scratch: JobScratch, replica: int, attempt: str, phase: ReplicaPhase = "generating") -> None:
    scratch.write_heartbeat(
        Heartbeat(replica=replica, replicas=8, attempt=attempt, phase=phase, host="h", pid=1, started=0.0, updated=0.0)
    )


def test_one_of_many_gets_a_chunk(scratch: JobScratch) -> None:
    everybody = [claims_of(scratch, replica, f"attempt {replica}") for replica in range(8)]
    start = threading.Barrier(8)

    def take(claims: Claims) -> list[int]:
        start.wait()
        return [chunk for chunk in range(20) if claims.take(chunk) is not None]

    with ThreadPoolExecutor(8) as threads:
        taken = [chunk for chunks in threads.map(take, everybody) for chunk in chunks]
    assert sorted(taken) == list(range(20))


def test_what_a_holder_at_work_has_is_left_alone_and_what_is_given_back_is_free(scratch: JobScratch) -> None:
    one, other = claims_of(scratch, 0, "a"), claims_of(scratch, 1, "b", Timing())
    assert one.take(3) is not None
    other.refresh()
    assert other.states([3, 4]) == {3: "silent", 4: None}
    assert other.take(3) is None
    one.give_back()
    other.refresh()
    held = other.take(3)
    assert held is not None
    assert held.deaths == 0


def test_an_engine_that_died_for_good_counts_as_its_holders_death(scratch: JobScratch) -> None:
    for deaths in range(3):
        claims = claims_of(scratch, 0, f"attempt {deaths}")
        held = claims.take(3)
        assert held is not None
        assert held.deaths == deaths
        claims.give_back(died=True)


def test_what_a_dead_attempt_held_is_taken_once_and_its_deaths_are_counted(scratch: JobScratch) -> None:
    dead = claims_of(scratch, 0, "a")
    dead.take(3)
    dead.note_alone(3, 77)
    beat(scratch, 0, "a", "failed")
    helpers = [claims_of(scratch, replica, f"h{replica}") for replica in (1, 2)]
    found = [held for held in (helper.take(3) for helper in helpers) if held is not None]
    assert [(held.chunk, held.deaths, held.suspect) for held in found] == [(3, 1, 77)]


def test_a_death_blames_only_the_record_that_was_alone_last(scratch: JobScratch) -> None:
    """Also where records of several chunks were alone one after another, and those chunks are not committed yet."""
    dead = claims_of(scratch, 0, "a")
    dead.take_all([3, 4, 5])
    for chunk, record in ((3, 77), (4, 88), (3, 78), (5, 99)):
        dead.note_alone(chunk, record)
    beat(scratch, 0, "a", "failed")
    found = claims_of(scratch, 1, "b").take_all([3, 4, 5])
    assert [(held.chunk, held.deaths, held.suspect) for held in found] == [(3, 1, None), (4, 1, None), (5, 1, 99)]


def test_a_suspicion_outlives_what_is_noted_of_other_chunks(scratch: JobScratch) -> None:
    one = claims_of(scratch, 0, "a")
    one.take(3)
    one.note_alone(3, 77)
    beat(scratch, 0, "a", "failed")
    other = claims_of(scratch, 1, "b")
    other.take_all([3, 4])
    other.note_alone(3, 78)
    other.note_alone(4, 88)
    beat(scratch, 1, "b", "failed")
    held = claims_of(scratch, 2, "c").take(3)
    assert held is not None
    assert (held.deaths, held.suspect, held.at_fault) == (2, 77, None)


def test_a_chunk_is_not_made_again_whose_holder_gave_it_back_without_learning_that_it_was_committed(
    scratch: JobScratch,
) -> None:
    one, other = claims_of(scratch, 0, "a"), claims_of(scratch, 1, "b")
    assert one.take(3) is not None
    scratch.commit_chunk(3, b"committed, and the answer lost")
    one.give_back()
    assert other.take(3) is None
    assert not other.holds(3)


def test_a_chunk_that_the_dead_attempt_had_committed_is_not_made_again(scratch: JobScratch) -> None:
    dead = claims_of(scratch, 0, "a")
    dead.take(3)
    helper = claims_of(scratch, 1, "b")
    scratch.commit_chunk(3, b"x")
    beat(scratch, 0, "a", "done")
    # The listing from before the commit stands for one that is late.
    helper._attempts.observe(scratch.read_heartbeats(), 1e9)
    helper._newest = {3: 0}
    assert helper.take(3) is None
    assert 3 in helper.files.rounds


def test_a_late_listing_costs_a_try_and_nothing_else(scratch: JobScratch) -> None:
    late = claims_of(scratch, 1, "b")
    claims_of(scratch, 0, "a").take(3)
    assert late.take(3) is None


def test_a_round_is_tried_once(scratch: JobScratch) -> None:
    one, other = claims_of(scratch, 0, "a"), claims_of(scratch, 0, "b")
    assert one.take_round(3, 1)
    assert not other.take_round(3, 1)
    assert other.take_round(3, 2)
    other.refresh()
    assert other.states([3]) == {3: None}
