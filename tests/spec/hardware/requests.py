"""Requests and clusters for the tests of hardware."""

from __future__ import annotations

from typing import Any

from airflow_llmengine.spec.hardware.gpus import Gpu, ListedGpu
from airflow_llmengine.spec.hardware.inference import Hardware, Model, infer_gpus
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.validation import parse_request
from tests.spec.hardware.models import facts_of

T4, A10, A100, A100E, H100 = (
    ListedGpu(type=f"nvidia-{name}").gpu
    for name in ("tesla-t4", "ampere-a10", "ampere-a100", "ampere-a100e", "hopper-h100")
)
SLICE = ListedGpu(type="nvidia-hopper-h100-3g40gb").gpu
ALL = (T4, A10, A100, A100E, H100)

OF_MODEL_CONFIG = frozenset(
    {
        "max_model_len",
        "max_context_length",
        "max_num_seqs",
        "max_num_batched_tokens",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "num_shards",
        "rope_scaling",
        "swap_space",
        "gpu_memory_utilization",
        "quantization",
        "dtype",
        "cache_dtype",
    }
)


def a_request(model: str = "m", **fields: Any) -> CreateBatchCompletionsV1Request:
    """A request with these fields, be they its own or of ``model_config``."""
    of_model = {name: fields.pop(name) for name in list(fields) if name in OF_MODEL_CONFIG}
    least = {"input_data_path": "s3://b/in.jsonl", "output_data_path": "s3://b/out.jsonl"}
    return parse_request({**least, **fields, "model_config": {"model": model, **of_model}})


def infer(name: str, *listed: Gpu, **fields: Any) -> Hardware:
    """The hardware of a job with the model whose name ends so."""
    model = Model(facts_of(name), "its config")
    return infer_gpus(a_request(name, **fields), model, listed)


def counted(hardware: Hardware) -> tuple[int, str]:
    """Number and type of the GPUs."""
    assert hardware.layout is not None
    assert hardware.gpu is not None
    return hardware.layout.gpus, hardware.gpu.name
