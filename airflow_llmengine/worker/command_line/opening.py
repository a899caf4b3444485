"""The storage and the request that a command works with."""

from __future__ import annotations

import argparse
import sys

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.table import Table, parse_table
from airflow_llmengine.spec.validation import RequestInvalidError
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.attempt import JobMismatchError, explain_by_version
from airflow_llmengine.worker.environment import REQUEST_PREFIX, storage_caller, take_request, take_storage_options
from airflow_llmengine.worker.launcher_pipe import LauncherPipe
from airflow_llmengine.worker.stopping import Stop


def open_storage(options: argparse.Namespace, stop: Stop | None = None) -> Storage:
    """Storage as a launcher has it, if one started this, and else as the environment says.

    With ``stop``, the launcher's end is this process's end.
    """
    pipe = None if stop is None or options.control_fd is None else LauncherPipe(options.control_fd)
    sent = None if pipe is None else pipe.read_storage_options()
    caller = storage_caller(sent) if getattr(options, "launched", False) else None
    storage = Storage(take_storage_options(sent), caller=caller)
    if pipe is not None and stop is not None:
        pipe.watch(stop, options.grace_seconds)
    return storage


def read_request(storage: Storage, source: str) -> bytes:
    """The request's JSON text, from where ``REQUEST_HELP`` says."""
    if source == "-":
        return sys.stdin.buffer.read()
    if source.startswith(REQUEST_PREFIX):
        return take_request(source.removeprefix(REQUEST_PREFIX))
    return storage.location(source).read_bytes()


def read_table(storage: Storage, source: str | None) -> Table | None:
    """The table that ``--table`` tells of; None if there is none.

    Raises:
        RequestInvalidError: It is none, by its schema.
    """
    if source is None or source.lstrip().startswith("{"):
        return parse_table(source)
    return parse_table(read_request(storage, source))


def read_job_request(
    storage: Storage, options: argparse.Namespace
) -> tuple[CreateBatchCompletionsV1Request, Table | None]:
    """The request of a job to work on, and its table if it has one.

    Raises:
        RequestInvalidError: It can't be run.
        JobMismatchError: It can't be run here, because another version has launched the job.
    """
    source = read_request(storage, options.request)
    try:
        table = read_table(storage, options.table)
        return validate_request(source, table), table
    except RequestInvalidError as error:
        if options.launched:
            try:
                explain_by_version(storage, source)
            except JobMismatchError as version:
                refusals = "; ".join(map(str, error.refusals))
                raise JobMismatchError(f"the request can't be run here: {refusals}; {version}") from None
        raise
