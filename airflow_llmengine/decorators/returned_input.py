"""What a decorated function returned: fields of a request, a path, or rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_llmengine.decorators.rows import encode_rows
from airflow_llmengine.exceptions import RequestRefusedError

_FRAMES = frozenset({"DataFrame", "LazyFrame", "RecordBatch", "Table"})
"""Types of pandas, polars, Spark and Arrow that hold rows, and that are not iterated over by row."""


@dataclass(frozen=True, slots=True)
class ReturnedInput:
    """What is known of a job's request by what a function returned."""

    fields: Mapping[str, Any]
    """Fields of the request. With rows none."""
    rows: bytes | None = None
    """Rows as JSON lines; None if it returned none."""


def read_returned(value: Any, *, source: str, storage_conn_id: str | None) -> ReturnedInput:
    """Tell what a function returned.

    Args:
        value: What it returned.
        source: The function's name, for messages.
        storage_conn_id: By which connection the job reaches its storage.

    Raises:
        RequestRefusedError: It is nothing that an input can be made of.
    """
    from os import PathLike, fsdecode

    from airflow.sdk import ObjectStoragePath

    if isinstance(value, Mapping):
        return ReturnedInput(dict(value))
    if isinstance(value, ObjectStoragePath):
        return ReturnedInput({"input_data_path": _url(value, source, storage_conn_id)})
    if isinstance(value, str | PathLike):
        # An asset's is its URI.
        return ReturnedInput({"input_data_path": fsdecode(value)})
    if type(value).__name__ in _FRAMES:
        raise RequestRefusedError(
            f"{source} returned a {type(value).__name__}: let it write that to a file and return the path, which keeps "
            'the types; or return the rows as dictionaries, as to_dict("records") of pandas, to_dicts() of polars and '
            "to_pylist() of Arrow give them."
        )
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray | set | frozenset):
        return ReturnedInput({}, encode_rows(value, source))
    raise RequestRefusedError(
        f"{source} returned a value of the type {type(value).__name__}: let it return a request's fields as a "
        "dictionary, rows as a list of dictionaries, or the path of the input."
    )


def _url(path: Any, source: str, storage_conn_id: str | None) -> str:
    """The URL of an ``ObjectStoragePath``, which writes its connection before the bucket."""
    if path.conn_id is None:
        return str(path)
    if path.conn_id != storage_conn_id:
        used = "no storage connection" if storage_conn_id is None else f"the storage connection {storage_conn_id}"
        raise RequestRefusedError(
            f"{source} returned a path of the connection {path.conn_id}, and the job's own has {used}: give one of the "
            "two to both."
        )
    return f"{path.protocol}://{path.path}"
