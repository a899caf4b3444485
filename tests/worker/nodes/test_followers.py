"""The lifelines of a replica's nodes: who is taken, and whose end is noticed."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import struct
import threading
from collections.abc import Iterator
from queue import Queue
from typing import Any

import pytest

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.engines.base import EngineDiedError
from airflow_llmengine.worker.engines.echo import EchoEngine
from airflow_llmengine.worker.engines.load import EngineUnavailableError
from airflow_llmengine.worker.nodes.follower import Follower, FollowerOptions
from airflow_llmengine.worker.nodes.followers import Followers
from airflow_llmengine.worker.nodes.leading import LeadingEngine
from airflow_llmengine.worker.nodes.lifeline import plain_address
from tests.waiting import wait_until

TOKEN = "what the nodes share"
REQUEST = validate_request(
    {
        "input_data_path": "in.jsonl",
        "output_data_path": "out.json",
        "model_config": {"model": "stand-in"},
        "nodes_per_worker": 3,
    }
)


class News:
    """What is told of followers."""

    def __init__(self) -> None:
        self.told: Queue[tuple[Any, ...]] = Queue()

    def gone(self, node: int, said: str) -> None:
        self.told.put(("gone", node, said))

    def leaving(self, node: int, why: str, seconds: float) -> None:
        self.told.put(("leaving", node, why, seconds))


@pytest.fixture
def news() -> News:
    return News()


@pytest.fixture
def followers(news: News) -> Iterator[Followers]:
    with Followers(3, TOKEN, news, port=0) as followers:
        yield followers


def connect(followers: Followers, greeting: Any) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", followers.port), timeout=10)
    connection.sendall(json.dumps(greeting).encode() + b"\n")
    return connection


def line(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as file:
        return file.readline()


@pytest.mark.parametrize(
    "greeting",
    [
        {"token": "another", "node": 1},
        {"token": None, "node": 1},
        {"node": 1},
        {"token": TOKEN, "node": 0},
        {"token": TOKEN, "node": 3},
        {"token": TOKEN, "node": "1"},
        {"token": "\ud800", "node": 1},
        [TOKEN],
        "GET / HTTP/1.1",
    ],
    ids=ascii,
)
def test_strangers_are_not_taken(followers: Followers, news: News, greeting: Any) -> None:
    with connect(followers, greeting) as stranger:
        assert line(stranger) == b""
    assert followers.missing() == [1, 2]
    assert news.told.empty()


@pytest.mark.parametrize("sent", [b"", b"\n", b"[" * 16_000 + b"\n", b"x" * 40_000], ids=len)
def test_who_scans_ports_breaks_nothing(followers: Followers, news: News, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", followers.port), timeout=10) as scanner:
        scanner.sendall(sent)
        # Its end is no end of a connection in good order.
        scanner.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: "follower" not in {thread.name for thread in threading.enumerate()})
    with connect(followers, {"token": TOKEN, "node": 1}) as follower:
        assert json.loads(line(follower)) == {"welcome": True}
    assert news.told.get(timeout=10)[:2] == ("gone", 1)
    assert news.told.empty()


def test_an_error_while_a_connection_is_taken_is_not_the_end_of_it(
    followers: Followers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As accept(2) has it: errors of the network are the connection's own."""
    real = socket.socket.accept
    errors = [OSError(errno.EPROTO, "protocol error"), OSError(errno.EMFILE, "too many open files")]

    def accept(server: socket.socket) -> Any:
        if errors:
            raise errors.pop()
        return real(server)

    monkeypatch.setattr(socket.socket, "accept", accept)
    for _time in range(2):
        with connect(followers, "the one that is being waited for") as stranger:
            assert line(stranger) == b""
    with connect(followers, {"token": TOKEN, "node": 1}) as follower:
        assert json.loads(line(follower)) == {"welcome": True}
    assert not errors


