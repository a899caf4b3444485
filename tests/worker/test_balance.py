"""Replicas end together: the worker's own cutting and scheduling, in simulated time (`simulation.py`)."""

from __future__ import annotations

import pytest

from tests.worker.simulation import Simulation, cut_chunks, lognormal_lengths, overhang

RECORDS = 100_000
REPLICAS = 64
LONGEST = 0.03
"""How much later than the mean the last replica may end, as a part of the whole time."""

CHUNKS = cut_chunks(RECORDS, REPLICAS)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("capacity", [16, 64])
@pytest.mark.parametrize("late", [0, 16])
def test_the_last_replica_ends_near_the_mean(capacity: int, late: int, seed: int) -> None:
    """Records that differ as answers do (lognormal, sigma 0.8); 16 of 64 replicas may start an hour late of eight."""
    lengths = lognormal_lengths(RECORDS, sigma=0.8, seed=seed)
    an_hour = sum(lengths) / REPLICAS / 8
    starts = [0.0] * (REPLICAS - late) + [an_hour] * late
    simulation = Simulation(lengths, CHUNKS, starts=starts, capacity=capacity)
    ends = simulation.run(starts)
    assert simulation.generated == RECORDS
    assert len(simulation.claimed) == len(CHUNKS)
    assert overhang(ends) <= LONGEST


def test_without_help_late_replicas_would_hold_the_job_up() -> None:
    """The simulation can tell: with each replica on its own share alone, the late ones end an hour late."""
    lengths = lognormal_lengths(RECORDS, sigma=0.8, seed=1)
    an_hour = sum(lengths) / REPLICAS / 8
    starts = [0.0] * 48 + [an_hour] * 16

    class OwnShareOnly(Simulation):
        def _take(self, replica):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            for chunk in range(replica.number, len(self.chunks), self.replicas):
                self.claimed.add(chunk)
                yield chunk

    ends = OwnShareOnly(lengths, CHUNKS, starts=starts, capacity=64).run(starts)
    assert overhang(ends) > 2 * LONGEST


@pytest.mark.parametrize(("replicas", "most_chunks"), [(1, 600), (8, 1_900), (64, 6_000), (1000, 6_000)])
def test_chunks_are_small_against_a_share_and_few_in_a_large_job(replicas: int, most_chunks: int) -> None:
    chunks = cut_chunks(RECORDS, replicas)
    assert max(len(chunk) for chunk in chunks) <= max(16, RECORDS / min(replicas, 64) / 50)
    assert len(chunks) < most_chunks
    assert len(cut_chunks(10 * RECORDS, replicas)) < 8 * most_chunks
