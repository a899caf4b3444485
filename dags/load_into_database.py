"""A table into a database: label support tickets, check how many have no answer, and load those that have one.

The check stands between the job and the load, so that a bad day leaves the database as it was. An SQLite database
stands for the warehouse.
"""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from airflow.sdk import Param, dag, task
from airflow.sdk.exceptions import AirflowFailException
from pydantic import BaseModel, Field

from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator

TICKETS = Path(__file__).parent / "data" / "support_tickets.csv"


class Label(BaseModel):
    """What a ticket is about."""

    team: Literal["billing", "delivery", "technology"]
    urgency: int = Field(ge=1, le=5)


@dag(
    dag_id="llmengine_load_into_database",
    schedule=None,
    tags=["llmengine", "example"],
    doc_md=__doc__,
    params={
        "model": Param(os.environ.get("LLMENGINE_EXAMPLE_MODEL", "HuggingFaceTB/SmolLM2-135M-Instruct"), type="string"),
        "tickets": Param(str(TICKETS), type="string", description="A table with the columns ticket_id and text."),
        "folder": Param(
            os.environ.get("LLMENGINE_EXAMPLE_FOLDER", str(Path(tempfile.gettempdir()) / "llmengine-load")),
            type="string",
            description="Where the labelled tickets and the database are.",
        ),
        "most_without_answer": Param(0.1, type="number", description="Share of the tickets that may have none."),
    },
)
def load_into_database() -> None:
    # --8<-- [start:operator]
    labelled = LLMEngineBatchCompletionsOperator(
        task_id="label_tickets",
        input_data_path="{{ params.tickets }}",
        output_data_path="{{ params.folder }}/{{ macros.llmengine.run_slug(dag_run) }}.jsonl",
        model_config={"model": "{{ params.model }}", "max_model_len": 1024},
        table={
            "messages": [{"role": "user", "content": "Which team is this for, and how urgent is it? {{ text }}"}],
            "parameters": {"max_tokens": 64, "temperature": 0},
            "output_schema": Label,
            "columns": ["ticket_id"],
            "error_column": "error",
        },
        # Without it a small model may write white space until max_tokens ends it.
        engine_args={"structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True}},
    )
    # --8<-- [end:operator]

    # --8<-- [start:check]
    @task
    def check(job: dict[str, Any], *, params: dict[str, Any]) -> str:
        """Let nothing into the database if too many tickets have no answer; gives the path of those that have."""
        without = job["failed"] + job["truncated"]
        if without > params["most_without_answer"] * job["records"]:
            causes = {**job["failures"], "truncated": job["truncated"]}
            raise AirflowFailException(f"{without} of {job['records']} tickets have no answer: {causes}")
        return str(job["output_data_path"])

    # --8<-- [end:check]

    # --8<-- [start:load]
    @task
    def load(path: str, *, params: dict[str, Any]) -> dict[str, int]:
        """Put all rows into the database, or none: labels, and apart from them the tickets without one."""
        with Path(path).open(encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        labels = [row for row in rows if row["error"] is None]
        rejected = [row for row in rows if row["error"] is not None]
        with closing(sqlite3.connect(Path(params["folder"]) / "tickets.db")) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS labels (ticket_id TEXT PRIMARY KEY, team TEXT, urgency INT)")
            database.execute("CREATE TABLE IF NOT EXISTS rejected (ticket_id TEXT PRIMARY KEY, error TEXT)")
            for table in ("labels", "rejected"):
                database.executemany(f"DELETE FROM {table} WHERE ticket_id = :ticket_id", rows)  # noqa: S608 - one of two
            database.executemany("INSERT INTO labels VALUES (:ticket_id, :team, :urgency)", labels)
            database.executemany("INSERT INTO rejected VALUES (:ticket_id, :error)", rejected)
        return {"labels": len(labels), "rejected": len(rejected)}

    # --8<-- [end:load]

    load(check(labelled.output))


load_into_database()