def test_who_sends_a_greeting_byte_by_byte_is_not_waited_for(
    followers: Followers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_llmengine.worker.nodes.followers.GREETING_SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", followers.port), timeout=10) as slow:

        def refused() -> bool:
            try:
                slow.sendall(b" ")
            except OSError:
                return True
            return False

        wait_until(refused)


def test_a_node_is_taken_once_and_its_end_is_told(followers: Followers, news: News) -> None:
    with connect(followers, {"token": TOKEN, "node": 2}) as first:
        assert json.loads(line(first)) == {"welcome": True}
        with connect(followers, {"token": TOKEN, "node": 2}) as second:
            assert line(second) == b""
        assert followers.missing() == [1]
        assert followers.address == "127.0.0.1"
        first.sendall(b'no message\n{"leaving": "got SIGTERM", "seconds": 8}\n{"failed": "out of luck"}\n')
        assert news.told.get(timeout=10) == ("leaving", 2, "got SIGTERM", 8.0)
    assert news.told.get(timeout=10) == ("gone", 2, "out of luck")
    assert (followers.missing(), followers.lost()) == ([1, 2], [2])
    with connect(followers, {"token": TOKEN, "node": 2}) as again:
        assert line(again) == b""


def test_engines_get_another_port_each_time(followers: Followers) -> None:
    with connect(followers, {"token": TOKEN, "node": 1}) as follower, follower.makefile("rb") as told:
        told.readline()
        ports = [followers.start_engines("weights"), followers.start_engines(None)]
        followers.stop_engines()
        messages = [json.loads(told.readline()) for _ in range(3)]
    assert followers.port < ports[0] < ports[1]
    assert messages == [
        {"start": {"port": ports[0], "nodes": 3, "model": "weights"}},
        {"start": {"port": ports[1], "nodes": 3, "model": None}},
        {"stop": True},
    ]


def test_nobody_is_told_of_the_end_that_the_leader_makes(news: News) -> None:
    followers = Followers(2, TOKEN, news, port=0)
    with connect(followers, {"token": TOKEN, "node": 1}) as follower, follower.makefile("rb") as told:
        told.readline()
        followers.close()
        assert told.readline() == b""
    wait_until(lambda: "follower" not in {thread.name for thread in threading.enumerate()})
    assert news.told.empty()


def follower_of(followers: Followers, node: int, engine: type[EchoEngine], **options: Any) -> Follower:
    told: dict[str, Any] = {"token": TOKEN, "patience": 10.0, "grace_seconds": 10.0, **options}
    return Follower(
        FollowerOptions(node=node, leader="127.0.0.1", port=followers.port, **told), Storage(), REQUEST, engine
    )


def test_a_followers_own_failure_is_its_last_word(followers: Followers, news: News) -> None:
    class FailingEngine(EchoEngine):
        async def follow(self) -> None:
            raise EngineDiedError("its GPU has fallen off the bus")

    async def run() -> None:
        task = asyncio.create_task(follower_of(followers, 1, FailingEngine).run())
        await asyncio.to_thread(wait_until, lambda: followers.busy() == [2])
        followers.start_engines(None)
        with pytest.raises(EngineDiedError, match="fallen off the bus"):
            await task

    asyncio.run(run())
    assert news.told.get(timeout=10) == ("gone", 1, "its GPU has fallen off the bus")


def test_a_part_that_ends_by_itself_ends_its_node(followers: Followers, news: News) -> None:
    class EndingEngine(EchoEngine):
        async def follow(self) -> None:
            return

    async def run() -> None:
        task = asyncio.create_task(follower_of(followers, 1, EndingEngine).run())
        await asyncio.to_thread(wait_until, lambda: followers.busy() == [2])
        followers.start_engines(None)
        with pytest.raises(EngineDiedError, match="ended by itself"):
            await task

    asyncio.run(run())
    assert news.told.get(timeout=10)[:2] == ("gone", 1)


def test_a_leader_that_does_not_take_the_node_is_given_up(followers: Followers) -> None:
    with pytest.raises(EngineDiedError, match=r"could not be reached at 127.0.0.1, .* \(it does not take this node\)"):
        asyncio.run(follower_of(followers, 1, EchoEngine, token="another", patience=0.0).run())


def test_nodes_that_do_not_come_in_time_are_named(followers: Followers) -> None:
    engine = LeadingEngine(EchoEngine(REQUEST), followers, patience=0.0)
    with pytest.raises(EngineDiedError, match="nodes 1, 2 of this replica did not connect within 0 s: their pods must"):
        asyncio.run(engine.start())
    with connect(followers, {"token": TOKEN, "node": 1}):
        wait_until(lambda: followers.missing() == [2])
        with pytest.raises(EngineDiedError, match="node 2 of this replica did not connect"):
            asyncio.run(engine.start())


def test_an_engine_is_not_started_again_without_a_node_that_is_gone(followers: Followers) -> None:
    with connect(followers, {"token": TOKEN, "node": 1}):
        wait_until(lambda: followers.missing() == [2])
    wait_until(lambda: followers.lost() == [1])
    engine = LeadingEngine(EchoEngine(REQUEST), followers, patience=60.0)
    with pytest.raises(EngineDiedError, match="node 1 of this replica is gone"):
        asyncio.run(engine.start())


def test_an_engine_for_one_node_is_refused(followers: Followers) -> None:
    class OneNode:
        name = "one"
        version = "1"

    with pytest.raises(EngineUnavailableError, match="the engine one can't span several nodes"):
        LeadingEngine(OneNode(), followers, patience=1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("address", "plain"),
    [("10.0.0.7", "10.0.0.7"), ("::ffff:10.0.0.7", "10.0.0.7"), ("fd00::7", "fd00::7"), ("fe80::1%eth0", "fe80::1")],
)
def test_plain_addresses(address: str, plain: str) -> None:
    assert plain_address(address) == plain
