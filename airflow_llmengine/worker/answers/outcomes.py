"""What came of a record, apart from its place: its answer, or why it has none. As bytes, for a file of this process."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json, to_json

from airflow_llmengine.spec.results import RecordErrorType, RecordFault
from airflow_llmengine.worker.engines.base import Answer

Outcome = Answer | RecordFault


def holds_for_others(outcome: Outcome) -> bool:
    """Whether it is that of every record that asks the same.

    An error that may be over is not; but who brings the engine down by itself would do so again.
    """
    if isinstance(outcome, Answer):
        return True
    error_type = outcome[0]
    return not error_type.transient or error_type is RecordErrorType.ENGINE_CRASH


def encode_outcome(outcome: Outcome) -> bytes:
    """From an outcome to bytes, without loss."""
    if isinstance(outcome, Answer):
        fields: tuple[Any, ...] = (
            outcome.body,
            outcome.prompt_tokens,
            outcome.completion_tokens,
            outcome.truncated,
        )
    else:
        fields = outcome
    try:
        return to_json(fields)
    except ValueError:
        # Half of a surrogate pair, which has no form in UTF-8, or something that is nested very deep.
        return json.dumps(fields).encode("ascii")


def decode_outcome(data: bytes) -> Outcome:
    """What ``encode_outcome`` was given.

    Raises:
        ValueError: The bytes are something else.
    """
    try:
        fields = from_json(data)
    except ValueError:
        fields = json.loads(data)
    match fields:
        case [dict(body), int(prompt_tokens), int(completion_tokens), bool(truncated)]:
            return Answer(body, prompt_tokens, completion_tokens, truncated)
        case [str(error_type), str(message)]:
            return RecordErrorType(error_type), message
    raise ValueError("not an outcome")
