"""Records, and chunks of them, for the tests of what comes before the engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.worker.chunks import ChunkResults
from airflow_llmengine.worker.records import Record
from airflow_llmengine.worker.share import ChunkWork


def prompt_record(index: int, prompt: Any, **fields: Any) -> Record:
    """A V2 record."""
    request = CompletionV2Request(prompt=prompt, **fields)
    size = len(prompt) if isinstance(prompt, str) else 4 * len(prompt)
    return Record(index=index, location=f"line {index + 1}", request=request, size=size)


def chat_record(index: int, *messages: dict[str, Any], **fields: Any) -> Record:
    """A chat."""
    request = ChatCompletionV2Request(messages=list(messages), **fields)
    return Record(index=index, location=f"line {index + 1}", request=request, size=100)


def works(prompts: Sequence[str], *, size: int, first_chunk: int = 0, **marks: bool) -> list[ChunkWork]:
    """The prompts, in chunks of so many."""
    return [
        work(
            number,
            [prompt_record(start + place, prompt) for place, prompt in enumerate(prompts[start : start + size])],
            **marks,
        )
        for number, start in enumerate(range(0, len(prompts), size), first_chunk)
    ]


def work(number: int, records: Iterable[Record], **marks: bool) -> ChunkWork:
    """One chunk that was claimed."""
    todo = list(records)
    return ChunkWork(ChunkResults(number=number, first=todo[0].index, size=len(todo)), todo, **marks)
