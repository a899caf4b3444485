"""Records from one JSON document: the elements of an array, one after the other, or one object that is one record."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from airflow_llmengine.worker.readers.errors import InputInvalidError
from airflow_llmengine.worker.readers.limits import BLOCK_BYTES, MAX_RECORD_BYTES
from airflow_llmengine.worker.readers.raw_records import refused_record, too_large
from airflow_llmengine.worker.readers.scanner import JSONScanner, ScannedValue
from airflow_llmengine.worker.readers.values import ValueRefusedError, load_value
from airflow_llmengine.worker.records import RawRecord


def read_json_array(
    read: Callable[[int], bytes],
    name: str,
    first_index: int = 0,
    *,
    limit: int = MAX_RECORD_BYTES,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[RawRecord]:
    """The elements of a document that is one array.

    An element that is made of JSON's pieces and yet not taken (a lone surrogate, NaN, a key twice, too long) is a row
    error. Any other fault may have shifted where strings begin and end, so that nothing after it can be trusted.

    Args:
        read: Returns at most as many plain bytes as it is asked for, and nothing only at the end.
        name: What messages call the file.
        first_index: Index of its first record in the whole input.
        limit: Most bytes of an element; a longer one is skipped, without being held, and is a row error.
        block_bytes: How much to ask for at a time.

    Raises:
        InputInvalidError: The document is broken, or cut; the message says where.
    """
    scanner = JSONScanner(read, name, block_bytes=block_bytes)
    yield from read_elements(scanner, name, "element ", first_index, limit)
    scanner.expect_end()


def read_json_object(
    read: Callable[[int], bytes],
    name: str,
    first_index: int = 0,
    *,
    limit: int = MAX_RECORD_BYTES,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[RawRecord]:
    """The one record of a document that is one object. Arguments and errors as in ``read_json_array``."""
    scanner = JSONScanner(read, name, block_bytes=block_bytes)
    value = scanner.take_value(limit)
    scanner.expect_end()
    yield _record(value, name, first_index, f"the record in {name}", limit)


def read_elements(scanner: JSONScanner, name: str, label: str, first_index: int, limit: int) -> Iterator[RawRecord]:
    """The elements of the array at the cursor, each as a record.

    Args:
        scanner: The document.
        name: What messages call the document.
        label: What locations put before an element's number. Elements count from 0, as JSON paths do.
        first_index: Index of the first element in the whole input.
        limit: Most bytes of an element.
    """
    for number, element in enumerate(scanner.elements(limit)):
        yield _record(element, name, first_index + number, f"{label}[{number}] of {name}", limit)


def _record(value: ScannedValue, name: str, index: int, location: str, limit: int) -> RawRecord:
    if value.raw is None:
        return too_large(index, location, value.size, limit)
    try:
        return RawRecord(index=index, location=location, value=load_value(value.raw), size=value.size)
    except ValueRefusedError as refused:
        if refused.is_syntax:
            raise InputInvalidError(
                f"{name} is not a valid JSON document: {location}, which begins at byte {value.start}: "
                f"{refused.reason}."
            ) from None
        return refused_record(index, location, value.size, refused)
