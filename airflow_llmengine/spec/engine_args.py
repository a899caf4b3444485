"""``engine_args``: further arguments of the engine, beside the wire contract, by vLLM's own Python names.

Which names there are, only the installed vLLM knows: the worker asks it before anything is loaded. What can be told
without it is refused here: what the contract has a field for, and what the worker sets itself or must not be set.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from airflow_llmengine.spec.engine_fields import ENGINE_FIELDS, Becomes
from airflow_llmengine.spec.validation import Refusal, RequestInvalidError, refuse_duplicates
from airflow_llmengine.spec.wire_faults import FLAGS, LONGEST_SHOWN, is_unicode, path_step

ENGINE_ARGS = "engine_args"

MOST_BYTES = 16_384
"""Of all of them as JSON: they are told to workers on their command line."""

_NAME = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)

_HUB = "files come from where model_config says, and the engine has neither token nor way to the hub"
_NODES = "how the engine spans nodes follows from nodes_per_worker and gpus"
_REPLICAS = "replicas are data_parallelism"
_SERVER = "there is no HTTP server"
_OUTPUT = "prompts and outputs are not logged"
_STATISTICS = "the worker reports progress itself"

NOT_TO_BE_SET: Mapping[str, str] = {
    "model_tag": "the model is model_config.model or checkpoint_path",
    "model_weights": "the model is model_config.model or checkpoint_path",
    "hf_config_path": _HUB,
    "hf_token": _HUB,
    "download_dir": _HUB,
    "config": "arguments are given here, and not in a file",
    **dict.fromkeys(
        ("nnodes", "node_rank", "master_addr", "master_port", "distributed_executor_backend", "headless"), _NODES
    ),
    **dict.fromkeys(
        (
            "data_parallel_size",
            "data_parallel_rank",
            "data_parallel_start_rank",
            "data_parallel_size_local",
            "data_parallel_address",
            "data_parallel_rpc_port",
            "data_parallel_hybrid_lb",
            "data_parallel_external_lb",
            "data_parallel_multi_port_external_lb",
            "data_parallel_backend",
            "data_parallel_supervisor_port",
            "api_server_count",
            "enable_elastic_ep",
            "elastic_ep_max_dp_size",
        ),
        _REPLICAS,
    ),
    **dict.fromkeys(
        (
            "host",
            "port",
            "uds",
            "grpc",
            "grpc_port",
            "api_key",
            "root_path",
            "middleware",
            "allow_credentials",
            "allowed_origins",
            "allowed_methods",
            "allowed_headers",
            "ssl_keyfile",
            "ssl_certfile",
            "ssl_ca_certs",
            "ssl_cert_reqs",
            "ssl_ciphers",
            "uvicorn_log_level",
            "tool_server",
            "tokens_only",
        ),
        _SERVER,
    ),
    **dict.fromkeys(("max_log_len", "enable_log_outputs", "enable_log_deltas", "log_error_stack"), _OUTPUT),
    **dict.fromkeys(
        ("disable_log_stats", "use_tqdm_on_load", "aggregate_engine_logging", "enable_per_request_metrics"),
        _STATISTICS,
    ),
    "lora_modules": "records are for the job's one model; merge the adapter into a checkpoint",
    "worker_cls": "vLLM's own is the one whose end is seen to",
}
"""Arguments that the worker sets itself, that belong to a server, or that would leak or hurt: each with the reason."""

SERVING_ARGUMENTS = frozenset(
    {
        "chat_template_content_format",
        "cohere_format",
        "default_chat_template_kwargs",
        "enable_prompt_tokens_details",
        "exclude_tools_when_tool_choice_none",
        "return_tokens_as_token_ids",
        "tool_parser_plugin",
        "tool_strict_level",
        "trust_request_chat_template",
        "trust_request_mm_kwargs",
    }
)
"""Arguments of ``vllm serve`` beyond the engine's own that act on the serving objects, which the worker uses."""

