"""The DAG of the tests whose job runs in several pods. Its arguments are in an environment variable."""

from __future__ import annotations

import json
import os
from datetime import timedelta

from airflow.sdk import DAG

from airflow_llmengine.operators.task_group import LLMEngineBatchCompletionsTaskGroup

with DAG("pod_group", schedule=None):
    LLMEngineBatchCompletionsTaskGroup(
        "group",
        **{
            "output_data_path": "output.json",
            "model_config": {"model": "stand-in"},
            "retries": 2,
            "retry_delay": timedelta(seconds=0),
            **json.loads(os.environ.get("TEST_ARGUMENTS", '{"input_data_path": "input.jsonl"}')),
        },
    )
