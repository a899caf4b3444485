"""A ``cache_path`` beside the paths of the job that uses it."""

from __future__ import annotations

import pytest

from airflow_llmengine.spec.cache_path import cache_path_refusals
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request


def refused(cache: str, source: str, target: str = "s3://lake/out/results.jsonl") -> str:
    request = CreateBatchCompletionsV1Request.model_validate(
        {"input_data_path": source, "output_data_path": target, "model_config": {"model": "m"}}
    )
    return "; ".join(map(str, cache_path_refusals(cache, request)))


@pytest.mark.parametrize(
    "cache",
    [
        "s3://lake/out/results.jsonl",
        "s3a://lake/out/results.jsonl/",
        "s3://lake/out/results.jsonl/answers",
        "s3://lake/out/results.jsonl.job",
        "s3://lake/out/results.jsonl.manifest.json",
    ],
)
def test_it_is_not_where_the_output_goes(cache: str) -> None:
    assert refused(cache, "s3://lake/in.jsonl").startswith("cache_path: is where output_data_path")


@pytest.mark.parametrize(
    ("cache", "source"),
    [
        ("/data/in", "/data/in"),
        ("/data/in/answers", "/data/in/"),
        ("/data/in", "/data/in/*"),
        ("/data/in/answers", "/data/in/**"),
        ("/data/in.jsonl", "/data/in.jsonl"),
    ],
)
def test_it_is_not_among_the_files_of_the_input(cache: str, source: str) -> None:
    assert refused(cache, source).startswith("cache_path: lies among the files of input_data_path")


@pytest.mark.parametrize(
    ("cache", "source"),
    [
        ("s3://lake/out", "s3://lake/in"),
        ("s3://lake", "s3://lake/in.jsonl"),
        ("s3://lake/out/results.jsonl.answers", "s3://lake/in"),
        ("s3://lake/in/_answers", "s3://lake/in"),
        ("s3://lake/in", "s3://lake/in/*.jsonl"),
        ("s3://lake/in/answers", "s3://lake/in/*.jsonl"),
    ],
)
def test_it_may_be_near_both(cache: str, source: str) -> None:
    assert refused(cache, source) == ""
