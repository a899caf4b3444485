"""The lifeline between the nodes of a replica: who sends what over it, and how its end is noticed.

A follower connects to the leader and greets it; from then on both hold the connection. Its end is the end of the
replica: a kernel closes the connections of a process that dies, and a machine that dies stops answering probes. Each
message is a JSON object on a line of its own. None holds anything private but the token in the greeting, which only
tells the followers of this attempt from strangers.
"""

from __future__ import annotations

import ipaddress
import json
import socket
from typing import Any

LINE_LIMIT = 16_384
"""Bytes of a message."""

SILENT_SECONDS = 60
"""So long a machine may not answer before it is taken for dead."""

_PROBE_SECONDS = 10


def encode(message: dict[str, Any]) -> bytes:
    """The message as it is sent."""
    return json.dumps(message).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """The message of a line; empty where it is none."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def notice_silence(connection: socket.socket) -> None:
    """Have the system end a connection whose other machine is gone: nothing is sent over it for hours otherwise."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", _PROBE_SECONDS),
        ("TCP_KEEPINTVL", _PROBE_SECONDS),
        ("TCP_KEEPCNT", SILENT_SECONDS // _PROBE_SECONDS - 1),
        ("TCP_USER_TIMEOUT", SILENT_SECONDS * 1000),
    ):
        # Not every system has each.
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def plain_address(address: str) -> str:
    """An IP address without a zone, and as IPv4 where it only looks like IPv6."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)
