"""Between pooling records and vLLM's API requests and responses, all as plain JSON values. Needs no vLLM."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from airflow_llmengine.spec.embedding import EmbeddingRequest
from airflow_llmengine.spec.pooling import PoolingFields
from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.spec.scoring import PAIRS, RerankRequest
from airflow_llmengine.worker.engines.base import Answer, RecordRejectedError
from airflow_llmengine.worker.engines.vllm_records import checked

_SIDES = (*PAIRS, ("query", "documents"))

_USAGE = ("prompt_tokens", "total_tokens")
"""What the API counts; vLLM adds tokens of a completion that there is not."""

_CUTS = frozenset({"max_tokens_per_doc", "max_tokens_per_query", "truncate_prompt_tokens"})
"""Fields by which vLLM shortens an input before it counts its tokens."""

TEXT_FIELDS = tuple(dict.fromkeys(("input", *(name for pair in _SIDES for name in pair))))
"""Fields that hold the user's text."""


def pooling_request(request: PoolingFields, model: str, known: Collection[str]) -> dict[str, Any]:
    """The body of the API's request that answers a record.

    Args:
        request: What the record asks.
        model: The model's served name.
        known: The fields that vLLM's request has.

    Raises:
        RecordRejectedError: The record has a field that vLLM does not know.
    """
    fields = {
        name: value for name, value in request.given().items() if value is not None and name not in ("model", "user")
    }
    return checked(fields, model, known)


def pooling_answer(response: dict[str, Any], request: PoolingFields) -> Answer:
    """The API's response object, without what only vLLM has.

    Args:
        response: The response object; changed in place.
        request: The record that it answers.
    """
    response["usage"] = usage = {name: response["usage"][name] for name in _USAGE}
    if isinstance(request, RerankRequest):
        for result in response["results"]:
            if result["document"].get("multi_modal") is None:
                result["document"].pop("multi_modal", None)
    return Answer(response, usage["prompt_tokens"], 0)


def unable(request: PoolingFields, tasks: Collection[str]) -> RecordRejectedError:
    """Why a model that does something else can't answer a record.

    Args:
        request: The record.
        tasks: What the model does, in vLLM's words.
    """
    wanted = "computes no embeddings" if isinstance(request, EmbeddingRequest) else "scores no texts"
    convert = "embed" if isinstance(request, EmbeddingRequest) else "classify"
    return RecordRejectedError(
        RecordErrorType.UNSUPPORTED,
        f"the model {wanted}, what it does is {', '.join(sorted(tasks))}: use another model, or, if this one was "
        f'trained for it, engine_args {{"runner": "pooling", "convert": "{convert}"}}',
    )


def generates_nothing(tasks: Collection[str]) -> RecordRejectedError:
    """Why a pooling model can't answer a completion or a chat.

    Args:
        tasks: What the model does, in vLLM's words.
    """
    return RecordRejectedError(
        RecordErrorType.UNSUPPORTED,
        f"the model generates no text, what it does is {', '.join(sorted(tasks))}: use a model that generates, or ask "
        "this one for embeddings or scores in lines of an OpenAI batch file",
    )


def inputs(body: Mapping[str, Any], *, together: bool) -> Iterator[str | list[int]]:
    """What each run of the model reads, as text or token ids; nothing where vLLM was told to shorten it.

    Args:
        body: The request that vLLM was sent.
        together: Whether the model reads both sides of a pair at once, as a cross-encoder does.
    """
    if _CUTS & body.keys():
        return
    if "input" in body:
        value = body["input"]
        yield from [value] if isinstance(value, str) or isinstance(value[0], int) else value
        return
    names = next(pair for pair in _SIDES if pair[0] in body and pair[1] in body)
    first, second = ([side] if isinstance(side, str) else side for side in (body[name] for name in names))
    if not together:
        yield from (*first, *second)
        return
    first = first * len(second) if len(first) == 1 else first
    yield from (a + b for a, b in zip(first, second, strict=True))


def too_long(tokens: int, limit: int) -> RecordRejectedError:
    """The refusal of an input that the model can't read as a whole."""
    return RecordRejectedError(
        RecordErrorType.CONTEXT_LENGTH_EXCEEDED,
        f"the input has {tokens} tokens, and the model takes {limit}: shorten it, give truncate_prompt_tokens, or "
        "give a larger max_model_len if the model allows one",
    )
