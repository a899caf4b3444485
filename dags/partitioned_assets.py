"""Partitioned assets: each day's run makes one partition of a table, and tells those who wait for it what is in it.

A run is backfilled, made again or triggered by hand for a partition, and finds the output that stands: only partitions
whose input has changed are paid for again.
"""

from __future__ import annotations

import os
import tempfile
from datetime import datetime
from pathlib import Path

from airflow.sdk import Asset, CronPartitionTimetable, Param, dag

from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator

PARTITIONS = Path(__file__).parent / "data" / "review_rows"

# --8<-- [start:asset]
HEADLINES = Asset("llmengine_review_headlines")
# --8<-- [end:asset]


# --8<-- [start:dag]
@dag(
    dag_id="llmengine_partitioned_assets",
    # The partition key is the day.
    schedule=CronPartitionTimetable("0 0 * * *", timezone="UTC", key_format="%Y-%m-%d"),
    start_date=datetime(2026, 1, 5),  # noqa: DTZ001 - Airflow's own time zone
    catchup=False,
    tags=["llmengine", "example"],
    doc_md=__doc__,
    params={
        "model": Param(os.environ.get("LLMENGINE_EXAMPLE_MODEL", "HuggingFaceTB/SmolLM2-135M-Instruct"), type="string"),
        "input_folder": Param(os.environ.get("LLMENGINE_EXAMPLE_INPUT", str(PARTITIONS)), type="string"),
        "output_folder": Param(
            os.environ.get("LLMENGINE_EXAMPLE_FOLDER", str(Path(tempfile.gettempdir()) / "llmengine-partitions")),
            type="string",
        ),
    },
)
# --8<-- [end:dag]
def partitioned_assets() -> None:
    # --8<-- [start:operator]
    LLMEngineBatchCompletionsOperator(
        task_id="summarize_partition",
        # There is no ds in a run of a partition; the slug is there in every run.
        input_data_path="{{ params.input_folder }}/day={{ macros.llmengine.run_slug(dag_run) }}/",
        output_data_path="{{ params.output_folder }}/day={{ macros.llmengine.run_slug(dag_run) }}/headlines.parquet",
        model_config={"model": "{{ params.model }}", "max_model_len": 1024},
        table={
            "messages": [
                {
                    "role": "user",
                    "content": "Summarize this customer review as a headline of at most six words.\n\n{{ review }}",
                }
            ],
            "parameters": {"max_tokens": 32, "temperature": 0},
            "completion_column": "headline",
        },
        # Its event has the run's partition key, and in its extra what is in the output.
        outlets=[HEADLINES],
        retries=2,
    )
    # --8<-- [end:operator]


partitioned_assets()
