"""What a task of this package adds to the parsing of a DAG file, over a plain KubernetesPodOperator.

The scheduler parses every DAG file again and again: making the operators, and writing the DAG down for the database.
Both sides take turns, and processor time is counted, so that what else the machine does matters little.

    python benchmarks/bench_dag_parsing.py [--tasks 200] [--pairs 9]
"""

from __future__ import annotations

import argparse
import datetime
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator
from airflow_llmengine.operators.task_group import LLMEngineBatchCompletionsTaskGroup

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

REQUEST: dict[str, Any] = {
    "input_data_path": "s3://bucket/day={{ ds }}/reviews.jsonl",
    "output_data_path": "s3://bucket/day={{ ds }}/headlines.jsonl",
    "model_config": {"model": "meta-llama/Llama-3.1-8B-Instruct", "max_model_len": 4096},
    "gpus": 1,
    "gpu_type": "nvidia-hopper-h100",
    "max_runtime_sec": 3600,
}

TASKS_OF_GROUP = 3
"""Plan, replicas, collect."""


def plain(tasks: int) -> DAG:
    """A DAG of pod tasks as people write them."""
    with DAG("plain", schedule=None, start_date=START) as dag:
        for number in range(tasks):
            KubernetesPodOperator(
                task_id=f"task_{number}",
                name="job",
                image="example.com/job:1",
                arguments=["run", "s3://bucket/day={{ ds }}/reviews.jsonl", "s3://bucket/day={{ ds }}/headlines.jsonl"],
                env_vars={"MODEL": "meta-llama/Llama-3.1-8B-Instruct"},
            )
    return dag


def operators(tasks: int) -> DAG:
    """The same by the operator."""
    with DAG("operators", schedule=None, start_date=START) as dag:
        for number in range(tasks):
            LLMEngineBatchCompletionsOperator(task_id=f"task_{number}", **REQUEST)
    return dag


def groups(tasks: int) -> DAG:
    """As many tasks by task groups."""
    with DAG("groups", schedule=None, start_date=START) as dag:
        for number in range(-(-tasks // TASKS_OF_GROUP)):
            LLMEngineBatchCompletionsTaskGroup(f"group_{number}", data_parallelism=4, **REQUEST)
    return dag


def milliseconds(make: Callable[[int], DAG], tasks: int) -> tuple[float, float]:
    """Processor time for one task: to make it, and to write it down."""
    gc.collect()  # Of what the turn before has left.
    begun = time.process_time()
    dag = make(tasks)
    made = time.process_time()
    DagSerialization.to_dict(dag)
    written = time.process_time()
    count = 1000 / len(dag.tasks)
    return (made - begun) * count, (written - made) * count


def main() -> None:
    """Run the pairs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=9)
    options = parser.parse_args()
    sides = {"KubernetesPodOperator": plain, "operator": operators, "task group": groups}
    for make in sides.values():
        milliseconds(make, options.tasks)  # What is done once for a class is done.
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _pair in range(options.pairs):
        for name, make in sides.items():
            found[name].append(milliseconds(make, options.tasks))
    print(f"milliseconds of a processor for one task; median of {options.pairs} (least to most), {options.tasks} tasks")
    print(f"{'':<24}{'make':>8}{'write':>8}{'both':>8}{'over a plain one':>26}")
    for name, times in found.items():
        made, written = (statistics.median(column) for column in zip(*times, strict=True))
        over = [sum(ours) - sum(bare) for ours, bare in zip(times, found["KubernetesPodOperator"], strict=True)]
        spread = f"{statistics.median(over):.2f} ({min(over):.2f} to {max(over):.2f})"
        print(f"{name:<24}{made:>8.2f}{written:>8.2f}{made + written:>8.2f}{spread:>26}")


if __name__ == "__main__":
    main()
