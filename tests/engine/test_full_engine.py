"""The worker keeps the engine full, by the engine's own count of what ran in each of its steps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.attempt import AttemptOptions, run_attempt
from airflow_llmengine.worker.stopping import Stop
from benchmarks.fullness import fullness
from benchmarks.sides import KeptEngine
from tests.engine.conftest import RunningEngine
from tests.engine.records import job

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

RECORDS = 96
"""Three times as many as the engine runs at once."""


def test_running_records_are_as_many_as_could_run_until_the_last_ones(
    running: RunningEngine, quickstart_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "in.jsonl").open("w") as lines:
        for index in range(RECORDS):
            # Of one length: they begin and end together, so that all places become free in the same step.
            fields = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
            lines.write(json.dumps({"prompt": f"{index} and", **fields}) + "\n")
    request = validate_request(
        {
            **job(quickstart_model).given(),
            "input_data_path": str(tmp_path / "in.jsonl"),
            "output_data_path": str(tmp_path / "out.jsonl"),
        }
    )
    engine = KeptEngine(running.engine)
    # The attempt's loop is the one in which the shared engine lives.
    monkeypatch.setattr("asyncio.run", running.run)
    running.run(engine.begin())
    running.steps.clear()

    options = AttemptOptions(owner="t", series="a")
    outcome = run_attempt(Storage(), request, options, Stop(), make_engine=lambda _request: engine)

    assert outcome.exit_code is ExitCode.DONE, outcome.message
    steps = [[0.0, step.running + step.finished, step.finished, step.waiting] for step in running.steps]
    assert sum(step.finished for step in running.steps) == RECORDS
    found = fullness(steps, records=RECORDS, capacity=running.engine.capacity)
    assert found.steps >= 8 * RECORDS // running.engine.capacity
    assert found.not_full == 0, steps
