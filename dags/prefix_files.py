"""The files of a prefix: one mapped task for each, as many as there are when the DAG runs.

Each file is a job of its own: it may fail, be cleared and be answered from storage by itself, and each loads the model.
Where that is not wanted, give the prefix as `input_data_path` of one task.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from airflow.sdk import ObjectStoragePath, Param, dag, task

from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator

SHOPS = Path(__file__).parent / "data" / "shop_reviews"


@dag(
    dag_id="llmengine_prefix_files",
    schedule=None,
    tags=["llmengine", "example"],
    doc_md=__doc__,
    params={
        "model": Param(os.environ.get("LLMENGINE_EXAMPLE_MODEL", "HuggingFaceTB/SmolLM2-135M-Instruct"), type="string"),
        "input_folder": Param(str(SHOPS), type="string", description="The prefix; on a cluster, of an object store."),
        "output_folder": Param(
            os.environ.get("LLMENGINE_EXAMPLE_FOLDER", str(Path(tempfile.gettempdir()) / "llmengine-prefix")),
            type="string",
        ),
    },
)
def prefix_files() -> None:
    # --8<-- [start:files]
    @task
    def list_files(*, params: dict[str, str]) -> list[dict[str, str]]:
        """Input and output of each file."""
        names = sorted(path.name for path in ObjectStoragePath(params["input_folder"]).iterdir())
        return [
            {
                "input_data_path": f"{params['input_folder']}/{name}",
                "output_data_path": f"{params['output_folder']}/{name.removesuffix('.csv')}.parquet",
            }
            for name in names
            if name.endswith(".csv")
        ]

    # --8<-- [end:files]

    # --8<-- [start:mapped]
    headlines = LLMEngineBatchCompletionsOperator.partial(
        task_id="write_headlines",
        model_config={"model": "{{ params.model }}", "max_model_len": 1024},
        table={
            "messages": [{"role": "user", "content": "A headline of six words: {{ product }}: {{ review }}"}],
            "parameters": {"max_tokens": 32, "temperature": 0},
            "columns": ["review_id"],
            "completion_column": "headline",
        },
        map_index_template="{{ task.request['input_data_path'].split('/')[-1] }}",
        # How many files may hold a GPU at once.
        max_active_tis_per_dagrun=2,
        retries=2,
    ).expand_kwargs(list_files())
    # --8<-- [end:mapped]

    @task
    def report(results: list[dict[str, Any]]) -> dict[str, int]:
        """Add up what the files' jobs say of themselves."""
        return {name: sum(result[name] for result in results) for name in ("records", "failed", "completion_tokens")}

    report(headlines.output)


prefix_files()
