"""The example DAG of partitioned assets under a real scheduler: backfilled, and again when an input has changed."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.operators_in_tests import connection
from tests.airflow.scheduler import AIRFLOW, ROOT, scheduler
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.scheduler]

DAG_ID = "llmengine_partitioned_assets"
DAYS = [f"2026-01-{day:02}" for day in range(5, 17)]
CHANGED = DAYS[6]

CONSUMER = """
from airflow.sdk import DAG, Asset, PartitionedAssetTimetable
from airflow.providers.standard.operators.empty import EmptyOperator

with DAG("consumer", schedule=PartitionedAssetTimetable(assets=Asset.ref(name="llmengine_review_headlines"))):
    EmptyOperator(task_id="nothing")
"""
"""Whoever waits for the partitions. Its task is over as soon as the scheduler has made it."""


class Partitions:
    """Twelve days of reviews, and an Airflow whose DAGs are the example and who waits for it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.input = folder / "in"
        self.output = folder / "out"
        self.generated = folder / "generated.log"
        for day in DAYS:
            self.write(day, f"Good on {day}", f"Bad on {day}")
        dags = folder / "dags"
        dags.mkdir()
        shutil.copy(ROOT / "dags" / "partitioned_assets.py", dags)
        (dags / "consumer.py").write_text(CONSUMER)
        self.database = Path(environment["AIRFLOW_HOME"]) / "airflow.db"
        self.environment = environment | {
            "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__LLMENGINE__RUNTIME_DIRECTORY": str(folder / "runtime"),
            "AIRFLOW_CONN_LLMENGINE_DEFAULT": connection(
                worker_environment={"LLMENGINE_ECHO_LOG": str(self.generated)}, local_workers=4
            ),
            "LLMENGINE_EXAMPLE_INPUT": str(self.input),
            "LLMENGINE_EXAMPLE_FOLDER": str(self.output),
        }

    def write(self, day: str, *reviews: str) -> None:
        folder = self.input / f"day={day}"
        folder.mkdir(parents=True, exist_ok=True)
        rows = [json.dumps({"review_id": f"{day}-{index}", "review": review}) for index, review in enumerate(reviews)]
        (folder / "reviews.jsonl").write_text("\n".join(rows) + "\n")

    def airflow(self, *command: str) -> str:
        done = subprocess.run([AIRFLOW, *command], env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def backfill(self) -> None:
        """Make all days, those too that were made, and wait until that is over."""
        self.airflow(
            *("backfill", "create", "--dag-id", DAG_ID, "--from-date", DAYS[0], "--to-date", DAYS[-1]),
            *("--reprocess-behavior", "completed", "--max-active-runs", "3"),
        )
        wait_until(lambda: not self.rows("SELECT id FROM backfill WHERE completed_at IS NULL"), 400)

    def rows(self, query: str) -> list[Any]:
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=60)) as database:
            return database.execute(query).fetchall()

    def runs(self, dag_id: str) -> list[tuple[str, str]]:
        """Partition keys and states of a DAG's runs."""
        query = f"SELECT partition_key, state FROM dag_run WHERE dag_id = '{dag_id}' ORDER BY id"  # noqa: S608
        return [(key, state) for key, state in self.rows(query) if key in DAYS]

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """Partition keys and extras of the asset's events, as they came."""
        found = self.rows("SELECT partition_key, extra FROM asset_event ORDER BY id")
        return [(key, json.loads(extra)) for key, extra in found]

    def output_of(self, day: str) -> Path:
        return self.output / f"day={day}" / "headlines.parquet"

    def headlines(self, day: str) -> list[str]:
        """The reviews whose headlines a day's output has: the stand-in engine gives the prompt back."""
        from pyarrow import parquet

        table = parquet.read_table(self.output_of(day)).to_pydict()
        assert list(table) == ["review_id", "review", "headline"]
        assert table["review_id"] == [f"{day}-{index}" for index in range(len(table["review_id"]))]
        assert all(
            headline.endswith(review) for headline, review in zip(table["headline"], table["review"], strict=True)
        )
        reviews: list[str] = table["review"]
        return reviews


@pytest.fixture
def partitions(tmp_path: Path, airflow_environment: dict[str, str]) -> Partitions:
    return Partitions(tmp_path, airflow_environment)


@pytest.mark.timeout(900)
def test_each_partition_has_its_output_and_event_and_only_a_changed_one_is_made_again(partitions: Partitions) -> None:
    partitions.airflow("dags", "reserialize")
    with scheduler(partitions.environment) as log:
        partitions.backfill()

        assert Counter(partitions.runs(DAG_ID)) == Counter((day, "success") for day in DAYS), log.read_text()
        for day in DAYS:
            assert partitions.headlines(day) == [f"Good on {day}", f"Bad on {day}"]
        first = dict(partitions.events())
        assert len(partitions.events()) == len(DAYS)
        for day in DAYS:
            manifest = json.loads(Path(f"{partitions.output_of(day)}.manifest.json").read_text())
            assert first[day] == {name: manifest[name] for name in first[day]}
            assert (first[day]["records"], first[day]["succeeded"], first[day]["generation"]) == (2, 2, 1)
        assert len({extra["fingerprint"] for extra in first.values()}) == len(DAYS)
        wait_until(lambda: Counter(partitions.runs("consumer")) == Counter((day, "success") for day in DAYS))

        partitions.write(CHANGED, f"Better on {CHANGED}", f"Worse on {CHANGED}", "One more")
        partitions.generated.unlink()
        partitions.backfill()

        assert Counter(partitions.runs(DAG_ID)) == Counter(2 * [(day, "success") for day in DAYS])
        assert len(partitions.generated.read_text().splitlines()) == 3
        assert partitions.headlines(CHANGED) == [f"Better on {CHANGED}", f"Worse on {CHANGED}", "One more"]
        second = dict(partitions.events()[len(DAYS) :])
        assert len(partitions.events()) == 2 * len(DAYS)
        assert {day for day in DAYS if second[day] != first[day]} == {CHANGED}
        assert second[CHANGED]["records"] == 3
        assert second[CHANGED]["fingerprint"] != first[CHANGED]["fingerprint"]
        wait_until(lambda: Counter(partitions.runs("consumer")) == Counter(2 * [(day, "success") for day in DAYS]))
    assert "Better" not in str(partitions.rows("SELECT extra FROM asset_event"))
