"""Between the worker's records and vLLM's API requests and responses, all as plain JSON values. Needs no vLLM."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.record_fields import CHAT_FIELDS, COMPLETION_FIELDS, CONTENT_FIELDS, Becomes
from airflow_llmengine.spec.request import CreateBatchCompletionsV1RequestContent
from airflow_llmengine.spec.results import CompletionOutput, RecordErrorType, TokenOutput
from airflow_llmengine.worker.engines.base import Answer, RecordRejectedError
from airflow_llmengine.worker.engines.truncation import is_truncated
from airflow_llmengine.worker.engines.vllm_structure import structured_outputs
from airflow_llmengine.worker.records import PromptRecord

_WITHOUT_A_FIELD = frozenset(
    field.name for field in (*COMPLETION_FIELDS.values(), *CHAT_FIELDS.values()) if field.field is None
)
"""Fields of V2 that vLLM's requests lack or that the engine sets; what they may hold here asks for nothing more."""

_LEAST_LOG_PROB = -9999.0
"""vLLM's API writes this for a log probability of minus infinity."""

_NULL_IN_A_CHOICE = ("logprobs", "finish_reason")
_NULL_IN_A_MESSAGE = ("content", "refusal")
"""Fields that the API has also when they are null."""

_NOT_ASKED_FOR = ("prompt_logprobs", "prompt_token_ids", "routed_experts")
"""Fields of a choice that vLLM adds to the API; the prompt's log probabilities stand in ``logprobs`` with ``echo``."""


def completion_request(
    request: PromptRecord | CompletionV2Request, model: str, known: Collection[str]
) -> dict[str, Any]:
    """The body of the API's completion request that answers a V1 or V2 record.

    Args:
        request: What the record asks.
        model: The model's served name.
        known: The fields that vLLM's request has.

    Raises:
        RecordRejectedError: The record has an empty prompt, or a field that vLLM does not know.
    """
    if isinstance(request, PromptRecord):
        body = {**_v1_fields(request.content), "prompt": request.prompt}
    else:
        body = _v2_fields(request)
    if has_empty_prompt(body.get("prompt")):
        raise RecordRejectedError(RecordErrorType.EMPTY_PROMPT, "the prompt is empty")
    return checked(body, model, known)


def chat_request(request: ChatCompletionV2Request, model: str, known: Collection[str]) -> dict[str, Any]:
    """The body of the API's chat request that answers a chat record. See ``completion_request``."""
    fields = _v2_fields(request)
    if fields.get("continue_final_message"):
        # By default vLLM would have the template open an answer too, and refuse that.
        fields.setdefault("add_generation_prompt", False)
    return checked(fields, model, known)


def _v1_fields(content: CreateBatchCompletionsV1RequestContent) -> dict[str, Any]:
    fields = {
        str(CONTENT_FIELDS[name].field): value
        for name, value in content.given().items()
        if value is not None and CONTENT_FIELDS[name].becomes is Becomes.FIELD
    }
    if content.return_token_log_probs:
        # 0 alternatives: the chosen token's own log probability and nothing else.
        fields["logprobs"] = 0
    return fields


def _v2_fields(request: CompletionV2Request | ChatCompletionV2Request) -> dict[str, Any]:
    return structured_outputs(
        {name: value for name, value in request.given().items() if value is not None and name not in _WITHOUT_A_FIELD}
    )


def checked(body: dict[str, Any], model: str, known: Collection[str]) -> dict[str, Any]:
    """The body with the model's name; refused if it has a field that vLLM does not know, or text that is no text."""
    unknown = sorted(body.keys() - set(known))
    if unknown:
        # vLLM takes fields that it does not know, and ignores them.
        raise RecordRejectedError(
            RecordErrorType.UNSUPPORTED, f"{', '.join(unknown)}: the installed vLLM has no such field; leave it out"
        )
    if not _is_unicode(body):
        raise RecordRejectedError(
            RecordErrorType.INVALID_UNICODE,
            "a text holds half of a surrogate pair (an escape such as \\ud800 alone), which UTF-8 can't carry",
        )
    return {**body, "model": model}


def has_empty_prompt(prompt: Any) -> bool:
    """Whether there is no prompt, or one of the prompts is empty."""
    return not prompt or (isinstance(prompt, list) and any(one in ("", []) for one in prompt))


def _is_unicode(value: Any) -> bool:
    for text in texts(value):
        try:
            text.encode()
        except UnicodeEncodeError:
            return False
    return True


def texts(value: Any) -> Iterator[str]:
    """All strings in a JSON value, names of fields included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield name
            yield from texts(item)
    elif isinstance(value, list) and not (value and isinstance(value[0], int)):
        for item in value:
            yield from texts(item)


def v1_answer(response: Mapping[str, Any], *, with_tokens: bool) -> Answer:
    """The V1 result in the API's completion response.

    Args:
        response: The response object.
        with_tokens: Whether ``return_token_log_probs`` was asked for.
    """
    choice, usage = response["choices"][0], response["usage"]
    tokens = None
    if with_tokens:
        logprobs = choice["logprobs"]
        tokens = [
            TokenOutput(token=token, log_prob=_finite(log_prob))
            for token, log_prob in zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True)
        ]
    output = CompletionOutput(
        text=choice["text"],
        num_prompt_tokens=usage["prompt_tokens"],
        num_completion_tokens=usage["completion_tokens"],
        tokens=tokens,
    )
    return Answer(output.model_dump(mode="json"), output.num_prompt_tokens, output.num_completion_tokens)


def _finite(log_prob: float | None) -> float | None:
    return log_prob if log_prob is not None and math.isfinite(log_prob) and log_prob > _LEAST_LOG_PROB else None


def v2_answer(response: dict[str, Any], request: CompletionV2Request | ChatCompletionV2Request) -> Answer:
    """The V2 or chat result: the API's response object, without the nulls of fields that only vLLM has.

    Args:
        response: The response object, dumped without nulls; changed in place.
        request: The record that it answers.
    """
    for choice in response["choices"]:
        for name in _NOT_ASKED_FOR:
            choice.pop(name, None)
        for name in _NULL_IN_A_CHOICE:
            choice.setdefault(name, None)
        if "message" in choice:
            for name in _NULL_IN_A_MESSAGE:
                choice["message"].setdefault(name, None)
    usage = response["usage"]
    return Answer(
        response,
        usage["prompt_tokens"],
        usage["completion_tokens"],
        truncated=is_truncated(request, response["choices"]),
    )
