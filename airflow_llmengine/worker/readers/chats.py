"""Whether an input is one of chats: then a model that can't render any is better refused than run into the ground."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from airflow_llmengine.spec.batch_line import ENDPOINTS
from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.worker.readers.validate import is_batch_line
from airflow_llmengine.worker.records import RawRecord

RECORDS_THAT_TELL = 1000
"""So many chats at the beginning of an input tell that the job is one of chats."""


def begins_with_chats(records: Iterable[RawRecord]) -> bool:
    """Whether the first records, at least ``RECORDS_THAT_TELL``, are all chats that need a template of the model's.

    Args:
        records: The input from its beginning; only that is read.
    """
    found = 0
    for record in islice(records, RECORDS_THAT_TELL):
        if not _needs_a_template(record.value):
            return False
        found += 1
    return found == RECORDS_THAT_TELL


def _needs_a_template(value: Any) -> bool:
    if is_batch_line(value):
        url = value.get("url")
        is_chat = isinstance(url, str) and ENDPOINTS.get(url) is ChatCompletionV2Request
        value = value.get("body") if is_chat else None
    return isinstance(value, dict) and "messages" in value and "prompt" not in value and not value.get("chat_template")
