"""This worker against vLLM itself, side by side in one run: ``LLM.generate``, ``LLM.chat`` and ``vllm run-batch``.

    python -m benchmarks.bench_against_vllm                    # the whole table: some 25 minutes on two idle cores
    python -m benchmarks.bench_against_vllm --pairs 1 --scale 0.25 --workloads short
    python -m benchmarks.bench_against_vllm --alone            # what each optimisation of the worker brings by itself
    python -m benchmarks.bench_against_vllm --model DIRECTORY --scale 15 --settings '{"dtype": "auto", ...}'

Each side is a process with an engine of its own, of the same settings, that is loaded once; they run in turn, so that
each ratio is of runs that followed one another, and holds even when the machine's speed drifts. The model is the
quickstart's unless one is named. ``docs/speed.md`` says what the table shows.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.optimisations import OPTIMISATIONS
from benchmarks.ratios import HEADER, Comparison, Pairs, Turn, rows, summary
from benchmarks.side_process import SideFailedError, SideProcess
from benchmarks.sides import Measured
from benchmarks.workloads import BLOCK_TOKENS, WORKLOADS, Workload, short_answers

START_SECONDS = 900.0
"""How long an engine may take to load."""

RUN_SECONDS = 3600.0
"""How long one run may take."""

WARMING_UP = 0.25
"""Which part of the short answers each engine completes before anything is measured."""

SETTINGS: Mapping[str, Any] = {
    "max_model_len": 512,
    "max_num_seqs": 32,
    # vLLM's own default depends on who asks; run-batch would get the smallest.
    "max_num_batched_tokens": 4096,
    "block_size": BLOCK_TOKENS,
    "num_gpu_blocks_override": 257,
    "enable_prefix_caching": True,
    "seed": 0,
    # For a processor: nothing is compiled before it runs.
    "dtype": "float32",
    "enforce_eager": True,
}
"""Of the engine, on every side; ``--settings`` and a workload's own stand above them, null takes one away."""

AGAINST = (
    Comparison(Turn("worker", "prompts"), Turn("generate", "prompts")),
    Comparison(Turn("worker", "chats"), Turn("chat", "chats")),
    Comparison(Turn("worker", "chats"), Turn("run-batch", "chats")),
)
"""The table of this worker against vLLM."""


def alone() -> list[Comparison]:
    """The table of what each optimisation brings: with it alone, and with all, against none."""
    names = tuple(OPTIMISATIONS)
    plain = Turn("worker", "prompts", names)
    only = [tuple(other for other in names if other != name) for name in names] if len(names) > 1 else []
    return [Comparison(Turn("worker", "prompts", without), plain) for without in (*only, ())]


