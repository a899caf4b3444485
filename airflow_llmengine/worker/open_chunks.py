"""Chunks that are begun and not committed: what is finished of them, in memory and as parts on storage."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

from airflow_llmengine.storage.errors import StorageError
from airflow_llmengine.storage.job_directory import JobScratch
from airflow_llmengine.worker.chunks import ChunkResults, Finished

logger = logging.getLogger(__name__)

SAVES_AT_ONCE = 8
"""Parts that are written at the same time."""

LOOKS = 6
"""Into how many waits the time is divided after which something must be saved."""


class OpenChunks:
    """The open chunks of one attempt. All methods run in one asyncio loop.

    Args:
        scratch: Where parts are written.
        is_current: Whether the job is still this generation's.
        save_seconds: What is finished is saved after this time, if its chunk is not committed before.
    """

    def __init__(self, scratch: JobScratch, is_current: Callable[[], Awaitable[bool]], save_seconds: float) -> None:
        self._scratch = scratch
        self._is_current = is_current
        self._save_seconds = save_seconds
        self._chunks: dict[int, ChunkResults] = {}
        self._bytes: dict[int, int] = {}
        self._unsaved_since: dict[int, float] = {}
        self._ended = asyncio.Event()
        self.bytes = 0
        """What the finished elements take."""

    def __len__(self) -> int:
        return len(self._chunks)

    @property
    def results(self) -> list[ChunkResults]:
        """All of them."""
        return list(self._chunks.values())

    def open(self, results: ChunkResults) -> None:
        """A record of a chunk is about to be answered; nothing happens if the chunk is open already."""
        if results.number not in self._chunks:
            self._chunks[results.number] = results
            self._bytes[results.number] = size = sum(len(result.element) for result in results.finished.values())
            self.bytes += size

    def finish(self, results: ChunkResults, index: int, finished: Finished) -> None:
        """Keep the result of one record of an open chunk."""
        results.finished[index] = finished
        size = len(finished.element)
        self._bytes[results.number] += size
        self.bytes += size
        if results.number not in self._unsaved_since:
            self._unsaved_since[results.number] = time.monotonic()

    def committed(self, chunk: int) -> None:
        """A chunk stands; it may never have been open."""
        self._chunks.pop(chunk, None)
        self._unsaved_since.pop(chunk, None)
        self.bytes -= self._bytes.pop(chunk, 0)

    async def save(self, results: ChunkResults) -> None:
        """Write what is finished of one chunk; nothing happens if there is nothing new, or the chunk has been before.

        One that is made again is saved as its next round, and never in parts.
        """
        since = self._unsaved_since.pop(results.number, None)
        part = None if results.round_number else results.encode_part()
        if part is None:
            return
        indices = set(results.finished)
        try:
            written = await asyncio.to_thread(self._scratch.commit_part, results.number, part, known=results.parts)
        except StorageError:
            if since is not None and results.number in self._chunks:
                self._unsaved_since[results.number] = since
            raise
        results.parts = max(results.parts, written + 1)
        results.saved |= indices

    async def save_all(self, chunks: Iterable[ChunkResults]) -> None:
        """Save several chunks, some at a time: there may be many, and little time left."""
        turns = asyncio.Semaphore(SAVES_AT_ONCE)

        async def save(results: ChunkResults) -> None:
            async with turns:
                await self.save(results)

        await asyncio.gather(*(save(results) for results in chunks))

    async def keep_saving(self) -> None:
        """Save from time to time what its chunk's end is long in coming for, until ``end_saving``."""
        while not self._ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), self._save_seconds / LOOKS)
                return
            before = time.monotonic() - self._save_seconds
            late = [
                self._chunks[chunk]
                for chunk, since in self._unsaved_since.items()
                if since <= before and not self._chunks[chunk].complete
            ]
            try:
                if late and await self._is_current():
                    await self.save_all(late)
            except StorageError as error:
                # If it lasts, a commit fails of it too, and ends the attempt.
                logger.warning("what is finished of %d open chunks could not be saved: %s", len(late), error)

    def end_saving(self) -> None:
        """End ``keep_saving``, which finishes what it is about."""
        self._ended.set()
