"""docs/sizing.md says what is worked out, and that agrees with what is published."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from airflow_llmengine.spec.hardware.engine_memory import COMMUNICATION_BYTES, FIXED_BYTES, MEMORY_UTILIZATION
from airflow_llmengine.spec.hardware.gpus import GIB, KNOWN
from airflow_llmengine.spec.hardware.kv_cache import TYPICAL_TOKENS, WANTED_SEQUENCES, kv_cache
from tests.spec.hardware.models import MODELS, facts_of
from tests.spec.hardware.requests import A10, H100, counted, infer
from tests.spec.hardware.sizing_table import (
    LENGTH,
    PAGE,
    ROWS,
    Row,
    hardware_of,
    is_refused_on_one_node,
    page_with_table,
)


def test_the_table_is_what_is_worked_out() -> None:
    page = PAGE.read_text()
    made = page_with_table(page)
    if os.environ.get("WRITE_DOCS"):
        PAGE.write_text(made)
    assert made == PAGE.read_text(), "the table is made anew by `make docs`"


def test_the_table_has_every_model_that_is_known() -> None:
    assert [row.model for row in ROWS] == [name.partition("/")[2] for name in MODELS]


@pytest.mark.parametrize("row", [row for row in ROWS if row.published_gb], ids=lambda row: row.model)
def test_what_a_model_gets_holds_what_is_published_and_not_much_more(row: Row) -> None:
    hardware = hardware_of(row)
    assert hardware.layout is not None
    assert hardware.gpu is not None
    assert row.published_gb is not None
    # By the vendor's gigabytes, as such figures are.
    memory = {"nvidia-ampere-a10": 24, "nvidia-hopper-h100": 80}[hardware.gpu.name]
    total = hardware.layout.nodes * hardware.layout.gpus * memory
    assert row.published_gb <= total <= 3.1 * row.published_gb


@pytest.mark.parametrize(
    ("model", "gpus"),
    [("gpt-oss-20b", 1), ("gpt-oss-120b", 1), ("Mixtral-8x7B-Instruct-v0.1", 2), ("Llama-3.1-405B-Instruct-FP8", 8)],
)
def test_with_h100_only_there_are_as_few_as_is_published(model: str, gpus: int) -> None:
    assert counted(infer(model, H100, max_model_len=LENGTH)) == (gpus, "nvidia-hopper-h100")


def test_several_nodes_are_needed_where_the_table_says_so() -> None:
    assert {row.model for row in ROWS if is_refused_on_one_node(row)} == {row.model for row in ROWS if row.nodes > 1}


def test_what_the_table_says_of_fewer_a10_is_true() -> None:
    few = replace(A10, per_node=4)
    assert counted(infer("Mixtral-8x7B-Instruct-v0.1", few, H100, max_model_len=LENGTH)) == (2, "nvidia-hopper-h100")


@pytest.mark.parametrize(
    ("model", "tokens", "gib"),
    [
        # Hugging Face's table for Llama 3.1 at 16 bits.
        ("Llama-3.1-8B-Instruct", 16_000, 1.95),
        ("Llama-3.1-8B-Instruct", 128_000, 15.62),
        ("Llama-3.1-70B-Instruct", 16_000, 4.88),
        ("Llama-3.1-70B-Instruct", 128_000, 39.06),
    ],
)
def test_the_kv_cache_takes_what_is_published(model: str, tokens: int, gib: float) -> None:
    cache = kv_cache(facts_of(model), number_bytes=2, tensor_parallel=1, pipeline_parallel=1, step_tokens=8192)
    assert cache.full * tokens / GIB == pytest.approx(gib, abs=0.006)


def test_the_page_says_the_constants_that_are_used() -> None:
    page = " ".join(PAGE.read_text().split())
    assert f"{MEMORY_UTILIZATION}" in page
    assert f"{FIXED_BYTES / GIB} GiB" in page
    assert f"{COMMUNICATION_BYTES / GIB} GiB more" in page
    assert f"{WANTED_SEQUENCES} sequences of {TYPICAL_TOKENS:,} tokens" in page
    for gpu in KNOWN.values():
        assert f"| `{gpu.name}` | {gpu.memory / GIB:.1f} GiB | {gpu.per_node} |" in page
