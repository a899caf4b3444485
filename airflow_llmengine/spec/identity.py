"""The fingerprint of a job: equal for two launches exactly when their answers may be mixed in one output."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from airflow_llmengine.spec.engine_args import matters_to_answers
from airflow_llmengine.spec.job_state import RESULT_FORMAT_VERSION
from airflow_llmengine.spec.request import (
    CreateBatchCompletionsV1ModelConfig,
    CreateBatchCompletionsV1Request,
    CreateBatchCompletionsV1RequestContent,
)
from airflow_llmengine.spec.table import Table
from airflow_llmengine.spec.table_identity import table_settings
from airflow_llmengine.spec.wire_model import given_fields

FINGERPRINT_LENGTH = 24
"""Hexadecimal digits of a fingerprint: 96 bits, short enough for a folder's name."""

MODEL_FIELDS_WITHOUT_EFFECT_ON_ANSWERS = frozenset(
    {
        # Where and how fast the model runs. They move the engine's numerics at most, as the contract allows.
        "block_size",
        "enable_prefix_caching",
        "enforce_eager",
        "gpu_memory_utilization",
        "max_num_batched_tokens",
        "max_num_seqs",
        "max_seq_len_to_capture",
        "num_gpu_blocks_override",
        "num_shards",
        "pipeline_parallel_size",
        "swap_space",
        "tensor_parallel_size",
        # What people and clusters see of it.
        "disable_log_requests",
        "labels",
    }
)
"""Fields of ``model_config`` that a retry may change and still go on where the last attempt stopped."""

_MODEL_FIELDS_THAT_NAME_FILES = frozenset({"checkpoint_path", "model", "revision", "tokenizer", "tokenizer_revision"})


def digest(value: Any) -> str:
    """SHA-256, in hexadecimal, of a JSON value in canonical form: sorted keys, no white space, ASCII."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def inline_identity(content: CreateBatchCompletionsV1RequestContent) -> str:
    """Identity of an input that is given in the request itself."""
    return "inline:sha256:" + digest(given_fields(content.given(), content))


def fingerprint(
    request: CreateBatchCompletionsV1Request,
    *,
    input_identity: str,
    engine: str,
    engine_args: Mapping[str, Any] | None = None,
    table: Table | None = None,
) -> str:
    """Hash of everything that can change an answer.

    In it: the model and its settings that matter, ``engine_args`` but for those of speed alone, ``tool_config``, the
    result format, the engine's name, and the input's identity (which covers prompts and V1 sampling parameters). Not in
    it: labels, priority, hardware, replicas and deadline, so that a retry with twice the replicas or more time goes on
    where the last one stopped. Of a table all is in it, since all of it makes the output another one.

    Args:
        request: The job.
        input_identity: What names the input's content: see ``inline_identity`` and ``storage.inputs``.
        engine: Name of the engine that answers, for example ``vllm``.
        engine_args: Further arguments of the engine.
        table: How rows become records, and results columns, if the job has a table.
    """
    matters: dict[str, Any] = {
        "engine": engine,
        "input": input_identity,
        "model_config": _model_settings(request.model_cfg),
        "result_format_version": RESULT_FORMAT_VERSION,
        "tool_config": None if request.tool_config is None else request.tool_config.model_dump(mode="json"),
    }
    further = matters_to_answers(engine_args or {})
    if further:
        matters["engine_args"] = further
    if table is not None:
        matters |= table_settings(table, request.output_data_path)
    return digest(matters)[:FINGERPRINT_LENGTH]


def settings_of_answers(
    request: CreateBatchCompletionsV1Request, engine_args: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The settings of a job that can change an answer, apart from which model it is and where its files are.

    What ``fingerprint`` covers of ``model_config`` and ``engine_args``, without the fields that name files: the same
    weights may be found elsewhere by another job. The name that results show is among them.
    """
    model = request.model_cfg
    settings = _model_settings(model)
    for name in _MODEL_FIELDS_THAT_NAME_FILES:
        settings.pop(name, None)
    settings["served_model_name"] = model.served_model_name or model.model
    return {"model_config": settings, "engine_args": matters_to_answers(engine_args or {})}


def _model_settings(model: CreateBatchCompletionsV1ModelConfig) -> dict[str, Any]:
    settings = {
        name: value
        for name, value in given_fields(model.given(), model).items()
        if name not in MODEL_FIELDS_WITHOUT_EFFECT_ON_ANSWERS
    }
    # Two names of one setting must not make two jobs of one.
    if "max_context_length" in settings:
        settings.setdefault("max_model_len", settings.pop("max_context_length"))
        settings.pop("max_context_length", None)
    return settings
