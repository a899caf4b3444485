"""What the schema can't say about one record of a V2 input: the contract's second layer for records.

A default, or a value that asks for what happens anyway (``stream: false``), is never refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.spec.sampling import ResponseFormatText
from airflow_llmengine.spec.wire_faults import MOST_SHOWN, exceeds_64_bits
from airflow_llmengine.spec.wire_model import WireModel

Fault = tuple[RecordErrorType, str]
"""A record's error type, and what is wrong in one sentence."""

_INVALID = RecordErrorType.INVALID_RECORD
_UNSUPPORTED = RecordErrorType.UNSUPPORTED
_EMPTY = RecordErrorType.EMPTY_PROMPT

_WITHOUT_EFFECT: Mapping[str, tuple[Any, ...]] = {
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_decoding_backend": ("auto",),
    "suffix": (),
    "tools": (),
    "tool_choice": ("none",),
    "include_reasoning": (True,),
    "chat_template": (),
    "mm_processor_kwargs": ({},),
}
"""Fields that a later version brings, each with the values that ask for nothing."""


def check_record(
    record: CompletionV2Request | ChatCompletionV2Request, request: CreateBatchCompletionsV1Request, prefix: str = ""
) -> Fault | None:
    """Say why a record can't be run in this job, beyond its schema.

    Args:
        record: The record.
        request: The job.
        prefix: Path of the record in what the user wrote, for example ``body.``.

    Returns:
        None if it can be run. Otherwise all that is wrong in one sentence, under the type of the first fault.
    """
    found = _message_faults(record) if isinstance(record, ChatCompletionV2Request) else _prompt_faults(record)
    faults = [*islice(found, MOST_SHOWN), *size_faults(record)]
    if record.model is not None:
        faults += model_faults(record.model, request)
    for name in sorted(_RULES.keys() & record.model_fields_set):
        if getattr(record, name) is not None:
            faults += _RULES[name](record)
    return (faults[0][0], "; ".join(prefix + sentence for _, sentence in faults)) if faults else None


def _prompt_faults(record: CompletionV2Request) -> Iterator[Fault]:
    prompt = record.prompt
    if prompt is None:
        yield _INVALID, "prompt: is null; give the text or the token ids"
    elif not prompt:
        yield _EMPTY, "prompt: is empty"
    elif isinstance(prompt, list) and "" in prompt:
        yield _EMPTY, f"prompt[{prompt.index('')}]: is empty"  # type: ignore[arg-type]


def size_faults(record: WireModel) -> Iterator[Fault]:
    """Numbers that no engine can hold. JSON knows no bound; a string of digits may come as one, too."""
    for name in type(record).model_fields:
        if exceeds_64_bits(getattr(record, name)):
            yield _INVALID, f"{name}: holds a whole number of more than 64 bits, which no engine takes"


def _message_faults(record: ChatCompletionV2Request) -> Iterator[Fault]:
    if not record.messages:
        yield _EMPTY, "messages: is empty"
    for place, message in enumerate(record.messages):
        content = message.get("content")
        if isinstance(content, list):
            for part_place, part in enumerate(content):
                if isinstance(part, dict) and part["type"] != "text":
                    path = f"messages[{place}].content[{part_place}]"
                    yield _UNSUPPORTED, f"{path}: parts other than text are not supported yet; leave them out"


def model_faults(model: str, request: CreateBatchCompletionsV1Request) -> Iterator[Fault]:
    """A record may name its model, but only the job's."""
    names = [request.model_cfg.model]
    if request.model_cfg.served_model_name is not None:
        names.append(request.model_cfg.served_model_name)
    if model not in names:
        yield _INVALID, f"model: is not the job's; leave it out, or give {' or '.join(names)}"


def _not_yet(name: str) -> Callable[[Any], Iterator[Fault]]:
    def faults(record: Any) -> Iterator[Fault]:
        if getattr(record, name) not in _WITHOUT_EFFECT[name]:
            yield _UNSUPPORTED, f"{name}: not supported yet; leave it out"

    return faults


def _stream(record: Any) -> Iterator[Fault]:
    if record.stream:
        yield _INVALID, "stream: a batch has no stream; leave it out"


def _stream_options(record: Any) -> Iterator[Fault]:
    if record.stream_options.include_usage:
        yield _INVALID, "stream_options: a batch has no stream, and every result has its usage; leave it out"


def _best_of(record: Any) -> Iterator[Fault]:
    n = record.effective("n")
    if record.best_of < n:
        yield _INVALID, f"best_of: is {record.best_of}, less than n, which is {n}; give at least n, or leave it out"
    elif record.best_of > n:
        yield _UNSUPPORTED, f"best_of: more than n ({n}) is not supported yet; leave it out"


def _early_stopping(record: Any) -> Iterator[Fault]:
    if record.early_stopping:
        yield _UNSUPPORTED, "early_stopping: vLLM's beam search has no such choice; leave it out"


def _guided_whitespace_pattern(record: Any) -> Iterator[Fault]:
    yield _UNSUPPORTED, "guided_whitespace_pattern: nothing in today's vLLM reads it; leave it out"


def _response_format(record: Any) -> Iterator[Fault]:
    if not isinstance(record.response_format, ResponseFormatText):
        yield _UNSUPPORTED, f"response_format: {record.response_format.type} is not supported yet; leave it out"


def _max_tokens(record: Any) -> Iterator[Fault]:
    if record.max_tokens == 0 and (isinstance(record, ChatCompletionV2Request) or not record.echo):
        remedy = "" if isinstance(record, ChatCompletionV2Request) else ", or echo: true for the prompt itself"
        yield _INVALID, f"max_tokens: is 0, which asks for nothing; give at least 1{remedy}"


def _max_completion_tokens(record: Any) -> Iterator[Fault]:
    if record.max_completion_tokens == 0:
        yield _INVALID, "max_completion_tokens: is 0, which asks for nothing; give at least 1"
    if record.max_tokens not in (None, record.max_completion_tokens):
        yield _INVALID, "max_completion_tokens: differs from max_tokens, which means the same; give one of the two"


_RULES: Mapping[str, Callable[[Any], Iterator[Fault]]] = {
    **{name: _not_yet(name) for name in _WITHOUT_EFFECT},
    "best_of": _best_of,
    "early_stopping": _early_stopping,
    "guided_whitespace_pattern": _guided_whitespace_pattern,
    "max_completion_tokens": _max_completion_tokens,
    "max_tokens": _max_tokens,
    "response_format": _response_format,
    "stream": _stream,
    "stream_options": _stream_options,
}
"""By field: what is wrong with it in a record that gives it a value."""
