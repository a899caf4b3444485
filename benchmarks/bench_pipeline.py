"""What the worker itself costs, without an engine: records a second, by format of the input and by stage.

A stand-in engine answers each record in the event loop's next turn, with one ready answer; what that costs is shown.
All runs are pinned to one core, each in a process of its own, and are counted in seconds of that core, so that what
else the machine does matters little; the seconds that passed are shown beside them.

    python benchmarks/bench_pipeline.py [--records 100000] [--pairs 5] [--formats json-lines json-array ...]
    python benchmarks/bench_pipeline.py --against CHECKOUT    # the same runs, in turn, with the package of that folder
    python benchmarks/bench_pipeline.py --records 1000000 --pairs 1 --formats json-lines    # peak memory
    python benchmarks/bench_pipeline.py --profile json-lines  # where the time goes, by function
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import gzip
import json
import logging
import os
import pstats
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

STAGES = ("read", "validate", "encode", "commit", "collect")
"""Measured one by one; what remains of the whole is the loop: cutting, claiming, ordering, tasks, counting."""

FORMATS = ("json-lines", "json-lines-gz", "json-array", "v1-content", "batch-lines", "chat-lines")

ANSWER = " This is what a model might have written, in sixteen tokens or so."


def prompt(index: int) -> str:
    """A prompt of 60 characters or so, unlike all others."""
    return f"Review {index}: the delivery came late, the shoes fit. Positive?"


def write_input(path: Path, kind: str, count: int) -> None:
    """Write so many records in one of the formats."""
    if kind == "json-lines-gz":
        with gzip.open(path, "wt", compresslevel=1) as file:
            file.writelines(line + "\n" for line in lines("json-lines", count))
        return
    with path.open("w") as file:
        if kind == "json-array":
            for index, line in enumerate(lines("json-lines", count)):
                file.write((",\n" if index else "[") + line)
            file.write("]\n")
        elif kind == "v1-content":
            file.write('{"max_new_tokens": 16, "temperature": 0, "prompts": [')
            for index in range(count):
                file.write((", " if index else "") + json.dumps(prompt(index)))
            file.write("]}\n")
        else:
            file.writelines(line + "\n" for line in lines(kind, count))


def lines(kind: str, count: int) -> Iterator[str]:
    """The records, each as one line."""
    for index in range(count):
        record: dict[str, Any] = {"max_tokens": 16, "temperature": 0}
        if kind == "chat-lines":
            record["messages"] = [{"role": "user", "content": prompt(index)}]
        else:
            record = {"prompt": prompt(index), **record}
        if kind == "batch-lines":
            record = {"custom_id": f"row-{index}", "method": "POST", "url": "/v1/completions", "body": record}
        yield json.dumps(record)


class StandIn:
    """An engine that has its answer ready, and gives it in the event loop's next turn."""

    name = "stand-in"
    version = "0"
    model_identity = "stand-in"
    capacity = 256

    def __init__(self, kind: str) -> None:
        from airflow_llmengine.worker.engines.base import Answer

        self.answer = Answer(_body(kind), 16, 16)

    async def start(self) -> None:
        """Nothing is loaded."""

    async def stop(self) -> None:
        """Nothing is freed."""

    async def complete(self, record: Any) -> Any:
        """The answer, one turn of the loop later."""
        await asyncio.sleep(0)
        return self.answer


