"""Which fields have passed the checks: records of one file mostly differ in their text alone."""

from __future__ import annotations

import marshal
from typing import Any, Final, TypeAlias

from airflow_llmengine.spec.batch_line import BatchRecord
from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.wire_faults import is_unicode
from airflow_llmengine.spec.wire_model import WireModel

MOST_KEPT: Final = 256
"""Sets of fields that are remembered at most; with one more, all are forgotten."""

MOST_BYTES: Final = 16 * 2**10
"""A larger set of fields is not remembered."""

FieldsKey: TypeAlias = tuple[type[BatchRecord], bytes]
"""The fields of a record beside its text, types included, and what kind of record it is."""


class PassedChecks:
    """Remembers the fields of records of one job that were taken.

    Nothing that ``check_record`` looks at depends on what a text says: only on whether there is one, and on the parts
    of a message that is made of parts. So a record with a text, and otherwise with fields that it has taken before,
    need not be shown to it. The schema is another matter. A chat is held to it each time; a prompt may be any text, so
    that a completion is made of what was found of an earlier one.
    """

    def __init__(self) -> None:
        self._passed: dict[FieldsKey, dict[str, Any] | None] = {}
        """By the fields: the state of a record that has them, if others can be made from it."""

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

    def add(self, key: FieldsKey, record: BatchRecord) -> None:
        """The fields of this record were taken."""
        if len(self._passed) >= MOST_KEPT:
            self._passed.clear()
        values = record.__dict__.values()
        # Records are not to share what could be changed.
        is_flat = not any(isinstance(value, dict | list | WireModel) for value in values)
        if isinstance(record, CompletionV2Request) and is_flat:
            self._passed[key] = record.model_copy(update={"prompt": ""}).__getstate__()
        else:
            self._passed[key] = None

    def with_prompt(self, key: FieldsKey, prompt: str) -> CompletionV2Request | None:
        """The record of fields that were taken, and of this prompt; None: it must be held to the schema.

        Pydantic takes three times as long to make it from what was parsed.
        """
        # Another thread may have had all forgotten.
        state = self._passed.get(key)
        if state is None or not is_unicode(prompt):
            return None
        record = CompletionV2Request.__new__(CompletionV2Request)
        record.__setstate__({**state, "__dict__": {**state["__dict__"], "prompt": prompt}})
        return record


def _are_plain(messages: Any) -> bool:
    """Whether there are messages, and none is made of parts."""
    if not isinstance(messages, list) or not messages:
        return False
    return all(isinstance(message, dict) and isinstance(message.get("content"), str) for message in messages)
