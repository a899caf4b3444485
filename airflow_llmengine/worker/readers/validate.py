"""From a raw record to what an engine takes, or to the error that stands in its place.

What a record is tells itself by its fields: ``messages`` makes a chat, ``prompt`` a completion, and ``body`` (or
``custom_id``, ``method`` or ``url``) a line of an OpenAI batch file, whose ``url`` tells what its body is. So they may
be mixed line by line. Embeddings, scores and rerankings come as such lines only: their fields are not their own
(``input`` is also a response's, ``documents`` also a chat's).
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from airflow_llmengine.spec.batch_line import ENDPOINTS, BatchLine, BatchRecord
from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.check_pooling_record import check_pooling_record
from airflow_llmengine.spec.check_record import check_record
from airflow_llmengine.spec.check_without_tokenizer import needs_text
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.embedding import EmbeddingRequest
from airflow_llmengine.spec.pooling import PoolingFields
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request, CreateBatchCompletionsV1RequestContent
from airflow_llmengine.spec.results import RecordError, RecordErrorType
from airflow_llmengine.spec.validation import record_error_of
from airflow_llmengine.spec.wire_faults import path_step
from airflow_llmengine.spec.wire_model import WireModel
from airflow_llmengine.worker.readers.limits import MAX_ENTRIES, MAX_FIELDS
from airflow_llmengine.worker.readers.passed_checks import PassedChecks
from airflow_llmengine.worker.records import PromptRecord, RawRecord, Record

_RECORD_FIELDS = ("prompt", "messages")

_POOLING_FIELDS = ("input", "queries", "data_1", "text_1", "query")
"""Fields that begin an embedding, a score or a reranking, which a plain record can't be."""

_LINE_FIELDS = BatchLine.model_fields.keys()

_TOKEN_FIELDS: Mapping[type[WireModel], str] = {CompletionV2Request: "prompt", EmbeddingRequest: "input"}
"""The field that may hold lists of token ids."""

_KINDS = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
}


class _RefusedError(Exception):
    """The record is not valid."""

    def __init__(self, error_type: RecordErrorType, reason: str) -> None:
        super().__init__(reason)
        self.error_type = error_type
        self.reason = reason


def to_record(
    raw: RawRecord,
    request: CreateBatchCompletionsV1Request,
    content: CreateBatchCompletionsV1RequestContent | None,
    passed: PassedChecks | None = None,
) -> Record | RecordError:
    """Validate one record.

    Args:
        raw: The record as the reader found it.
        request: The job.
        content: The parameters that all V1 records share; None if the input is not V1.
        passed: What was found of earlier records of the same job. It makes no difference but in time.

    Returns:
        The record, or its error, whose message names the record's place and every field that is wrong.
    """
    if raw.error is not None:
        return raw.error
    try:
        if content is not None:
            return _prompt_record(raw, request, content)
        if is_batch_line(raw.value):
            return _batch_record(raw, request, passed)
        if not isinstance(raw.value, dict):
            raise _invalid(f"a record must be an object, not {_kind(raw.value)}")
        record = _validated(raw.value, _model_of(raw.value), request, passed)
        return Record(raw.index, raw.location, record, size=raw.size)
    except _RefusedError as refused:
        return RecordError(
            type=refused.error_type,
            message=f"{raw.location}: {refused.reason}",
            index=raw.index,
            custom_id=custom_id_of(raw.value),
        )


def is_batch_line(value: Any) -> bool:
    """Whether a record, valid or not, is meant as a line of an OpenAI batch file."""
    if not isinstance(value, dict):
        return False
    if "body" in value or "custom_id" in value:
        return True
    return ("url" in value or "method" in value) and not any(field in value for field in _RECORD_FIELDS)


def custom_id_of(value: Any) -> str | None:
    """A record's own name, if it has one that is not empty."""
    custom_id = value.get("custom_id") if isinstance(value, dict) else None
    return custom_id if isinstance(custom_id, str) and custom_id else None


def _prompt_record(
    raw: RawRecord, request: CreateBatchCompletionsV1Request, content: CreateBatchCompletionsV1RequestContent
) -> Record:
    if not isinstance(raw.value, str):
        raise _invalid(f"a prompt must be a string, not {_kind(raw.value)}")
    if not raw.value:
        raise _RefusedError(RecordErrorType.EMPTY_PROMPT, "the prompt is empty")
    if request.model_cfg.skip_tokenizer_init:
        raise _RefusedError(*needs_text("the prompt"))
    return Record(raw.index, raw.location, PromptRecord(raw.value, content), size=raw.size)


