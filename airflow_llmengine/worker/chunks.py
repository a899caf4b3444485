"""Chunks: how the input is cut, and what a chunk's file looks like.

A chunk is the unit of commits, of claims and of what a crash may cost. It is cut by the input alone, never by the
number of replicas, so that a retry with another number finds the same chunks.

A chunk's file is one header line, then one line for each record: its element of the output, letter for letter. A part
(the finished records of an interrupted chunk) looks the same and names its records in the header.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from pydantic import Field, NonNegativeInt, ValidationError

from airflow_llmengine.spec.job_state import PinnedInput, StateDocument
from airflow_llmengine.spec.request import CreateBatchCompletionsV1RequestContent
from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.records import RawRecord

DEFAULT_CHUNK_RECORDS = 256
"""Most records of a chunk."""

TRANSIENT = frozenset(error.value for error in RecordErrorType if error.transient)
"""Error types that trying again may mend."""

MAX_ROUNDS = 3
"""How often a chunk is made again for its transient errors, each time by another attempt."""

MAY_BE_OVER = "some of them for reasons that may be over: the next attempt makes those again"
"""How a message says that trying again may help."""

DEFAULT_CHUNK_TOKENS = 262_144
"""Most tokens, read and asked for, of a chunk of more than one record: about a minute of one GPU's work."""

PARTS_OF_A_SHARE = 64
"""Of one replica's share a chunk, unless it is one of the first few, is no larger part than one of so many."""

MOST_PARTS = 4096
"""A job is cut no finer than that, however many replicas it has."""

BYTES_PER_TOKEN = 4
"""Rough size of a token of prompt, good enough to cut chunks by."""

CHAT_TOKENS_WHEN_UNBOUNDED = 1024
"""What a chat record that sets no limit of its own is taken to ask for."""


class ChunkHeader(StateDocument):
    """First line of a chunk's or a part's file."""

    chunk: NonNegativeInt
    indices: list[NonNegativeInt] | None = None
    """A part's records; null in a whole chunk, whose records are consecutive."""
    first: NonNegativeInt
    records: NonNegativeInt
    failures: dict[str, NonNegativeInt] = Field(default_factory=dict)
    """Failed records by error type."""
    final: list[NonNegativeInt] = Field(default_factory=list)
    """Records whose error is not to be tried again though it is of a kind that may be over."""
    truncated: list[NonNegativeInt] = Field(default_factory=list)
    """Records whose structured output was cut by ``max_tokens``; their elements, which are the API's, don't say it."""
    skipped: list[NonNegativeInt] = Field(default_factory=list)
    """Rows of which there was nothing to ask."""
    repeated: list[NonNegativeInt] = Field(default_factory=list)
    """Records that were answered by another record's answer of the same attempt."""
    cached: list[NonNegativeInt] = Field(default_factory=list)
    """Records that were answered by an answer of an earlier run."""
    prompt_tokens: NonNegativeInt = 0
    completion_tokens: NonNegativeInt = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive records of the input."""

    number: int
    records: list[RawRecord]


@dataclass(slots=True)
class Finished:
    """One record's place in the output, ready to be written, with what is counted of it. It does not change."""

    element: bytes
    """The output element as JSON in UTF-8, without a line break."""
    error_type: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    final: bool = False
    """Whether the record is not to be tried again, whatever kind its error is of."""
    truncated: bool = False
    """Whether it is structured output that was cut by ``max_tokens``: kept as it is, and no success."""
    skipped: bool = False
    """Whether it is a row of which there was nothing to ask: neither a failure nor a success."""
    repeated: bool = False
    """Whether it is another record's answer of the same attempt: nothing was generated for it."""
    cached: bool = False
    """Whether it is an answer of an earlier run: nothing was generated for it."""

    @property
    def may_be_over(self) -> bool:
        """Whether it is an error that trying again may mend."""
        return self.error_type in TRANSIENT and not self.final


