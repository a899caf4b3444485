"""From a job's ``model_config`` to the arguments of ``vllm serve``. Needs no vLLM."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airflow_llmengine.spec.engine_fields import ENGINE_FIELDS, Becomes, EngineField
from airflow_llmengine.spec.multimodal_limits import multimodal_limits
from airflow_llmengine.spec.replica_nodes import node_layout
from airflow_llmengine.spec.request import CreateBatchCompletionsV1ModelConfig, CreateBatchCompletionsV1Request
from airflow_llmengine.spec.rope_scaling import RopeScalingError, rope_overrides
from airflow_llmengine.worker.engines.spanning import NodePlace
from airflow_llmengine.worker.weights.model_source import ModelSource


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
    arguments: dict[str, Any] = {"model": str(source.directory), "served_model_name": served_name(model)}
    # Of two names of one thing both say the same: else the request was refused.
    for field in ENGINE_FIELDS:
        value = getattr(model, field.name)
        if model.is_given(field.name) and value is not None:
            arguments |= _passed(field, value, model, source)
    if source.tokenizer is not None:
        # Where the model's own is wanted in another revision, no field names it.
        arguments["tokenizer"] = str(source.tokenizer)
    return arguments


def _passed(
    field: EngineField, value: Any, model: CreateBatchCompletionsV1ModelConfig, source: ModelSource
) -> dict[str, Any]:
    """The arguments that one field becomes: none where its value asks for nothing."""
    match field.becomes:
        case Becomes.OURS:
            return {}
        case Becomes.REFUSED:
            if value:
                raise ValueError(f"model_config.{field.name}: {field.sentence}; {field.remedy}")
            return {}
        case Becomes.TRANSLATED:
            try:
                translated = TRANSLATIONS[field.name](value, model, source)
            except ValueError as error:
                raise ValueError(f"model_config.{field.name}: {error}") from error
        case Becomes.ARGUMENT:
            translated = value
    return {} if translated is None else {str(field.argument): translated}


def _negation(value: Any, _model: CreateBatchCompletionsV1ModelConfig, _source: ModelSource) -> Any:
    return not value


def _multimodal_limits(value: Any, _model: CreateBatchCompletionsV1ModelConfig, _source: ModelSource) -> Any:
    return multimodal_limits(value) or None


def _tokenizer(value: Any, _model: CreateBatchCompletionsV1ModelConfig, source: ModelSource) -> Any:
    return value if source.tokenizer is None else str(source.tokenizer)


def _rope_overrides(value: Any, _model: CreateBatchCompletionsV1ModelConfig, source: ModelSource) -> Any:
    if not value:
        return None
    try:
        config = json.loads((source.directory / "config.json").read_bytes())
        return rope_overrides(value, config if isinstance(config, dict) else {})
    except RopeScalingError as error:
        raise ValueError(f"{error}: give hf_overrides in engine_args instead") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"the model's config.json can't be read ({type(error).__name__})") from error


def _offloading_size(value: Any, model: CreateBatchCompletionsV1ModelConfig, _source: ModelSource) -> Any:
    # vLLM counts over all ranks, tensor parallel and pipeline stages alike, of which each has a GPU.
    tensor = model.tensor_parallel_size or model.num_shards or 1
    return value * tensor * (model.pipeline_parallel_size or 1) or None


TRANSLATIONS: Mapping[str, Callable[[Any, CreateBatchCompletionsV1ModelConfig, ModelSource], Any]] = {
    "disable_log_requests": _negation,
    "limit_mm_per_prompt": _multimodal_limits,
    "rope_scaling": _rope_overrides,
    "swap_space": _offloading_size,
    "tokenizer": _tokenizer,
}
"""From a field's value to its argument's; None: it asks for nothing. They raise ``ValueError`` with a clause."""


def with_further_arguments(arguments: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, Any]:
    """Add ``engine_args``. Overrides of the model's config are the one thing that both may have a part of.

    Raises:
        ValueError: They say two things of one part.
    """
    both = {**arguments, **further}
    ours, theirs = arguments.get("hf_overrides"), further.get("hf_overrides")
    if ours is not None and theirs is not None:
        if not isinstance(theirs, Mapping) or ours.keys() & theirs.keys():
            raise ValueError(
                "engine_args.hf_overrides overrides what model_config.rope_scaling does: give the whole in one of them"
            )
        both["hf_overrides"] = {**ours, **theirs}
    return both


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


def command_line(arguments: Mapping[str, Any]) -> list[str]:
    """Write arguments as vLLM's own parser reads them: one item for each, so that a value may start with a dash.

    Only the values of a list are items of their own.
    """
    return [item for name, value in arguments.items() for item in _command_line_items(name.replace("_", "-"), value)]


def _command_line_items(flag: str, value: Any) -> Iterator[str]:
    if isinstance(value, bool):
        yield f"--{flag}" if value else f"--no-{flag}"
    elif isinstance(value, dict):
        yield f"--{flag}={json.dumps(value)}"
    elif isinstance(value, list):
        yield f"--{flag}"
        yield from (item if isinstance(item, str) else json.dumps(item) for item in value)
    else:
        yield f"--{flag}={value}"