class Table:
    """Measures workload after workload, and prints what it has.

    Args:
        options: The command line.
        folder: For inputs, outputs and logs.
    """

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._sides: dict[str, SideProcess] = {}
        self._failed: list[str] = []
        self.finished: list[Pairs] = []

    def measure(self, workloads: Sequence[Workload]) -> None:
        """Measure all workloads; a side that dies is left out from there on."""
        comparisons = [
            comparison
            for comparison in (alone() if self._options.alone else AGAINST)
            if {comparison.ours.side, comparison.theirs.side} <= set(self._options.sides)
        ]
        for settings, group in groupby(workloads, key=lambda workload: workload.settings):
            try:
                self._start({**SETTINGS, **self._options.settings, **settings}, comparisons)
                if not self._options.without_warming_up:
                    self._warm_up(comparisons)
                for workload in group:
                    self._measure(workload, comparisons)
            finally:
                self.close()

    def _start(self, settings: Mapping[str, Any], comparisons: Sequence[Comparison]) -> None:
        wanted = {comparison.theirs.side for comparison in comparisons} | {one.ours.side for one in comparisons}
        given = {name: value for name, value in settings.items() if value is not None}
        for name in sorted(wanted):
            say(f"{name}: loading")
            self._sides[name] = SideProcess(name, self._folder / f"{name}.log")
            try:
                self._sides[name].start(self._options.model, given, timeout=START_SECONDS)
            except SideFailedError as error:
                self._give_up(name, error)

    def _warm_up(self, comparisons: Sequence[Comparison]) -> None:
        """Once in vain: what is compiled, cached or read at the first time is no side's usual speed."""
        workload = short_answers(WARMING_UP * self._options.scale)
        Pairs(workload, comparisons).run(self._taking(workload.write(self._folder)))

    def _measure(self, workload: Workload, comparisons: Sequence[Comparison]) -> None:
        files = workload.write(self._folder)
        pairs = Pairs(workload, comparisons)
        self.finished.append(pairs)
        take = self._taking(files)
        for number in range(self._options.pairs):
            started = time.perf_counter()
            pairs.run(take)
            say(f"{workload.name}: pair {number + 1} of {self._options.pairs}, {time.perf_counter() - started:.0f} s")
        pairs.check()
        say("\n".join((summary(pairs), *HEADER, *rows(pairs))))

    def _taking(self, files: Mapping[str, Path]) -> Any:
        def take(turn: Turn) -> Measured | None:
            side = self._sides.get(turn.side)
            if side is None:
                return None
            try:
                return side.run(files[turn.form], without=turn.without, timeout=RUN_SECONDS)
            except SideFailedError as error:
                self._give_up(turn.side, error)
                return None

        return take

    def _give_up(self, name: str, error: SideFailedError) -> None:
        say(str(error))
        self._failed.append(str(error))
        self._sides.pop(name).end()

    def close(self) -> None:
        """End all sides."""
        while self._sides:
            self._sides.popitem()[1].end()

    def report(self) -> int:
        """Print what was measured, finished or not; 1 if a side was lost."""
        lines = [f"{os.cpu_count()} processors, {self._options.pairs} pairs, scale {self._options.scale:g}"]
        lines += [summary(pairs) for pairs in self.finished]
        lines += [*HEADER, *(row for pairs in self.finished for row in rows(pairs)), *self._failed]
        print("\n".join(lines), flush=True)
        return 1 if self._failed else 0


def say(text: str) -> None:
    """Tell how far it is; the table alone goes to standard output."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def kept(folder: Path | None) -> Iterator[Path]:
    """A folder for inputs, outputs and logs: one that stays, or one that does not."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="llmengine-bench-") as made:
        yield Path(made)


def quickstart_model() -> str:
    """Directory of the quickstart's model, which is made if it is not there yet."""
    script = Path(__file__).parent.parent / "scripts" / "prepare_quickstart_model.py"
    done = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip().splitlines()[-1]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--model", help="directory of the model; by default the quickstart's, made if need be")
    made.add_argument("--pairs", type=int, default=5, help="how often all sides take their turns (default 5)")
    made.add_argument("--scale", type=float, default=1.0, help="how many times as many records (default 1)")
    made.add_argument("--settings", type=json.loads, default={}, help="the engine's, as JSON, above the default ones")
    made.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    made.add_argument("--sides", nargs="+", default=["generate", "chat", "run-batch", "worker"])
    made.add_argument("--alone", action="store_true", help="what each optimisation of the worker brings by itself")
    made.add_argument("--folder", type=Path, help="keep inputs, outputs and logs there")
    made.add_argument("--without-warming-up", action="store_true", help="count each side's first run, too")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the table."""
    options = parser().parse_args(arguments)
    options.model = options.model or quickstart_model()
    # Ended from outside, it still ends its sides and prints what it has.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with kept(options.folder) as folder:
        table = Table(options, folder)
        try:
            table.measure([WORKLOADS[name](options.scale) for name in options.workloads])
        except KeyboardInterrupt:
            say("broken off")
        finally:
            table.close()
            code = table.report()
    return code


if __name__ == "__main__":
    sys.exit(main())
