"""Quickstart: headlines for 24 customer reviews, by a small model on this machine.

Needs a connection `llmengine_default` and the model that `scripts/prepare_quickstart_model.py` makes; `make quickstart`
sees to both and runs it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from airflow.sdk import Param, dag, task

from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator

REVIEWS = Path(__file__).parent / "data" / "customer_reviews.jsonl"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "airflow-llmengine"


@dag(
    dag_id="llmengine_quickstart",
    schedule=None,
    tags=["llmengine", "example"],
    doc_md=__doc__,
    params={
        "checkpoint_path": Param(
            os.environ.get("LLMENGINE_QUICKSTART_MODEL", str(CACHE / "SmolLM2-135M-Instruct")),
            type="string",
            description="Where the model's weights are.",
        ),
        "output_folder": Param(
            os.environ.get("LLMENGINE_QUICKSTART_FOLDER", str(CACHE / "quickstart")),
            type="string",
            description="Where the output goes.",
        ),
    },
)
def quickstart() -> None:
    # --8<-- [start:operator]
    headlines = LLMEngineBatchCompletionsOperator(
        task_id="summarize_reviews",
        input_data_path=str(REVIEWS),
        output_data_path="{{ params.output_folder }}/{{ run_id }}/headlines.jsonl",
        model_config={
            "model": "SmolLM2-135M-Instruct",
            "checkpoint_path": "{{ params.checkpoint_path }}",
            "max_model_len": 1024,
            # For a processor: exact, and ready sooner, since nothing is compiled first. Leave both out on a GPU.
            "dtype": "float32",
            "enforce_eager": True,
        },
        max_runtime_sec=1800,
    )
    # --8<-- [end:operator]

    @task
    def show(result: dict[str, Any]) -> None:
        """Print each prompt beside its completion."""
        records = [json.loads(line) for line in REVIEWS.read_text().splitlines()]
        with Path(result["output_data_path"]).open(encoding="utf-8") as lines:
            answers = [json.loads(line) for line in lines]
        for record, answer in zip(records, answers, strict=True):
            review = record["messages"][0]["content"].partition("\n\n")[2]
            said = answer["choices"][0]["message"]["content"] if "choices" in answer else answer["error"]["message"]
            print(f"{record['user']}  {review}\n            -> {' '.join(said.split())}")
        print(f"\nThe output is in {result['output_data_path']}.")
        print(f"The XCom that this task got: {json.dumps(result, indent=2)}")

    show(headlines.output)


quickstart()
