"""What the schema can't say about a request or a record: the contract's second layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.spec.validation import Refusal, RequestInvalidError, parse_request


def validate_request(data: Mapping[str, Any] | str | bytes) -> CreateBatchCompletionsV1Request:
    """Read a request and check all of it.

    Raises:
        RequestInvalidError: With everything that is wrong.
    """
    request = parse_request(data)
    refusals = check(request)
    if refusals:
        raise RequestInvalidError(refusals)
    return request


def check(request: CreateBatchCompletionsV1Request) -> list[Refusal]:
    """Say everything for which a request must not be launched, beyond its schema."""
    refusals = []
    if request.is_given("content") == request.is_given("input_data_path"):
        refusals.append(Refusal("content", "exactly one of content and input_data_path must be given"))
    return refusals


def check_record(
    record: CompletionV2Request | ChatCompletionV2Request, request: CreateBatchCompletionsV1Request
) -> tuple[RecordErrorType, str] | None:
    """Say why a record can't be run in this job, beyond its schema; None if it can."""
    if record.stream:
        return RecordErrorType.INVALID_RECORD, "stream: a batch has no stream; leave it out"
    return None
