"""The DAGs that are shipped as examples: they parse cleanly, and they run."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization

from tests.airflow.operators_in_tests import connection

DAGS = Path(__file__).parents[2] / "dags"
FILES = sorted(DAGS.glob("*.py"))


def load(path: Path) -> DAG:
    """Import a DAG file, as the DAG processor does."""
    bag = DagBag(dag_folder=path)
    assert not bag.import_errors
    assert not bag.captured_warnings
    (dag,) = bag.dags.values()
    return dag


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_parses_without_a_warning_and_says_what_it_is(path: Path) -> None:
    dag = load(path)
    assert dag.dag_id == f"llmengine_{path.stem}"
    assert dag.doc_md
    assert "example" in dag.tags
    DagSerialization.from_dict(DagSerialization.to_dict(dag))


def test_the_etl_hands_its_path_on() -> None:
    dag = load(DAGS / "nightly_etl.py")
    assert dag.task_dict["route_tickets"].upstream_task_ids == {"extract"}
    assert dag.task_dict["load"].upstream_task_ids == {"route_tickets"}


def test_the_quickstarts_data_are_24_records() -> None:
    lines = (DAGS / "data" / "customer_reviews.jsonl").read_text().splitlines()
    assert len(lines) == 24
    assert len({json.loads(line)["user"] for line in lines}) == 24


def dags_test(home: Path, dag_id: str, *arguments: str, **environment: str) -> str:
    """`airflow dags test`, with a database of its own; gives what was printed."""
    variables = os.environ | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        **environment,
    }
    airflow = str(Path(sys.executable).parent / "airflow")
    if not (home / "airflow.db").exists():
        subprocess.run([airflow, "db", "migrate"], env=variables, check=True, capture_output=True)
    done = subprocess.run(
        [airflow, "dags", "test", dag_id, *arguments],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"DagRun Finished:.*state=success", done.stdout), done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def airflow_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("airflow")


@pytest.mark.slow
def test_the_nightly_etl_runs(airflow_home: Path, tmp_path: Path) -> None:
    echo = connection()
    environment = {"LLMENGINE_EXAMPLE_FOLDER": str(tmp_path), "AIRFLOW_CONN_LLMENGINE_DEFAULT": echo}
    dags_test(airflow_home, "llmengine_nightly_etl", "2026-01-07", **environment)
    with closing(sqlite3.connect(tmp_path / "tickets.db")) as database:
        rows = database.execute("SELECT ticket_id, day, team FROM teams ORDER BY ticket_id").fetchall()
    assert [(row[0], row[1]) for row in rows] == [
        ("4106", "2026-01-07"),
        ("4107", "2026-01-07"),
        ("4108", "2026-01-07"),
    ]
    assert "Please cancel order 7790" in rows[1][2]


@pytest.mark.slow
def test_the_backfill_runs_and_again_pays_only_for_what_is_missing(airflow_home: Path, tmp_path: Path) -> None:
    log = tmp_path / "generated.log"
    environment = {
        "LLMENGINE_EXAMPLE_FOLDER": str(tmp_path / "out"),
        "AIRFLOW_CONN_LLMENGINE_DEFAULT": connection(worker_environment={"LLMENGINE_ECHO_LOG": str(log)}),
    }
    two_days = json.dumps({"last_day": "2026-01-06"})
    dags_test(airflow_home, "llmengine_partition_backfill", "--conf", two_days, **environment)
    assert len(log.read_text().splitlines()) == 7
    printed = dags_test(airflow_home, "llmengine_partition_backfill", **environment)
    assert len(log.read_text().splitlines()) == 9
    assert printed.count("Answered from storage") == 2
    assert "{'records': 9, 'failed': 0," in printed
    assert len(list((tmp_path / "out").glob("day=*/headlines.jsonl"))) == 3


@pytest.mark.slow
def test_reviews_get_typed_columns(airflow_home: Path, tmp_path: Path) -> None:
    import pyarrow.parquet

    environment = {"LLMENGINE_EXAMPLE_FOLDER": str(tmp_path), "AIRFLOW_CONN_LLMENGINE_DEFAULT": connection()}
    printed = dags_test(airflow_home, "llmengine_review_sentiment", **environment)
    assert "24 reviews: {" in printed
    (output,) = tmp_path.glob("*/reviews.parquet")
    given = pyarrow.parquet.read_table(DAGS / "data" / "customer_reviews.parquet")
    made = pyarrow.parquet.read_table(output)
    assert made.select(given.column_names).equals(given)
    assert [(field.name, field.type) for field in made.schema][len(given.column_names) :] == [
        ("sentiment", pyarrow.string()),
        ("score", pyarrow.int64()),
        ("error", pyarrow.string()),
    ]
    assert made["error"].null_count == 24
    assert set(made["sentiment"].to_pylist()) <= {"positive", "neutral", "negative"}
    assert set(made["score"].to_pylist()) <= {1, 2, 3, 4, 5}


@pytest.mark.slow
def test_a_functions_rows_are_triaged(airflow_home: Path, tmp_path: Path) -> None:
    environment = {"LLMENGINE_EXAMPLE_FOLDER": str(tmp_path), "AIRFLOW_CONN_LLMENGINE_DEFAULT": connection()}
    printed = dags_test(airflow_home, "llmengine_ticket_triage", "2026-01-07", **environment)
    assert "3 tickets, 0 failed:" in printed
    rows = [json.loads(line) for line in (tmp_path / "2026-01-07" / "tickets.jsonl").read_text().splitlines()]
    assert [list(row) for row in rows] == [["ticket_id", "team", "urgent"]] * 3
    assert [row["ticket_id"] for row in rows] == ["4106", "4107", "4108"]
    assert {row["team"] for row in rows} <= {"billing", "delivery", "technology"}


@pytest.mark.timeout(1200)
@pytest.mark.slow  # `airflow dags test` and three workers: 20 s.
def test_each_file_of_a_prefix_is_a_job_of_its_own(airflow_home: Path, tmp_path: Path) -> None:
    import pyarrow.parquet

    environment = {"LLMENGINE_EXAMPLE_FOLDER": str(tmp_path), "AIRFLOW_CONN_LLMENGINE_DEFAULT": connection()}
    printed = dags_test(airflow_home, "llmengine_prefix_files", **environment)
    assert "{'records': 8, 'failed': 0," in printed
    assert sorted(path.stem for path in tmp_path.glob("*.parquet")) == ["berlin", "lyon", "porto"]
    lyon = pyarrow.parquet.read_table(tmp_path / "lyon.parquet").to_pydict()
    assert lyon["review_id"] == ["L-1", "L-2"]
    assert "rucksack: Two months of daily use" in lyon["headline"][0]


@pytest.mark.slow  # `airflow dags test` and a worker: 15 s.
def test_what_has_an_answer_is_loaded_and_what_has_none_is_kept_apart(airflow_home: Path, tmp_path: Path) -> None:
    import pyarrow.parquet

    tickets = tmp_path / "tickets.parquet"
    texts = ["charged twice", None, *["late"] * 10]
    ids = [f"T-{number}" for number in range(len(texts))]
    # Where str.splitlines() would cut a line of JSON.
    ids[2] += "\u2028\x85"
    pyarrow.parquet.write_table(pyarrow.table({"ticket_id": ids, "text": texts}), tickets)
    environment = {"LLMENGINE_EXAMPLE_FOLDER": str(tmp_path), "AIRFLOW_CONN_LLMENGINE_DEFAULT": connection()}
    given = json.dumps({"tickets": str(tickets)})
    dags_test(airflow_home, "llmengine_load_into_database", "--conf", given, **environment)
    with closing(sqlite3.connect(tmp_path / "tickets.db")) as database:
        labels = database.execute("SELECT ticket_id, team, urgency FROM labels").fetchall()
        rejected = database.execute("SELECT ticket_id, error FROM rejected").fetchall()
    assert {row[0] for row in labels} == set(ids) - {"T-1"}
    assert {row[1] for row in labels} <= {"billing", "delivery", "technology"}
    assert {row[2] for row in labels} <= {1, 2, 3, 4, 5}
    ((ticket, error),) = rejected
    assert ticket == "T-1"
    assert error.startswith("invalid_record: row 2 of tickets.parquet: the column 'text'")


def test_too_many_without_an_answer_are_not_loaded() -> None:
    task = load(DAGS / "load_into_database.py").task_dict["check"]
    assert isinstance(task, PythonOperator)
    check = task.python_callable
    job = {"records": 20, "failed": 1, "truncated": 1, "failures": {"timeout": 1}, "output_data_path": "/out.jsonl"}
    assert check(job, params={"most_without_answer": 0.1}) == "/out.jsonl"
    with pytest.raises(AirflowFailException, match=r"2 of 20 tickets have no answer: \{'timeout': 1, 'truncated': 1\}"):
        check(job, params={"most_without_answer": 0.09})


@pytest.mark.slow
def test_the_replicas_run(airflow_home: Path, tmp_path: Path) -> None:
    environment = {"LLMENGINE_EXAMPLE_FOLDER": str(tmp_path), "AIRFLOW_CONN_LLMENGINE_DEFAULT": connection()}
    printed = dags_test(airflow_home, "llmengine_replicas", **environment)
    (output,) = tmp_path.glob("*/headlines.jsonl")
    assert len(output.read_text().splitlines()) == 24
    assert f"24 records, 0 failed, in {output}" in printed
    assert "3 replicas share the records" in printed


@pytest.mark.slow
def test_a_day_of_the_replicated_backfill_runs(airflow_home: Path, tmp_path: Path) -> None:
    environment = {"LLMENGINE_EXAMPLE_FOLDER": str(tmp_path), "AIRFLOW_CONN_LLMENGINE_DEFAULT": connection()}
    three = json.dumps({"replicas": 3})
    printed = dags_test(airflow_home, "llmengine_replicated_backfill", "2026-01-06", "--conf", three, **environment)
    output = tmp_path / "day=2026-01-06" / "headlines.jsonl"
    assert f"{len(output.read_text().splitlines())} records, 0 failed, in {output}" in printed
    assert "3 replicas share the records" in printed


def test_every_replica_takes_a_slot_of_the_pool_and_none_of_airflows_limits_holds_it_back() -> None:
    dag = load(DAGS / "replicated_backfill.py")
    replicas = dag.task_dict["summarize_day.replicas"]
    most = dag.params.get_param("replicas").schema["maximum"]
    assert replicas.pool == "gpus"
    assert dag.max_active_tasks >= most
