"""Several replicas: the records of one job are shared between workers, and each worker is a task of its own.

How many there are is only known when the DAG runs. A replica that fails is retried, or cleared, by itself; what was
finished by then stays finished. On one machine they take turns unless the connection's `local_workers` says otherwise.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from airflow.sdk import Param, dag, task

from airflow_llmengine.operators.task_group import LLMEngineBatchCompletionsTaskGroup

REVIEWS = Path(__file__).parent / "data" / "customer_reviews.jsonl"
RECORDS_PER_REPLICA = 10


@dag(
    dag_id="llmengine_replicas",
    schedule=None,
    tags=["llmengine", "example"],
    doc_md=__doc__,
    params={
        "model": Param(os.environ.get("LLMENGINE_EXAMPLE_MODEL", "HuggingFaceTB/SmolLM2-135M-Instruct"), type="string"),
        "input": Param(
            os.environ.get("LLMENGINE_EXAMPLE_INPUT", str(REVIEWS)),
            type="string",
            description="The reviews; on a cluster, a copy of them where pods can read it.",
        ),
        "output_folder": Param(
            os.environ.get("LLMENGINE_EXAMPLE_FOLDER", str(Path(tempfile.gettempdir()) / "llmengine-replicas")),
            type="string",
        ),
    },
)
def replicas() -> None:
    @task
    def count_replicas() -> int:
        """One replica for each so many records."""
        records = len(REVIEWS.read_text().splitlines())
        return -(-records // RECORDS_PER_REPLICA)

    # --8<-- [start:group]
    headlines = LLMEngineBatchCompletionsTaskGroup(
        "summarize_reviews",
        input_data_path="{{ params.input }}",
        output_data_path="{{ params.output_folder }}/{{ run_id }}/headlines.jsonl",
        model_config={"model": "{{ params.model }}", "max_model_len": 1024},
        data_parallelism=count_replicas(),
        max_runtime_sec=1800,
        retries=2,
        # The rest is the replicas' own: a pool, a queue, an execution_timeout, the options of a pod.
        pool="default_pool",
    )
    # --8<-- [end:group]

    @task
    def report(result: dict[str, Any]) -> str:
        """Say what became of it."""
        return f"{result['records']} records, {result['failed']} failed, in {result['output_data_path']}"

    report(headlines.output)


replicas()
