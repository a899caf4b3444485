"""What the worker asks of an engine that can span several nodes; the others are for one node only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Which node of a replica this is, and how the others are reached."""

    rank: int
    """0 is the leader's."""
    nodes: int
    leader: str
    """IP address of the leader."""
    port: int
    """Port of the leader that is free for the engine; another one each time that the engine is started."""
    address: str
    """IP address of this node, by which the others reach it."""


@runtime_checkable
class SpanningEngine(Protocol):
    """An engine that can span several nodes."""

    def place(self, place: NodePlace) -> None:
        """Be told where this node stands. Called before ``start`` or ``follow``."""
        ...

    async def follow(self) -> None:
        """Compute for the leader's engine, on another node than the first, in place of ``start``.

        Returns once this node's part of the engine has ended by itself; ``stop`` ends it. Raises what ``start`` does.
        """
        ...