def _batch_record(raw: RawRecord, request: CreateBatchCompletionsV1Request, passed: PassedChecks | None) -> Record:
    value: dict[str, Any] = raw.value
    if passed is not None and _is_well_formed_line(raw):
        body = _validated(value["body"], ENDPOINTS[value["url"]], request, passed, prefix="body.")
        return Record(raw.index, raw.location, body, custom_id=value["custom_id"], is_batch_line=True, size=raw.size)
    _refuse_too_many(value, "")
    misplaced = [field for field in _RECORD_FIELDS if field in value]
    if misplaced and "body" not in value:
        raise _invalid(
            f"it has {misplaced[0]} beside custom_id: in an OpenAI batch line, with custom_id, method and url, "
            "the record stands under body; in a plain record leave custom_id out"
        )
    try:
        line = BatchLine.model_validate(value)
    except ValidationError as error:
        raise _RefusedError(*record_error_of(error, BatchLine)) from None
    body = _validated(line.body, line.body_model, request, passed, prefix="body.")
    return Record(raw.index, raw.location, body, custom_id=line.custom_id, is_batch_line=True, size=raw.size)


def _is_well_formed_line(raw: RawRecord) -> bool:
    """Whether ``BatchLine`` would take the line as it is: the usual case, told without looking through its body.

    What was parsed as JSON is JSON, and its text is Unicode; whether the body is a record is seen when it is validated.
    """
    value = raw.value
    return (
        raw.size <= MAX_ENTRIES  # so that no object in it can have more entries
        and value.keys() == _LINE_FIELDS
        and value["method"] == "POST"
        and isinstance(value["url"], str)
        and value["url"] in ENDPOINTS
        and isinstance(value["custom_id"], str)
        and value["custom_id"] != ""
        and isinstance(value["body"], dict)
    )


def _model_of(value: dict[str, Any]) -> type[CompletionV2Request | ChatCompletionV2Request]:
    if "messages" in value and "prompt" in value:
        raise _invalid("it has both prompt and messages: give prompt for a completion, or messages for a chat")
    if "messages" in value:
        return ChatCompletionV2Request
    if "prompt" in value:
        return CompletionV2Request
    names = [name for name in value if len(name) <= 2 * len("messages")]
    meant = [field for field in _RECORD_FIELDS if get_close_matches(field, names, cutoff=0.8)]
    hint = f"did you mean {meant[0]}?" if meant else "give prompt for a completion, or messages for a chat"
    pooled = [field for field in _POOLING_FIELDS if field in value]
    if pooled and not meant:
        hint = f"a record with {pooled[0]} must be the body of an OpenAI batch line, beside custom_id, method and url"
    raise _invalid(f"it has neither prompt nor messages: {hint}")


def _validated(
    value: dict[str, Any],
    model: type[BatchRecord],
    request: CreateBatchCompletionsV1Request,
    passed: PassedChecks | None,
    prefix: str = "",
) -> BatchRecord:
    key = None if passed is None else passed.key(value, model)
    if passed is None or key is None:
        return _checked(value, model, request, prefix)
    if key not in passed:
        record = _checked(value, model, request, prefix)
        passed.add(key, record)
        return record
    known = passed.with_prompt(key, value["prompt"]) if model is CompletionV2Request else None
    return _held_to_schema(value, model, prefix) if known is None else known


def _checked(
    value: dict[str, Any], model: type[BatchRecord], request: CreateBatchCompletionsV1Request, prefix: str
) -> BatchRecord:
    _refuse_too_many(value, prefix)
    if model in _TOKEN_FIELDS:
        _refuse_empty_token_list(value, _TOKEN_FIELDS[model], prefix)
    record = _held_to_schema(value, model, prefix)
    if isinstance(record, PoolingFields):
        refused = check_pooling_record(record, request, prefix)
    else:
        refused = check_record(record, request, prefix)
    if refused is not None:
        raise _RefusedError(*refused)
    return record


def _held_to_schema(value: dict[str, Any], model: type[BatchRecord], prefix: str) -> BatchRecord:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _RefusedError(*record_error_of(error, model, prefix)) from None


def _refuse_too_many(value: dict[str, Any], prefix: str) -> None:
    """Refuse a record of so many fields or entries that the faults they may have would not fit into memory."""
    if len(value) > MAX_FIELDS:
        raise _invalid(f"{prefix}it has {len(value)} fields, and a record may have {MAX_FIELDS} at most")
    objects = [(name, inner) for name, inner in value.items() if isinstance(inner, dict)]
    # As deep as the models look into objects themselves.
    for _depth in range(3):
        for name, found in objects:
            if len(found) > MAX_ENTRIES:
                raise _invalid(
                    f"{prefix}{path_step(name).removeprefix('.')}: it has {len(found)} entries, and an object in a "
                    f"record may have {MAX_ENTRIES} at most"
                )
        objects = [(name, inner) for name, found in objects for inner in found.values() if isinstance(inner, dict)]


def _refuse_empty_token_list(value: dict[str, Any], field: str, prefix: str) -> None:
    """Refuse an empty list among several lists of token ids; the other empty prompts are ``check_record``'s."""
    prompt = value.get(field)
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], list) and [] in prompt:
        raise _RefusedError(RecordErrorType.EMPTY_PROMPT, f"{prefix}{field}[{prompt.index([])}]: is empty")


def _invalid(reason: str) -> _RefusedError:
    return _RefusedError(RecordErrorType.INVALID_RECORD, reason)


def _kind(value: Any) -> str:
    return "null" if value is None else _KINDS[type(value)]
