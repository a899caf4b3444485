"""A record's key: equal for two records exactly when one answer serves both, whenever it was generated.

The key is a hash of what the record asks, in a canonical form. What only its place gives the answer (``id``,
``created``, ``custom_id``, ``metadata``, the names of tool calls) is not in it: ``ElementWriter`` puts that in.

A record has a key only if its answer is determined: by decoding greedily, by a seed, by beams instead of sampling, or
because nothing is generated at all. A temperature that was left out may be anything, by the model's generation config.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from pydantic_core import to_json

from airflow_llmengine.spec.batch_line import BatchRecord
from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.content_parts import media_parts, media_url
from airflow_llmengine.spec.embedding import EmbeddingRequest
from airflow_llmengine.spec.record_fields import FROM_THE_GENERATION_CONFIG
from airflow_llmengine.spec.request import CreateBatchCompletionsV1RequestContent
from airflow_llmengine.spec.scoring import RerankRequest, ScoreRequest
from airflow_llmengine.worker.records import PromptRecord, Record

KEY_BYTES = 16
"""Length of a key. Among ten thousand million records, two that differ share one with a probability of 1 in 10^18."""

CHANGES_NOTHING = frozenset(
    {
        # Given back in the result, or only about where it comes from.
        "metadata",
        "model",
        "safety_identifier",
        "user",
        # About how the API delivers, keeps or prices an answer.
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "service_tier",
        "store",
        "stream",
        "stream_options",
        # What they may hold asks for what happens anyway.
        "audio",
        "early_stopping",
        "function_call",
        "functions",
        "guided_whitespace_pattern",
        "modalities",
        "moderation",
        "prediction",
        "verbosity",
        "web_search_options",
    }
)
"""Fields of records that are in no key. Every other one is, so that a new field is until somebody thinks about it."""

DEFAULT_MEANS_SOMETHING = frozenset({*FROM_THE_GENERATION_CONFIG, "add_generation_prompt"}) - {"max_tokens"}
"""Fields for which the contract's default, spelled out, may ask for something else than no value.

Without one the model's generation config holds, and ``continue_final_message`` turns ``add_generation_prompt`` off.
``max_tokens`` has a default in completions alone, where it is the API's own.
"""

_KINDS: Mapping[type[BatchRecord], bytes] = {
    CompletionV2Request: b"completion",
    ChatCompletionV2Request: b"chat",
    EmbeddingRequest: b"embedding",
    ScoreRequest: b"score",
    RerankRequest: b"rerank",
}

_SAYS_NOTHING: Mapping[type[BatchRecord], Mapping[str, Any]] = {
    kind: {
        name: field.default
        for name, field in kind.model_fields.items()
        if not field.is_required() and field.default is not None and name not in DEFAULT_MEANS_SOMETHING
    }
    for kind in _KINDS
}
"""By kind and field: the value that, spelled out, asks for no more than none."""

_START = {kind: blake2b(name, digest_size=KEY_BYTES) for kind, name in _KINDS.items()}

_DATE_IN_A_TEMPLATE = re.compile(r"strftime_now|datetime")


class AnswerKeys:
    """Makes the keys of one job's records.

    Args:
        uses_tool: Whether a tool writes a part of the answers. No answer is determined then: code may read a clock.
    """

    def __init__(self, *, uses_tool: bool = False) -> None:
        self._uses_tool = uses_tool
        self._content: CreateBatchCompletionsV1RequestContent | None = None
        self._content_start = blake2b(digest_size=KEY_BYTES)
        self._content_determines = False

    def of(self, record: Record) -> bytes | None:
        """The record's key, of ``KEY_BYTES``; None if its answer is not determined, so that it is generated for itself.

        It takes a few microseconds: the record is taken to be valid.
        """
        request = record.request
        if self._uses_tool:
            return None
        try:
            if isinstance(request, PromptRecord):
                return self._of_prompt(request)
            # Asking pydantic's classes by isinstance takes ten times as long.
            if (type(request) is CompletionV2Request or type(request) is ChatCompletionV2Request) and not is_determined(
                request
            ):
                return None
            found = _START[type(request)].copy()
            found.update(_canonical(request))
            return found.digest()
        except (ValueError, RecursionError):
            # It has no form in UTF-8 (half of a surrogate pair), or is nested too deep: the engine says what it thinks.
            return None

    def _of_prompt(self, request: PromptRecord) -> bytes | None:
        if request.content is not self._content:
            self._begin(request.content)
        if not self._content_determines:
            return None
        found = self._content_start.copy()
        found.update(request.prompt.encode())
        return found.digest()

    def _begin(self, content: CreateBatchCompletionsV1RequestContent) -> None:
        """Take on the parameters that V1 records share: they are hashed once for all of them."""
        self._content = content
        self._content_determines = content.temperature == 0
        given = {
            name: int(value) if type(value) is float and value.is_integer() else value
            for name, value in content.given().items()
            if value is not None and name != "prompts"
        }
        for name, default in (("return_token_log_probs", False), ("skip_special_tokens", True)):
            if given.get(name) is default:
                del given[name]
        self._content_start = blake2b(b"prompt" + to_json(sorted(given.items())), digest_size=KEY_BYTES)


def is_determined(request: CompletionV2Request | ChatCompletionV2Request) -> bool:
    """Whether the same request gives the same answer, but for the engine's numerics."""
    # Not at any other temperature, however small: vLLM samples at 0.01 then.
    if "temperature" in request.model_fields_set and request.temperature == 0:
        return True
    return request.seed is not None or bool(request.use_beam_search)


def lasts(record: Record) -> bool:
    """Whether a record that has a key asks for the same at any time, and not only within one run.

    What a URL leads to may change, and a template that the record brings may read the date.
    """
    request = record.request
    if not isinstance(request, ChatCompletionV2Request):
        return True
    if request.chat_template is not None and _DATE_IN_A_TEMPLATE.search(request.chat_template):
        return False
    urls = (media_url(part) for _path, part in media_parts(request.messages))
    return all(url is None or url[:5].lower() == "data:" for url in urls)


@lru_cache(maxsize=256)
def _that_change_something(given: frozenset[str]) -> tuple[str, ...]:
    return tuple(sorted(given - CHANGES_NOTHING))


def _canonical(request: BatchRecord) -> bytes:
    """What a record asks, as JSON: the fields by name, without those that say nothing.

    ``0.0`` and ``0`` are one number; else values are left as they are. The order of an object's entries may matter, as
    a template or a grammar reads them.
    """
    values, defaults = request.__dict__, _SAYS_NOTHING[type(request)]
    asked: list[Any] = []
    for name in _that_change_something(frozenset(request.model_fields_set)):
        value = values[name]
        if value is None or (name in defaults and defaults[name] == value):
            continue
        if name == "response_format":
            value = value.given()
        asked += (name, int(value) if type(value) is float and value.is_integer() else value)
    return to_json(asked)
