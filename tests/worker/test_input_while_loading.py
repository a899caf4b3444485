"""The input is read, validated and claimed while the engine loads: its first step has all the records it can take."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.attempt import AttemptOptions, run_attempt
from airflow_llmengine.worker.engines.echo import EchoEngine
from airflow_llmengine.worker.share import ChunkWork, Share
from airflow_llmengine.worker.stopping import Stop
from tests.worker.jobs import Job

RECORDS = 600


def test_records_are_ready_before_the_engine_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = 0
    all_ready = threading.Event()
    ready_at_start = []
    claim = Share.next

    def counting(share: Share, at_once: int = 1) -> list[ChunkWork]:
        nonlocal ready
        works = claim(share, at_once)
        ready += sum(len(work.todo) for work in works)
        if ready == RECORDS:
            all_ready.set()
        return works

    class Slow(EchoEngine):
        """Loads until all is ready; not for ever, if nothing happens meanwhile."""

        async def start(self) -> None:
            await asyncio.to_thread(all_ready.wait, 60)
            ready_at_start.append(ready)

    monkeypatch.setattr(Share, "next", counting)
    job = Job(tmp_path, [f"prompt {index}" for index in range(RECORDS)])
    outcome = run_attempt(
        Storage(), validate_request(job.request), AttemptOptions(owner="t", series="a"), Stop(), make_engine=Slow
    )
    assert outcome.exit_code is ExitCode.DONE, outcome.message
    assert ready_at_start == [RECORDS]
