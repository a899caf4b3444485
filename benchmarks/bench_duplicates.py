"""What it costs to look for records that ask the same where there are none, and what it brings where there are.

A stand-in engine answers, at once or after a time, so many records at a time. Runs with and without sharing alternate,
each in a process of its own, pinned to one core. The costs are in seconds of that core.

    python -m benchmarks.bench_duplicates [--records 100000] [--pairs 5]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.bench_pipeline import Clock, StandIn, prompt

SECONDS_IN_ENGINE = 0.2
"""With 64 records at once it answers 320 a second: few enough that the worker's own time matters little."""


class SlowStandIn(StandIn):
    """An engine that takes its time with each record."""

    capacity = 64

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self._slots = asyncio.Semaphore(self.capacity)

    async def complete(self, record: Any) -> Any:
        """The answer, after a while."""
        async with self._slots:
            await asyncio.sleep(SECONDS_IN_ENGINE)
        return self.answer


def write_input(path: Path, records: int, unique: int) -> None:
    """So many records, of which so many are different; those that are not are anywhere."""
    chance = random.Random(1)
    numbers = [*range(unique), *(chance.randrange(unique) for _ in range(records - unique))]
    chance.shuffle(numbers)
    with path.open("w") as file:
        for number in numbers:
            file.write(json.dumps({"prompt": prompt(number), "max_tokens": 16, "temperature": 0}) + "\n")


def run(folder: Path, *, slow: bool, shares: bool) -> dict[str, float]:
    """One job; seconds of the core and seconds that passed."""
    from airflow_llmengine.spec.validation import parse_request
    from airflow_llmengine.storage.filesystem import Storage
    from airflow_llmengine.worker.answers.keys import AnswerKeys
    from airflow_llmengine.worker.attempt import AttemptOptions, run_attempt
    from airflow_llmengine.worker.stopping import Stop

    if not shares:
        setattr(AnswerKeys, "of", lambda _keys, _record: None)  # noqa: B010 - mypy wants its full type otherwise
    request = parse_request(
        {
            "input_data_path": str(folder / "input.jsonl"),
            "output_data_path": str(folder / "output.jsonl"),
            "model_config": {"model": "stand-in"},
        }
    )
    # Another series than the last run's, whose output stands.
    options = AttemptOptions(owner="benchmark", series=str(time.time_ns()), if_done="regenerate")
    engine = (SlowStandIn if slow else StandIn)("json-lines")
    clock = Clock()
    outcome = run_attempt(Storage(), request, options, Stop(), make_engine=lambda _request: engine)
    cpu, wall = clock.read()
    if outcome.manifest is None or outcome.manifest.failed:
        raise SystemExit(f"the job did not succeed: {outcome.message}")
    return {"cpu": cpu, "wall": wall, "repeated": outcome.manifest.repeated}


def child(folder: Path, *, slow: bool, shares: bool) -> dict[str, float]:
    """Run it in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.bench_duplicates", "--child", json.dumps([str(folder), slow, shares])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def pairs_of(folder: Path, count: int, *, slow: bool) -> list[tuple[dict[str, float], dict[str, float]]]:
    """With and without sharing, in turn."""
    return [(child(folder, slow=slow, shares=True), child(folder, slow=slow, shares=False)) for _ in range(count)]


def told(values: list[float], form: str) -> str:
    """Median, least and greatest."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        logging.disable(logging.CRITICAL)
        folder, slow, shares = json.loads(options.child)
        print(json.dumps(run(Path(folder), slow=slow, shares=shares)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for unique_share in (1.0, 0.6, 0.1):
            write_input(folder / "input.jsonl", options.records, round(unique_share * options.records))
            found = pairs_of(folder, options.pairs, slow=False)
            micro = [(on["cpu"] - off["cpu"]) / options.records * 1e6 for on, off in found]
            alone = [off["cpu"] / options.records * 1e6 for _on, off in found]
            costs = f"{told(micro, '+.1f')} us a record, to {told(alone, '.1f')} without"
            print(f"{1 - unique_share:4.0%} duplicates: {costs}", flush=True)
        records = options.records // 20
        write_input(folder / "input.jsonl", records, round(0.6 * records))
        found = pairs_of(folder, options.pairs, slow=True)
        of_ideal = [off["wall"] / on["wall"] * 0.6 for on, off in found]
        print(f" 40% duplicates, a slow engine: {told(of_ideal, '.3f')} of the ideal {1 / 0.6:.2f} times as fast")


if __name__ == "__main__":
    main()
