"""The DAG of the tests whose job runs in a pod. Its arguments are in an environment variable."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG
from kubernetes.client import V1ResourceRequirements

from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator

given: dict[str, Any] = json.loads(os.environ.get("TEST_ARGUMENTS", '{"input_data_path": "input.jsonl"}'))
if "container_resources" in given:
    given["container_resources"] = V1ResourceRequirements(**given["container_resources"])
if "execution_timeout" in given:
    given["execution_timeout"] = timedelta(seconds=given["execution_timeout"])
operator: Any = LLMEngineBatchCompletionsOperator
if "cluster_name" in given:
    from airflow_llmengine.operators.eks import LLMEngineEksBatchCompletionsOperator

    operator = LLMEngineEksBatchCompletionsOperator

with DAG("pod_job", schedule=None):
    operator(
        **{
            "task_id": "job",
            "output_data_path": "output.json",
            "model_config": {"model": "stand-in"},
            "retries": 2,
            "retry_delay": timedelta(seconds=0),
            **given,
        }
    )