def _body(kind: str) -> dict[str, Any]:
    if kind == "v1-content":
        return {"text": ANSWER, "num_prompt_tokens": 16, "num_completion_tokens": 16, "tokens": None}
    is_chat = kind == "chat-lines"
    choice = {"message": {"role": "assistant", "content": ANSWER, "refusal": None}} if is_chat else {"text": ANSWER}
    return {
        "id": "",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": 0,
        "model": "stand-in",
        "choices": [{"index": 0, **choice, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 16, "completion_tokens": 16, "total_tokens": 32},
    }


class Clock:
    """Seconds of the core that this process had, and seconds that passed."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def read(self) -> tuple[float, float]:
        """Since it was made."""
        return time.process_time() - self._cpu, time.perf_counter() - self._wall


def run_whole(folder: Path, kind: str, profile: bool) -> dict[str, float]:
    """One job from its input to its output, by the function that the command calls."""
    from airflow_llmengine.spec.validation import parse_request
    from airflow_llmengine.storage.filesystem import Storage
    from airflow_llmengine.worker.attempt import AttemptOptions, run_attempt
    from airflow_llmengine.worker.stopping import Stop

    request = parse_request(_request(folder, kind, "whole"))
    options = AttemptOptions(owner="benchmark", series="benchmark", max_error_rate=0.01, overwrite=True)
    with contextlib.suppress(ImportError):
        from airflow_llmengine.worker.garbage import collect_garbage_seldom

        collect_garbage_seldom()
    profiler = cProfile.Profile() if profile else None
    clock = Clock()
    if profiler is not None:
        profiler.enable()
    outcome = run_attempt(Storage(), request, options, Stop(), make_engine=lambda _request: StandIn(kind))
    if profiler is not None:
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(45)
    cpu, wall = clock.read()
    if outcome.manifest is None or outcome.manifest.failed:
        raise SystemExit(f"the job did not succeed: {outcome.message}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"cpu": cpu, "wall": wall, "records": outcome.manifest.records, "peak_mb": peak}


def _request(folder: Path, kind: str, output: str) -> dict[str, Any]:
    return {
        "input_data_path": str(folder / kind),
        "output_data_path": str(folder / output / "output.jsonl"),
        "model_config": {"model": "stand-in"},
    }


def run_stages(folder: Path, kind: str) -> dict[str, float]:
    """Seconds of the core for each stage, each over all records, and for the stand-in engine."""
    from airflow_llmengine.spec.job_state import InputEnd, JobHandle, PinnedInput
    from airflow_llmengine.spec.validation import parse_request
    from airflow_llmengine.storage.filesystem import Storage
    from airflow_llmengine.storage.job_directory import JobDirectory
    from airflow_llmengine.storage.launch import launch_job
    from airflow_llmengine.worker.chunks import ChunkResults, cut
    from airflow_llmengine.worker.collect import collect
    from airflow_llmengine.worker.elements import ElementWriter
    from airflow_llmengine.worker.engines.base import Answer
    from airflow_llmengine.worker.readers import open_input
    from airflow_llmengine.worker.readers.validate import to_record
    from airflow_llmengine.worker.records import Record

    storage, request = Storage(), parse_request(_request(folder, kind, "stages"))
    seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)

    def timed(stage: str, work: Callable[[], Any]) -> Any:
        clock = Clock()
        result = work()
        seconds[stage] += clock.read()[0]
        return result

    reader = open_input(storage, request)
    timed("read", lambda: sum(1 for _ in reader.records()))
    launch = launch_job(storage, request, owner="stages", series="stages", overwrite=True, engine="stand-in")
    directory = JobDirectory(storage, request.output_data_path)
    scratch = directory.scratch(launch.handle)
    elements, answer = ElementWriter(JobHandle(path="", fingerprint="f" * 32, generation=1), 0), StandIn(kind).answer
    total = chunks = 0

    # The version that this one is compared with remembers nothing of earlier records.
    remembered = {}
    with contextlib.suppress(ImportError):
        from airflow_llmengine.worker.readers.passed_checks import PassedChecks

        remembered = {"passed": PassedChecks()}

    def validated(raws: list[Any]) -> list[Any]:
        return [to_record(raw, request, reader.content, **remembered) for raw in raws]

    def commit(results: ChunkResults) -> None:
        scratch.commit_chunk(results.number, results.encode())

    def answered(records: list[Any]) -> dict[int, Any]:
        finished = {}
        for record in records:
            assert isinstance(record, Record)
            finished[record.index] = elements.answer(record, Answer(answer.body, 16, 16))
        return finished

    cutting = {"chunk_records": 256, "chunk_tokens": 262_144}
    with contextlib.suppress(ImportError):
        from airflow_llmengine.worker.chunks import chunk_share

        cutting["chunk_share"] = chunk_share(1)
    pinned = PinnedInput(input_identity="", input_format="", **cutting)
    for chunk in cut(reader.records(), pinned=pinned, content=reader.content):
        records = timed("validate", partial(validated, chunk.records))
        results = ChunkResults(chunk.number, chunk.records[0].index, len(records))
        results.finished = timed("encode", partial(answered, records))
        timed("commit", partial(commit, results))
        total, chunks = total + len(records), chunks + 1
    scratch.write_end(InputEnd(records=total, chunks=chunks))
    timed(
        "collect",
        lambda: collect(
            directory,
            launch.handle,
            request,
            owner="stages",
            created=launch.created,
            engine="stand-in",
            max_error_rate=0.01,
        ),
    )
    engine = StandIn(kind)

    async def bare() -> None:
        for _ in range(total):
            await engine.complete(None)

    seconds["engine"] = 0.0
    timed("engine", lambda: asyncio.run(bare()))
    return seconds


def child(what: str, kind: str, folder: Path, package: Path | None, *, show: bool = False) -> Any:
    """Run this script for one measurement in a process of its own, on one core, with the package of a folder."""
    environment = {**os.environ, "PYTHONPATH": str(package)} if package else dict(os.environ)
    command = [sys.executable, __file__, "--child", what, kind, str(folder)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    for output in ("whole", "stages"):
        shutil.rmtree(folder / output, ignore_errors=True)
    if show:
        print(done.stdout)
        return None
    return json.loads(done.stdout)


def spread(values: list[float]) -> str:
    """Median, least and greatest."""
    return f"{statistics.median(values):8,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def compare(folder: Path, kind: str, pairs: int, against: Path | None) -> None:
    """Run one format, in turn with the other package if there is one, and print its lines of the table."""
    sides: dict[str, Path | None] = {"this": None} | ({"other": against} if against else {})
    stages = {side: child("stages", kind, folder, package) for side, package in sides.items()}
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(pairs):
        for side, package in sides.items():
            runs[side].append(child("whole", kind, folder, package))
    for side in sides:
        records = runs[side][0]["records"]
        speeds = [records / run["cpu"] for run in runs[side]]
        passed = [records / run["wall"] for run in runs[side]]
        micro = {stage: stages[side][stage] / records * 1e6 for stage in (*STAGES, "engine")}
        rest = statistics.median(run["cpu"] for run in runs[side]) / records * 1e6 - sum(micro.values())
        split = ", ".join(f"{stage} {micro[stage]:.1f}" for stage in STAGES)
        peak = max(run["peak_mb"] for run in runs[side])
        print(
            f"{kind:14} {side:5} {spread(speeds)} records a second of the core; {statistics.median(passed):,.0f} a "
            f"second passed; peak {peak:.0f} MB\n"
            f"{'':21}us a record: {split}, engine {micro['engine']:.1f}, loop {rest:.1f}",
            flush=True,
        )
    if against:
        ratios = [old["cpu"] / new["cpu"] for new, old in zip(runs["this"], runs["other"], strict=True)]
        print(f"{kind:14} ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--against", type=Path, help="a checkout of another version, to run in turn with this one")
    parser.add_argument("--profile", choices=FORMATS, help="print the profile of one run of this format")
    parser.add_argument("--child", nargs=3, metavar=("WHAT", "FORMAT", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        what, kind, folder = options.child
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        logging.disable(logging.CRITICAL)
        if what == "stages":
            print(json.dumps(run_stages(Path(folder), kind)))
        else:
            result = run_whole(Path(folder), kind, what == "profile")
            print(json.dumps(result))
        return
    with tempfile.TemporaryDirectory() as folder:
        for kind in [options.profile] if options.profile else options.formats:
            write_input(Path(folder) / kind, kind, options.records)
            if options.profile:
                child("profile", kind, Path(folder), None, show=True)
            else:
                compare(Path(folder), kind, options.pairs, options.against)
            (Path(folder) / kind).unlink()


if __name__ == "__main__":
    main()
