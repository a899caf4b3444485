"""S3 over real HTTP: moto's server, with faults that can be put between it and the client."""

from __future__ import annotations

import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

ACCESS_KEY = "AKIAMADEUPACCESSKEY0"
SPARED_ACCESS_KEY = "AKIAMADEUPACCESSKEY1"
"""Whoever uses this one meets no fault."""
POD_ACCESS_KEY = "AKIAMADEUPACCESSKEY2"
"""What pods have for themselves, where they are not given Airflow's."""
SECRET_KEY = "made/up/secret/key/that/must/never/be/shown"

Environ = dict[str, Any]
StartResponse = Callable[..., Any]


@dataclass
class Fault:
    """What goes wrong with the next requests that match."""

    method: str
    query: str = ""
    """Must be part of the query string."""
    path: str = ""
    """Must be part of the path."""
    executed: bool = False
    """Whether the store does what it is asked before it goes wrong: then only the answer is lost."""
    status: int | None = 503
    """What is answered; None: the connection is cut."""
    code: str = "ServiceUnavailable"
    times: int = 1
    wait: int = 0
    """How many requests that match go well before."""
    matches: Callable[[str, str, str], bool] | None = None
    """Decides by method, path and query string instead of ``method``, ``query`` and ``path``."""
    delay: float | None = None
    """Seconds by which the answer is late, and nothing else."""
    half: bool = False
    """The answer breaks off in the middle of its body."""
    met: Callable[[], None] = lambda: None
    """Called when a request meets it."""


@dataclass(frozen=True)
class Asked:
    """A request and who made it."""

    access_key: str
    """The one that it is signed with; empty if it is not."""
    address: str
    method: str
    path: str


@dataclass
class S3Server:
    """A running server. ``faults`` are used up in order; ``seen`` tells which requests came."""

    faults: list[Fault] = field(default_factory=list)
    seen: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and query string of each request."""
    asked: list[Asked] = field(default_factory=list)
    """The same, with who made them."""
    sent: dict[str, int] = field(default_factory=dict)
    """By path, the bytes of objects that were sent in answers to GET."""
    refused_keys: set[str] = field(default_factory=set)
    """Access keys that it does not know."""
    host: str = "127.0.0.1"
    """The address at which it listens."""
    ignores_conditions: bool = False
    """Stands for a store that knows nothing of conditional puts and overwrites."""

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[S3Server]:
        """A server for as long as the block takes."""
        server = cls()
        server.start()
        try:
            yield server
        finally:
            server.stop()

    def start(self) -> None:
        moto = DomainDispatcherApplication(create_backend_app)

        def application(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
            return self._answer(moto, environ, start_response)

        self._server = make_server(self.host, 0, application, threaded=True, request_handler=_QuietHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
        )

    def new_bucket(self) -> str:
        """Make a bucket that no other test has: moto keeps what the others of this process have put into theirs."""
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        self.client.create_bucket(Bucket=name)
        return name

    def stop(self) -> None:
        self.client.close()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def reset(self) -> None:
        self.faults.clear()
        self.seen.clear()
        self.asked.clear()
        self.sent.clear()
        self.refused_keys.clear()
        self.ignores_conditions = False

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self._server.server_port}"

    @property
    def options(self) -> dict[str, Any]:
        """What ``Storage`` takes for ``s3``."""
        return {
            "endpoint_url": self.endpoint,
            "key": ACCESS_KEY,
            "secret": SECRET_KEY,
            "client_kwargs": {"region_name": "us-east-1"},
        }

    def count(self, method: str, path: str = "") -> int:
        return sum(1 for seen in self.seen if seen[0] == method and path in seen[1])

    def _answer(self, moto: Any, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        method, path, query = environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("QUERY_STRING", "")
        self.seen.append((method, path, query))
        signed = re.search(r"Credential=([^/]*)/", environ.get("HTTP_AUTHORIZATION", ""))
        access_key = signed.group(1) if signed else ""
        self.asked.append(Asked(access_key, environ.get("REMOTE_ADDR", ""), method, path))
        if self.ignores_conditions:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        fault = None if access_key == SPARED_ACCESS_KEY else self._next_fault(method, path, query)
        if access_key in self.refused_keys:
            fault = Fault(method, status=403, code="InvalidAccessKeyId")
        if fault is not None and fault.delay is not None:
            time.sleep(fault.delay)
        if fault is None or fault.delay is not None:
            answer: Iterable[bytes] = moto(environ, start_response)
            return self._counted(answer, path) if method == "GET" else answer
        if fault.half:
            body = b"".join(moto(environ, start_response))
            return _broken_off(body[: len(body) // 2], environ["werkzeug.socket"])
        if fault.executed:
            for _ in moto(environ, lambda *_arguments: None):
                pass
        else:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if fault.status is None:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError("cut by the test")
        start_response(f"{fault.status} Fault", [("Content-Type", "application/xml")])
        if method == "HEAD":
            return []
        message = f"about {ACCESS_KEY} and {SECRET_KEY}"
        return [f"<Error><Code>{fault.code}</Code><Message>{message}</Message></Error>".encode()]

    def _counted(self, answer: Iterable[bytes], path: str) -> Iterator[bytes]:
        for piece in answer:
            self.sent[path] = self.sent.get(path, 0) + len(piece)
            yield piece

    def _next_fault(self, method: str, path: str, query: str) -> Fault | None:
        for fault in list(self.faults):
            plain = fault.method == method and fault.query in query and fault.path in path
            if fault.times and (plain if fault.matches is None else fault.matches(method, path, query)):
                if fault.wait:
                    fault.wait -= 1
                    continue
                fault.times -= 1
                fault.met()
                return fault
        return None


def _broken_off(data: bytes, connection: socket.socket) -> Iterator[bytes]:
    yield data
    connection.shutdown(socket.SHUT_RDWR)
    raise ConnectionAbortedError("cut by the test")


class _QuietHandler(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing: pytest would show every request of a failed test."""
