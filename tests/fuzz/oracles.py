"""What must hold whatever is read: shared by the hypothesis fuzzers, the campaign and the coverage-guided targets.

Each takes what a fuzzer made, and raises AssertionError, or whatever undocumented exception came out.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from airflow_llmengine.spec.check import check, validate_request
from airflow_llmengine.spec.job_state import (
    CancelRequest,
    Claim,
    CurrentJob,
    Heartbeat,
    InputEnd,
    JobDocument,
    JobHandle,
    PinnedInput,
    PinnedModel,
    StateDocument,
)
from airflow_llmengine.spec.manifest import Manifest
from airflow_llmengine.spec.plan import plan
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.results import RecordError
from airflow_llmengine.spec.validation import RequestInvalidError
from airflow_llmengine.storage.errors import StorageDocumentError
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.job_directory import JobDirectory, read_document
from airflow_llmengine.storage.status import JobStatus
from airflow_llmengine.worker.chunks import decode_results, requested_tokens, restore_chunk, restore_part
from airflow_llmengine.worker.elements import encode_element
from airflow_llmengine.worker.readers import InputInvalidError, open_input
from airflow_llmengine.worker.readers.raw_records import load_record
from airflow_llmengine.worker.readers.validate import is_batch_line, to_record
from airflow_llmengine.worker.readers.values import ValueRefusedError, load_value
from airflow_llmengine.worker.records import RawRecord
from tests.fuzz.inputs import PRIVATE
from tests.worker.readers.files import request_for

LONGEST_MESSAGE = 2500
"""Ten faults of a record, each with a path and what it must be."""

_INTERNALS = re.compile(r"Traceback|File \"|<class|object at 0x|sys\.|\bself\b|pydantic|\bdict\b|NoneType|Error\(")
"""What a message has that was made by Python for programmers."""

DOCUMENTS: tuple[type[StateDocument], ...] = (
    CancelRequest,
    Claim,
    CurrentJob,
    Heartbeat,
    InputEnd,
    JobDocument,
    JobHandle,
    Manifest,
    PinnedInput,
    PinnedModel,
)


_FIELD = re.compile(r"""(?:[\w.-]|\[(?:\d+|"[^"]*")\])+(?=: | twice)""")
"""A field's path. Names of fields are told, and a fuzzer may make a name of what was text."""


def judge_message(message: str, *, is_private: bool = True) -> None:
    """A message is short, in plain words, on one line, and says nothing of the user's text.

    Args:
        message: The message.
        is_private: Whether the private word stands only where a message may not show it.
    """
    assert message, "an empty message"
    assert len(message) <= LONGEST_MESSAGE, f"{len(message)} characters: {message[:200]}"
    assert message.isprintable(), ascii(message)
    assert not is_private or PRIVATE not in _FIELD.sub("", message), message
    assert not _INTERNALS.search(message), message


def read_file(path: Path) -> None:
    """An input file: its records are numbered, each is a record or a row error, or the input is refused as a whole."""
    request = request_for(path)
    records: list[RawRecord] = []
    reader = None
    try:
        reader = open_input(Storage(), request)
        for raw in reader.records():
            assert raw.index == len(records)
            records.append(raw)
            judge_record(raw, request, reader.content)
    except InputInvalidError as refused:
        judge_message(str(refused))
    if reader is not None:
        again: list[RawRecord] = []
        with contextlib.suppress(InputInvalidError):
            again.extend(reader.records())
        assert again == records, "another reading gave other records"


def judge_record(raw: RawRecord, request: CreateBatchCompletionsV1Request, content: Any = None) -> None:
    """A raw record becomes a record, or an error in its own place that can be written."""
    if raw.error is not None:
        assert raw.value is None
    assert requested_tokens(raw.value, content) >= 0
    is_batch_line(raw.value)
    record = to_record(raw, request, content)
    assert record.index == raw.index
    if isinstance(record, RecordError):
        judge_message(record.message)
        assert raw.location in record.message
        written = encode_element(record.wire())
        assert b"\n" not in written
        assert json.loads(written) == record.wire()


def read_value(raw: bytes) -> None:
    """A JSON text: what is taken is what the standard library makes of it; what that refuses is refused."""
    try:
        value = load_value(raw)
    except ValueRefusedError as refused:
        judge_message(refused.reason)
        return
    assert repr(value) == repr(json.loads(raw))
    # What is taken can be written.
    assert json.loads(encode_element({"value": value}))["value"] == value
    judge_record(load_record(3, "line 4", raw), request_for("/x"))


def read_request(data: bytes | Any, *, is_private: bool = False) -> None:
    """A request: it is refused in lines for a person, or it is taken, planned, and reads back as the same.

    A wrong value of a field that is not the user's text is shown, and a fuzzer of bytes may put the private word there.
    """
    try:
        request = validate_request(data)
    except RequestInvalidError as refused:
        for line in str(refused).split("\n"):
            judge_message(line, is_private=is_private)
        return
    assert check(request) == []
    assert CreateBatchCompletionsV1Request.model_validate(request.given()) == request
    for line in plan(request).lines():
        assert line.isprintable(), ascii(line)
    json.dumps(request.given()).encode()


def read_state(path: Path) -> None:
    """A file in the place of every state document: it is read or refused, and what is read can be shown."""
    location = Storage().location(str(path))
    for model in DOCUMENTS:
        try:
            document = read_document(location, model)
        except StorageDocumentError as refused:
            judge_message(str(refused))
        else:
            assert document is not None
            document.model_dump_json()
            _show(document)


def _show(document: StateDocument) -> None:
    """What status, operator and sensor show of it."""
    if isinstance(document, Manifest):
        _judge_lines(JobStatus("done", manifest=document))
    elif isinstance(document, Heartbeat):
        _lines(heartbeats=[document])
    elif isinstance(document, JobDocument):
        _lines(job=document)
    elif isinstance(document, CancelRequest):
        _lines(cancelled=document)
    elif isinstance(document, CurrentJob):
        directory = JobDirectory(Storage(), "/nowhere/out.json")
        handle = JobHandle(path="/nowhere/out.json", fingerprint=document.fingerprint, generation=document.generation)
        root = directory.scratch(handle).root.url
        assert root.removeprefix("/nowhere/out.json.job/") == handle.scratch_name
        assert "/" not in handle.scratch_name


def _lines(**found: Any) -> None:
    handle = JobHandle(path="/out.json", fingerprint="f", generation=1)
    _judge_lines(JobStatus("running", handle=handle, **found))


def _judge_lines(status: JobStatus) -> None:
    for line in status.lines():
        assert line.isprintable(), ascii(line)


def read_chunk(data: bytes) -> None:
    """A file in the place of a chunk or a part: it is refused, or what is read is consistent and can be counted."""
    for restore in (restore_chunk, restore_part):
        try:
            header, elements = decode_results(data)
            found = restore(data)
        except ValueError as refused:
            judge_message(str(refused))
            continue
        assert len(elements) == header.records == len(found)
        assert all(later > earlier >= 0 for earlier, later in pairwise(found))
        for result in found.values():
            assert isinstance(json.loads(result.element), dict)
            assert result.error_type is None or isinstance(result.error_type, str)
            assert min(result.prompt_tokens, result.completion_tokens) >= 0
        assert min([header.prompt_tokens, header.completion_tokens, *header.failures.values()]) >= 0


def targets() -> Iterator[tuple[str, Callable[[bytes, Path], None]]]:
    """By name, what takes any bytes, and a folder for files."""

    def by_file(judge: Callable[[Path], None]) -> Callable[[bytes, Path], None]:
        def run(data: bytes, folder: Path) -> None:
            path = folder / "file"
            path.write_bytes(data)
            judge(path)

        return run

    yield "files", by_file(read_file)
    yield "values", lambda data, _folder: read_value(data)
    yield "requests", lambda data, _folder: read_request(data)
    yield "state", by_file(read_state)
    yield "chunks", lambda data, _folder: read_chunk(data)
