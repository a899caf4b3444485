"""What becomes of each field of a record is held to the requests of the installed vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from airflow_llmengine.spec.record_fields import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    CONTENT_FIELDS,
    EMBEDDING_FIELDS,
    FROM_THE_GENERATION_CONFIG,
    RERANK_FIELDS,
    SCORE_FIELDS,
    Becomes,
    RecordField,
)

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]


def requests() -> dict[str, tuple[Mapping[str, RecordField], set[str]]]:
    """By kind of record: its fields, and those of vLLM's request."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.pooling.embed.protocol import EmbeddingCompletionRequest
    from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, ScoreRequest

    return {
        "content": (CONTENT_FIELDS, set(CompletionRequest.model_fields)),
        "completion": (COMPLETION_FIELDS, set(CompletionRequest.model_fields)),
        "chat": (CHAT_FIELDS, set(ChatCompletionRequest.model_fields)),
        "embedding": (EMBEDDING_FIELDS, set(EmbeddingCompletionRequest.model_fields)),
        "score": (SCORE_FIELDS, {name for form in get_args(ScoreRequest) for name in form.model_fields}),
        "rerank": (RERANK_FIELDS, set(RerankRequest.model_fields)),
    }


@pytest.mark.parametrize("kind", ["content", "completion", "chat", "embedding", "score", "rerank"])
def test_vllm_has_every_field_that_is_passed_on(kind: str) -> None:
    fields, known = requests()[kind]
    passed = {field.field for field in fields.values()} - {None}
    assert sorted(str(name) for name in passed - known) == []


@pytest.mark.parametrize("kind", ["completion", "chat"])
def test_vllm_has_not_got_what_is_refused(kind: str) -> None:
    """What a newer vLLM brings may be passed on: it is told here by its name."""
    fields, known = requests()[kind]
    refused = {field.name for field in fields.values() if field.becomes is Becomes.REFUSED}
    assert sorted((refused & known) - {"stream", "stream_options"}) == []


def test_which_fields_a_generation_config_decides() -> None:
    from vllm.config import ModelConfig

    config: Any = SimpleNamespace(
        generation_config="auto",
        try_get_generation_config=_Everything,
        override_generation_config={},
    )
    assert sorted(ModelConfig.get_diff_sampling_param(config)) == sorted(FROM_THE_GENERATION_CONFIG)


class _Everything(dict[str, int]):
    """A generation config that has every field there may be."""

    def get(self, _name: str, _default: Any = None) -> Any:
        return 1

    def __contains__(self, _name: object) -> bool:
        return True
