"""Whether ``max_tokens`` cut an answer's structured output off."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.structured_output import is_structured


def is_truncated(record: CompletionV2Request | ChatCompletionV2Request, choices: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a record asked for structured output, and one of its choices at least ends before it is whole.

    A choice that needs just the tokens that it may have has the ``finish_reason`` of one that is cut: ``guided_choice``
    with ``max_tokens: 1``, say. Where its text can be nothing but whole, it is no truncated one.

    Args:
        record: What was asked.
        choices: The choices of the API's response.
    """
    return is_structured(record) and any(
        choice.get("finish_reason") == "length" and not _is_whole(record, choice) for choice in choices
    )


def _is_whole(record: CompletionV2Request | ChatCompletionV2Request, choice: Mapping[str, Any]) -> bool:
    text = choice["message"].get("content") if "message" in choice else choice.get("text")
    if not isinstance(text, str):
        return False
    if record.guided_choice is not None:
        return text in record.guided_choice and not any(
            other.startswith(text) and other != text for other in record.guided_choice
        )
    if record.guided_json is not None or record.response_format is not None:
        try:
            # A number or a word may go on; what ends in a bracket can't.
            return isinstance(json.loads(text), dict | list)
        except (ValueError, RecursionError):
            return False
    return False
