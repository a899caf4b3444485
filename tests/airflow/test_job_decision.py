"""What is made of a job that somebody waits for, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_llmengine.hooks.job_decision import Decision, Observation, Terms, decide, is_news

NOW = 10_000.0


def seen(state: Any, **fields: Any) -> Observation:
    """A job that was launched 1000 s ago, with 1000 s left."""
    if state == "absent":
        return Observation("absent", **fields)
    return Observation(state, **{"launched": NOW - 1000, "deadline": NOW + 1000, **fields})


def terms(**fields: Any) -> Terms:
    """A sensor that has waited for 100 s."""
    return Terms(**{"first_look": NOW - 100, "timeout_while_absent": 500.0, **fields})


@pytest.mark.parametrize(
    ("job", "waiting", "outcome"),
    [
        # What there is to wait for.
        (seen("absent"), terms(), "wait"),
        (seen("launched"), terms(), "wait"),
        (seen("running"), terms(), "wait"),
        (seen("stopped"), terms(), "wait"),
        # What ends it, at any time.
        (seen("done"), terms(), "finished"),
        (seen("superseded"), terms(), "superseded"),
        (seen("running", cancelled=NOW - 1), terms(), "cancelled"),
        (seen("stopped", cancelled=NOW - 1), terms(), "cancelled"),
        # The job's own deadline, and the moment itself.
        (seen("running", deadline=NOW), terms(), "deadline"),
        (seen("running", deadline=NOW + 0.1), terms(), "wait"),
        (seen("stopped", deadline=NOW - 1), terms(), "deadline"),
        (seen("launched", deadline=NOW - 1), terms(), "deadline"),
        # The sensor's, which goes before the job's in both directions, and counts from the launch.
        (seen("running"), terms(max_runtime_sec=1000), "deadline"),
        (seen("running"), terms(max_runtime_sec=1001), "wait"),
        (seen("running", deadline=NOW - 1), terms(max_runtime_sec=1001), "wait"),
        # While there is no job, it counts from the first look.
        (seen("absent"), terms(max_runtime_sec=100), "deadline"),
        (seen("absent"), terms(max_runtime_sec=101), "wait"),
        (seen("absent"), terms(max_runtime_sec=1000, first_look=NOW - 600), "wait"),
        # Airflow's default for sensors ends the waiting for a job that never comes, and nothing else.
        (seen("absent"), terms(first_look=NOW - 500), "timeout"),
        (seen("running"), terms(first_look=NOW - 500), "wait"),
        # The sensor's own timeout, whatever the job does.
        (seen("absent"), terms(timeout=100.0), "timeout"),
        (seen("running"), terms(timeout=100.0), "timeout"),
        (seen("running"), terms(timeout=101.0), "wait"),
        (seen("running", deadline=NOW), terms(timeout=100.0), "deadline"),
        # A result that stands goes before everything.
        (seen("done", deadline=NOW - 1), terms(timeout=1.0), "finished"),
        (seen("done", cancelled=NOW - 1), terms(), "finished"),
        # A cancellation because of the deadline is told as such, also by a clock that is behind.
        (seen("running", deadline=NOW - 2, cancelled=NOW - 1), terms(), "deadline"),
        (seen("running", deadline=NOW + 5, cancelled=NOW + 6), terms(), "deadline"),
        (seen("running", deadline=NOW - 1, cancelled=NOW - 2), terms(), "cancelled"),
        (seen("superseded", cancelled=NOW - 1, deadline=NOW - 1), terms(timeout=1.0), "superseded"),
        # Pods that were left to the sensor: nothing else will finish the job, whatever the heartbeats say.
        (seen("running", pods="ended"), terms(), "pods_ended"),
        (seen("launched", pods="ended"), terms(), "pods_ended"),
        (seen("stopped", pods="ended"), terms(timeout=100.0), "pods_ended"),
        (seen("stopped", pods="at_work"), terms(), "wait"),
        (seen("stopped", pods="unknown"), terms(), "wait"),
        # It is told of what ended the job before it is told of the pods, which that ended too.
        (seen("stopped", pods="ended", cancelled=NOW - 1), terms(), "cancelled"),
        (seen("stopped", pods="ended", deadline=NOW - 1), terms(), "deadline"),
        (seen("superseded", pods="ended"), terms(), "superseded"),
        # The last that a worker does is to finish the job: its pod is about to end, and is given a minute for it.
        (seen("done", pods="ended", finished=NOW), terms(), "finished"),
        (seen("done", pods="unknown", finished=NOW), terms(), "finished"),
        (seen("done", pods="at_work", finished=NOW - 59), terms(timeout=1.0), "wait"),
        (seen("done", pods="at_work", finished=NOW - 60), terms(), "finished"),
    ],
)
def test_the_outcome(job: Observation, waiting: Terms, outcome: str) -> None:
    assert decide(job, waiting, NOW).outcome == outcome


@pytest.mark.parametrize(
    ("job", "waiting", "deadline"),
    [
        (seen("running"), terms(), NOW + 1000),
        (seen("running"), terms(max_runtime_sec=1500), NOW + 500),
        (seen("absent"), terms(), None),
        (seen("absent"), terms(max_runtime_sec=1500), NOW + 1400),
    ],
)
def test_the_deadline(job: Observation, waiting: Terms, deadline: float | None) -> None:
    assert decide(job, waiting, NOW) == Decision("wait", deadline)


def test_a_relaunched_job_has_the_deadline_of_its_new_launch() -> None:
    waiting = terms(max_runtime_sec=1000)
    assert decide(seen("running", launched=NOW - 1000), waiting, NOW).outcome == "deadline"
    assert decide(seen("running", launched=NOW - 1), waiting, NOW) == Decision("wait", NOW + 999)


@pytest.mark.parametrize(
    ("progress", "late"),
    [
        # 4000 records left at 2 a second end 1000 s after the deadline.
        ({"records_total": 5000, "records_done": 1000, "records_per_second": 2.0}, 1000.0),
        ({"records_total": 5000, "records_done": 1000, "records_per_second": 4.0}, None),
        # Late by less than speeds vary.
        ({"records_total": 5000, "records_done": 1000, "records_per_second": 3.9}, None),
        ({"records_total": None, "records_done": 1000, "records_per_second": 0.1}, None),
        ({"records_total": 5000, "records_done": 0, "records_per_second": 0.0}, None),
        ({"records_total": 5000, "records_done": 5001, "records_per_second": 0.1}, None),
    ],
)
def test_a_projected_end_past_the_deadline(progress: dict[str, Any], late: float | None) -> None:
    assert decide(seen("running", **progress), terms(), NOW).late_seconds == late
    assert decide(seen("stopped", **progress), terms(), NOW).late_seconds is None


def test_a_lateness_is_told_again_only_when_it_has_changed_much() -> None:
    assert is_news(100.0, None)
    assert not is_news(100.0, 100.0)
    assert not is_news(149.0, 100.0)
    assert is_news(151.0, 100.0)
    assert not is_news(67.0, 100.0)
    assert is_news(66.0, 100.0)
    assert not is_news(None, 100.0)
    assert not is_news(None, None)
