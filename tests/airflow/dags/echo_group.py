"""The DAG of the tests that run a whole group of task processes. What it does is set by environment variables."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException

from airflow_llmengine.operators.task_group import LLMEngineBatchCompletionsTaskGroup


def fail_one_replica(context: Any) -> None:
    """Fail where the test wants it, before the operator has begun."""
    if str(context["ti"].map_index) == os.environ.get("TEST_FAILING_REPLICA"):
        raise AirflowFailException("as the test wants it")


with DAG("echo_group", schedule=None, params={"folder": os.environ.get("TEST_FOLDER", ".")}):

    @task
    def extract() -> dict[str, Any]:
        """Say what there is to do."""
        if "TEST_EXTRACT_FAILS" in os.environ:
            raise AirflowFailException("as the test wants it")
        return {"path": os.environ["TEST_INPUT"], "replicas": int(os.environ.get("TEST_REPLICAS", "3"))}

    extracted = extract()
    given: dict[str, Any] = json.loads(os.environ.get("TEST_ARGUMENTS", "{}"))
    group = LLMEngineBatchCompletionsTaskGroup(
        "teams",
        **{
            "request": {
                **({} if "content" in os.environ.get("TEST_REQUEST", "") else {"input_data_path": extracted["path"]}),
                "output_data_path": "{{ params.folder }}/output.json",
                "model_config": {"model": "stand-in"},
                "data_parallelism": extracted["replicas"],
                **json.loads(os.environ.get("TEST_REQUEST", "{}")),
            },
            "retries": 0,
            "pre_execute": fail_one_replica,
            "retry_delay": timedelta(seconds=0),
            "termination_grace_period": 5,
            **given,
        },
    )

    @task
    def load(path: str, result: dict[str, Any]) -> str:
        """Take what the group hands on."""
        assert result["output_data_path"] == path
        return path

    load(group.output["output_data_path"], group.output)
