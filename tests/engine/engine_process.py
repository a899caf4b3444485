"""A process with an engine of its own, as a worker is one: it answers some records, and then waits for its end.

    python engine_process.py CHECKPOINT [CHAT_TEMPLATE | --without-tokenizer]

Prints one JSON line: its engine's processes, and the answers.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from airflow_llmengine.worker.engines.base import EngineDiedError, RecordRejectedError
from airflow_llmengine.worker.engines.vllm import VLLMEngine
from airflow_llmengine.worker.records import Record
from tests.engine.records import CAPITAL, chat, completion, job

LIMIT = 64
"""Tokens that this engine's model takes."""


def engine_processes() -> list[int]:
    """Processes below this one but for Python's own, which ends with this one."""
    children = psutil.Process().children(recursive=True)
    return [child.pid for child in children if "resource_tracker" not in str(child.cmdline())]


async def outcome(engine: VLLMEngine, record: Record) -> Any:
    try:
        return (await engine.complete(record)).body
    except (RecordRejectedError, EngineDiedError) as error:
        return [type(error).__name__, getattr(error, "error_type", None), str(error)]


def tell(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


RECORDS = (
    chat("Hello?"),
    completion(CAPITAL),
    completion(CAPITAL, temperature=None),
    completion(CAPITAL, temperature=None),
    completion(CAPITAL, temperature=1.9, top_k=-1, seed=1),
    completion([5] * (LIMIT - 1), max_tokens=9),
    completion([5] * LIMIT, max_tokens=9),
)

CAPITAL_IDS = [504, 3575, 282, 4649, 314]
"""``CAPITAL`` as the small model's tokenizer writes it."""

RECORDS_OF_IDS = (
    completion(CAPITAL_IDS),
    completion([CAPITAL_IDS, [5, 6]], n=2, seed=1, temperature=1, stop_token_ids=[7]),
    completion([5] * LIMIT, max_tokens=9),
)


async def main(checkpoint: Path) -> None:
    settings: dict[str, Any] = {}
    records: tuple[Record, ...] = RECORDS
    if "--without-tokenizer" in sys.argv:
        settings, records = {"skip_tokenizer_init": True}, RECORDS_OF_IDS
    elif len(sys.argv) > 2:
        # One word: such a template could be taken for the name of a file.
        settings = {"chat_template": sys.argv[2]}
    engine = VLLMEngine(job(checkpoint, max_model_len=LIMIT, **settings))
    await engine.start()
    processes = engine_processes()
    answers = [await outcome(engine, record) for record in records]
    tell({"processes": processes, "answers": answers})
    # What the test does meanwhile: it kills the engine's processes, or this one.
    for line in sys.stdin:
        if line == "ask\n":
            tell(await outcome(engine, completion(CAPITAL)))
        elif line == "stop\n":
            started = time.monotonic()
            await engine.stop()
            await engine.stop()
            tell({"left": engine_processes(), "seconds": time.monotonic() - started})


# Guarded: vLLM's own processes import this module once more.
if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
