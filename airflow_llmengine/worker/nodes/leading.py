"""The engine of a replica that spans several nodes, seen from the first of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from airflow_llmengine.spec.replica_nodes import LIFELINE_PORT
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.worker.engines.base import Answer, Engine, EngineDiedError, EngineFactory, LoadsModel
from airflow_llmengine.worker.engines.load import EngineUnavailableError
from airflow_llmengine.worker.engines.spanning import NodePlace, SpanningEngine
from airflow_llmengine.worker.engines.writing import Writer, writer_of
from airflow_llmengine.worker.nodes.followers import Followers
from airflow_llmengine.worker.records import Record
from airflow_llmengine.worker.stopping import Stop, StopReason
from airflow_llmengine.worker.weights.model_source import ModelFinder, ModelSource

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.2
REMINDER_SECONDS = 60.0


class StopWithNodes:
    """Ends the attempt with its first node; a ``NodeNews``."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop

    def gone(self, node: int, said: str) -> None:
        """End it: the engine hangs, or is about to."""
        self._stop.request(StopReason.NODE_GONE, _gone(node, said))

    def leaving(self, node: int, why: str, seconds: float) -> None:
        """Save what can be saved in time."""
        message = f"node {node} of this replica was told to end ({why}); what is finished is kept"
        self._stop.request(StopReason.TERMINATED, message, seconds=seconds)


def leading(followers: Followers, make_engine: EngineFactory, *, patience: float) -> EngineFactory:
    """Makes engines that span the nodes.

    Args:
        followers: The other nodes.
        make_engine: Makes this node's part.
        patience: Seconds that followers may take to connect.
    """

    def make(request: CreateBatchCompletionsV1Request) -> Engine:
        return LeadingEngine(make_engine(request), followers, patience=patience)

    return make


class LeadingEngine:
    """This node's part of the engine, which is started and ended together with the parts of the followers.

    Args:
        engine: This node's part.
        followers: The other nodes.
        patience: Seconds that they may take to connect.

    Raises:
        EngineUnavailableError: The engine can't span several nodes.
    """

    def __init__(self, engine: Engine, followers: Followers, *, patience: float) -> None:
        if not isinstance(engine, SpanningEngine):
            raise EngineUnavailableError(
                f"the engine {engine.name} can't span several nodes: give nodes_per_worker 1, or use another engine"
            )
        self._engine = engine
        self._place: Callable[[NodePlace], None] = engine.place
        self._followers = followers
        self._patience = patience
        self._find: ModelFinder | None = None
        self.name = engine.name
        self.version = engine.version

    def load_from(self, find: ModelFinder) -> None:
        """See ``LoadsModel``."""
        if isinstance(self._engine, LoadsModel):
            self._find = find
            self._engine.load_from(find)

    async def start(self) -> None:
        """Wait for all nodes, and start the engine on them.

        Raises:
            EngineDiedError: A node is missing, or gone. See ``Engine.start`` for others.
        """
        source: ModelSource | None = None
        if self._find is not None:
            source = await asyncio.to_thread(self._find)
        await self._wait_for_followers()
        await self._wait_until_ready()
        port = self._followers.start_engines(None if source is None else source.identity)
        address = self._followers.address
        self._place(NodePlace(rank=0, nodes=self._followers.nodes, leader=address, port=port, address=address))
        await self._engine.start()

    @property
    def model_identity(self) -> str | None:
        """The weights' of this node; the others load the same."""
        return self._engine.model_identity

    @property
    def capacity(self) -> int:
        """How many sequences all of it runs at once."""
        return self._engine.capacity

    async def complete(self, record: Record) -> Answer:
        """Answer one record; see ``Engine.complete``."""
        return await self._engine.complete(record)

    def writer(self) -> Writer:
        """The engine's; see ``WritesOn``."""
        return writer_of(self._engine)

    async def stop(self) -> None:
        """End it on all nodes; they stay, to start it again."""
        self._followers.stop_engines()
        await self._engine.stop()

    async def _wait_for_followers(self) -> None:
        started = time.monotonic()
        told = 0.0
        while missing := self._followers.missing():
            if lost := self._followers.lost():
                raise EngineDiedError(_gone(lost[0], ""))
            waited = time.monotonic() - started
            if waited >= self._patience:
                raise EngineDiedError(
                    f"{_named(missing)} of this replica did not connect within {self._patience:.0f} s: their pods must "
                    f"run, and reach port {LIFELINE_PORT} of the leader's"
                )
            if told == 0.0 or waited >= told + REMINDER_SECONDS:
                told = max(waited, LOOK_SECONDS)
                logger.info("waiting for %s of %d", _named(missing), self._followers.nodes)
            await asyncio.sleep(LOOK_SECONDS)

    async def _wait_until_ready(self) -> None:
        """Wait until all have the weights: the engine's parts wait for each other, and not for hours."""
        told = False
        while busy := self._followers.busy():
            if lost := self._followers.lost():
                raise EngineDiedError(_gone(lost[0], ""))
            if not told:
                told = True
                logger.info("%s of %d make ready", _named(busy), self._followers.nodes)
            await asyncio.sleep(LOOK_SECONDS)


def _named(nodes: list[int]) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}"


def _gone(node: int, said: str) -> str:
    return f"node {node} of this replica is gone" + (f": {said}" if said else "; its pod's log and events may say why")
