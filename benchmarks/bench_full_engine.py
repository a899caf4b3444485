"""Whether the worker keeps the engine full: how many sequences ran in each of its steps, by the engine's own counters.

    python -m benchmarks.bench_full_engine [--model DIRECTORY] [--capacities 16 64 256] [--workloads short varied]

A step counts as full in which 95 % of those ran that could: the engine's places (``max_num_seqs``), or the records
that are left. The first steps, before the engine is full for the first time, are counted apart.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bench_against_vllm import RUN_SECONDS, SETTINGS, START_SECONDS, kept, quickstart_model, say
from benchmarks.fullness import fullness
from benchmarks.side_process import SideProcess
from benchmarks.workloads import BLOCK_TOKENS, WORKLOADS

ROUNDS = 3
"""How many times as many records as the engine runs at once, at scale 1."""

TOKENS_OF_A_RECORD = 128
"""For each sequence so much of the KV cache at least, so that it is never what limits them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a line for each capacity and workload."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="directory of the model; by default the quickstart's")
    parser.add_argument("--capacities", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--workloads", nargs="+", choices=("short", "varied"), default=["short", "varied"])
    parser.add_argument("--scale", type=float, default=1.0, help="how many times as many records")
    parser.add_argument("--settings", type=json.loads, default={}, help="the engine's, as JSON")
    parser.add_argument("--folder", type=Path, help="keep inputs, outputs and logs there")
    options = parser.parse_args(arguments)
    model = options.model or quickstart_model()
    print("| Capacity | Workload | Records | Seconds | Steps | Before the first full one | Not full later | Least |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    with kept(options.folder) as folder:
        for capacity in options.capacities:
            side = SideProcess("worker-with-steps", folder / f"worker-{capacity}.log")
            try:
                blocks = capacity * TOKENS_OF_A_RECORD // BLOCK_TOKENS + 1
                settings = {**SETTINGS, "num_gpu_blocks_override": blocks, **options.settings, "max_num_seqs": capacity}
                side.start(model, settings, timeout=START_SECONDS)
                for name in options.workloads:
                    made = WORKLOADS[name]
                    workload = made(options.scale * ROUNDS * capacity / len(made(1).items))
                    files = workload.write(folder)
                    measured = side.run(files["prompts"], timeout=RUN_SECONDS)
                    (folder / f"steps-{capacity}-{name}.json").write_text(json.dumps(measured.steps))
                    found = fullness(measured.steps, records=measured.generated, capacity=capacity)
                    print(
                        f"| {capacity} | {workload.title} | {measured.generated} | {measured.seconds:.2f} "
                        f"| {len(measured.steps)} | {found.until_full} | {found.not_full} | {found.least:.2f} |",
                        flush=True,
                    )
            finally:
                side.end()
    say("a step is full when 95 % of the sequences that could run did")
    return 0


if __name__ == "__main__":
    sys.exit(main())