WITHOUT_EFFECT_ON_ANSWERS = frozenset(
    {
        # How fast the model is loaded, and from where it is read.
        "max_parallel_loading_workers",
        "safetensors_load_strategy",
        "safetensors_prefetch_block_size",
        "safetensors_prefetch_num_threads",
        # How much memory things take, and where they are kept.
        "cpu_offload_gb",
        "cpu_offload_params",
        "kv_cache_memory_bytes",
        "kv_offloading_backend",
        "mm_ipc_gpu_memory_gb",
        "mm_processor_cache_gb",
        "mm_processor_cache_type",
        "mm_shm_cache_max_object_size_mb",
        "offload_backend",
        "offload_group_size",
        "offload_num_in_group",
        "offload_params",
        "offload_prefetch_step",
        # How steps are put together, and how processes talk.
        "async_scheduling",
        "cudagraph_capture_sizes",
        "disable_custom_all_reduce",
        "disable_nccl_for_dp_synchronization",
        "distributed_timeout_seconds",
        "enable_chunked_prefill",
        "enable_shm_tensor_arena",
        "long_prefill_token_threshold",
        "max_cudagraph_capture_size",
        "max_num_active_seqs",
        "max_num_scheduled_tokens",
        "numa_bind",
        "numa_bind_cpus",
        "numa_bind_nodes",
        "performance_mode",
        "renderer_num_workers",
        "scheduling_policy",
        "stream_interval",
        # What is measured and logged.
        "collect_detailed_traces",
        "cudagraph_metrics",
        "enable_logging_iteration_details",
        "enable_mfu_metrics",
        "kv_cache_metrics",
        "kv_cache_metrics_sample",
        "log_level",
        "otlp_traces_endpoint",
        "shutdown_timeout",
    }
)
"""Arguments that concern speed alone: a retry may change them and still go on where the last attempt stopped."""


def parse_engine_args(value: Any) -> dict[str, Any]:
    """Read them from an object or its JSON text; None and an empty text are none at all.

    A value that is null counts as not given. A template renders to text: what that says of a flag is a flag.

    Raises:
        RequestInvalidError: With everything that is wrong.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value, parse_constant=_refuse_constant, object_pairs_hook=refuse_duplicates)
        except (json.JSONDecodeError, RecursionError):
            raise RequestInvalidError([Refusal(ENGINE_ARGS, "is not valid JSON")]) from None
        except ValueError as error:
            raise RequestInvalidError([Refusal(ENGINE_ARGS, f"is not valid JSON: {error}")]) from None
    refusals = list(engine_args_refusals(value))
    if refusals:
        raise RequestInvalidError(refusals)
    return {name: _read(inner) for name, inner in value.items() if inner is not None}


def engine_args_refusals(value: Any) -> Iterator[Refusal]:
    """Refuse what is wrong whatever version of the engine is installed."""
    if not isinstance(value, Mapping):
        yield Refusal(ENGINE_ARGS, "must be an object: arguments of vLLM by their Python names, with JSON values")
        return
    for name, inner in value.items():
        path = ENGINE_ARGS + path_step(str(name)[:LONGEST_SHOWN])
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            written = str(name).strip().lstrip("-").replace("-", "_").lower()
            remedy = f"write it as {written}" if _NAME.fullmatch(written) and len(written) <= LONGEST_SHOWN else None
            yield Refusal(path, "is no Python name of an argument of vLLM", remedy)
        elif (refusal := _refused_name(name, path)) is not None:
            yield refusal
        elif (fault := _fault(inner)) is not None:
            yield Refusal(path, fault)
    try:
        size = len(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        # A value that is none of JSON's is told above.
        return
    if size > MOST_BYTES:
        yield Refusal(ENGINE_ARGS, f"takes {size} bytes as JSON, and {MOST_BYTES} is the most")


def matters_to_answers(engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are a part of the job's fingerprint."""
    return {name: value for name, value in engine_args.items() if name not in WITHOUT_EFFECT_ON_ANSWERS}


def _refused_name(name: str, path: str) -> Refusal | None:
    reason = NOT_TO_BE_SET.get(name)
    if reason is not None:
        return Refusal(path, f"can't be set: {reason}", "leave it out")
    for field in ENGINE_FIELDS:
        if field.name == name and field.becomes is Becomes.REFUSED:
            return Refusal(path, field.sentence, field.remedy)
        # What else the model's config says may be overridden: only RoPE has a field.
        if name in (field.name, field.argument) and name != "hf_overrides":
            return Refusal(path, "has a field in the request", f"give model_config.{field.name}")
    return None


def _fault(value: Any, depth: int = 0) -> str | None:
    """Why a value can't be passed."""
    match value:
        case None | bool() | int():
            return None
        case float():
            return None if isfinite(value) else "must be a finite number"
        case str():
            if depth and value.startswith("-"):
                # In a list it would be read as another argument.
                return "holds a string that begins with a dash"
            return None if is_unicode(value) else "holds half of a surrogate pair"
        case list() | tuple():
            return next((fault for item in value if (fault := _fault(item, depth + 1)) is not None), None)
        case Mapping():
            if not all(isinstance(name, str) for name in value):
                return "must be a JSON value: names in it must be strings"
            return _nested_fault(value)
        case _:
            return f"must be a JSON value, not a Python {type(value).__name__}"


def _nested_fault(value: Mapping[str, Any]) -> str | None:
    try:
        json.dumps(_plain(value), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return "must be a JSON value"
    return None


def _read(value: Any) -> Any:
    """The value of one argument; no argument of vLLM's takes these words for anything else."""
    return FLAGS.get(value, value) if isinstance(value, str) else _plain(value)


def _plain(value: Any) -> Any:
    """The same of JSON's own types."""
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
