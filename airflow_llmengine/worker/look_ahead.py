"""Claims chunks ahead of the engine, also while that loads, and hands out their records one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from airflow_llmengine.worker.line_up import LineUp
from airflow_llmengine.worker.records import Record
from airflow_llmengine.worker.share import ChunkWork


class LookAhead:
    """Keeps a line-up filled. All methods run in one asyncio loop.

    Args:
        claim: Gives the next chunk that needs the engine; None: there is none now.
        helping: Whether chunks are better claimed late, as others may have time for them: then only once a record was
            asked for and none waited.
        changed: Called when there is something new to take, or nothing more to come.
    """

    def __init__(
        self,
        claim: Callable[[], Awaitable[ChunkWork | None]],
        *,
        helping: Callable[[], bool],
        changed: Callable[[], None],
    ) -> None:
        self._claim = claim
        self._helping = helping
        self._changed = changed
        self._line_up = LineUp()
        self._wanted = asyncio.Event()
        self._asked_in_vain = False
        self._claiming: asyncio.Task[None] | None = None
        self.found = False
        """Whether a chunk has come since ``begin``."""

    @property
    def waiting(self) -> int:
        """Records that were claimed and not taken."""
        return self._line_up.records

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

    def add(self, work: ChunkWork) -> None:
        """Line up a chunk that was claimed already."""
        self._line_up.add(work)
        self._asked_in_vain = False
        self._changed()

    def begin(self) -> None:
        """Claim from now on, until there is no more to claim; once again after ``ended``."""
        self.found = False
        self._claiming = asyncio.create_task(self._fill())
        self._claiming.add_done_callback(lambda _claiming: self._changed())

    def take(self) -> tuple[Record, ChunkWork] | None:
        """The record that is to be admitted now, and its chunk; None: none is there yet."""
        taken = self._line_up.next()
        if taken is None:
            self._asked_in_vain = True
        if self._wants_more():
            self._wanted.set()
        return taken

    async def end(self) -> None:
        """Claim no more. What waits stays where it is, claimed."""
        if self._claiming is not None:
            self._claiming.cancel()
            await asyncio.gather(self._claiming, return_exceptions=True)

    def _wants_more(self) -> bool:
        return self._asked_in_vain if self._helping() else self._line_up.wants_more

    async def _fill(self) -> None:
        while True:
            while not self._wants_more():
                self._wanted.clear()
                await self._wanted.wait()
            work = await self._claim()
            if work is None:
                return
            self.found = True
            self.add(work)
