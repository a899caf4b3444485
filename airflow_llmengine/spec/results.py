"""What one record of the output is: a V1 result, or an error in the record's own place."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict


class RecordErrorType(StrEnum):
    """Why one record has no answer. The job goes on without it."""

    INVALID_JSON = "invalid_json"
    INVALID_UNICODE = "invalid_unicode"
    INVALID_RECORD = "invalid_record"
    RECORD_TOO_LARGE = "record_too_large"
    UNSUPPORTED = "unsupported"
    EMPTY_PROMPT = "empty_prompt"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    MISSING_CHAT_TEMPLATE = "missing_chat_template"
    REJECTED_BY_ENGINE = "rejected_by_engine"
    INVALID_OUTPUT = "invalid_output"
    ENGINE_CRASH = "engine_crash"
    TIMEOUT = "timeout"
    INTERNAL = "internal"

    @property
    def transient(self) -> bool:
        """Whether the same record may succeed when it is simply tried again."""
        return self in (RecordErrorType.ENGINE_CRASH, RecordErrorType.TIMEOUT, RecordErrorType.INTERNAL)


RecordFault = tuple[RecordErrorType, str]
"""Why a record can't be run: its error type, and what is wrong in one sentence."""


class RecordError(BaseModel):
    """The error object of one record: ``{"error": {"type", "message", "index", "custom_id"?}}`` on the wire."""

    model_config = ConfigDict(frozen=True)

    type: RecordErrorType
    message: str
    """One sentence: what is wrong, where, and what to do. Never the user's text."""
    index: int
    """The record's place in the input, from 0."""
    custom_id: str | None = None

    def wire(self) -> dict[str, Any]:
        """The element that stands in the output in the record's place."""
        return {"error": self.model_dump(mode="json", exclude_none=True)}


class TokenOutput(BaseModel):
    """One generated token of a V1 result."""

    token: str
    log_prob: float | None
    """Natural logarithm of the token's probability; null where it is not finite, or the token was not generated."""


class CompletionOutput(BaseModel):
    """A V1 result."""

    text: str
    num_prompt_tokens: int
    num_completion_tokens: int
    tokens: list[TokenOutput] | None = None
    """Every generated token in order, if ``return_token_log_probs`` was asked for; null otherwise."""
