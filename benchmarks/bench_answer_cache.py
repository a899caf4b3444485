"""The answer cache by itself: writing, learning the keys, looking up, by many writers, and a run of known rows.

    python benchmarks/bench_answer_cache.py                                       half a minute
    python benchmarks/bench_answer_cache.py --answers 10000000 --asked 1000000    what docs/answer_cache.md tells

Answers are made up: bodies of about 200 bytes, a part of which repeats, as in real ones. Everything is on the local
file system, in a folder that is deleted. Each step runs in a process of its own, whose peak memory is told.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from airflow_llmengine.storage.filesystem import Location, Storage
from airflow_llmengine.worker.answer_cache.consultation import BLOCK_RECORDS
from airflow_llmengine.worker.answer_cache.kept_answers import AnswerKeeper
from airflow_llmengine.worker.answer_cache.known_answers import KnownAnswers
from airflow_llmengine.worker.engines.base import Answer


def key_of(number: int) -> bytes:
    """The key of a made-up record."""
    return hashlib.blake2b(number.to_bytes(8), digest_size=16).digest()


def body_of(number: int) -> dict[str, Any]:
    """Its answer."""
    words = hashlib.blake2b(number.to_bytes(8), digest_size=60).hexdigest()
    return {"text": words, "num_prompt_tokens": 80, "num_completion_tokens": 30, "tokens": None, "reason": "stop"}


def folder_of(path: str) -> Location:
    """A folder of this machine."""
    return Storage().location(path)


def write(path: str, first: int, end: int) -> str:
    """What a worker does with its answers; it waits where a worker would drop some."""
    keeper = AnswerKeeper(folder_of(path), b"{}")
    for number in range(first, end):
        keeper.keep(number, key_of(number), Answer(body_of(number), 80, 30))
        while len(keeper._writing) > 1:  # noqa: SLF001 - it makes answers faster than any model
            time.sleep(0.001)
    keeper.close()
    assert keeper.kept == end - first
    return f"{keeper.kept} answers"


def learn(path: str) -> str:
    """Learn which keys there are."""
    known = KnownAnswers(folder_of(path))
    known.load()
    return f"{known.answers} answers"


def look_up(path: str, answers: int, asked: int, *, shuffled: bool) -> str:
    """Ask for ``asked`` keys of which nine in ten are known, in the blocks that a worker asks for.

    They are those of neighbours, in the order in which they were written; or ``shuffled`` and from everywhere.
    """
    known = KnownAnswers(folder_of(path))
    started = time.perf_counter()
    known.load()
    loaded = time.perf_counter() - started
    first = (answers - asked) // 2
    neighbours = range(first, first + asked)
    chosen = random.Random(7).sample(range(answers), asked) if shuffled else neighbours
    numbers = [number if place % 10 else -1 - number for place, number in enumerate(chosen)]
    found = 0

    def count(_position: int, _answer: object) -> None:
        nonlocal found
        found += 1

    started, cpu = time.perf_counter(), time.process_time()
    for start in range(0, asked, BLOCK_RECORDS):
        block = numbers[start : start + BLOCK_RECORDS]
        known.look_up([key_of(number) if number >= 0 else key_of(2**40 - number) for number in block], count)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    assert found == sum(number >= 0 for number in numbers)
    each = cpu / asked * 1e6
    return f"{found} of {asked} found; {seconds:.1f} s after {loaded:.1f} s for the keys, {each:.0f} us of CPU a key"


def write_at_once(path: str, writers: int, each: int) -> str:
    """Write from many processes at once, and find all of it."""
    # Processes of their own, which begin together.
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(writers, context) as pool:
        for written in [pool.submit(write, path, n * each, (n + 1) * each) for n in range(writers)]:
            written.result()
    known = KnownAnswers(folder_of(path))
    known.load()
    assert known.answers == writers * each
    return f"{writers} writers, {known.answers} answers, {len(folder_of(path).list()) - 1} files"


def run_job(folder: Path, cache: Path, rows: range, name: str) -> tuple[int, float]:
    """Run the stand-in engine on some rows; gives how many it generated, and the seconds."""
    source, log = folder / f"{name}.jsonl", folder / f"{name}.log"
    with source.open("w") as lines:
        for row in rows:
            line = {"prompt": f"what is written of row {row}", "max_tokens": 16, "temperature": 0}
            lines.write(json.dumps(line) + "\n")
    request = {
        "input_data_path": str(source),
        "output_data_path": str(folder / f"{name}.out.jsonl"),
        "model_config": {"model": "stand-in"},
    }
    (folder / "request.json").write_text(json.dumps(request))
    started = time.perf_counter()
    subprocess.run(
        [
            *(sys.executable, "-m", "airflow_llmengine.worker", "run", str(folder / "request.json")),
            f"--cache-path={cache}",
        ],
        env={**os.environ, "LLMENGINE_ENGINE": "echo", "LLMENGINE_ECHO_LOG": str(log)},
        check=True,
        capture_output=True,
    )
    return len(log.read_text().splitlines()) if log.exists() else 0, time.perf_counter() - started


def run_overlapping(rows: int) -> str:
    """Run the stand-in engine three times: with nothing known, nine rows in ten, and all."""
    with tempfile.TemporaryDirectory(prefix="bench-answer-cache-") as temporary:
        folder = Path(temporary)
        cache = folder / "cache"
        first, cold = run_job(folder, cache, range(rows), "first")
        second, warm = run_job(folder, cache, range(rows // 10, rows + rows // 10), "second")
        third, all_known = run_job(folder, cache, range(rows), "third")
    return (
        f"{rows} rows: generated {first} in {cold:.1f} s; nine in ten known: {second} in {warm:.1f} s; "
        f"all known: {third} in {all_known:.1f} s, no engine"
    )


def measured(what: str, call: Callable[..., str], *arguments: Any, **named: Any) -> None:
    """Do one step in a process of its own, and tell how long it took and its peak memory."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:
        pool.submit(os.getpid).result()
        started = time.perf_counter()
        told = pool.submit(call, *arguments, **named).result()
        seconds = time.perf_counter() - started
        memory = pool.submit(peak_memory).result()
    print(f"{what:34} {seconds:8.1f} s  {memory / 1e6:7.0f} MB peak   {told}", flush=True)


def peak_memory() -> int:
    """Bytes, of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Do it all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=500_000)
    parser.add_argument("--asked", type=int, default=100_000)
    parser.add_argument("--writers", type=int, default=64)
    parser.add_argument("--rows", type=int, default=20_000, help="of the run with the stand-in engine")
    options = parser.parse_args()
    measured("nothing but the imports", str, "")
    with tempfile.TemporaryDirectory(prefix="bench-answer-cache-") as path:
        measured("write", write, path, 0, options.answers)
        files = folder_of(path).list()
        print(f"{'':34} {sum(file.size for file in files) / 1e6:.0f} MB in {len(files) - 1} files")
        measured("learn the keys", learn, path)
        for shuffled in (False, True):
            what = "look up, from everywhere" if shuffled else "look up, in the order written"
            measured(what, look_up, path, options.answers, options.asked, shuffled=shuffled)
    with tempfile.TemporaryDirectory(prefix="bench-answer-cache-") as path:
        measured("write at once", write_at_once, path, options.writers, 1000)
    print(run_overlapping(options.rows))


if __name__ == "__main__":
    main()
