"""Typed columns: a table of customer reviews in, the same table with each review's sentiment and score out.

What the model may answer is a pydantic model; its fields become columns of their types, beside those of the input.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Literal

from airflow.sdk import Param, dag, task
from pydantic import BaseModel, Field

from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator

REVIEWS = Path(__file__).parent / "data" / "customer_reviews.parquet"


# --8<-- [start:schema]
class Sentiment(BaseModel):
    """How content a customer is."""

    sentiment: Literal["positive", "neutral", "negative"]
    score: int = Field(ge=1, le=5)


# --8<-- [end:schema]


@dag(
    dag_id="llmengine_review_sentiment",
    schedule=None,
    tags=["llmengine", "example"],
    doc_md=__doc__,
    params={
        "model": Param(os.environ.get("LLMENGINE_EXAMPLE_MODEL", "HuggingFaceTB/SmolLM2-135M-Instruct"), type="string"),
        "folder": Param(
            os.environ.get("LLMENGINE_EXAMPLE_FOLDER", str(Path(tempfile.gettempdir()) / "llmengine-sentiment")),
            type="string",
            description="Where the output goes; on a cluster, an object store.",
        ),
    },
)
def review_sentiment() -> None:
    # --8<-- [start:operator]
    judged = LLMEngineBatchCompletionsOperator(
        task_id="judge_reviews",
        input_data_path=str(REVIEWS),
        output_data_path="{{ params.folder }}/{{ macros.llmengine.run_slug(dag_run) }}/reviews.parquet",
        model_config={"model": "{{ params.model }}", "max_model_len": 1024},
        table={
            # Over the columns of a row: Airflow leaves these braces alone.
            "messages": [
                {"role": "system", "content": "You judge customer reviews: their sentiment, and a score from 1 to 5."},
                {"role": "user", "content": "{{ product }}: {{ review }}"},
            ],
            "parameters": {"max_tokens": 64, "temperature": 0},
            "output_schema": Sentiment,
            "error_column": "error",
        },
        # Without it a small model may write white space until max_tokens ends it.
        engine_args={"structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True}},
    )
    # --8<-- [end:operator]

    # --8<-- [start:show]
    @task
    def show(path: str) -> None:
        """Count the reviews of each sentiment."""
        import pyarrow.parquet

        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
        print(f"{len(rows)} reviews: {dict(Counter(row['sentiment'] for row in rows))}")

    # --8<-- [end:show]

    show(judged.output["output_data_path"])


review_sentiment()
