"""A function's rows: the day's support tickets, each with its team and urgency.

The function runs where Airflow's tasks run; what it returns is the job's input, and the job's summary is the task's
XCom.
"""

from __future__ import annotations

import csv
import os
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from airflow.sdk import Param, dag, task
from pydantic import BaseModel

TICKETS = Path(__file__).parent / "data" / "support_tickets.csv"


class Triage(BaseModel):
    """Who looks into a ticket, and how soon."""

    team: Literal["billing", "delivery", "technology"]
    urgent: bool


@dag(
    dag_id="llmengine_ticket_triage",
    schedule="@daily",
    start_date=datetime(2026, 1, 5),  # noqa: DTZ001 - Airflow's own time zone
    catchup=False,
    tags=["llmengine", "example"],
    doc_md=__doc__,
    default_args={"retries": 2},
    params={
        "model": Param(os.environ.get("LLMENGINE_EXAMPLE_MODEL", "HuggingFaceTB/SmolLM2-135M-Instruct"), type="string"),
        "folder": Param(
            os.environ.get("LLMENGINE_EXAMPLE_FOLDER", str(Path(tempfile.gettempdir()) / "llmengine-triage")),
            type="string",
            description="Where the output goes; on a cluster, an object store.",
        ),
    },
)
def ticket_triage() -> None:
    # --8<-- [start:decorator]
    @task.llmengine_batch(
        output_data_path="{{ params.folder }}/{{ ds }}/tickets.jsonl",
        model_config={"model": "{{ params.model }}", "max_model_len": 1024},
        table={
            "messages": [{"role": "user", "content": "Which team is this for, and is it urgent? {{ text }}"}],
            "parameters": {"max_tokens": 32, "temperature": 0},
            "output_schema": Triage,
            "columns": ["ticket_id"],
        },
        # Without it a small model may write white space until max_tokens ends it.
        engine_args={"structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True}},
    )
    def triage(*, ds: str) -> list[dict[str, Any]]:
        """The day's tickets."""
        with TICKETS.open(newline="") as tickets:
            return [ticket for ticket in csv.DictReader(tickets) if ticket["day"] == ds]

    # --8<-- [end:decorator]

    @task
    def show(job: dict[str, Any]) -> None:
        """Print the resulting table."""
        print(f"{job['records']} tickets, {job['failed']} failed:")
        print(Path(job["output_data_path"]).read_text())

    show(triage())


ticket_triage()
