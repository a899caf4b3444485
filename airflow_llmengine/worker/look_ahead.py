"""Claims chunks ahead of the engine, also while that loads, and hands out their records one by one.

How far ahead depends on what it is good for. Near, so that the engine never waits for storage; and far, to bring
records with the same beginning together, where the engine caches prefixes and that saves it work. Whether it does is
found out by looking far: at the beginning, and again after a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from airflow_llmengine.worker.chunks import BYTES_PER_TOKEN
from airflow_llmengine.worker.claims import AT_ONCE
from airflow_llmengine.worker.engines.base import CachesPrefixes, Engine, PrefixCache
from airflow_llmengine.worker.line_up import Extent, LineUp
from airflow_llmengine.worker.prefix_order import worth_of_order
from airflow_llmengine.worker.records import Record
from airflow_llmengine.worker.share import ChunkWork

logger = logging.getLogger(__name__)

NEAR = Extent(records=1024, bytes=32 * 1024 * 1024, chunks=128)
"""Held so that a fast engine need not wait for a slow store."""

FAR = Extent(records=16_384, bytes=128 * 1024 * 1024, chunks=256)
"""Held at most to bring records with the same beginning together. A part of each open chunk is saved at a stop."""

CACHES_AHEAD = 64
"""For that purpose no more is held than so many times what the engine's prefix cache holds."""

WORTH_IT = 0.05
"""Records are sorted if that saves the engine at least this part of their prompts' tokens."""

ARRANGE_SECONDS = 1.0
"""The first records wait no longer than that for others to be sorted among."""

SORTED_FOR = 4
"""Whether sorting is worth it is looked at again after so many times as many records as were looked at."""

MOST_UNSORTED = 16 * FAR.records
"""Where it is not, after as many records first, then twice as many each time, up to so many."""

LOOK_EVERY = 16
"""Whether more is wanted is looked at after so many records, and at each while fewer wait."""


class LookAhead:
    """Keeps a line-up filled. All methods run in one asyncio loop.

    Args:
        claim: Gives the next chunks that need the engine, about as many as it is asked for; none: there are none now.
        helping: Whether chunks are better claimed late, as others may have time for them: then only once a record was
            asked for and none waited.
        may_hold: How many records may be held for the sake of other replicas; None: any number.
        changed: Called when there is something new to take, or nothing more to come.
    """

    def __init__(
        self,
        claim: Callable[[int], Awaitable[Sequence[ChunkWork]]],
        *,
        helping: Callable[[], bool],
        may_hold: Callable[[], int | None],
        changed: Callable[[], None],
    ) -> None:
        self._claim = claim
        self._helping = helping
        self._may_hold = may_hold
        self._changed = changed
        self._line_up = LineUp()
        self._wanted = asyncio.Event()
        self._asked_in_vain = False
        self._claiming: asyncio.Task[None] | None = None
        self._cache: PrefixCache | None = None
        self._far = FAR
        self._looks_far = False
        self._pause = 0
        """How many records are given before sorting is considered again."""
        self._given = 0
        """How many were given since it was considered."""
        self._considered = asyncio.Event()
        self.found = False
        """Whether a chunk has come since ``begin``."""

    @property
    def waiting(self) -> int:
        """Records that were claimed and not taken."""
        return len(self._line_up)

    @property
    def ended(self) -> bool:
        """Whether ``claim`` has no more; ``begin`` looks again.

        Raises:
            Exception: What ``claim`` has raised.
        """
        if self._claiming is None or not self._claiming.done():
            return False
        if not self._claiming.cancelled():
            self._claiming.result()
        return True

    def add(self, works: Sequence[ChunkWork]) -> None:
        """Line up chunks that were claimed already."""
        for work in works:
            self._line_up.add(work)
        self._asked_in_vain = False
        self._changed()

    def look_far(self, engine: Engine) -> None:
        """Claim as much as may be of use to an engine that is about to be started.

        It takes its time to start, and how much it caches is known only then: see ``arrange``.
        """
        self._looks_far = isinstance(engine, CachesPrefixes)

    def begin(self) -> None:
        """Claim from now on, until there is no more to claim; once again after ``ended``."""
        self.found = False
        self._claiming = asyncio.create_task(self._fill())
        self._claiming.add_done_callback(lambda _claiming: self._changed())

    async def arrange(self, engine: Engine) -> None:
        """Bring what has been claimed into the order that suits an engine that was started."""
        self._cache = engine.prefix_cache() if isinstance(engine, CachesPrefixes) else None
        if self._cache is None:
            self._looks_far = False
            return
        most = self._cache.tokens * CACHES_AHEAD * BYTES_PER_TOKEN
        self._far = replace(FAR, bytes=min(FAR.bytes, most))
        if self._claiming is None or self._claiming.done():
            await self._consider()
            return
        self._wanted.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._considered.wait(), ARRANGE_SECONDS)

    def take(self) -> tuple[Record, ChunkWork] | None:
        """The record that is to be admitted now, and its chunk; None: none is there yet."""
        taken = self._line_up.next()
        if taken is None:
            self._asked_in_vain = True
        else:
            self._given += 1
        # Not at every record, where many wait: it would take as long as all the rest of this.
        looks = taken is None or self._given % LOOK_EVERY == 0 or len(self._line_up) < LOOK_EVERY
        if looks and not self._wanted.is_set() and (self._chunks_wanted() or self._is_due):
            self._wanted.set()
        return taken

    def take_in_turn(self) -> None:
        """Give records as they came for a while, so that the chunks that are begun come to their end."""
        if self._looks_far:
            self._line_up.unsort()
            self._looks_far = False
            self._given, self._pause = 0, FAR.records

    async def end(self) -> None:
        """Claim no more. What waits stays where it is, claimed."""
        if self._claiming is not None:
            self._claiming.cancel()
            await asyncio.gather(self._claiming, return_exceptions=True)

    @property
    def _is_due(self) -> bool:
        """Whether it is time to consider sorting."""
        return self._cache is not None and self._given >= self._pause

    def _chunks_wanted(self) -> int:
        if self._helping():
            return int(self._asked_in_vain)
        extent = self._far if self._looks_far or self._is_due else NEAR
        limit = self._may_hold()
        if limit is not None:
            extent = replace(extent, records=min(extent.records, limit))
        return self._line_up.wanted(extent)

    async def _fill(self) -> None:
        while True:
            wanted = self._chunks_wanted()
            if wanted:
                works = await self._claim(min(wanted, AT_ONCE))
                if not works:
                    break
                self.found = True
                self.add(works)
            elif self._is_due:
                # As much waits as may.
                await self._consider()
            else:
                self._wanted.clear()
                await self._wanted.wait()
        if self._is_due:
            await self._consider()

    async def _consider(self) -> None:
        """Sort, or don't, by what it is worth among the records that wait."""
        cache = self._cache
        if cache is None:
            return
        waiting = self._line_up.waiting()
        worth = await asyncio.to_thread(worth_of_order, waiting, cache, least=WORTH_IT)
        worth_it = worth > 0
        if worth_it and not self._line_up.sorted:
            logger.info("prompts that begin alike are kept together: that saves %.0f %% of their tokens", worth * 100)
            self._line_up.sort()
        elif not worth_it and self._line_up.sorted:
            self._line_up.unsort()
        self._looks_far = worth_it
        self._given = 0
        pause = len(waiting) * SORTED_FOR if worth_it else min(max(len(waiting), 2 * self._pause), MOST_UNSORTED)
        self._pause = max(pause, NEAR.records)
        self._considered.set()
