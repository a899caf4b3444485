"""The table of docs/sizing.md: what well-known models get, beside what is published and what llm-engine gives.

What llm-engine gives was found by its rule as of July 2026 (``_infer_hardware`` in its LLM use cases, with the table
``recommendedHardware`` of its sample chart) and stands here as results. The rule: the parameters in billions are the
last number before a ``b`` in the model's name (a few names have a number of their own), of two bytes each; the KV cache
of a batch job is that of ten sequences of the longest length, by ``hidden_size``; both, over 0.9, choose the first row
that holds them: 24, 48 and 96 GB are one, two and four A10, and 180, 320 and 640 GB are two, four and eight H100.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from airflow_llmengine.spec.hardware.inference import Hardware
from airflow_llmengine.spec.hardware.weights import stored_bytes
from airflow_llmengine.spec.validation import RequestInvalidError
from tests.spec.hardware.models import facts_of
from tests.spec.hardware.requests import A10, H100, infer

PAGE = Path(__file__).resolve().parents[3] / "docs" / "sizing.md"
BEGIN, END = "<!-- made by tests/spec/hardware/sizing_table.py -->", "<!-- end -->"

LENGTH = 8192
"""``max_model_len`` of all jobs of the table."""


@dataclass(frozen=True)
class Row:
    """A model, what others say of it, and why what it gets differs."""

    model: str
    llm_engine: str
    """What llm-engine's rule gives."""
    why: str
    published_gb: int | None = None
    """GPU memory, in GB, that is published for it."""
    published: str = ""
    """By whom, and in their words."""
    nodes: int = 1


ROWS = (
    Row(
        "Qwen2.5-0.5B-Instruct",
        "1 x A10",
        "The same. It takes the model for one of 5 billion, the last number before the b of its name.",
    ),
    Row(
        "SmolLM2-1.7B-Instruct",
        "2 x A10 (34 GB)",
        "It takes the model for one of 7 billion, and wants ten sequences of 8,192 tokens: 16 GB for a model whose "
        "heads share no KV.",
    ),
    Row(
        "Mistral-7B-Instruct-v0.3",
        "2 x A10 (28 GB)",
        "It wants ten sequences of 8,192 tokens, 11 GB, where 32 of 1,024 are 4 GiB here.",
        16,
        "16 GB (Mistral)",
    ),
    Row("Llama-3.1-8B-Instruct", "2 x A10 (30 GB)", "The same.", 16, "16 GB of weights (Meta, Hugging Face)"),
    Row(
        "gpt-oss-20b",
        "2 x A10 (48 GB)",
        "It counts two bytes a parameter; MXFP4 has half of one.",
        16,
        "16 GB (OpenAI)",
    ),
    Row(
        "Qwen3-30B-A3B",
        "1 x A10 (12 GB)",
        "It takes the model for one of 3 billion, those that are active: 61 GB of weights do not fit what it gives.",
        61,
        "61 GB of weights",
    ),
    Row(
        "Mixtral-8x7B-Instruct-v0.1",
        "2 x H100 (117 GB)",
        "Its table has no eight A10. With `max_per_node: 4` for the A10 it is the same, and with prices the cheaper.",
        100,
        "100 GB (Mistral)",
    ),
    Row("Llama-3.1-70B-Instruct", "4 x H100 (186 GB)", "The same.", 140, "140 GB of weights (Meta, Hugging Face)"),
    Row(
        "Qwen2.5-72B-Instruct-AWQ",
        "4 x H100 (190 GB)",
        "It counts two bytes a parameter; AWQ has half of one, and a scale for each 128.",
        42,
        "42 GB of weights",
    ),
    Row(
        "gpt-oss-120b",
        "4 x H100 (272 GB)",
        "It counts two bytes a parameter. With H100 only, it is one here, as OpenAI says.",
        60,
        "one GPU of 80 GB, 60 GB at least (OpenAI)",
    ),
    Row(
        "Mixtral-8x22B-Instruct-v0.1",
        "8 x H100 (332 GB)",
        "Ten sequences of 8,192 tokens bring it just over its limit of 320 GB for four.",
        300,
        "300 GB (Mistral)",
    ),
    Row(
        "Llama-3.1-405B-Instruct-FP8",
        "refused (947 GB)",
        "It counts two bytes a parameter, also for FP8.",
        487,
        "one node of 8 x H100 (Meta)",
    ),
    Row(
        "Llama-3.1-405B-Instruct",
        "refused (947 GB)",
        "Its table's row for two nodes has the limit of that for one, and is never reached. Here one node is refused, "
        "with the advice to give `nodes_per_worker: 2`, as in this row.",
        810,
        "810 GB of weights (Meta, Hugging Face)",
        2,
    ),
    Row(
        "DeepSeek-R1",
        "refused (no number in its name)",
        "Here, too, `nodes_per_worker: 2` is asked for, and not inferred.",
        689,
        "689 GB of weights",
        2,
    ),
)


def hardware_of(row: Row) -> Hardware:
    """What a job with this model gets in a cluster that lists A10 and H100."""
    return infer(
        row.model, A10, H100, max_model_len=LENGTH, **({"nodes_per_worker": row.nodes} if row.nodes > 1 else {})
    )


def is_refused_on_one_node(row: Row) -> bool:
    """Whether it is refused if several nodes are not asked for."""
    try:
        infer(row.model, A10, H100, max_model_len=LENGTH)
    except RequestInvalidError:
        return True
    return False


def table() -> str:
    """The table, in Markdown."""
    lines = [
        "| model | weights | published need | here | llm-engine's rule | why they differ |",
        "|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        weights = f"{stored_bytes(facts_of(row.model)) / 1e9:.0f} GB"
        cells = (row.model, weights, row.published or "-", _given(hardware_of(row)), row.llm_engine, row.why)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _given(hardware: Hardware) -> str:
    assert hardware.layout is not None
    assert hardware.gpu is not None
    name = {"nvidia-ampere-a10": "A10", "nvidia-hopper-h100": "H100"}[hardware.gpu.name]
    nodes = f" on each of {hardware.layout.nodes} nodes" if hardware.layout.nodes > 1 else ""
    return f"{hardware.layout.gpus} x {name}{nodes}"


def page_with_table(page: str) -> str:
    """The page with the table made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"
