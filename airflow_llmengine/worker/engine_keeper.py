"""Keeps an engine running: starts it again when it dies, and finds out which record brings it down.

A record that was in work when the engine died is tried again, with few others beside it. One that was in work twice is
tried a third time by itself: if the engine dies of it then, the record is at fault, gets an error, and the job goes on.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.engines.base import Engine, EngineDiedError, RecordRejectedError

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_RESTARTS = 3
"""How often the engine is started again before it has either found a record at fault or done a stretch of work."""

MAX_RESTARTS_IN_ALL = 30
"""How often one attempt starts the engine again at most."""

STRETCH_RECORDS = 1000
"""So many answers in a row show that the engine works, and give the restarts back."""

ALONE = 2
"""A record over which the engine died so often is tried by itself."""

LINGER_SECONDS = 30.0
"""How long a call may take to come back once its engine is dead."""


class EngineKeeper:
    """One engine after another, behind the calls of one. All methods run in one asyncio loop.

    Args:
        make: Makes an engine; nothing is loaded yet.
        started: Called with each engine that was started, before it answers anything.
        died: Called with a message when an engine has died and another is about to be started.
    """

    def __init__(
        self,
        make: Callable[[], Engine],
        *,
        started: Callable[[Engine], Awaitable[None]],
        died: Callable[[str], Awaitable[None]],
    ) -> None:
        self._make = make
        self._started = started
        self._died = died
        self._engine = make()
        self._changed = asyncio.Condition()
        self._running = 0
        self._waiting = [0, 0, 0]
        self._turns: deque[object] = deque()
        """Of the records that wait to be alone, in the order in which they came."""
        self._bounced = 0
        self._calm = True
        """Whether no engine has died over any of the records: then nobody waits for a turn."""
        self._alone = False
        self._generation = 0
        self._restarting: asyncio.Task[None] | None = None
        self._given_up: EngineDiedError | None = None
        self._restarts_left = MAX_RESTARTS
        self._answers_since = 0
        self.restarts = 0
        """How often the engine was started again."""

    @property
    def engine(self) -> Engine:
        """The engine of the moment."""
        return self._engine

    async def start(self) -> None:
        """Start the first engine. Raises what ``Engine.start`` raises: a first start that fails is not repeated."""
        await self._engine.start()
        await self._started(self._engine)

    async def stop(self) -> None:
        """End the engine, and a restart that is going on."""
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)
        await self._engine.stop()

    async def ask(
        self,
        question: Callable[[Engine], Awaitable[T]],
        *,
        deaths: int = 0,
        before_alone: Callable[[], Awaitable[None]] | None = None,
    ) -> T:
        """Have something done for one record, by as many engines as it takes.

        Args:
            question: Asks an engine, and is asked again of the next one when that one dies.
            deaths: How often an engine has died with the record before; from ``ALONE`` on it is tried by itself.
            before_alone: Called before it is tried by itself.

        Raises:
            RecordRejectedError: The record is at fault; also when an engine died of it alone (``engine_crash``).
            EngineDiedError: The engine has died too often, or can't be started again.
        """
        while True:
            # No context manager, and no call where nobody waits: this is gone through for every record.
            if self._calm and not deaths:
                self._running += 1
            else:
                await self._enter(min(deaths, ALONE))
            try:
                generation, alone = self._generation, deaths >= ALONE
                if alone and before_alone is not None:
                    await before_alone()
                try:
                    answer = await question(self._engine)
                except EngineDiedError as error:
                    died = error
                else:
                    if not self._calm:
                        self._note_answer()
                    return answer
            finally:
                self._running -= 1
                self._alone = False
                if not self._calm or self._waiting[ALONE]:
                    await self._tell_who_waits()
            if alone:
                # The record is found out, so the engine has a right to as many restarts again.
                self._restarts_left = MAX_RESTARTS + 1
            await self._restart(generation, str(died))
            if alone:
                raise RecordRejectedError(
                    RecordErrorType.ENGINE_CRASH,
                    "the engine died while it worked on this record alone, after it had died before with this record "
                    "among others: look at its length and its parameters, or run it with another version of the engine",
                )
            deaths += 1

    def _note_answer(self) -> None:
        self._answers_since += 1
        if self._answers_since >= STRETCH_RECORDS:
            self._restarts_left = MAX_RESTARTS

    async def _enter(self, level: int) -> None:
        """Wait until a record over which so many engines died may enter; from then on it is at work."""
        # Nobody may join one that is to be alone, also where no engine has died in this attempt yet.
        self._calm = False
        async with self._changed:
            turn = object()
            self._waiting[level] += 1
            if level == ALONE:
                self._turns.append(turn)
            try:
                await self._changed.wait_for(lambda: self._may_enter(level, turn))
            finally:
                self._waiting[level] -= 1
                if level == ALONE:
                    self._turns.remove(turn)
            if self._given_up is not None:
                raise self._given_up
            self._running += 1
            self._alone = level == ALONE

    async def _tell_who_waits(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _may_enter(self, level: int, turn: object) -> bool:
        if self._given_up is not None:
            return True
        if self._restarting is not None or self._alone:
            return False
        if level == ALONE:
            # In turn: whoever comes just as another one leaves would be faster than those who must be woken, and begin
            # with another chunk each time.
            return self._running == 0 and self._turns[0] is turn
        if self._waiting[ALONE]:
            return False
        # Those that were in work when an engine died go first, and few at a time.
        if level == 1:
            return self._running < max(1, math.isqrt(self._bounced))
        return self._waiting[1] == 0

    async def _restart(self, generation: int, message: str) -> None:
        """Start the engine again, once for all records that it died over."""
        self._calm = False
        if self._generation == generation:
            if self._restarting is None:
                self._bounced = self._running + 1
                self._restarting = asyncio.create_task(self._start_again(message))
            # Not cancelled along with a record that waits for it.
            await asyncio.shield(self._restarting)
        if self._given_up is not None:
            raise self._given_up

    async def _start_again(self, message: str) -> None:
        try:
            await self._engine.stop()
            await self._all_back()
            await self._died(message)
            while self._given_up is None:
                if self._restarts_left <= 0 or self.restarts >= MAX_RESTARTS_IN_ALL:
                    self._given_up = EngineDiedError(f"{message}; it was started again {self.restarts} times")
                    return
                self._restarts_left -= 1
                self.restarts += 1
                self._answers_since = 0
                logger.warning("the engine died (%s); starting it again", message)
                engine = self._make()
                try:
                    await engine.start()
                    await self._started(engine)
                except EngineDiedError as error:
                    await engine.stop()
                    message = str(error)
                    continue
                except BaseException:
                    await engine.stop()
                    raise
                self._engine = engine
                return
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - it becomes the error that every record gets
            # Whatever keeps it from starting again ends the attempt; the caller tells an engine's death from the rest.
            self._given_up = EngineDiedError(f"{message}; it can't be started again: {error}")
            self._given_up.__cause__ = error
        finally:
            self._generation += 1
            async with self._changed:
                self._restarting = None
                self._changed.notify_all()

    async def _all_back(self) -> None:
        """Wait until every record that was in work has come back from the dead engine."""

        async def wait() -> None:
            async with self._changed:
                await self._changed.wait_for(lambda: self._running == 0)

        try:
            await asyncio.wait_for(wait(), LINGER_SECONDS)
        except TimeoutError:
            raise EngineDiedError(f"{self._running} records don't come back from the dead engine") from None
