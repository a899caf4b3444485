"""Tables through pods: Parquet on S3 in, typed columns out; what is told of rows and columns goes into the pod, too."""

from __future__ import annotations

import io
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from airflow_llmengine.operators.staging import INLINE_TABLE_BYTES
from airflow_llmengine.spec.manifest import Manifest
from tests.kubernetes.pod_jobs import ONE_A_CHUNK, WORD, PodJob
from tests.storage.s3_server import ACCESS_KEY, SECRET_KEY
from tests.waiting import wait_until

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

SENTIMENTS = {"positive", "neutral", "negative"}
SCHEMA = {
    "type": "object",
    "properties": {
        "sentiment": {"enum": sorted(SENTIMENTS)},
        "score": {"type": "integer", "minimum": 1, "maximum": 5},
        "of_day": {"type": "string", "format": "date"},
        # The stand-in engine answers a text with the prompt as it got it.
        "heard": {"type": "string"},
    },
    "required": ["sentiment", "score", "of_day", "heard"],
}
MADE = {"sentiment": "string", "score": "int64", "of_day": "date32[day]", "heard": "string"}

# Kubernetes puts variables in for names in brackets, and one dollar sign for two.
PROMPT = "$(LLMENGINE_ENGINE) for $$5: {{ review }}"


def heard(review: str) -> str:
    return f"$(LLMENGINE_ENGINE) for $$5: {review}"


def put_table(job: PodJob, key: str, columns: Mapping[str, Any]) -> None:
    import pyarrow.parquet

    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(dict(columns)), file)
    job.s3.client.put_object(Bucket=job.bucket, Key=key, Body=file.getvalue())


def read_table(job: PodJob, key: str) -> tuple[dict[str, str], dict[str, list[Any]]]:
    """The types of a table's columns, and their cells."""
    import pyarrow.parquet

    found = job.output(key)
    assert found is not None, key
    table = pyarrow.parquet.read_table(io.BytesIO(found))
    return {field.name: str(field.type) for field in table.schema}, table.to_pydict()


def arguments_for_table(job: PodJob) -> list[str]:
    """What the job's pods were told of the table."""
    pods: list[dict[str, Any]] = [job.watch.last(name) for name in sorted(job.watch.names)]
    given = [argument for pod in pods for argument in pod["spec"]["containers"][0]["args"]]
    return [argument.partition("=")[2] for argument in given if argument.startswith("--table=")]


def require_in_order(job: PodJob) -> None:
    """Nobody was shown a secret or a cell, and no pod is left."""
    told = job.told()
    assert job.run_id in told
    assert not [text for text in (ACCESS_KEY, SECRET_KEY, WORD) if text in told]
    wait_until(lambda: not job.pods())


def test_rows_become_typed_columns(pod_job: PodJob) -> None:
    reviews = [f"{WORD} {index}" for index in range(9)]
    kept = {
        "price": [Decimal(f"{index}.50") for index in range(10)],
        "at": [datetime(2026, 1, 5, 12, index, tzinfo=UTC) for index in range(10)],
    }
    put_table(pod_job, "reviews.parquet", {"review": [*reviews, None], **kept, "unused": range(10)})
    pod_job.arguments |= {
        "input_data_path": f"s3://{pod_job.bucket}/reviews.parquet",
        "output_data_path": f"s3://{pod_job.bucket}/judged.parquet",
        "table": {
            "prompt": PROMPT,
            "parameters": {"max_tokens": 4},
            "columns": ["price", "at"],
            "output_schema": SCHEMA,
            "error_column": "error",
            "on_null": "skip",
        },
    }
    pod_job.set_speed(0)
    state, log = pod_job.run()
    assert state == "success", log
    types, found = read_table(pod_job, "judged.parquet")
    assert types == {"price": "decimal128(3, 2)", "at": "timestamp[us, tz=UTC]", **MADE, "error": "string"}
    assert {name: found[name] for name in kept} == kept
    assert found["heard"] == [*map(heard, reviews), None]
    assert {*found["sentiment"][:-1]} <= SENTIMENTS
    assert {*found["score"][:-1]} <= {1, 2, 3, 4, 5}
    assert found["sentiment"][-1] is found["score"][-1] is found["of_day"][-1] is None
    assert found["error"] == [None] * 10
    manifest = Manifest.model_validate_json(pod_job.output("judged.parquet.manifest.json") or b"")
    assert (manifest.records, manifest.succeeded, manifest.failed, manifest.skipped) == (10, 9, 0, 1)
    assert len(arguments_for_table(pod_job)) == 1
    require_in_order(pod_job)


def test_replicas_are_told_a_large_table_by_storage_and_write_a_folder(pod_job: PodJob) -> None:
    days = {"2026-01-05": [f"{WORD} {index}" for index in range(8)], "2026-01-06": [f"{WORD} late"]}
    for day, reviews in days.items():
        put_table(pod_job, f"reviews/day={day}/part.parquet", {"review": reviews})
    pod_job.arguments |= {
        "input_data_path": f"s3://{pod_job.bucket}/reviews/",
        "output_data_path": f"s3://{pod_job.bucket}/judged/",
        "data_parallelism": 2,
        "table": {
            "prompt": f"{PROMPT}{{# {'x' * INLINE_TABLE_BYTES} #}} on {{{{ day }}}}",
            "parameters": {"max_tokens": ONE_A_CHUNK},
            "output_schema": SCHEMA,
            "partitioning": "hive",
        },
    }
    run = pod_job.start_group("run")
    states = {"group.plan": ["success"], "group.replicas": ["success"] * 2, "group.collect": ["success"]}
    assert run.states() == states, run.log()
    for day, reviews in days.items():
        types, found = read_table(pod_job, f"judged/day={day}/part.parquet")
        assert types == {"review": "string", **MADE}
        assert found["review"] == reviews
        assert found["heard"] == [f"{heard(review)} on {day}" for review in reviews]
    told = arguments_for_table(pod_job)
    assert len(told) == 3
    (place,) = set(told)
    assert place.startswith(f"s3://{pod_job.bucket}/judged")
    require_in_order(pod_job)
