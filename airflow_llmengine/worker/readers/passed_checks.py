"""Which fields have passed the checks beyond the schema: records of one file mostly differ in their text alone."""

from __future__ import annotations

import marshal
from typing import Any, Final, TypeAlias

from airflow_llmengine.spec.batch_line import BatchRecord
from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request

MOST_KEPT: Final = 256
"""Sets of fields that are remembered at most; with one more, all are forgotten."""

MOST_BYTES: Final = 16 * 2**10
"""A larger set of fields is not remembered."""

FieldsKey: TypeAlias = tuple[type[BatchRecord], bytes]
"""The fields of a record beside its text, types included, and what kind of record it is."""


class PassedChecks:
    """Remembers the fields of records of one job that ``check_record`` took.

    Nothing that it checks depends on what a text says: only on whether there is one, and on the parts of a message that
    is made of parts. So a record with a text, and otherwise with fields that it has taken before, need not be shown to
    it. The schema is another matter: each record is held to it.
    """

    def __init__(self) -> None:
        self._passed: set[FieldsKey] = set()

    def key(self, value: dict[str, Any], model: type[BatchRecord]) -> FieldsKey | None:
        """What the checks of a record depend on; None where that is more than its fields beside its text.

        Args:
            value: The record as it was parsed.
            model: The model that it is held to.
        """
        fields = value.copy()
        if model is CompletionV2Request:
            text = fields.pop("prompt", None)
            plain = isinstance(text, str) and text != ""
        elif model is ChatCompletionV2Request:
            plain = _are_plain(fields.pop("messages", None))
        else:
            plain = False
        if not plain:
            return None
        # It keeps 1, 1.0 and true apart, which are equal and one key in Python.
        written = marshal.dumps(fields, 2)
        return (model, written) if len(written) <= MOST_BYTES else None

    def __contains__(self, key: object) -> bool:
        """Whether these fields were taken."""
        return key in self._passed

    def add(self, key: FieldsKey) -> None:
        """These fields were taken."""
        if len(self._passed) >= MOST_KEPT:
            self._passed.clear()
        self._passed.add(key)


def _are_plain(messages: Any) -> bool:
    """Whether there are messages, and none is made of parts."""
    if not isinstance(messages, list) or not messages:
        return False
    return all(isinstance(message, dict) and isinstance(message.get("content"), str) for message in messages)
