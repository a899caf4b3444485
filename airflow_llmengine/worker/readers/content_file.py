"""A V1 content object in a file: ``prompts``, of any number, and the sampling parameters that all of them share.

The parameters may stand before or after the prompts, and they are needed before the first prompt is answered. So the
file is read twice: once for the parameters, passing over the prompts, and then for the prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pydantic import ValidationError

from airflow_llmengine.spec.request import CreateBatchCompletionsV1RequestContent
from airflow_llmengine.spec.validation import refusals_of
from airflow_llmengine.spec.wire_faults import MOST_SHOWN, path_step
from airflow_llmengine.worker.readers.detection import PROMPTS_KEY
from airflow_llmengine.worker.readers.errors import InputInvalidError
from airflow_llmengine.worker.readers.json_array import read_elements
from airflow_llmengine.worker.readers.limits import BLOCK_BYTES, MAX_FIELDS, MAX_RECORD_BYTES
from airflow_llmengine.worker.readers.scanner import JSONScanner
from airflow_llmengine.worker.readers.values import ValueRefusedError, load_value
from airflow_llmengine.worker.records import RawRecord

Read = Callable[[int], bytes]


def read_parameters(
    read: Read, name: str, *, block_bytes: int = BLOCK_BYTES
) -> CreateBatchCompletionsV1RequestContent | None:
    """The shared parameters of a content object, its ``prompts`` left empty; None if it has no ``prompts``.

    Raises:
        InputInvalidError: The document is broken, or the parameters are not what the contract says.
    """
    scanner = JSONScanner(read, name, block_bytes=block_bytes)
    members: list[tuple[bytes, bytes]] = []
    prompts = size = 0
    overflow = False
    for raw_key in scanner.members():
        if _is_prompts_key(raw_key):
            prompts += 1
            if scanner.peek() != ord("["):
                scanner.fail("a value of prompts that is an array of strings is missing")
            for _ in scanner.elements(limit=0):
                pass
        else:
            value = scanner.take_value()
            size += len(raw_key) + value.size
            if value.raw is not None and len(members) < MAX_FIELDS and size <= MAX_RECORD_BYTES:
                members.append((raw_key, value.raw))
            else:
                overflow = True
    scanner.expect_end()
    if not prompts:
        return None
    if prompts > 1:
        raise InputInvalidError(f"{name} has prompts twice: put all of them into one array.")
    if overflow:
        raise InputInvalidError(
            f"{name} has more than {MAX_FIELDS} fields, or {MAX_RECORD_BYTES} bytes of them, beside prompts."
        )
    parameters: dict[str, Any] = {}
    for raw_key, raw in members:
        key = _load(raw_key, name, "a key")
        shown = path_step(key).removeprefix(".")
        if key in parameters:
            raise InputInvalidError(f"{name} has {shown} twice: leave one of them out.")
        parameters[key] = _load(raw, name, shown)
    try:
        return CreateBatchCompletionsV1RequestContent.model_validate({**parameters, PROMPTS_KEY: []})
    except ValidationError as error:
        refusals = refusals_of(error, CreateBatchCompletionsV1RequestContent, MOST_SHOWN)
        raise InputInvalidError(f"{name}: {'; '.join(map(str, refusals))}") from None


def read_prompts(
    read: Read,
    name: str,
    first_index: int = 0,
    *,
    limit: int = MAX_RECORD_BYTES,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[RawRecord]:
    """The prompts of a content object that ``read_parameters`` has read without an error.

    Raises:
        InputInvalidError: The prompts are not valid JSON.
    """
    scanner = JSONScanner(read, name, block_bytes=block_bytes)
    for raw_key in scanner.members():
        if _is_prompts_key(raw_key):
            yield from read_elements(scanner, name, PROMPTS_KEY, first_index, limit)
        else:
            scanner.take_value(limit=0)


def _is_prompts_key(raw_key: bytes) -> bool:
    try:
        return bool(load_value(raw_key) == PROMPTS_KEY)
    except ValueRefusedError:
        return False


def _load(raw: bytes, name: str, what: str) -> Any:
    try:
        return load_value(raw)
    except ValueRefusedError as refused:
        raise InputInvalidError(f"{name}: {what}: {refused.reason}.") from None
