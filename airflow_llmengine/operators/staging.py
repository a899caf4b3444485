"""Large ``content`` goes to storage, and the worker reads it from there like any input file."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_llmengine.hooks.llmengine import storage_errors

if TYPE_CHECKING:
    from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
    from airflow_llmengine.storage.filesystem import Storage

FOLDER = "inputs"
"""Below the job directory. One file, named by the hash of its content, so that a retry and a clear find the same."""


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
    from airflow_llmengine.spec.check import validate_request
    from airflow_llmengine.storage.job_directory import JobDirectory

    given = request.given()
    encoded = b"" if given.get("content") is None else json.dumps(given["content"]).encode()
    if len(encoded) <= limit:
        yield request
        return
    name = f"{hashlib.sha256(encoded).hexdigest()}.json"
    with storage_errors():
        folder = JobDirectory(storage, request.output_data_path).root.child(FOLDER)
        place = folder.child(name)
        created = place.create(encoded)
    try:
        yield validate_request({**{n: v for n, v in given.items() if n != "content"}, "input_data_path": place.url})
    except BaseException:
        if created:
            with storage_errors():
                place.delete()
        raise
    with storage_errors():
        for entry in folder.list():
            if entry.name != name:
                folder.child(entry.name).delete()
