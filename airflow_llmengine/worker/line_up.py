"""The records that were claimed and wait for the engine: which is next, and how many more are wanted. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.worker.prefix_order import Sweep, prompt_key
from airflow_llmengine.worker.records import Record
from airflow_llmengine.worker.share import ChunkWork

CHUNKS_AHEAD = 2
"""As many chunks are held at least: the one that is gone through, and one more, so that the engine need not wait for
storage."""


BYTES_OF_AN_ID = 6
"""A prompt of token ids takes so many times the bytes that it took in the input."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much may wait."""

    records: int
    bytes: int
    """What the records take, roughly."""
    chunks: int


@dataclass(slots=True)
class _Chunk:
    work: ChunkWork
    left: int
    """Its records that wait."""


class LineUp:
    """Records of several chunks, each given once.

    They are given as they came, or, once ``sort`` is called, those with the same beginning together. Those of a chunk
    over which an attempt died come first in any case, in their own order. Those of a chunk that is made again are not
    sorted either: each such chunk that is begun with has had its turn, whatever of it is done when the attempt ends.
    """

    def __init__(self) -> None:
        self._first: deque[tuple[Record, _Chunk]] = deque()
        self._in_turn: deque[tuple[Record, _Chunk]] = deque()
        self._sweep: Sweep[tuple[Record, _Chunk]] = Sweep()
        self._last = 1, 1
        """How many records and bytes the last chunk had."""
        self._in_doubt = False
        """Whether an attempt died over the last chunk, so that one may have died over the next as well."""
        self.sorted = False
        """Whether records with the same beginning are given together."""
        self.chunks = 0
        """Chunks of which records wait."""
        self.bytes = 0
        """What those records take, roughly."""

    def __len__(self) -> int:
        return len(self._first) + len(self._in_turn) + len(self._sweep)

    def wanted(self, extent: Extent) -> int:
        """How many more chunks should be claimed now, if so much may wait."""
        least = max(0, CHUNKS_AHEAD - self.chunks)
        if self._in_doubt or not self.chunks:
            return least
        records, size = self._last
        by_records = -((len(self) - extent.records) // records)
        by_bytes = -((self.bytes - extent.bytes) // size)
        return max(least, min(by_records, by_bytes, extent.chunks - self.chunks))

    def add(self, work: ChunkWork) -> None:
        """Take in a chunk that was claimed, with the records that need the engine; it has some."""
        chunk = _Chunk(work, len(work.todo))
        size = sum(map(_bytes, work.todo))
        self.chunks += 1
        self.bytes += size
        self._last = chunk.left, max(1, size)
        self._in_doubt = work.alone or work.doubtful
        if self._in_doubt:
            self._first.extend((record, chunk) for record in work.todo)
            return
        if not self.sorted or work.results.round_number:
            self._in_turn.extend((record, chunk) for record in work.todo)
            return
        for record in work.todo:
            self._line_up(record, chunk)

    def next(self) -> tuple[Record, ChunkWork] | None:
        """The record to admit next, and its chunk; None: none waits."""
        if self._first:
            record, chunk = self._first.popleft()
        elif self._in_turn:
            record, chunk = self._in_turn.popleft()
        elif self._sweep:
            record, chunk = self._sweep.pop()
        else:
            return None
        self.bytes -= _bytes(record)
        chunk.left -= 1
        if not chunk.left:
            self.chunks -= 1
        return record, chunk.work

    def waiting(self) -> list[Record]:
        """Those that wait, as they came; without those of chunks over which an attempt died."""
        return [record for record, _chunk in self._all_in_turn()]

    def sort(self) -> None:
        """Give records with the same beginning together from now on."""
        self.sorted = True
        waiting, self._in_turn = self._in_turn, deque()
        for record, chunk in waiting:
            if chunk.work.results.round_number:
                self._in_turn.append((record, chunk))
            else:
                self._line_up(record, chunk)

    def unsort(self) -> None:
        """Give records as they came from now on."""
        self.sorted = False
        self._in_turn = deque(self._all_in_turn())
        self._sweep.clear()

    def _all_in_turn(self) -> list[tuple[Record, _Chunk]]:
        return sorted([*self._in_turn, *self._sweep], key=lambda one: one[0].index)

    def _line_up(self, record: Record, chunk: _Chunk) -> None:
        key = prompt_key(record)
        if key is None:
            self._in_turn.append((record, chunk))
        else:
            self._sweep.add(key, record.index, (record, chunk))


def _bytes(record: Record) -> int:
    request = record.request
    # Asking pydantic's classes by isinstance takes ten times as long.
    if type(request) is CompletionV2Request and type(request.prompt) is not str:
        return record.size * BYTES_OF_AN_ID
    return record.size
