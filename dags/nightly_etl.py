"""Nightly ETL: extract the day's support tickets, complete them, load the answers into a table.

The tasks hand on paths and counts by XCom, never data. A CSV file and an SQLite database stand for the systems at both
ends.
"""

from __future__ import annotations

import csv
import json
import os
import sqlite3
import tempfile
from contextlib import closing
from datetime import datetime
from pathlib import Path

from airflow.sdk import Param, dag, task

from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator

TICKETS = Path(__file__).parent / "data" / "support_tickets.csv"
PROMPT = "To which team does this support ticket belong: billing, delivery, or technology? Answer with one word.\n\n"


@dag(
    dag_id="llmengine_nightly_etl",
    schedule="@daily",
    start_date=datetime(2026, 1, 5),  # noqa: DTZ001 - Airflow's own time zone
    catchup=False,
    tags=["llmengine", "example"],
    doc_md=__doc__,
    default_args={"retries": 2},
    params={
        "model": Param(os.environ.get("LLMENGINE_EXAMPLE_MODEL", "HuggingFaceTB/SmolLM2-135M-Instruct"), type="string"),
        "folder": Param(
            os.environ.get("LLMENGINE_EXAMPLE_FOLDER", str(Path(tempfile.gettempdir()) / "llmengine-etl")),
            type="string",
            description="Where the day's files and the database are; on a cluster, an object store.",
        ),
    },
)
def nightly_etl() -> None:
    # --8<-- [start:extract]
    @task
    def extract(*, ds: str, params: dict[str, str]) -> str:
        """Write the day's tickets as records, and give their path."""
        folder = Path(params["folder"]) / ds
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "tickets.jsonl"
        with TICKETS.open(newline="") as tickets, path.open("w") as records:
            for ticket in csv.DictReader(tickets):
                if ticket["day"] == ds:
                    record = {
                        "messages": [{"role": "user", "content": PROMPT + ticket["text"]}],
                        "max_tokens": 8,
                        "temperature": 0,
                        "user": ticket["ticket_id"],
                    }
                    records.write(json.dumps(record) + "\n")
        return str(path)

    # --8<-- [end:extract]

    # --8<-- [start:operator]
    route = LLMEngineBatchCompletionsOperator(
        task_id="route_tickets",
        input_data_path=extract(),
        output_data_path="{{ params.folder }}/{{ ds }}/teams.jsonl",
        model_config={"model": "{{ params.model }}", "max_model_len": 1024},
        max_runtime_sec=3600,
        max_error_rate=0.05,
    )
    # --8<-- [end:operator]

    @task
    def load(path: str, *, ds: str, params: dict[str, str]) -> int:
        """Put the answers into the table, the day's old ones replaced, and give their number."""
        with Path(path).open(encoding="utf-8") as lines:
            answers = [answer for answer in map(json.loads, lines) if "error" not in answer]
        rows = [(answer["metadata"]["user"], ds, answer["choices"][0]["message"]["content"]) for answer in answers]
        with closing(sqlite3.connect(Path(params["folder"]) / "tickets.db")) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS teams (ticket_id TEXT PRIMARY KEY, day TEXT, team TEXT)")
            database.execute("DELETE FROM teams WHERE day = ?", (ds,))
            database.executemany("INSERT INTO teams VALUES (?, ?, ?)", rows)
        return len(rows)

    load(route.output["output_data_path"])


nightly_etl()
