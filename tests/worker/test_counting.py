"""The input is counted beside the engine's work, with pauses; nobody waits for those once the work is done."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker import replica
from airflow_llmengine.worker.attempt import AttemptOptions, AttemptOutcome, run_attempt
from airflow_llmengine.worker.engines.base import Answer
from airflow_llmengine.worker.engines.echo import EchoEngine
from airflow_llmengine.worker.records import Record
from airflow_llmengine.worker.share import Share
from airflow_llmengine.worker.stopping import Stop
from tests.worker.jobs import Job

PATIENCE_SECONDS = 60
"""Far above what the job takes, and far below the pause."""


def test_the_end_cuts_the_pause_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pausing = threading.Event()
    outcomes: list[AttemptOutcome] = []

    def counting(share: Share) -> Iterator[None]:
        while share._progress.phase != "generating":
            time.sleep(0.01)
        time.sleep(0.01)
        pausing.set()
        yield
        raise AssertionError("the input is read on though nobody asks for its length any more")

    class Waiting(EchoEngine):
        async def complete(self, record: Record) -> Answer:
            await asyncio.to_thread(pausing.wait, PATIENCE_SECONDS)
            return await super().complete(record)

    monkeypatch.setattr(Share, "count_input", counting)
    # Not for ever, so that a worker that waits ends at last.
    monkeypatch.setattr(replica, "COUNTING_PAUSE", 3 * PATIENCE_SECONDS / 0.01)
    request = validate_request(Job(tmp_path, [f"prompt {index}" for index in range(40)]).request)
    options = AttemptOptions(owner="t", series="a", chunk_records=10)

    def work() -> None:
        outcomes.append(run_attempt(Storage(), request, options, Stop(), make_engine=Waiting))

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(PATIENCE_SECONDS)
    assert [outcome.exit_code for outcome in outcomes] == [ExitCode.DONE]
    assert pausing.is_set()
