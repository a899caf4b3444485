"""One record on its way from a reader to an engine.

Nothing here changes once it is made. Python is not told so where one is made for each record: a frozen dataclass takes
three times as long to make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_llmengine.spec.batch_line import BatchRecord
from airflow_llmengine.spec.request import CreateBatchCompletionsV1RequestContent
from airflow_llmengine.spec.results import RecordError


@dataclass(slots=True)
class RawRecord:
    """A record as a reader found it: located and parsed as JSON, not yet validated."""

    index: int
    """Its place in the whole input, from 0, over all files."""
    location: str
    """Where a person finds it, for messages: ``line 7 of input.jsonl``, ``element 7 of input.json``."""
    value: Any
    """The JSON value; None when ``error`` is set."""
    size: int
    """Bytes it took in the input."""
    error: RecordError | None = None
    """Set when it could not even be parsed."""
    skipped: bool = False
    """Whether there is nothing to ask of it, which is no failure; ``value`` is None then."""


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """A V1 record: one prompt with the sampling parameters that all share."""

    prompt: str
    content: CreateBatchCompletionsV1RequestContent
    """The shared parameters; its ``prompts`` are empty here."""


@dataclass(slots=True)
class Record:
    """A validated record, ready for an engine."""

    index: int
    location: str
    request: PromptRecord | BatchRecord
    custom_id: str | None = None
    is_batch_line: bool = False
    """Whether it came as a line of an OpenAI batch file, and is answered as one."""
    size: int = 0
    """Bytes it took in the input."""
