"""DAGs of the tests that run real task processes. What they do is set by environment variables."""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import DAG, task

from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator

with DAG("echo_job", schedule=None):
    job = LLMEngineBatchCompletionsOperator(
        task_id="job",
        input_data_path=os.environ.get("TEST_INPUT", "input.jsonl"),
        output_data_path=os.environ.get("TEST_OUTPUT", "output.json"),
        model_config={"model": "stand-in"},
        if_done=os.environ.get("TEST_IF_DONE", "reuse"),
        retries=int(os.environ.get("TEST_RETRIES", "2")),
        retry_delay=timedelta(seconds=0),
        execution_timeout=timedelta(seconds=float(os.environ["TEST_TIMEOUT"]))
        if "TEST_TIMEOUT" in os.environ
        else None,
        termination_grace_period=int(os.environ.get("TEST_GRACE", "10")),
    )

    @task
    def after(result: dict[str, object]) -> None:
        """Take what the job hands on."""

    after(job.output)
