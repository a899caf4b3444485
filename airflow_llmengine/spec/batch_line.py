"""A line of an OpenAI batch file: a record in an envelope."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.wire_model import WireModel
from airflow_llmengine.spec.wire_types import FREE_OBJECT, TEXT, Choice

COMPLETIONS_URL = "/v1/completions"
CHAT_COMPLETIONS_URL = "/v1/chat/completions"


class BatchLine(WireModel):
    """One line. Its ``body`` is validated by ``body_model``, whose errors stand under ``body.``."""

    custom_id: Annotated[str, TEXT]
    """The user's own name of the record; given back in the result."""
    method: Annotated[Literal["POST"], Choice(("POST",))]
    """The HTTP method that the API would be called by."""
    url: Annotated[Literal["/v1/completions", "/v1/chat/completions"], Choice((COMPLETIONS_URL, CHAT_COMPLETIONS_URL))]
    """The API's endpoint, which tells what kind of record the body is."""
    body: Annotated[dict[str, Any], FREE_OBJECT, Field(repr=False)]
    """The record."""

    @property
    def body_model(self) -> type[CompletionV2Request | ChatCompletionV2Request]:
        """What the body must be a record of."""
        return CompletionV2Request if self.url == COMPLETIONS_URL else ChatCompletionV2Request
