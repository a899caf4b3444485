"""From the bytes of one record to a ``RawRecord``, or to the error that stands in its place."""

from __future__ import annotations

from airflow_llmengine.spec.results import RecordError, RecordErrorType
from airflow_llmengine.worker.readers.values import ValueRefusedError, load_value
from airflow_llmengine.worker.records import RawRecord


def load_record(index: int, location: str, raw: bytes) -> RawRecord:
    """Parse one record; whatever is wrong with it becomes its error."""
    try:
        return RawRecord(index=index, location=location, value=load_value(raw), size=len(raw))
    except ValueRefusedError as refused:
        return refused_record(index, location, len(raw), refused)


def refused_record(index: int, location: str, size: int, refused: ValueRefusedError) -> RawRecord:
    """The record whose value was refused."""
    error = RecordError(
        type=refused.error_type, message=f"{location}: {refused.reason}.", index=index, custom_id=refused.custom_id
    )
    return RawRecord(index=index, location=location, value=None, size=size, error=error)


def too_large(index: int, location: str, size: int, limit: int) -> RawRecord:
    """The record that was skipped because of its length."""
    refused = ValueRefusedError(
        RecordErrorType.RECORD_TOO_LARGE, f"it takes {size} bytes, and a record may take {limit} at most"
    )
    return refused_record(index, location, size, refused)
