"""Options from several sources."""

from __future__ import annotations

from typing import Any

from airflow_llmengine.storage.options import laid_over


def test_what_stands_above_counts_and_objects_are_merged_by_member() -> None:
    below: dict[str, dict[str, Any]] = {
        "s3": {"key": "a", "client_kwargs": {"region_name": "r", "verify": False}},
        "gs": {"token": "t"},
    }
    above: dict[str, dict[str, Any]] = {
        "s3": {"key": "b", "client_kwargs": {"verify": True}},
        "az": {"account_name": "n"},
    }
    assert laid_over(below, above) == {
        "s3": {"key": "b", "client_kwargs": {"region_name": "r", "verify": True}},
        "gs": {"token": "t"},
        "az": {"account_name": "n"},
    }
    assert below["s3"]["key"] == "a"
