"""The long campaign: many plans, each run once; prints every plan that broke an invariant, and a summary.

``make faults`` runs it. One seed is run again by ``make faults SEED=123``, or ``SEED=s3/123``.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.invariants import check
from tests.faults.plan import Plan, Store, make_plan
from tests.faults.runner import Run, run_locally

THREADS_SECONDS = 5.0
"""How long threads may take to end that nobody waits for."""

_STAYING = ("fsspecIO", "asyncio_")


@dataclass(frozen=True, slots=True)
class Result:
    """What is told of one run."""

    seed: int
    store: Store
    seconds: float
    generated: int
    least: int
    late: int
    zombies: int
    attempts: int
    fired: Counter[str]
    planned: frozenset[str]
    broken: tuple[str, ...]
    story: str


@dataclass(slots=True)
class Summary:
    """Sums over the runs of one store."""

    runs: int = 0
    failed: int = 0
    generated: int = 0
    least: int = 0
    late: int = 0
    zombies: int = 0
    attempts: int = 0
    seconds: float = 0.0
    fired: Counter[str] = field(default_factory=Counter)
    runs_with: Counter[str] = field(default_factory=Counter)
    planned: Counter[str] = field(default_factory=Counter)

    def add(self, result: Result) -> None:
        self.runs += 1
        self.failed += bool(result.broken)
        for name in ("generated", "least", "late", "zombies", "attempts", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(result, name))
        self.fired.update(result.fired)
        self.runs_with.update(result.fired.keys())
        self.planned.update(result.planned)

    def lines(self, store: str) -> Iterator[str]:
        ratio = self.generated / self.least if self.least else 1.0
        yield (
            f"{store}: {self.runs} runs, {self.failed} with a broken invariant; {self.attempts} attempts, "
            f"{self.zombies} zombies woken at the end; {self.seconds:.0f} s of runs"
        )
        yield (
            f"  records generated {self.generated}, at the least {self.least}: ratio {ratio:.3f} "
            f"({self.late} of them for jobs that were done already)"
        )
        yield f"  {'kind of fault':28} {'planned in runs':>15} {'met in runs':>12} {'met in all':>11}"
        for kind in sorted(self.planned | self.fired):
            # Some last for a whole attempt, such as a wrong clock: nobody counts how often they are met.
            met = (self.runs_with[kind], self.fired[kind]) if self.fired[kind] else ("", "")
            yield f"  {kind:28} {self.planned[kind]:15} {met[0]:>12} {met[1]:>11}"


def run_seed(seed: int, store: Store) -> Result:
    """Run one seed, in a folder that is removed afterwards."""
    plan = make_plan(seed, store)
    if store == "s3":
        from tests.faults.s3 import spared_storage, storage

        storage(), spared_storage()  # its server and its threads are there for all runs
    before = set(threading.enumerate())
    folder = Path(tempfile.mkdtemp(prefix=f"llmengine-faults-{seed}-"))
    try:
        run = run_plan(plan, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    broken = [*run.broken, *threads_left(before)]
    return Result(
        seed=seed,
        store=store,
        seconds=run.seconds,
        generated=run.generated,
        least=run.least,
        late=run.late,
        zombies=run.zombies,
        attempts=len(run.attempts),
        fired=run.world.fired,
        planned=plan.kinds,
        broken=tuple(dict.fromkeys(broken)),
        story=story(run),
    )


def run_plan(plan: Plan, folder: Path) -> Run:
    """Run a plan on the store that it names."""
    if plan.store == "s3":
        from tests.faults.s3 import run_on_s3

        return run_on_s3(plan, folder, check)
    return run_locally(plan, folder, check)


def threads_left(before: set[threading.Thread]) -> list[str]:
    """Threads that a run has left behind; those of fsspec's own event loop stay for good."""
    deadline = time.monotonic() + THREADS_SECONDS
    while True:
        new = set(threading.enumerate()) - before
        left = [thread.name for thread in new if thread.is_alive() and not thread.name.startswith(_STAYING)]
        if not left or time.monotonic() > deadline:
            return [f"threads are left: {sorted(left)}"] if left else []
        time.sleep(0.01)


def story(run: Run) -> str:
    """The plan, and how each attempt ended."""
    return "\n".join([str(run.plan), *(f"    {attempt.name}: {attempt.ended}" for attempt in run.attempts)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the campaign; 1 if an invariant was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.campaign", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="runs on the local file system (default: 1000)")
    parser.add_argument("--s3-runs", type=int, default=200, help="runs over S3 (default: 200)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--seed", help="run this seed alone and tell how it went: 123, or s3/123")
    # A run waits for most of its time, so there are more at once than cores.
    parser.add_argument("--jobs", type=int, default=4, help="runs at once (default: 4)")
    options = parser.parse_args(arguments)
    if options.seed:
        return _one(options.seed)
    seeds = range(options.first, options.first + options.runs)
    s3_seeds = range(options.first, options.first + options.s3_runs)
    plans: list[tuple[int, Store]] = [(seed, "local") for seed in seeds] + [(seed, "s3") for seed in s3_seeds]
    summaries: dict[str, Summary] = {}
    began = time.monotonic()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        for future in as_completed([pool.submit(run_seed, seed, store) for seed, store in plans]):
            result = future.result()
            summaries.setdefault(result.store, Summary()).add(result)
            if result.broken:
                _tell(result)
            done = sum(summary.runs for summary in summaries.values())
            if done % 100 == 0:
                print(f"{done} of {len(plans)} runs, {time.monotonic() - began:.0f} s", flush=True)
    for store, summary in summaries.items():
        print("\n".join(summary.lines(store)))
    return 1 if any(summary.failed for summary in summaries.values()) else 0


def _one(name: str) -> int:
    store, _, seed = name.rpartition("/")
    result = run_seed(int(seed), "s3" if store == "s3" else "local")
    _tell(result)
    print(f"generated {result.generated}, at the least {result.least}; {dict(result.fired)}")
    return 1 if result.broken else 0


def _tell(result: Result) -> None:
    print(f"== {'BROKEN' if result.broken else 'whole'}: {result.store}/{result.seed}")
    print(result.story)
    for broken in result.broken[:8]:
        print(f"  !! {broken[:1500]}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
