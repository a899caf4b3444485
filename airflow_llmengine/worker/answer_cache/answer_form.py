"""Whether what a cache has for a record has the form of an answer to it: whoever can write there may have put it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_llmengine.spec.batch_line import BatchRecord
from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.embedding import EmbeddingRequest
from airflow_llmengine.spec.scoring import RerankRequest, ScoreRequest
from airflow_llmengine.worker.records import PromptRecord

_PARTS: Mapping[type[BatchRecord], tuple[str, str, type | tuple[type, ...]]] = {
    CompletionV2Request: ("choices", "text", str),
    ChatCompletionV2Request: ("choices", "message", dict),
    EmbeddingRequest: ("data", "embedding", (list, str)),
    ScoreRequest: ("data", "score", (int, float)),
    RerankRequest: ("results", "relevance_score", (int, float)),
}
"""By kind of record: the list that a response has, and what each of its entries has, of which type."""


def is_answer(body: Any, request: PromptRecord | BatchRecord) -> bool:
    """Whether a body is one that the engine may have made for this request. What it says is another matter."""
    if not isinstance(body, dict) or "error" in body or "response" in body:
        return False
    if isinstance(request, PromptRecord):
        counts = (body.get("num_prompt_tokens"), body.get("num_completion_tokens"))
        return isinstance(body.get("text"), str) and all(isinstance(count, int) for count in counts)
    parts_name, name, kind = _PARTS[type(request)]
    parts = body.get(parts_name)
    return (
        isinstance(body.get("usage"), dict)
        and isinstance(parts, list)
        and (bool(parts) or parts_name != "choices")
        and all(isinstance(part, dict) and isinstance(part.get(name), kind) for part in parts)
    )
