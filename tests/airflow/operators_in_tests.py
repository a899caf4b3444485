"""What the tests of the Airflow ring share: connections, a task's context, and jobs of the stand-in engine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator


def connection(**extra: Any) -> str:
    """A connection as Airflow reads it from an environment variable."""
    return json.dumps({"conn_type": "llmengine", "extra": {"launcher": "local", "engine": "echo", **extra}})


def task_context(
    *,
    dag_id: str = "dag",
    run_id: str = "run-1",
    task_id: str = "job",
    map_index: int = -1,
    max_tries: int = 2,
    **others: Any,
) -> Any:
    """What ``execute`` reads of the context that Airflow gives a task."""
    instance = SimpleNamespace(
        dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=map_index, max_tries=max_tries, try_number=1
    )
    return {"ti": instance, "run_id": run_id, **others}


class EchoJob:
    """A job of the stand-in engine, which notes down which records it generated."""

    def __init__(self, folder: Path, prompts: Iterable[str], *, max_tokens: int = 4) -> None:
        folder.mkdir(exist_ok=True)
        self.input = folder / "input.jsonl"
        self.output = folder / "output.json"
        self.generated = folder / "generated.log"
        self.input.write_text(
            "".join(json.dumps({"prompt": prompt, "max_tokens": max_tokens}) + "\n" for prompt in prompts)
        )

    def environment(self, **variables: str) -> dict[str, str]:
        """For the connection's field ``worker_environment``."""
        return {"LLMENGINE_ECHO_LOG": str(self.generated), **variables}

    def operator(self, **arguments: Any) -> LLMEngineBatchCompletionsOperator:
        return LLMEngineBatchCompletionsOperator(
            **{
                "task_id": "job",
                "input_data_path": str(self.input),
                "output_data_path": str(self.output),
                "model_config": {"model": "stand-in"},
                "termination_grace_period": 10,
                **arguments,
            }
        )

    def texts(self) -> list[str]:
        """The output's answers, in order."""
        return [result["choices"][0]["text"] for result in json.loads(self.output.read_text())]

    def generations(self) -> Counter[int]:
        """How often each record was generated, over all attempts."""
        lines = self.generated.read_text().splitlines() if self.generated.exists() else []
        return Counter(int(line.split()[0]) for line in lines)


def run(operator: LLMEngineBatchCompletionsOperator, context: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Render the operator's templates and execute it, as a task does."""
    context = context or task_context()
    operator.render_template_fields(context)  # type: ignore[arg-type]
    result = operator.execute(context)  # type: ignore[arg-type]
    assert result is not None
    return result
