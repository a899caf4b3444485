"""What the schema can't say about one record of a pooling model: see ``check_record``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_llmengine.spec.check_record import Fault, model_faults, size_faults
from airflow_llmengine.spec.check_without_tokenizer import tokenizer_faults
from airflow_llmengine.spec.embedding import EmbeddingRequest
from airflow_llmengine.spec.pooling import PoolingFields
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.spec.scoring import RerankRequest, ScoreRequest

_INVALID = RecordErrorType.INVALID_RECORD

_ONLY_WITH_BASE64: Mapping[str, str] = {"embed_dtype": "float32", "endianness": "native"}
"""Fields of an embedding that say how bytes are written, each with the value that asks for nothing."""


def check_pooling_record(
    record: PoolingFields, request: CreateBatchCompletionsV1Request, prefix: str = ""
) -> Fault | None:
    """Say why a record of a pooling model can't be run in this job, beyond its schema: see ``check_record``."""
    faults: list[Fault] = []
    match record:
        case EmbeddingRequest():
            faults += [*_empty_texts("input", record.input), *_form_faults(record)]
        case ScoreRequest():
            faults += _side_faults(record)
        case RerankRequest():
            faults += [*_empty_texts("query", record.query), *_empty_texts("documents", record.documents)]
    faults += [*_truncation_faults(record), *size_faults(record), *tokenizer_faults(record, request)]
    if record.model is not None:
        faults += model_faults(record.model, request)
    return (faults[0][0], "; ".join(prefix + sentence for _, sentence in faults)) if faults else None


def _empty_texts(name: str, value: Any) -> Iterator[Fault]:
    if not value:
        yield RecordErrorType.EMPTY_PROMPT, f"{name}: is empty"
    elif isinstance(value, list) and "" in value:
        yield RecordErrorType.EMPTY_PROMPT, f"{name}[{value.index('')}]: is empty"


def _form_faults(record: EmbeddingRequest) -> Iterator[Fault]:
    for name, default in _ONLY_WITH_BASE64.items():
        if record.effective(name) != default and record.effective("encoding_format") != "base64":
            yield _INVALID, f"{name}: has an effect only with encoding_format: base64; leave it out, or give both"


def _truncation_faults(record: PoolingFields) -> Iterator[Fault]:
    if record.truncate_prompt_tokens == 0:
        yield _INVALID, "truncate_prompt_tokens: is 0, which leaves nothing; give at least 1, or -1 for what fits"
    if record.truncation_side is not None and record.truncate_prompt_tokens is None:
        yield _INVALID, "truncation_side: nothing is cut without truncate_prompt_tokens; give both, or leave it out"


def _side_faults(record: ScoreRequest) -> Iterator[Fault]:
    pair = record.pair
    if pair is None:
        found = ", ".join(sorted(record.given_sides)) or "neither"
        yield _INVALID, f"queries, documents: a score has two sides; give these two and no others, not {found}"
        return
    first, second = (getattr(record, name) for name in pair)
    faults = [*_empty_texts(pair[0], first), *_empty_texts(pair[1], second)]
    yield from faults
    counts = [len(side) if isinstance(side, list) else 1 for side in (first, second)]
    if not faults and counts[0] not in (1, counts[1]):
        yield (
            _INVALID,
            f"{pair[0]}: has {counts[0]} texts, and {pair[1]} {counts[1]}; give one, or as many as of {pair[1]}",
        )