@dataclass(slots=True)
class ChunkResults:
    """The results of one chunk as they come in, in any order."""

    number: int
    first: int
    size: int
    finished: dict[int, Finished] = field(default_factory=dict)
    """By the record's index in the input."""
    saved: set[int] = field(default_factory=set)
    """Indices that are in a part already, of this attempt or an earlier one."""
    parts: int = 0
    """How many parts are known to stand."""
    round_number: int = 0
    """0, or the number of the time that the chunk is made again for its transient errors."""
    standing: dict[int, Finished] = field(default_factory=dict)
    """Of a chunk that is made again: the results that it has so far, and keeps where no better ones come."""

    @property
    def complete(self) -> bool:
        """Whether every record of the chunk is finished."""
        return len(self.finished) == self.size

    @property
    def whole(self) -> dict[int, Finished]:
        """What stands of each record: the new result, else the one that it has so far."""
        return {**self.standing, **self.finished}

    @property
    def failures(self) -> Counter[str]:
        """Failed records by error type."""
        return Counter(result.error_type for result in self.whole.values() if result.error_type is not None)

    @property
    def transient(self) -> bool:
        """Whether there are errors that trying again may mend."""
        return any(result.may_be_over for result in self.whole.values())

    def encode(self) -> bytes:
        """The file of the whole chunk."""
        whole = self.whole
        indices = range(self.first, self.first + self.size)
        return encode_results(self.number, self.first, [whole[index] for index in indices], None)

    def encode_part(self, again: Collection[int] = ()) -> bytes | None:
        """The file of what this attempt has finished of the chunk; None when there is nothing new.

        Args:
            again: Indices of records that are in it once more, although they are saved.
        """
        new = self.finished.keys() - self.saved
        if not new:
            return None
        indices = sorted(new.union(again))
        return encode_results(self.number, self.first, [self.finished[index] for index in indices], indices)


