"""A DAG of the sensor's tests. How it waits is set by environment variables."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_llmengine.sensors.batch_completions import LLMEngineBatchCompletionsSensor

arguments = json.loads(os.environ.get("TEST_SENSOR", '{"job": "nothing.json"}'))

with DAG("wait_for_job", schedule=None):
    if arguments["job"] == "what launch returns":

        @task
        def launch() -> dict[str, Any]:
            """Stands for a task that launches a job elsewhere."""
            handle: dict[str, Any] = json.loads(os.environ["TEST_HANDLE"])
            return handle

        arguments["job"] = launch()

    wait = LLMEngineBatchCompletionsSensor(task_id="wait", **arguments)

    @task
    def after(result: dict[str, Any], path: str) -> None:
        """Note down what the sensor hands on."""
        Path(os.environ["TEST_XCOM"]).write_text(json.dumps([result, path]))

    after(wait.output, wait.output["output_data_path"])
