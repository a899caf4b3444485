from __future__ import annotations

import pytest

from airflow_llmengine.spec.hardware.layout import (
    Layout,
    LayoutError,
    Parallelism,
    gpu_counts,
    layout_of,
    tensor_parallel_fault,
)
from tests.spec.hardware.models import facts_of


@pytest.mark.parametrize(
    ("name", "possible"),
    [
        # 14 attention heads, and an intermediate size of 4,864.
        ("Qwen2.5-0.5B-Instruct", [1, 2]),
        ("Llama-3.1-8B-Instruct", [1, 2, 4, 8, 16]),
        ("Mixtral-8x22B-Instruct-v0.1", [1, 2, 4, 8, 16]),
        # Groups of 128 in 29,696 end evenly for eight ranks, and not for sixteen.
        ("Qwen2.5-72B-Instruct-AWQ", [1, 2, 4, 8]),
        # Blocks of 128 in 18,432 and 2,048.
        ("DeepSeek-R1", [1, 2, 4, 8, 16]),
        ("gpt-oss-20b", [1, 2, 4, 8, 16]),
    ],
)
def test_a_layer_is_shared_evenly_or_not_at_all(name: str, possible: list[int]) -> None:
    facts = facts_of(name)
    faults = {size: tensor_parallel_fault(facts, facts.quantization, size) for size in range(1, 17)}
    assert [size for size, fault in faults.items() if fault is None] == possible


@pytest.mark.parametrize(
    ("name", "size", "fault"),
    [
        ("Qwen2.5-0.5B-Instruct", 4, "14 attention heads can't be shared by 4 GPUs"),
        ("Mixtral-8x22B-Instruct-v0.1", 3, "8 KV heads can't be shared by 3 GPUs"),
        ("Qwen2.5-72B-Instruct-AWQ", 16, "29696, quantized in groups of 128, can't be shared by 16 GPUs: 1856 is no"),
        (
            "DeepSeek-R1",
            32,
            "an intermediate_size of 18432, quantized in groups of 128, can't be shared by 32 GPUs: 576",
        ),
    ],
)
def test_the_fault_names_the_number(name: str, size: int, fault: str) -> None:
    facts = facts_of(name)
    assert fault in (tensor_parallel_fault(facts, facts.quantization, size) or "")


def test_the_inner_size_is_shared_evenly_too() -> None:
    odd = facts_of("Llama-3.1-8B-Instruct").model_copy(update={"intermediate_size": 100})
    assert tensor_parallel_fault(odd, None, 4) is None
    assert tensor_parallel_fault(odd, None, 8) == "an intermediate_size of 100 can't be shared by 8 GPUs"


def test_experts_are_shared_in_whole_blocks_too() -> None:
    facts = facts_of("Qwen3-30B-A3B")
    blocks = facts_of("DeepSeek-R1").quantization
    assert tensor_parallel_fault(facts, None, 4) is None
    assert tensor_parallel_fault(facts, blocks, 4) == (
        "experts with an intermediate_size of 768, quantized in groups of 128, can't be shared by 4 GPUs: 192 is no "
        "multiple of 128"
    )


@pytest.mark.parametrize(
    ("asked", "gpus", "tensor", "pipeline"),
    [
        # No GPU is idle: what can't be tensor parallel becomes stages.
        (Parallelism(), 4, 4, 1),
        (Parallelism(), 6, 2, 3),
        (Parallelism(tensor=2), 4, 2, 2),
        (Parallelism(pipeline=4), 4, 1, 4),
        (Parallelism(tensor=2, pipeline=2), 4, 2, 2),
        (Parallelism(nodes=2), 8, 8, 2),
        (Parallelism(nodes=3), 6, 2, 9),
        (Parallelism(nodes=2, tensor=16), 8, 16, 1),
        (Parallelism(nodes=2, pipeline=4), 8, 4, 4),
    ],
)
def test_every_gpu_gets_its_part(asked: Parallelism, gpus: int, tensor: int, pipeline: int) -> None:
    assert layout_of(asked, gpus, facts_of("Llama-3.1-8B-Instruct")) == Layout(asked.nodes, gpus, tensor, pipeline)


@pytest.mark.parametrize(
    ("asked", "gpus", "fault"),
    [
        (Parallelism(tensor=3), 4, "tensor_parallel_size is 3, and there are 4 GPUs, which it does not divide"),
        (Parallelism(tensor=8), 4, "tensor_parallel_size is 8, and there are 4 GPUs"),
        (Parallelism(pipeline=3), 4, "pipeline_parallel_size is 3, and there are 4 GPUs"),
        (
            Parallelism(tensor=2, pipeline=1),
            4,
            "tensor_parallel_size 2 times pipeline_parallel_size 1 needs 2 GPUs, and",
        ),
        (Parallelism(tensor=2, pipeline=1, nodes=2), 2, "needs 2 GPUs, and there are 2 GPUs on each of 2 nodes"),
        (Parallelism(tensor=3), 3, "32 attention heads can't be shared by 3 GPUs"),
        (Parallelism(tensor=1), 64, "32 layers can't be shared by 64 pipeline stages"),
    ],
)
def test_numbers_that_do_not_go_together_are_refused(asked: Parallelism, gpus: int, fault: str) -> None:
    with pytest.raises(LayoutError) as raised:
        layout_of(asked, gpus, facts_of("Llama-3.1-8B-Instruct"))
    assert fault in str(raised.value)


def test_of_an_unknown_model_all_gpus_share_each_layer() -> None:
    assert layout_of(Parallelism(), 6, None) == Layout(1, 6, 6, 1)
    assert layout_of(Parallelism(nodes=2), 8, None) == Layout(2, 8, 8, 2)


@pytest.mark.parametrize(
    ("asked", "most", "counts"),
    [
        (Parallelism(), 8, [1, 2, 4, 8]),
        (Parallelism(), 4, [1, 2, 4]),
        (Parallelism(), 1, [1]),
        (Parallelism(gpus=3), 8, [3]),
        (Parallelism(tensor=4), 8, [4]),
        (Parallelism(tensor=4, pipeline=2), 8, [8]),
        (Parallelism(tensor=16), 8, [16]),
        (Parallelism(nodes=2, tensor=8), 8, [8]),
        (Parallelism(nodes=2, tensor=16, pipeline=1), 8, [8]),
        (Parallelism(pipeline=3), 8, [3, 6]),
        (Parallelism(pipeline=16), 8, []),
        (Parallelism(nodes=2, pipeline=2), 8, [1, 2, 4, 8]),
        (Parallelism(nodes=2, pipeline=4), 8, [2, 4, 8]),
    ],
)
def test_only_numbers_that_agree_with_what_is_given_are_tried(asked: Parallelism, most: int, counts: list[int]) -> None:
    assert gpu_counts(asked, most) == counts
