"""What the schema can't say about one record of a V2 input: the contract's second layer for records.

A default, or a value that asks for what happens anyway (``stream: false``), is never refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.check_beam_search import beam_search_faults
from airflow_llmengine.spec.check_chat import chat_faults
from airflow_llmengine.spec.check_without_tokenizer import tokenizer_faults
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.results import RecordErrorType, RecordFault
from airflow_llmengine.spec.structured_output import structure_faults
from airflow_llmengine.spec.wire_faults import exceeds_64_bits
from airflow_llmengine.spec.wire_model import WireModel

Fault = RecordFault

_INVALID = RecordErrorType.INVALID_RECORD
_UNSUPPORTED = RecordErrorType.UNSUPPORTED
_EMPTY = RecordErrorType.EMPTY_PROMPT

_GREATEST_BIAS = 100
"""As the API has it."""

_TOKEN_ID = re.compile(r"[0-9]{1,18}")


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
    found = chat_faults(record) if isinstance(record, ChatCompletionV2Request) else _prompt_faults(record)
    faults = [*found, *size_faults(record), *structure_faults(record), *tokenizer_faults(record, request)]
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
    given = record.model_fields_set
    if not any(exceeds_64_bits(getattr(record, name)) for name in given):
        return
    for name in type(record).model_fields:
        if name in given and exceeds_64_bits(getattr(record, name)):
            yield _INVALID, f"{name}: holds a whole number of more than 64 bits, which no engine takes"


def model_faults(model: str, request: CreateBatchCompletionsV1Request) -> Iterator[Fault]:
    """A record may name its model, but only the job's."""
    names = [request.model_cfg.model]
    if request.model_cfg.served_model_name is not None:
        names.append(request.model_cfg.served_model_name)
    if model not in names:
        yield _INVALID, f"model: is not the job's; leave it out, or give {' or '.join(names)}"


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


def _use_beam_search(record: Any) -> Iterator[Fault]:
    if record.use_beam_search:
        for sentence in beam_search_faults(record):
            yield _UNSUPPORTED, sentence


def _length_penalty(record: Any) -> Iterator[Fault]:
    if record.length_penalty != 1 and not record.use_beam_search:
        yield _INVALID, "length_penalty: is for beam search alone; leave it out, or give use_beam_search: true"


def _logit_bias(record: Any) -> Iterator[Fault]:
    if not all(_TOKEN_ID.fullmatch(key) for key in record.logit_bias):
        yield _INVALID, "logit_bias: has a key that is no token id; keys are numbers in quotes"
    if any(abs(bias) > _GREATEST_BIAS for bias in record.logit_bias.values()):
        # vLLM would use the nearest bound.
        yield _INVALID, f"logit_bias: a bias must be from -{_GREATEST_BIAS} to {_GREATEST_BIAS}"


def _seed(record: Any) -> Iterator[Fault]:
    if record.seed == -1 and not record.use_beam_search:
        yield _INVALID, "seed: vLLM takes -1 for no seed; give another, or leave it out"


def _early_stopping(record: Any) -> Iterator[Fault]:
    if record.early_stopping:
        yield _UNSUPPORTED, "early_stopping: vLLM's beam search has no such choice; leave it out"


def _guided_whitespace_pattern(record: Any) -> Iterator[Fault]:
    yield _UNSUPPORTED, "guided_whitespace_pattern: nothing in today's vLLM reads it; leave it out"


def _max_tokens(record: Any) -> Iterator[Fault]:
    if record.max_tokens == 0 and (isinstance(record, ChatCompletionV2Request) or not record.echo):
        remedy = "" if isinstance(record, ChatCompletionV2Request) else ", or echo: true for the prompt itself"
        yield _INVALID, f"max_tokens: is 0, which asks for nothing; give at least 1{remedy}"


_RULES: Mapping[str, Callable[[Any], Iterator[Fault]]] = {
    "best_of": _best_of,
    "early_stopping": _early_stopping,
    "guided_whitespace_pattern": _guided_whitespace_pattern,
    "length_penalty": _length_penalty,
    "logit_bias": _logit_bias,
    "max_tokens": _max_tokens,
    "seed": _seed,
    "stream": _stream,
    "stream_options": _stream_options,
    "use_beam_search": _use_beam_search,
}
"""By field: what is wrong with it in a record that gives it a value."""
