"""Backfill: one mapped task for each partition of a table, as many as there are when it runs.

Partitions whose output stands are answered from storage, so that the DAG can be run again after a failure, or when
partitions were added, and pays only for what is missing.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from airflow.sdk import Param, dag, task

from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator

PARTITIONS = Path(__file__).parent / "data" / "reviews"


@dag(
    dag_id="llmengine_partition_backfill",
    schedule=None,
    tags=["llmengine", "example"],
    doc_md=__doc__,
    params={
        "model": Param(os.environ.get("LLMENGINE_EXAMPLE_MODEL", "HuggingFaceTB/SmolLM2-135M-Instruct"), type="string"),
        "first_day": Param("2026-01-05", type="string", format="date"),
        "last_day": Param("2026-01-07", type="string", format="date"),
        "output_folder": Param(
            os.environ.get("LLMENGINE_EXAMPLE_FOLDER", str(Path(tempfile.gettempdir()) / "llmengine-backfill")),
            type="string",
        ),
    },
)
def partition_backfill() -> None:
    # --8<-- [start:partitions]
    @task
    def find_partitions(*, params: dict[str, str]) -> list[dict[str, str]]:
        """Input and output of each partition in the range."""
        days = sorted(folder.name.removeprefix("day=") for folder in PARTITIONS.glob("day=*"))
        return [
            {
                "input_data_path": f"{PARTITIONS}/day={day}/",
                "output_data_path": f"{params['output_folder']}/day={day}/headlines.jsonl",
            }
            for day in days
            if params["first_day"] <= day <= params["last_day"]
        ]

    # --8<-- [end:partitions]

    # --8<-- [start:mapped]
    headlines = LLMEngineBatchCompletionsOperator.partial(
        task_id="summarize_partition",
        model_config={"model": "{{ params.model }}", "max_model_len": 1024},
        map_index_template="{{ task.request['output_data_path'].split('/')[-2] }}",
        # How many partitions may hold a GPU at once.
        max_active_tis_per_dagrun=2,
        retries=2,
    ).expand_kwargs(find_partitions())
    # --8<-- [end:mapped]

    @task
    def report(results: list[dict[str, Any]]) -> dict[str, int]:
        """Add up what the partitions say of themselves."""
        return {name: sum(result[name] for result in results) for name in ("records", "failed", "completion_tokens")}

    report(headlines.output)


partition_backfill()
