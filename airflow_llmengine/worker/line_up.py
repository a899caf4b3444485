"""The records that were claimed and wait for the engine: which is next, and whether another chunk is wanted. Pure."""

from __future__ import annotations

from collections import deque

from airflow_llmengine.worker.records import Record
from airflow_llmengine.worker.share import ChunkWork

CHUNKS_AHEAD = 2
"""As many chunks are held at least: the one that is gone through, and one more, so that the engine need not wait for
storage."""


class LineUp:
    """Records of one or more chunks, each given once: those of a chunk in the chunk's order, as the chunks came."""

    def __init__(self) -> None:
        self._works: deque[ChunkWork] = deque()
        self._place = 0
        """How many records of the first chunk were given."""
        self.records = 0
        """How many wait."""
        self.bytes = 0
        """What those took in the input."""

    @property
    def wants_more(self) -> bool:
        """Whether another chunk should be claimed now."""
        return len(self._works) < CHUNKS_AHEAD

    def add(self, work: ChunkWork) -> None:
        """Take in a chunk that was claimed, with the records that need the engine; it has some."""
        self._works.append(work)
        self.records += len(work.todo)
        self.bytes += sum(record.size for record in work.todo)

    def next(self) -> tuple[Record, ChunkWork] | None:
        """The record to admit next, and its chunk; None: none waits."""
        if not self._works:
            return None
        work = self._works[0]
        record = work.todo[self._place]
        self._place += 1
        self.records -= 1
        self.bytes -= record.size
        if self._place == len(work.todo):
            self._works.popleft()
            self._place = 0
        return record, work