def cut(
    records: Iterable[RawRecord],
    *,
    pinned: PinnedInput,
    content: CreateBatchCompletionsV1RequestContent | None,
) -> Iterator[Chunk]:
    """Cut the input into chunks.

    A chunk is small against what lies before it, so that whatever the length of the input, one chunk is a small part
    of a replica's share, and replicas that help one another end together.

    Args:
        records: The whole input, in order.
        pinned: How many records and tokens a chunk may have, as the job began with.
        content: The V1 parameters that all records share, if the input is V1.
    """
    number, tokens, before = 0, 0, 0
    max_tokens = pinned.chunk_tokens
    max_records = min(pinned.chunk_records, pinned.first_chunk_records)
    pending: list[RawRecord] = []
    for record in records:
        weight = record.size // BYTES_PER_TOKEN + requested_tokens(record.value, content)
        if pending and (len(pending) == max_records or tokens + weight > max_tokens):
            yield Chunk(number, pending)
            before += len(pending)
            number, tokens, pending = number + 1, 0, []
            max_records = min(pinned.chunk_records, max(pinned.first_chunk_records, before // pinned.chunk_share))
        pending.append(record)
        tokens += weight
    if pending:
        yield Chunk(number, pending)


def chunk_share(replicas: int) -> int:
    """The most parts of a job that a chunk may be one of, so that it is a small part of one replica's share.

    Each chunk costs a claim and a commit, so that a job of few replicas is not cut as finely as one of many. It is
    written down with the job: attempts with another number of replicas find the same chunks.
    """
    return min(PARTS_OF_A_SHARE * replicas, MOST_PARTS)


def requested_tokens(value: Any, content: CreateBatchCompletionsV1RequestContent | None) -> int:
    """How many tokens a record asks the model to write, as far as it says so. Never raises: it may be anything."""
    if content is not None:
        return content.max_new_tokens
    if not isinstance(value, dict):
        return 0
    if "body" in value and isinstance(value["body"], dict):
        value = value["body"]
    if "messages" in value:
        unbounded = CHAT_TOKENS_WHEN_UNBOUNDED
    elif "prompt" in value:
        unbounded = 16
    else:
        # A pooling model writes nothing.
        return 0
    limit = _count_or(value.get("max_completion_tokens") or value.get("max_tokens"), unbounded)
    return limit * _count_or(value["n"], 1) if "n" in value else limit


def _count_or(value: Any, default: int) -> int:
    # Not isinstance: true is no number.
    return value if type(value) is int and value > 0 else default


def encode_results(number: int, first: int, results: Sequence[Finished], indices: list[int] | None) -> bytes:
    """Write a chunk's or a part's file."""
    by_index = list(zip(indices or range(first, first + len(results)), results, strict=True))
    header = ChunkHeader(
        chunk=number,
        indices=indices,
        first=first,
        records=len(results),
        failures=dict(Counter(result.error_type for result in results if result.error_type is not None)),
        final=[index for index, result in by_index if result.final],
        truncated=[index for index, result in by_index if result.truncated],
        skipped=[index for index, result in by_index if result.skipped],
        repeated=[index for index, result in by_index if result.repeated],
        cached=[index for index, result in by_index if result.cached],
        prompt_tokens=sum(result.prompt_tokens for result in results),
        completion_tokens=sum(result.completion_tokens for result in results),
    )
    lines = [header.model_dump_json(exclude_none=True).encode()]
    lines.extend(result.element for result in results)
    return b"\n".join(lines) + b"\n"


def decode_results(data: bytes) -> tuple[ChunkHeader, list[bytes]]:
    """Read a chunk's or a part's file: its header and its elements.

    Raises:
        ValueError: The file is not what ``encode_results`` writes.
    """
    head, *elements = data.removesuffix(b"\n").split(b"\n")
    try:
        header = ChunkHeader.model_validate_json(head)
    except ValidationError as error:
        # What stands there instead may be the user's text.
        raise ValueError("its first line is not a chunk's header") from error
    if len(elements) != header.records:
        raise ValueError(f"chunk {header.chunk} should hold {header.records} records, and holds {len(elements)}")
    apart = sum(header.failures.values()) + len(header.skipped)
    if apart + len(header.truncated) > header.records:
        raise ValueError(f"chunk {header.chunk} counts more failed, skipped and truncated records than it holds")
    if apart + len(header.repeated) + len(header.cached) > header.records:
        raise ValueError(f"chunk {header.chunk} counts more failed, repeated and cached records than it holds")
    return header, elements


def lasting(failures: Mapping[str, int]) -> Counter[str]:
    """Those failures that trying again does not mend."""
    return Counter({name: count for name, count in failures.items() if name not in TRANSIENT})


def restore_part(data: bytes) -> dict[int, Finished]:
    """The finished records of a part, by index."""
    header, elements = decode_results(data)
    indices = header.indices
    if indices is None or len(indices) != len(elements) or any(a >= b for a, b in pairwise(indices)):
        raise ValueError(f"a part of chunk {header.chunk} does not name its records")
    return _restored(header, zip(indices, elements, strict=True))


def restore_chunk(data: bytes) -> dict[int, Finished]:
    """All records of a whole chunk, by index."""
    header, elements = decode_results(data)
    return _restored(header, enumerate(elements, header.first))


def _restored(header: ChunkHeader, elements: Iterable[tuple[int, bytes]]) -> dict[int, Finished]:
    final, truncated, skipped = frozenset(header.final), frozenset(header.truncated), frozenset(header.skipped)
    repeated, cached = frozenset(header.repeated), frozenset(header.cached)
    return {
        index: replace(
            _counted(element),
            final=index in final,
            truncated=index in truncated,
            skipped=index in skipped,
            repeated=index in repeated,
            cached=index in cached,
        )
        for index, element in elements
    }


def _counted(element: bytes) -> Finished:
    """Count an element again that was read back."""
    try:
        value = json.loads(element)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError("one of its lines is not an element of an output")
    response, error = value.get("response"), value.get("error")
    body = response.get("body") if isinstance(response, dict) else value
    body = body if isinstance(body, dict) else {}
    usage = body["usage"] if isinstance(body.get("usage"), dict) else {}
    error_type = error.get("type") if isinstance(error, dict) else None
    return Finished(
        element=element,
        error_type=error_type if isinstance(error_type, str) else None,
        prompt_tokens=_count_or(usage.get("prompt_tokens"), _count_or(body.get("num_prompt_tokens"), 0)),
        completion_tokens=_count_or(usage.get("completion_tokens"), _count_or(body.get("num_completion_tokens"), 0)),
    )
