"""Rows of a table through the real engine into typed columns: what is not cut is always what the schema says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import duckdb
import pandas  # type: ignore[import-untyped]
import polars
import pytest

from airflow_llmengine.spec.manifest import Manifest
from airflow_llmengine.worker.engines.base import Answer
from airflow_llmengine.worker.records import Record
from tests.engine.conftest import RunningEngine
from tests.worker.tables.table_jobs import TableJob

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

ROWS = 200
SENTIMENTS = {"positive", "neutral", "negative"}

SCHEMA = {
    "type": "object",
    "properties": {
        "sentiment": {"enum": sorted(SENTIMENTS)},
        "score": {"type": "integer", "minimum": 1, "maximum": 5},
    },
    "required": ["sentiment", "score"],
}

PROMPT = """\
A review: The soup was cold.
What it says: {"sentiment": "negative", "score": 2}

A review: {{ review }}
What it says: """

OPINIONS = (
    "I love it and would buy it again",
    "it broke after a day, and nobody answers",
    "it is fine, nothing special",
    'the "best" {{ deal }} of the year 😀',
    "never again",
)
THINGS = ("kettle", "lamp", "chair", "rucksack", "keyboard", "blanket", "radio", "pan")

TABLE = {
    "prompt": PROMPT,
    "parameters": {"max_tokens": 60, "temperature": 0},
    "parameter_columns": {"max_tokens": "budget"},
    "output_schema": SCHEMA,
    "finish_reason_column": "finish_reason",
    "error_column": "error",
    "completion_tokens_column": "tokens",
}


class SharedEngine:
    """The engine that all tests share, as one job's own: it runs already, in a loop that is not the job's."""

    def __init__(self, running: RunningEngine) -> None:
        self._engine = running.engine
        self._loop = running.runner.get_loop()
        self.name, self.version = self._engine.name, self._engine.version
        self.model_identity, self.capacity = self._engine.model_identity, self._engine.capacity

    async def start(self) -> None:
        """Nothing: it runs."""

    async def stop(self) -> None:
        """Nothing: others still need it."""

    async def complete(self, record: Record) -> Answer:
        asked = asyncio.run_coroutine_threadsafe(self._engine.complete(record), self._loop)
        return await asyncio.wrap_future(asked)


def reviews() -> polars.DataFrame:
    """No two are alike; of each tenth the answer is cut."""
    return polars.DataFrame(
        {
            "id": range(ROWS),
            "review": [f"The {THINGS[n % 8]} no. {n}: {OPINIONS[n % 5]}." for n in range(ROWS)],
            "budget": [4 if n % 10 == 0 else None for n in range(ROWS)],
            "country": [("de", "fr", None)[n % 3] for n in range(ROWS)],
        },
        schema={"id": polars.Int32, "review": polars.String, "budget": polars.Int16, "country": polars.Categorical},
    )


def test_every_review_that_is_not_cut_has_its_sentiment_and_score(running: RunningEngine, tmp_path: Path) -> None:
    source, output = tmp_path / "reviews.parquet", tmp_path / "sentiment.parquet"
    reviews().write_parquet(source, row_group_size=64)
    job = TableJob(source, output, TABLE)

    async def whole_job() -> Manifest:
        # The engine needs this thread, in which its loop runs.
        return await asyncio.to_thread(job.done, lambda _request: SharedEngine(running), chunk_records=32)

    manifest = running.run(whole_job())
    found = polars.read_parquet(output)
    rows = found.to_dicts()
    for row in rows:
        if row["finish_reason"] == "stop":
            assert row["sentiment"] in SENTIMENTS
            assert row["score"] in range(1, 6)
            assert row["error"] is None
        else:
            assert (row["finish_reason"], row["sentiment"], row["score"]) == ("length", None, None)
            assert row["error"].startswith("truncated: ")
            assert row["tokens"] == (row["budget"] or 60)
    answered = [row for row in rows if row["sentiment"] is not None]
    assert (manifest.records, manifest.succeeded, manifest.failed) == (ROWS, len(answered), 0)
    assert manifest.truncated == ROWS - len(answered)
    assert [row["id"] for row in rows if row["sentiment"] is None] == list(range(0, ROWS, 10))
    assert len({row["sentiment"] for row in answered}) > 1

    before = polars.read_parquet(source)
    assert found.select(before.columns).equals(before)
    assert (found.schema["sentiment"], found.schema["score"]) == (polars.String(), polars.Int64())
    assert list(map(str, duckdb.read_parquet(str(output)).types)) == [
        *("INTEGER", "VARCHAR", "SMALLINT", "VARCHAR", "VARCHAR", "BIGINT", "VARCHAR", "VARCHAR", "BIGINT")
    ]
    frame = pandas.read_parquet(output, dtype_backend="pyarrow")
    assert (frame["score"].dtype, frame["score"].count()) == ("int64[pyarrow]", len(answered))
    pandas.testing.assert_frame_equal(frame[before.columns], pandas.read_parquet(source, dtype_backend="pyarrow"))
