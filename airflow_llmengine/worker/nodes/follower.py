"""A follower at work: it does what the leader of its replica says, and ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from dataclasses import dataclass
from typing import Any

from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.storage.errors import StorageError
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.engines.base import (
    EngineDiedError,
    EngineFactory,
    LoadsModel,
    ModelChangedError,
    ModelNotFoundError,
)
from airflow_llmengine.worker.engines.load import EngineUnavailableError
from airflow_llmengine.worker.engines.spanning import NodePlace, SpanningEngine
from airflow_llmengine.worker.nodes.lifeline import LINE_LIMIT, decode, encode, notice_silence, plain_address
from airflow_llmengine.worker.weights.model_files import ModelFiles

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
CONNECT_SECONDS = 10.0
"""How long one attempt to connect may take."""

FAILURES = (EngineDiedError, EngineUnavailableError, ModelNotFoundError, ModelChangedError, StorageError)


@dataclass(frozen=True, slots=True)
class FollowerOptions:
    """What a follower is told."""

    node: int
    leader: str
    """Name or address of the leader."""
    port: int
    token: str
    patience: float
    """Seconds that the leader may take to be there."""
    grace_seconds: float
    """How long after SIGTERM this process may live."""


class ToldToEndError(Exception):
    """This process was told to end, and so it did: before there was a leader, or with it."""


class Follower:
    """One follower. ``run`` is called once.

    Args:
        options: What it is told.
        storage: Where a checkpoint by URL is, with credentials.
        request: The job.
        make_engine: Makes this node's part of the engine.
    """

    def __init__(
        self,
        options: FollowerOptions,
        storage: Storage,
        request: CreateBatchCompletionsV1Request,
        make_engine: EngineFactory,
    ) -> None:
        self._options = options
        self.node = options.node
        self._storage = storage
        self._request = request
        self._make_engine = make_engine
        self._signals: asyncio.Queue[str] = asyncio.Queue()
        self._told_to_end = ""

    async def run(self, signals: int | None = None) -> None:
        """Follow the leader to its end.

        Args:
            signals: A descriptor from which the numbers of the signals that ask this process to stop are read.

        Raises:
            ToldToEndError: A signal came: before there was a leader, or the leader has ended because of it.
            EngineDiedError: There is no leader, or this node's part of the engine ended by itself.
            EngineUnavailableError, ModelNotFoundError, ModelChangedError, StorageError: See ``Engine.start``.
        """
        loop = asyncio.get_running_loop()
        if signals is not None:
            loop.add_reader(signals, self._note_signal, signals)
        try:
            await self._follow_leader()
        finally:
            if signals is not None:
                loop.remove_reader(signals)

    async def _follow_leader(self) -> None:
        reader, writer = await self._connected()
        signalled = asyncio.create_task(self._tell_of_signals(writer))
        try:
            await self._obey(reader, writer)
            if self._told_to_end:
                raise ToldToEndError(f"got {self._told_to_end}; the leader was told, and has ended")
        except FAILURES as error:
            await _say(writer, {"failed": str(error)})
            raise
        finally:
            signalled.cancel()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _note_signal(self, signals: int) -> None:
        for number in os.read(signals, 16):
            self._signals.put_nowait(signal.Signals(number).name)

    async def _tell_of_signals(self, writer: asyncio.StreamWriter) -> None:
        """Have the leader save its work; this node goes on until that is done, or it is killed."""
        self._told_to_end = name = await self._signals.get()
        logger.warning("got %s: telling the leader, and going on until it ends", name)
        await _say(writer, {"leaving": f"got {name}", "seconds": 0.8 * self._options.grace_seconds})

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the leader, which may not be there yet."""
        options = self._options
        until = time.monotonic() + options.patience
        logger.info("node %d looks for its leader at %s, port %d", options.node, options.leader, options.port)
        while True:
            if not self._signals.empty():
                raise ToldToEndError(f"got {self._signals.get_nowait()} before the leader was there")
            fault = "it does not take this node"
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    reader, writer = await asyncio.open_connection(options.leader, options.port, limit=LINE_LIMIT)
            except (OSError, TimeoutError) as error:
                fault = getattr(error, "strerror", None) or type(error).__name__
            else:
                if await self._welcomed(reader, writer):
                    logger.info("node %d has its leader", options.node)
                    return reader, writer
            if time.monotonic() >= until:
                raise EngineDiedError(
                    f"the leader of this replica could not be reached at {options.leader}, port {options.port}, within "
                    f"{options.patience:.0f} s ({fault})"
                )
            await asyncio.sleep(RETRY_SECONDS)

    async def _welcomed(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        notice_silence(writer.get_extra_info("socket"))
        await _say(writer, {"token": self._options.token, "node": self._options.node})
        with contextlib.suppress(OSError, TimeoutError, ValueError):
            async with asyncio.timeout(CONNECT_SECONDS):
                if decode(await reader.readline()).get("welcome"):
                    return True
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        return False

    async def _obey(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Start and end this node's part of the engine as the leader says, until the leader ends."""
        following: asyncio.Task[None] | None = None
        hearing = asyncio.create_task(_read(reader))
        fetching = asyncio.create_task(self._make_ready(writer))
        try:
            while True:
                waited: list[asyncio.Task[Any]] = [hearing, *([] if following is None else [following])]
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if not hearing.done():
                    # It raises what ended it, if it says.
                    await waited[-1]
                    raise EngineDiedError("this node's part of the engine ended by itself, and its own log says why")
                message = hearing.result()
                if message is None:
                    logger.info("the leader has ended, and so does node %d", self._options.node)
                    return
                await _end(following)
                following = None
                if "start" in message:
                    following = asyncio.create_task(self._follow(message["start"], _addresses(writer)))
                hearing = asyncio.create_task(_read(reader))
        finally:
            hearing.cancel()
            fetching.cancel()
            await _end(following)

    async def _follow(self, start: dict[str, Any], addresses: tuple[str, str]) -> None:
        own, leader = addresses
        engine = self._make_engine(self._request)
        if not isinstance(engine, SpanningEngine):
            raise EngineUnavailableError(f"the engine {engine.name} can't span several nodes")
        if isinstance(engine, LoadsModel):
            model = start.get("model")
            engine.load_from(ModelFiles(self._storage, self._request, pinned=lambda: model).find)
        engine.place(
            NodePlace(
                rank=self._options.node,
                nodes=int(start["nodes"]),
                leader=leader,
                port=int(start["port"]),
                address=own,
            )
        )
        logger.info("node %d of %d starts its part of the engine", self._options.node, int(start["nodes"]))
        try:
            await engine.follow()
        finally:
            await engine.stop()

    async def _make_ready(self, writer: asyncio.StreamWriter) -> None:
        """Fetch the weights while the leader does; then say so."""
        await asyncio.to_thread(self._fetch)
        await _say(writer, {"ready": True})

    def _fetch(self) -> None:
        """Fetch the weights. What goes wrong is told when they are needed."""
        with contextlib.suppress(*FAILURES):
            if isinstance(self._make_engine(self._request), LoadsModel):
                ModelFiles(self._storage, self._request).find()


async def _read(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """The next message; None at the leader's end."""
    try:
        line = await reader.readline()
    except (OSError, ValueError):
        return None
    return decode(line) if line else None


async def _say(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    """Tell the leader, if it still hears."""
    with contextlib.suppress(OSError):
        writer.write(encode(message))
        await writer.drain()


def _addresses(writer: asyncio.StreamWriter) -> tuple[str, str]:
    """IP addresses of this node and of the leader, as they reach each other."""
    return (plain_address(writer.get_extra_info("sockname")[0]), plain_address(writer.get_extra_info("peername")[0]))


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
