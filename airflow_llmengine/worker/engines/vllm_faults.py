"""From what vLLM has against a record to the record's error: its type, and one sentence. Needs no vLLM."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.engines.base import RecordRejectedError
from airflow_llmengine.worker.engines.vllm_pooling_records import TEXT_FIELDS
from airflow_llmengine.worker.engines.vllm_records import texts
from airflow_llmengine.worker.engines.vllm_structure import failed_on_structure, structure_fault, structure_texts

_TOO_LONG = re.compile(r"maximum context length|maximum model length")
_NO_ROOM = "max_tokens must be at least 1, got 0"
"""What vLLM says when the prompt leaves no room; also when no token was asked for."""

_MORE_THAN_FITS = re.compile(r"max_tokens=\d+ cannot be greater than")

_TOOL_PARSER = "--tool-call-parser"
"""The argument of its server that vLLM names when a record needs it."""

NO_CHAT_TEMPLATE = "the model has no chat template: give one in model_config.chat_template, or use a model that has one"
"""Why no chat can be written for a model."""

_EXTRAS = re.compile(r" \(parameter=.*\)$", re.DOTALL)
"""Name and value of a field, which vLLM appends to its sentence; the value may be the user's text."""

_QUOTE_LENGTH = 20
"""A message that has so many characters of the record's text in a row quotes it."""

_LONGEST_MESSAGE = 400

_SERVER_ERROR = 500


@dataclass(frozen=True, slots=True)
class Fault:
    """What vLLM has against a record."""

    kind: RecordErrorType
    message: str
    """vLLM's own words; they may quote the record."""
    tokens_matter: bool = False
    """Whether the number of the prompt's tokens may be what is wrong."""
    gave_up: bool = False
    """Whether vLLM began with it, and its engine did not go on."""


def fault_of(kinds: Collection[str], message: str, status: int) -> Fault:
    """Classify a fault.

    Args:
        kinds: Names of the exception's classes, if it is one.
        message: What vLLM says.
        status: The HTTP status with which vLLM's server would answer.
    """
    message = _EXTRAS.sub("", message)
    if "ChatTemplateResolutionError" in kinds:
        return Fault(RecordErrorType.MISSING_CHAT_TEMPLATE, message)
    if status >= _SERVER_ERROR:
        return Fault(RecordErrorType.INTERNAL, message, gave_up="GenerationError" in kinds)
    if _TOO_LONG.search(message):
        return Fault(RecordErrorType.CONTEXT_LENGTH_EXCEEDED, message, tokens_matter=True)
    if _MORE_THAN_FITS.search(message):
        return Fault(RecordErrorType.CONTEXT_LENGTH_EXCEEDED, message)
    if "prompt cannot be empty" in message:
        return Fault(RecordErrorType.EMPTY_PROMPT, message)
    return Fault(RecordErrorType.REJECTED_BY_ENGINE, message, tokens_matter=_NO_ROOM in message)


def fault_of_fields(error: ValidationError) -> Fault:
    """Sum up what vLLM's request model has against a record: for each field the first fault."""
    faults: dict[str, str] = {}
    for line in error.errors(include_url=False, include_input=False, include_context=False):
        faults.setdefault(str(line["loc"][0]) if line["loc"] else "record", line["msg"])
    return Fault(RecordErrorType.REJECTED_BY_ENGINE, "; ".join(f"{name}: {fault}" for name, fault in faults.items()))


def rejection(
    fault: Fault, body: Mapping[str, Any], *, prompt_tokens: int | None = None, limit: int | None = None
) -> RecordRejectedError:
    """Put a fault into one sentence that quotes nothing of the record.

    Args:
        fault: The fault.
        body: The request that vLLM was sent.
        prompt_tokens: Tokens of the record's longest prompt, if they were counted.
        limit: Tokens that the model takes.
    """
    if prompt_tokens is not None and limit is not None and prompt_tokens >= limit:
        return RecordRejectedError(
            RecordErrorType.CONTEXT_LENGTH_EXCEEDED,
            f"the prompt has {prompt_tokens} tokens, and the model takes {limit} with at least one of the answer: "
            "shorten it, or give a larger max_model_len if the model allows one",
        )
    if fault.kind is RecordErrorType.MISSING_CHAT_TEMPLATE:
        return RecordRejectedError(fault.kind, NO_CHAT_TEMPLATE)
    if _TOOL_PARSER in fault.message:
        return RecordRejectedError(
            RecordErrorType.UNSUPPORTED,
            "tool_choice: the engine is not told how this model writes tool calls; give model_config.tool_call_parser "
            "and model_config.enable_auto_tool_choice, or tool_choice: none",
        )
    if fault.kind is RecordErrorType.EMPTY_PROMPT:
        return RecordRejectedError(fault.kind, "the prompt has no tokens")
    if fault.gave_up and (said := failed_on_structure(body)) is not None:
        return RecordRejectedError(RecordErrorType.REJECTED_BY_ENGINE, said)
    about = structure_fault(fault.message, body)
    said = _without_quotes(about or fault.message, body)
    if said is None:
        said = (
            "vLLM failed on it and says nothing that can be shown"
            if fault.kind is RecordErrorType.INTERNAL
            else "vLLM refuses it, and what it says is left out because it quotes the record"
        )
        if about is not None:
            said = f"{about.partition(':')[0]}: {said}"
    return RecordRejectedError(fault.kind, said)


def _without_quotes(message: str, body: Mapping[str, Any]) -> str | None:
    """The message on one line; None if it says nothing, or quotes the record's text."""
    text = " ".join(message.split())
    if len(text) > _LONGEST_MESSAGE:
        text = text[:_LONGEST_MESSAGE] + "…"
    return None if not text or any(_quotes(text, private) for private in _private_texts(body)) else text


def _private_texts(body: Mapping[str, Any]) -> Iterator[str]:
    for name in ("prompt", *TEXT_FIELDS):
        yield from texts(body.get(name))
    for message in body.get("messages", ()):
        # What a message says, and not its role, which vLLM may name.
        yield from texts([value for name, value in message.items() if name != "role"])
    yield from texts(list(structure_texts(body)))


def _quotes(text: str, private: str) -> bool:
    private = " ".join(private.split())
    if len(private) < _QUOTE_LENGTH:
        return private != "" and any(f"{mark}{private}{mark}" in text for mark in "'\"`")
    windows = (text[start : start + _QUOTE_LENGTH] for start in range(len(text) - _QUOTE_LENGTH + 1))
    return any(window in private for window in windows)
