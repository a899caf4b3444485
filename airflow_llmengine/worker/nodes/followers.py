"""The leader's end of the lifelines: which followers are there, what they are told, and what becomes of them."""

from __future__ import annotations

import contextlib
import hmac
import logging
import socket
import threading
import time
from types import TracebackType
from typing import Any, Protocol, Self

from airflow_llmengine.spec.replica_nodes import LIFELINE_PORT
from airflow_llmengine.worker.nodes.lifeline import LINE_LIMIT, decode, encode, notice_silence, plain_address

logger = logging.getLogger(__name__)

GREETING_SECONDS = 10.0
"""How long who connects may take to say who it is."""

ACCEPT_PAUSE_SECONDS = 0.1

ENGINE_PORTS = 256
"""How many ports after that of the lifelines are tried for the engine."""


class NodeNews(Protocol):
    """Who is told of the followers; from any thread."""

    def gone(self, node: int, said: str) -> None:
        """A follower is gone: it can't be replaced, so the replica must end. ``said`` is its last word, or empty."""

    def leaving(self, node: int, why: str, seconds: float) -> None:
        """A follower was told to end, and will be gone in so many seconds."""


class Followers:
    """Takes the followers' connections, in threads of its own: the main thread may be busy loading a model.

    Args:
        nodes: Nodes of the replica, the leader among them.
        token: What followers of this attempt know.
        news: Who is told of them.
        port: Where they connect; 0: any.
    """

    def __init__(self, nodes: int, token: str, news: NodeNews, *, port: int = LIFELINE_PORT) -> None:
        self.nodes = nodes
        self._token = token
        self._news = news
        self._connections: dict[int, socket.socket] = {}
        self._ready: set[int] = set()
        self._lost: set[int] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._engine_port = 0
        dual = socket.has_dualstack_ipv6()
        self._server = socket.create_server(
            ("", port), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual, backlog=nodes
        )
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, name="followers", daemon=True).start()

    def __enter__(self) -> Self:
        """Nothing: it listens since it was made."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """See ``close``."""
        self.close()

    def missing(self) -> list[int]:
        """Nodes that have not connected yet, or are gone."""
        with self._changed:
            return [node for node in range(1, self.nodes) if node not in self._connections]

    def busy(self) -> list[int]:
        """Nodes that are not ready to start their part of the engine: they fetch the weights, for example."""
        with self._changed:
            return [node for node in range(1, self.nodes) if node not in self._ready]

    def lost(self) -> list[int]:
        """Nodes that were there, and are gone."""
        with self._changed:
            return sorted(self._lost)

    @property
    def address(self) -> str:
        """This machine's IP address, as a follower reaches it."""
        with self._changed:
            connection = next(iter(self._connections.values()))
        return plain_address(connection.getsockname()[0])

    def start_engines(self, model: str | None) -> int:
        """Have all followers start their part of the engine, and end what they had started before.

        Args:
            model: Identity of the weights; None: it has none.

        Returns:
            The port of this machine at which the engine's nodes meet.
        """
        self._engine_port = _free_port(after=max(self.port, self._engine_port))
        self._tell_all({"start": {"port": self._engine_port, "nodes": self.nodes, "model": model}})
        return self._engine_port

    def stop_engines(self) -> None:
        """Have all followers end their part of the engine; they stay, to start it again."""
        self._tell_all({"stop": True})

    def close(self) -> None:
        """End all lifelines, and with them the followers."""
        with self._changed:
            self._closed = True
            connections = [self._server, *self._connections.values()]
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _tell_all(self, message: dict[str, Any]) -> None:
        with self._changed:
            connections = list(self._connections.values())
        for connection in connections:
            # Who reads from it notices its end.
            with contextlib.suppress(OSError):
                connection.sendall(encode(message))

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, peer = self._server.accept()
            except OSError:
                # Closed; or it is the connection's own error, or there is no descriptor for it: not the next one's.
                time.sleep(ACCEPT_PAUSE_SECONDS)
                continue
            threading.Thread(target=self._serve, args=(connection, peer[0]), name="follower", daemon=True).start()

    def _serve(self, connection: socket.socket, peer: str) -> None:
        with connection:
            node = self._greeted(connection, peer)
            if node is not None:
                said = self._listen(connection, node)
                with self._changed:
                    self._connections.pop(node, None)
                    self._lost.add(node)
                    if self._closed:
                        return
                self._news.gone(node, said)

    def _greeted(self, connection: socket.socket, peer: str) -> int | None:
        """Take a follower that has said who it is; None: it is none of this attempt's."""
        try:
            greeting = decode(_read_line(connection, until=time.monotonic() + GREETING_SECONDS))
            node, token = greeting.get("node"), greeting.get("token")
            known = isinstance(token, str) and hmac.compare_digest(token.encode(errors="replace"), self._token.encode())
            if not known or not isinstance(node, int) or not 0 < node < self.nodes:
                logger.warning("%s connected, and is no node of this replica", peer)
                return None
            connection.settimeout(None)
            notice_silence(connection)
            with self._changed:
                if self._closed or node in self._connections or node in self._lost:
                    return None
                connection.sendall(encode({"welcome": True}))
                self._connections[node] = connection
        except OSError:
            return None
        logger.info("node %d of %d has connected from %s", node, self.nodes, plain_address(peer))
        return node

    def _listen(self, connection: socket.socket, node: int) -> str:
        """Hear what a follower says, to its end; gives its last word."""
        said = ""
        try:
            while line := _read_line(connection):
                message = decode(line)
                said = str(message.get("failed", said))
                if message.get("ready"):
                    with self._changed:
                        self._ready.add(node)
                if "leaving" in message:
                    self._news.leaving(node, str(message["leaving"]), float(message.get("seconds", 0.0)))
        except (OSError, ValueError):
            return said
        return said


def _read_line(connection: socket.socket, *, until: float | None = None) -> bytes:
    """The next line; empty at the end of the connection. Byte by byte: there is little to read, and no buffer to keep.

    Args:
        connection: Where it comes from.
        until: Moment of the monotonic clock by which it must be whole; None: any.

    Raises:
        OSError: The connection broke, or it is late.
    """
    line = bytearray()
    while len(line) < LINE_LIMIT:
        if until is not None:
            # No less than this: a timeout of 0 would be no timeout.
            connection.settimeout(max(0.001, until - time.monotonic()))
        byte = connection.recv(1)
        if not byte:
            return b""
        if byte == b"\n":
            break
        line += byte
    return bytes(line)


def _free_port(after: int) -> int:
    """A port that nobody listens on, of those just after another.

    Not one that the system picks: it would give the same one to an outgoing connection before the engine listens there.
    """
    for port in range(after + 1, min(after + 1 + ENGINE_PORTS, 65_536)):
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port
    raise OSError(f"no port between {after} and {after + ENGINE_PORTS} is free")
