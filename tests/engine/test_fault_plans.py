"""Thirty fault plans with a real model: every attempt's engine is a fault harness in front of the one that all share.

What kills a real engine for good is in ``test_faults.py`` and ``test_killed_real_worker.py``; loading one for each of a
hundred attempts would take an hour.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.engines.base import Answer
from airflow_llmengine.worker.records import Record
from tests.engine.conftest import RunningEngine
from tests.faults.campaign import story
from tests.faults.faulty_engine import FaultyEngine
from tests.faults.faulty_storage import QUICK
from tests.faults.invariants import check
from tests.faults.plan import Plan, make_plan
from tests.faults.runner import Run, Runner
from tests.faults.world import Process

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.filterwarnings("default")]

RUNS = 30
RECORDS = 24
GENERATED = {"records": 0, "least": 0}
"""Over all runs; the ratio is printed with ``-s``."""


@pytest.fixture(scope="module")
def loop(running: RunningEngine) -> Iterator[asyncio.AbstractEventLoop]:
    """The shared engine's loop, at work in a thread of its own."""
    over = asyncio.Event()

    async def until_over() -> None:
        await over.wait()

    thread = threading.Thread(target=running.run, args=(until_over(),), name="real-engine")
    thread.start()
    at_work = running.runner.get_loop()
    yield at_work
    at_work.call_soon_threadsafe(over.set)
    thread.join()
    print(f"records generated {GENERATED['records']}, at the least {GENERATED['least']}")  # noqa: T201


def plan_of(seed: int) -> Plan:
    """The seed's plan, made smaller, with records whose answers show whose they are."""
    plan = make_plan(seed)
    records = min(plan.records, RECORDS)
    return replace(
        plan,
        records=records,
        bad=frozenset(index for index in plan.bad if index < records - 1),
        engine=tuple(fault for fault in plan.engine if fault.record < records - 1),
        input_format=plan.input_format if plan.input_format in ("lines", "array", "batch lines") else "lines",
        chunk_records=min(plan.chunk_records, 6),
        seconds_per_record=0.0,
        asks_for_echo=True,
    )


@pytest.mark.parametrize("seed", range(RUNS))
def test_a_plan_breaks_no_invariant(
    tmp_path: Path, running: RunningEngine, loop: asyncio.AbstractEventLoop, seed: int
) -> None:
    plan = plan_of(seed)

    class RealEngine(FaultyEngine):
        async def answer(self, record: Record) -> Answer:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(running.engine.complete(record), loop))

    def engine(process: Process, calm: bool) -> FaultyEngine:
        return RealEngine(plan, process, calm=calm)

    run: Run = Runner(plan, str(tmp_path), Storage(retry=QUICK), check, engine=engine)()
    assert not run.broken, "\n".join([story(run), *run.broken])
    assert run.generated >= run.least
    GENERATED["records"] += run.generated
    GENERATED["least"] += run.least
