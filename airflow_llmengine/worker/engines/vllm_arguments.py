"""From a job's ``model_config`` to the arguments of ``vllm serve``. Needs no vLLM."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_llmengine.spec.replica_nodes import node_layout
from airflow_llmengine.spec.request import CreateBatchCompletionsV1ModelConfig, CreateBatchCompletionsV1Request
from airflow_llmengine.worker.engines.spanning import NodePlace
from airflow_llmengine.worker.weights.model_source import ModelSource

_NOT_FOR_THE_ENGINE = frozenset({"model", "checkpoint_path", "served_model_name", "labels"})
"""Fields that say which model it is, what it is called, and what Kubernetes sees."""

_UNTRANSLATED = frozenset(
    {
        "limit_mm_per_prompt",
        "max_seq_len_to_capture",
        "override_neuron_config",
        "quantization_param_path",
        "rope_scaling",
        "swap_space",
    }
)
"""Fields that no argument of vLLM carries as they are."""


def served_name(model: CreateBatchCompletionsV1ModelConfig) -> str:
    """The name that results show."""
    return model.served_model_name or model.model


def engine_arguments(model: CreateBatchCompletionsV1ModelConfig, source: ModelSource) -> dict[str, Any]:
    """Translate what was given; a field that was not given is not passed, so that vLLM's own default stands.

    Returns:
        Arguments of ``vllm serve`` by name.

    Raises:
        ValueError: A field was given that can't be passed on.
    """
    given = {name: value for name, value in model.given().items() if value is not None}
    arguments: dict[str, Any] = {"model": str(source.directory), "served_model_name": served_name(model)}
    for name, value in given.items():
        if name in _UNTRANSLATED:
            # A value that asks for nothing, such as an empty object, need not be passed.
            if value:
                raise ValueError(
                    f"model_config.{name}: this version of the worker can't pass it on to vLLM; leave it out"
                )
        elif name not in _NOT_FOR_THE_ENGINE:
            arguments[name] = value
    if source.tokenizer is not None:
        arguments["tokenizer"] = str(source.tokenizer)
    _rename(arguments, "num_shards", "tensor_parallel_size")
    _rename(arguments, "max_context_length", "max_model_len")
    _rename(arguments, "cache_dtype", "kv_cache_dtype")
    if "disable_log_requests" in arguments:
        arguments["enable_log_requests"] = not arguments.pop("disable_log_requests")
    return arguments


def node_arguments(request: CreateBatchCompletionsV1Request, place: NodePlace) -> dict[str, Any]:
    """The arguments by which an engine spans several nodes; they stand above those of ``engine_arguments``.

    Raises:
        ValueError: The nodes can't share the engine's ranks as the request says.
    """
    layout = node_layout(request)
    return {
        # What vLLM takes by default depends on the platform, and on whether Ray is installed.
        "distributed_executor_backend": "mp",
        "tensor_parallel_size": layout.tensor,
        "pipeline_parallel_size": layout.pipeline,
        "nnodes": place.nodes,
        "node_rank": place.rank,
        "master_addr": place.leader,
        "master_port": place.port,
    }


def _rename(arguments: dict[str, Any], older: str, newer: str) -> None:
    """Pass an older name's value under the newer one, unless that was given itself."""
    if older in arguments:
        arguments.setdefault(newer, arguments.pop(older))
        arguments.pop(older, None)


def command_line(arguments: Mapping[str, Any]) -> list[str]:
    """Write arguments as vLLM's own parser reads them: one item for each, so that a value may start with a dash."""
    return [item for name, value in arguments.items() for item in _command_line_items(name.replace("_", "-"), value)]


def _command_line_items(flag: str, value: Any) -> Iterator[str]:
    if isinstance(value, bool):
        yield f"--{flag}" if value else f"--no-{flag}"
    elif isinstance(value, dict | list):
        yield f"--{flag}={json.dumps(value)}"
    else:
        yield f"--{flag}={value}"
