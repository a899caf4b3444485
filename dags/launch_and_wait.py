"""A pod that nobody waits for in a worker slot: one task launches the job, a sensor waits for it and clears up.

For a cluster: it needs a connection of `launcher: kubernetes`. The sensor is deferrable, so that neither task holds a
slot while the model works; it deletes the pod when the job is done, and when the pod has died it fails and says which
task to clear. (The operator by itself, with `deferrable=True`, does the same in one task and retries by itself.)
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from airflow.sdk import Param, dag, task

from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator
from airflow_llmengine.sensors.batch_completions import LLMEngineBatchCompletionsSensor

REVIEWS = Path(__file__).parent / "data" / "customer_reviews.jsonl"


@dag(
    dag_id="llmengine_launch_and_wait",
    schedule=None,
    tags=["llmengine", "example"],
    doc_md=__doc__,
    params={
        "model": Param(os.environ.get("LLMENGINE_EXAMPLE_MODEL", "HuggingFaceTB/SmolLM2-135M-Instruct"), type="string"),
        "input": Param(os.environ.get("LLMENGINE_EXAMPLE_INPUT", str(REVIEWS)), type="string"),
        "output_folder": Param(
            os.environ.get("LLMENGINE_EXAMPLE_FOLDER", str(Path(tempfile.gettempdir()) / "llmengine-launch-and-wait")),
            type="string",
        ),
    },
)
def launch_and_wait() -> None:
    # --8<-- [start:launch]
    launch = LLMEngineBatchCompletionsOperator(
        task_id="launch",
        input_data_path="{{ params.input }}",
        output_data_path="{{ params.output_folder }}/{{ run_id }}/headlines.jsonl",
        model_config={"model": "{{ params.model }}", "max_model_len": 1024},
        max_runtime_sec=1800,
        wait_for_completion=False,
    )
    wait = LLMEngineBatchCompletionsSensor(task_id="wait", job=launch.output["job"], deferrable=True, poke_interval=15)
    # --8<-- [end:launch]

    @task
    def report(result: dict[str, Any]) -> str:
        """Say what became of it."""
        return f"{result['records']} records, {result['failed']} failed, in {result['output_data_path']}"

    report(wait.output)


launch_and_wait()
