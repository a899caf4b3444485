"""Chunks that are begun and not committed: what is finished of them, in memory and as parts on storage."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from airflow_llmengine.storage.errors import StorageError
from airflow_llmengine.storage.job_directory import JobScratch
from airflow_llmengine.worker.chunks import ChunkResults, Finished

logger = logging.getLogger(__name__)

SAVES_AT_ONCE = 8
"""Parts that are written at the same time."""

LOOKS = 6
"""Into how many waits the time is divided after which something must be saved."""

PART_BYTES = 256 * 1024
"""A part is written anew, with what came since, until it takes so much; then the next one begins. So an open
chunk does not have another file each minute; and to write so much takes a store little longer than to write one record.
"""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part that this attempt has written."""

    number: int
    indices: frozenset[int]
    """The records in it."""


@dataclass(slots=True)
class _Open:
    """An open chunk."""

    results: ChunkResults
    bytes: int
    """What its finished elements take."""
    unsaved_since: float | None = None
    """When the first was finished of those that are in no part; None: there are none."""
    part: _Part | None = None
    """The newest, as long as there is room in it."""
    saving: asyncio.Lock = field(default_factory=asyncio.Lock)

    def is_late(self, before: float) -> bool:
        """Whether something was finished before that moment that is to be saved, and is not."""
        waits = self.unsaved_since is not None and self.unsaved_since <= before
        return waits and not self.results.complete and not self.results.round_number


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
        self._chunks: dict[int, _Open] = {}
        self._ended = asyncio.Event()
        self.bytes = 0
        """What the finished elements take."""

    def __len__(self) -> int:
        return len(self._chunks)

    @property
    def results(self) -> list[ChunkResults]:
        """All of them."""
        return [opened.results for opened in self._chunks.values()]

    def open(self, results: ChunkResults) -> None:
        """A record of a chunk is about to be answered; nothing happens if the chunk is open already."""
        if results.number not in self._chunks:
            size = sum(len(result.element) for result in results.finished.values())
            self._chunks[results.number] = _Open(results, size)
            self.bytes += size

    def finish(self, results: ChunkResults, index: int, finished: Finished) -> None:
        """Keep the result of one record of an open chunk."""
        results.finished[index] = finished
        size = len(finished.element)
        opened = self._chunks[results.number]
        opened.bytes += size
        self.bytes += size
        if opened.unsaved_since is None:
            opened.unsaved_since = time.monotonic()

    def committed(self, chunk: int) -> None:
        """A chunk stands; it may never have been open."""
        opened = self._chunks.pop(chunk, None)
        if opened is not None:
            self.bytes -= opened.bytes

    async def save(self, results: ChunkResults) -> None:
        """Write what is finished of one open chunk; nothing happens if there is nothing new.

        One that is made again is saved as its next round, and never in parts.
        """
        opened = self._chunks.get(results.number)
        if opened is None or results.round_number:
            return
        async with opened.saving:
            part = opened.part
            data = results.encode_part(again=part.indices if part else ())
            if data is None:
                return
            indices = frozenset(results.finished.keys() - results.saved)
            since, opened.unsaved_since = opened.unsaved_since, None
            try:
                if part is None:
                    number = await asyncio.to_thread(
                        self._scratch.commit_part, results.number, data, known=results.parts
                    )
                    part = _Part(number, indices)
                else:
                    await asyncio.to_thread(self._scratch.replace_part, results.number, part.number, data)
                    part = _Part(part.number, part.indices | indices)
            except StorageError:
                opened.unsaved_since = since
                raise
            results.parts = max(results.parts, part.number + 1)
            results.saved |= indices
            opened.part = part if len(data) < PART_BYTES else None

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
            late = [opened.results for opened in self._chunks.values() if opened.is_late(before)]
            try:
                if late and await self._is_current():
                    await self.save_all(late)
            except StorageError as error:
                # If it lasts, a commit fails of it too, and ends the attempt.
                logger.warning("what is finished of %d open chunks could not be saved: %s", len(late), error)

    def end_saving(self) -> None:
        """End ``keep_saving``, which finishes what it is about."""
        self._ended.set()
