"""A few plans of the long campaign (``make faults``), the same in every run of the tests."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.faults.campaign import run_plan, story, threads_left
from tests.faults.plan import Store, make_plan

SEEDS: list[tuple[Store, int]] = [*(("local", seed) for seed in range(16)), *(("s3", seed) for seed in range(1, 4))]


def test_a_seed_brings_its_plan_back() -> None:
    assert make_plan(7) == make_plan(7)
    assert make_plan(7) != make_plan(8)
    assert str(make_plan(7)).startswith("seed 7 on local: ")


def test_the_plans_have_every_kind_of_fault() -> None:
    kinds = frozenset[str]().union(*(make_plan(seed).kinds for seed in range(400)))
    assert kinds >= {
        *("503", "timeout", "io error", "denied", "disk full", "delay", "torn write", "answer lost", "listing lags"),
        *("kills engine", "kills process", "internal", "slow", "engine dies", "deadline", "clock"),
        *("SIGTERM", "SIGKILL", "freeze", "never starts", "two attempts of one replica"),
        *("cancel", "clear", "replace input", "swap input", "other job", "records repeat"),
    }


@pytest.mark.slow
@pytest.mark.parametrize(("store", "seed"), SEEDS)
def test_a_plan_breaks_no_invariant(tmp_path: Path, store: Store, seed: int) -> None:
    if store == "s3":
        from tests.faults.s3 import spared_storage, storage

        storage(), spared_storage()
    before = set(threading.enumerate())
    run = run_plan(make_plan(seed, store), tmp_path)
    broken = [*run.broken, *threads_left(before)]
    assert not broken, "\n".join([story(run), *broken])
