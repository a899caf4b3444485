"""What goes to storage, for the worker to read from there: large ``content``, rows, a large table or request."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_llmengine.exceptions import RequestRefusedError
from airflow_llmengine.hooks.llmengine import storage_errors

if TYPE_CHECKING:
    from airflow_llmengine.spec.job_state import JobHandle
    from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
    from airflow_llmengine.spec.table import Table
    from airflow_llmengine.storage.filesystem import Location, Storage

FOLDER = "inputs"
"""Below the job directory. One file, named by the hash of its content, so that a retry and a clear find the same."""

INLINE_TABLE_BYTES = 32_768
"""A larger table is no argument of a command: Linux takes 128 KiB for each, and etcd keeps those of every pod."""

_STAGED_NAME = re.compile(r"[0-9a-f]{64}\.jsonl?")


def encode_request(request: CreateBatchCompletionsV1Request) -> bytes:
    """The request as the worker reads it."""
    return json.dumps(request.given()).encode()


@contextlib.contextmanager
def staged_content(
    storage: Storage, request: CreateBatchCompletionsV1Request, limit: int
) -> Iterator[CreateBatchCompletionsV1Request]:
    """Put the request's ``content`` beside the output if it is larger than the limit.

    Inside, the job is launched with the request that is given. If that fails, what was put there is taken back; if it
    succeeds, what earlier requests of the same output put there is deleted.

    Args:
        storage: Where the output is.
        request: The request.
        limit: Bytes of ``content``, as JSON, that go along with the request.

    Raises:
        StorageFailedError: It can't be put there.
    """
    staged = _staged(storage, request, limit)
    if staged is None:
        yield request
        return
    place, encoded = staged
    with staged_input(storage, request.output_data_path, place, encoded):
        yield _reading(request, place)


def place_of_input(storage: Storage, output_data_path: str, encoded: bytes, ending: str) -> Location:
    """Where an input is put that comes with the task, beside the output.

    Args:
        storage: Where the output is.
        output_data_path: The output.
        encoded: The input's content, by which it is named.
        ending: The ending of its name, which says its format.
    """
    return _folder(storage, output_data_path).child(f"{hashlib.sha256(encoded).hexdigest()}{ending}")


@contextlib.contextmanager
def staged_input(storage: Storage, output_data_path: str, place: Location, encoded: bytes) -> Iterator[None]:
    """Put an input where ``place_of_input`` says.

    Inside, a job is launched with it. If that fails, what was put there is taken back; if it succeeds, what earlier
    jobs of the same output put there is deleted.

    Raises:
        StorageFailedError: It can't be put there.
    """
    with storage_errors():
        created = place.create(encoded)
    try:
        yield
    except BaseException:
        if created:
            with storage_errors():
                place.delete()
        raise
    with storage_errors():
        folder = _folder(storage, output_data_path)
        for entry in folder.list():
            # Nothing but what was staged: somebody may have put other files there, or a link to a folder of others.
            if _STAGED_NAME.fullmatch(entry.name) and folder.child(entry.name).url != place.url:
                folder.child(entry.name).delete()


def refer_to_staged_content(
    storage: Storage, request: CreateBatchCompletionsV1Request, limit: int
) -> CreateBatchCompletionsV1Request:
    """The request as ``staged_content`` gave it to the job that was launched; nothing is put anywhere.

    Raises:
        RequestRefusedError: Its ``content`` is not what was put there.
        StorageFailedError: Storage can't be read.
    """
    staged = _staged(storage, request, limit)
    if staged is None:
        return request
    place, _encoded = staged
    with storage_errors():
        if not place.exists():
            raise RequestRefusedError(
                "content is not what it was when the job was launched: launch it again, by clearing the task that "
                "plans it with its downstream tasks."
            )
    return _reading(request, place)


def has_signature(request: CreateBatchCompletionsV1Request) -> bool:
    """Whether one of the request's paths carries its credentials, as a signed URL does."""
    from airflow_llmengine.storage.urls import redact

    paths = (request.input_data_path, request.output_data_path, request.model_cfg.checkpoint_path)
    return any(path is not None and redact(path) != path for path in paths)


def told_table(storage: Storage, handle: JobHandle, table: Table | None) -> str | None:
    """What a worker is told of a table: its JSON text, or where that is among the job's own files; None without one.

    Args:
        storage: Where the output is.
        handle: The job.
        table: The table.

    Raises:
        StorageFailedError: It can't be put there.
    """
    if table is None:
        return None
    encoded = json.dumps(table.given())
    if len(encoded) <= INLINE_TABLE_BYTES:
        return encoded
    return _among_own_files(storage, handle, "tables", encoded.encode())


def staged_request(storage: Storage, handle: JobHandle, encoded: bytes) -> str:
    """Put a request among the job's own files, and give its URL. It goes with them.

    Args:
        storage: Where the output is.
        handle: The job.
        encoded: The request as JSON.

    Raises:
        StorageFailedError: It can't be put there.
    """
    return _among_own_files(storage, handle, "requests", encoded)


def _among_own_files(storage: Storage, handle: JobHandle, folder: str, encoded: bytes) -> str:
    from airflow_llmengine.storage.job_directory import JobDirectory

    with storage_errors():
        scratch = JobDirectory(storage, handle.path).scratch(handle)
        place = scratch.root.child(f"{folder}/{hashlib.sha256(encoded).hexdigest()}.json")
        place.create(encoded)
        return place.url


def _staged(storage: Storage, request: CreateBatchCompletionsV1Request, limit: int) -> tuple[Location, bytes] | None:
    """Where the content is put, and as what; None if it goes along with the request."""
    content = request.given().get("content")
    encoded = b"" if content is None else json.dumps(content).encode()
    if len(encoded) <= limit:
        return None
    return place_of_input(storage, request.output_data_path, encoded, ".json"), encoded


def _folder(storage: Storage, output_data_path: str) -> Location:
    from airflow_llmengine.storage.job_directory import JobDirectory

    with storage_errors():
        return JobDirectory(storage, output_data_path).root.child(FOLDER)


def _reading(request: CreateBatchCompletionsV1Request, place: Location) -> CreateBatchCompletionsV1Request:
    from airflow_llmengine.spec.check import validate_request

    given = {name: value for name, value in request.given().items() if name != "content"}
    return validate_request({**given, "input_data_path": place.url})
