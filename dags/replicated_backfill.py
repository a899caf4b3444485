"""Backfill with replicas: each day's partition is one job, and each job is shared between up to 64 workers.

A pool holds as many slots as there are GPUs for it, and every replica takes one, deferred or not. Days whose output
stands are answered from storage, so the same backfill can be started again after whatever went wrong.
"""

from __future__ import annotations

import os
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow.sdk import Param, dag, task

from airflow_llmengine.operators.task_group import LLMEngineBatchCompletionsTaskGroup
from airflow_llmengine.retry_policy import LLMEngineRetryPolicy

PARTITIONS = Path(__file__).parent / "data" / "reviews"


# --8<-- [start:dag]
@dag(
    dag_id="llmengine_replicated_backfill",
    schedule="@daily",
    start_date=datetime(2026, 1, 5),  # noqa: DTZ001 - Airflow's own time zone
    # Days that were missed are made by `airflow backfill create`, and not all at once when the DAG is switched on.
    catchup=False,
    # Of one run; Airflow's default of 16 would hold most replicas back.
    max_active_tasks=64,
    tags=["llmengine", "example"],
    doc_md=__doc__,
    params={
        "model": Param(os.environ.get("LLMENGINE_EXAMPLE_MODEL", "HuggingFaceTB/SmolLM2-135M-Instruct"), type="string"),
        "input_folder": Param(os.environ.get("LLMENGINE_EXAMPLE_INPUT", str(PARTITIONS)), type="string"),
        "output_folder": Param(
            os.environ.get("LLMENGINE_EXAMPLE_FOLDER", str(Path(tempfile.gettempdir()) / "llmengine-backfill")),
            type="string",
        ),
        "replicas": Param(64, type="integer", minimum=1, maximum=64),
    },
)
# --8<-- [end:dag]
def replicated_backfill() -> None:
    # --8<-- [start:group]
    headlines = LLMEngineBatchCompletionsTaskGroup(
        "summarize_day",
        input_data_path="{{ params.input_folder }}/day={{ ds }}/",
        output_data_path="{{ params.output_folder }}/day={{ ds }}/headlines.jsonl",
        model_config={"model": "{{ params.model }}", "max_model_len": 1024},
        data_parallelism="{{ params.replicas }}",
        gpus=1,
        max_runtime_sec=12 * 3600,
        # One slot for each GPU of a worker.
        pool="gpus",
        # In the triggerer, so that 64 replicas need no 64 worker slots. On one machine tasks are not deferred.
        deferrable=True,
        # A queue admits a pod when there is room; until then it waits, up to the job's deadline.
        schedule_timeout_seconds=12 * 3600,
        # Pods of a batch are preempted, evicted, and lost with their nodes.
        retries=10,
        retry_policy=LLMEngineRetryPolicy(),
    )
    # --8<-- [end:group]

    @task
    def report(result: dict[str, Any]) -> str:
        """Say what became of it."""
        return f"{result['records']} records, {result['failed']} failed, in {result['output_data_path']}"

    report(headlines.output)


replicated_backfill()
