"""A job in a cluster of Amazon EKS that the DAG names itself, and on a laptop without one.

With a connection of `launcher: kubernetes` the pod runs in that cluster, reached by an AWS connection; with
`launcher: local` the same DAG runs in a process beside Airflow, and no cluster is asked. (A cluster that the connection
names in its field `eks` needs no other operator than everywhere else.)
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from airflow.sdk import Param, dag, task

from airflow_llmengine.operators.eks import LLMEngineEksBatchCompletionsOperator

REVIEWS = Path(__file__).parent / "data" / "customer_reviews.jsonl"


@dag(
    dag_id="llmengine_eks_reviews",
    schedule=None,
    tags=["llmengine", "example"],
    doc_md=__doc__,
    params={
        "cluster": Param("training", type="string"),
        "region": Param("eu-west-1", type="string"),
        "model": Param(os.environ.get("LLMENGINE_EXAMPLE_MODEL", "HuggingFaceTB/SmolLM2-135M-Instruct"), type="string"),
        "input": Param(os.environ.get("LLMENGINE_EXAMPLE_INPUT", str(REVIEWS)), type="string"),
        "output_folder": Param(
            os.environ.get("LLMENGINE_EXAMPLE_FOLDER", str(Path(tempfile.gettempdir()) / "llmengine-eks-reviews")),
            type="string",
        ),
    },
)
def eks_reviews() -> None:
    # --8<-- [start:operator]
    headlines = LLMEngineEksBatchCompletionsOperator(
        task_id="summarize_reviews",
        cluster_name="{{ params.cluster }}",
        region="{{ params.region }}",
        aws_conn_id="aws_default",
        input_data_path="{{ params.input }}",
        output_data_path="{{ params.output_folder }}/{{ run_id }}/headlines.jsonl",
        model_config={"model": "{{ params.model }}", "max_model_len": 1024},
        max_runtime_sec=1800,
        deferrable=True,
        retries=2,
    )
    # --8<-- [end:operator]

    @task
    def report(result: dict[str, Any]) -> str:
        """Say what became of it."""
        return f"{result['records']} records, {result['failed']} failed, in {result['output_data_path']}"

    report(headlines.output)


eks_reviews()
