"""A line of an OpenAI batch file: a record in an envelope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.embedding import EmbeddingRequest
from airflow_llmengine.spec.scoring import RerankRequest, ScoreRequest
from airflow_llmengine.spec.wire_model import WireModel
from airflow_llmengine.spec.wire_types import FREE_OBJECT, TEXT_NOT_EMPTY, Choice

BatchRecord = CompletionV2Request | ChatCompletionV2Request | EmbeddingRequest | ScoreRequest | RerankRequest
"""What the body of a line may be."""

ENDPOINTS: Mapping[str, type[BatchRecord]] = {
    "/v1/completions": CompletionV2Request,
    "/v1/chat/completions": ChatCompletionV2Request,
    "/v1/embeddings": EmbeddingRequest,
    "/v1/score": ScoreRequest,
    "/score": ScoreRequest,
    "/v1/rerank": RerankRequest,
    "/v2/rerank": RerankRequest,
    "/rerank": RerankRequest,
}
"""By ``url``: what the body is.

The first three are OpenAI's. The others are vLLM's, each by every path that its server has for it; its batch runner
takes any path that ends so.
"""

Endpoint = Literal[
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/embeddings",
    "/v1/score",
    "/score",
    "/v1/rerank",
    "/v2/rerank",
    "/rerank",
]
"""The paths of ``ENDPOINTS``, for type checkers."""


class BatchLine(WireModel):
    """One line. Its ``body`` is validated by ``body_model``, whose errors stand under ``body.``."""

    custom_id: Annotated[str, TEXT_NOT_EMPTY]
    """The user's own name of the record; given back in the result."""
    method: Annotated[Literal["POST"], Choice(("POST",))]
    """The HTTP method that the API would be called by."""
    url: Annotated[Endpoint, Choice(tuple(ENDPOINTS))]
    """The API's endpoint, which tells what kind of record the body is."""
    body: Annotated[dict[str, Any], FREE_OBJECT, Field(repr=False)]
    """The record."""

    @property
    def body_model(self) -> type[BatchRecord]:
        """What the body must be a record of."""
        return ENDPOINTS[self.url]
