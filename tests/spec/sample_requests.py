"""Requests for the tests of this folder."""

from __future__ import annotations

from typing import Any

from airflow_llmengine.spec.check import check, validate_request
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.validation import RequestInvalidError, parse_request


def request_with(model: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A request that can be run, with some fields set."""
    request = {"input_data_path": "in.jsonl", "output_data_path": "out.jsonl", **fields}
    return {**request, "model_config": {"model": "org/model", **(model or {})}}


def parsed(model: dict[str, Any] | None = None, **fields: Any) -> CreateBatchCompletionsV1Request:
    """The same, read."""
    return parse_request(request_with(model, **fields))


def content_with(**fields: Any) -> dict[str, Any]:
    """V1 content that can be run, with some fields set."""
    return {"prompts": ["a"], "max_new_tokens": 8, "temperature": 0, **fields}


def refused(model: dict[str, Any] | None = None, **fields: Any) -> dict[str, str]:
    """What ``check`` says of a request that the schema accepts: each refusal's line by its path."""
    return {refusal.path: str(refusal) for refusal in check(parsed(model, **fields))}


def lines_of(data: Any) -> list[str]:
    """What a user reads about a request that is not valid; nothing if it is."""
    try:
        validate_request(data)
    except RequestInvalidError as error:
        return str(error).splitlines()
    return []
