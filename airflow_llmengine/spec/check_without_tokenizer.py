"""What of a record needs a tokenizer, in a job with ``skip_tokenizer_init``: the engine has none then.

vLLM refuses some of it by itself; the rest it would take and ignore.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.embedding import EmbeddingRequest
from airflow_llmengine.spec.pooling import PoolingFields
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.results import RecordErrorType, RecordFault
from airflow_llmengine.spec.structured_output import structure_fields

_UNSUPPORTED = RecordErrorType.UNSUPPORTED

_ASKS_FOR_NOTHING: dict[str, tuple[Any, ...]] = {
    "echo": (None, False),
    "include_stop_str_in_output": (None, False),
    "logprobs": (None,),
    "skip_special_tokens": (None, True),
    "spaces_between_special_tokens": (None, True),
    "stop": (None, ""),
    "suffix": (None, ""),
    "use_beam_search": (None, False),
}
"""Fields that are about an answer's text, or that vLLM does with it, each with the values that ask for nothing."""


def needs_text(name: str) -> RecordFault:
    """The fault of a field that is text, where ids are wanted."""
    return _UNSUPPORTED, f"{name}: is text, and with skip_tokenizer_init the engine takes token ids only; give those"


def tokenizer_faults(
    record: CompletionV2Request | ChatCompletionV2Request | PoolingFields, request: CreateBatchCompletionsV1Request
) -> Iterator[RecordFault]:
    """Say what of a record can't be had without a tokenizer; nothing where there is one."""
    if not request.model_cfg.skip_tokenizer_init:
        return
    match record:
        case ChatCompletionV2Request():
            yield needs_text("messages")
        case CompletionV2Request():
            if _is_text(record.prompt):
                yield needs_text("prompt")
            for name, nothing in _ASKS_FOR_NOTHING.items():
                if getattr(record, name) not in nothing:
                    yield _UNSUPPORTED, f"{name}: can't be had without a tokenizer (skip_tokenizer_init); leave it out"
            # They are told by their log probabilities, which vLLM gives with each token's text.
            chooses = record.is_given("best_of") and (record.best_of or 1) > (record.n or 1)
            for name in [*structure_fields(record), *(["best_of"] if chooses else [])]:
                yield _UNSUPPORTED, f"{name}: can't be had without a tokenizer (skip_tokenizer_init); leave it out"
        case EmbeddingRequest():
            if _is_text(record.input):
                yield needs_text("input")
        case _:
            yield (
                _UNSUPPORTED,
                "a score or a reranking is of texts, and skip_tokenizer_init leaves no tokenizer for them",
            )


def _is_text(prompt: Any) -> bool:
    return isinstance(prompt, str) or (isinstance(prompt, list) and any(isinstance(one, str) for one in prompt))
