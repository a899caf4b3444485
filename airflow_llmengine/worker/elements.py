"""From an answer or an error to the bytes of its element in the output."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from airflow_llmengine.spec.batch_line import BatchRecord
from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.embedding import EmbeddingRequest
from airflow_llmengine.spec.job_state import JobHandle
from airflow_llmengine.spec.results import RecordError
from airflow_llmengine.spec.scoring import RerankRequest, ScoreRequest
from airflow_llmengine.worker.chunks import Finished
from airflow_llmengine.worker.engines.base import Answer
from airflow_llmengine.worker.records import PromptRecord, Record

_ID_PREFIXES: Mapping[type[BatchRecord], str] = {
    CompletionV2Request: "cmpl",
    ChatCompletionV2Request: "chatcmpl",
    EmbeddingRequest: "embd",
    ScoreRequest: "score",
    RerankRequest: "rerank",
}
"""How the ``id`` of a response object begins."""


SKIPPED = b'{"skipped":true}'
"""The element of a row of which there was nothing to ask. Rows are the records of tables, whose output has columns."""


class ElementWriter:
    """Writes the elements of one job: what is the same for all of them is given once.

    Args:
        handle: The job; the results' ``id`` is made of its fingerprint and the record's index.
        created: Seconds since the epoch at which the job was launched: ``created`` of every result, so that a result
            does not depend on when it was made.
    """

    def __init__(self, handle: JobHandle, created: float) -> None:
        self._fingerprint = handle.fingerprint
        self._created = int(created)

    def answer(self, record: Record, answer: Answer) -> Finished:
        """The element of an answered record."""
        has_fractions = may_have_fractions(answer.body)
        body = in_place(answer.body, record)
        if not isinstance(record.request, PromptRecord):
            body["id"] = f"{_ID_PREFIXES[type(record.request)]}-{self._fingerprint}-{record.index}"
            if "created" in body:
                # A reranking has none.
                body["created"] = self._created
        if record.is_batch_line:
            body = self._batch_line(
                record.index,
                record.custom_id,
                response={"status_code": 200, "request_id": f"{self._fingerprint}-{record.index}", "body": body},
                error=None,
            )
        return Finished(
            element=encode_element(body, has_fractions=has_fractions),
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
            truncated=answer.truncated,
        )

    def skipped(self) -> Finished:
        """The element of a row of which there was nothing to ask."""
        return Finished(element=SKIPPED, skipped=True)

    def error(self, error: RecordError, *, is_batch_line: bool) -> Finished:
        """The element of a record that has no answer."""
        element = error.wire()
        if is_batch_line:
            element = self._batch_line(error.index, error.custom_id, response=None, error=element["error"])
        return Finished(element=encode_element(element), error_type=error.type.value)

    def _batch_line(
        self, index: int, custom_id: str | None, *, response: dict[str, Any] | None, error: dict[str, Any] | None
    ) -> dict[str, Any]:
        return {
            "id": f"batch_req_{self._fingerprint}-{index}",
            "custom_id": custom_id,
            "response": response,
            "error": error,
        }


def may_have_fractions(body: Mapping[str, Any]) -> bool:
    """Whether there may be floating point numbers in an answer: log probabilities, or what a pooling model computes."""
    if body.get("tokens") is not None or body.get("prompt_logprobs") is not None:
        return True
    choices = body.get("choices")
    if choices is None:
        return "text" not in body
    return any(choice.get("logprobs") is not None or choice.get("prompt_logprobs") is not None for choice in choices)


def in_place(body: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """An answer's body with what only the record gives it: names of tool calls that have none, and ``metadata``.

    The body itself is left as it is, since it may be the answer to other records too.
    """
    request = record.request
    placed = dict(body)
    if isinstance(request, PromptRecord):
        return placed
    given_back: dict[str, Any] = {}
    # Asking pydantic's classes by isinstance takes ten times as long.
    if type(request) is ChatCompletionV2Request:
        given_back.update(request.metadata or {})
        if any("tool_calls" in choice["message"] for choice in body["choices"]):
            placed["choices"] = [_with_named_calls(choice, record.index) for choice in body["choices"]]
    if request.user is not None:
        given_back["user"] = request.user
    if given_back:
        placed["metadata"] = given_back
    return placed


def _with_named_calls(choice: dict[str, Any], index: int) -> dict[str, Any]:
    """A choice whose tool calls all have an ``id``, so that they are named the same whenever they are made."""
    message = choice["message"]
    if "tool_calls" not in message:
        return choice
    calls = [
        call if call["id"] else {**call, "id": f"chatcmpl-tool-{index}-{choice['index']}-{place}"}
        for place, call in enumerate(message["tool_calls"])
    ]
    return {**choice, "message": {**message, "tool_calls": calls}}


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def encode_element(value: dict[str, Any], *, has_fractions: bool = True) -> bytes:
    """JSON in UTF-8 on one line; numbers that JSON does not know become null.

    Args:
        value: The element.
        has_fractions: Whether there may be floating point numbers in it. Where there are none a faster encoder writes
            the same; such numbers it would write in another way.
    """
    if not has_fractions:
        try:
            return to_json(value, inf_nan_mode="null")
        except ValueError:
            # Half of a surrogate pair, or something that is nested very deep.
            pass
    try:
        text = _encode(value)
    except ValueError:
        text = _encode(_without_non_finite(value))
    try:
        return text.encode()
    except UnicodeEncodeError:
        # A lone surrogate can't be written in UTF-8; as an escape it can, and it reads back as it was.
        return json.dumps(json.loads(text), separators=(",", ":")).encode("ascii")


def _without_non_finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _without_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_non_finite(item) for item in value]
    return value


def error_of(element: bytes) -> RecordError | None:
    """The error of an element of the output; None if it is an answer, or nothing of ours."""
    try:
        value = json.loads(element)
        error = value.get("error") if isinstance(value, dict) else None
        return None if error is None else RecordError.model_validate(error)
    except (ValueError, RecursionError):
        return None
