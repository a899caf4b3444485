"""Google Cloud Storage over HTTP: gcp-storage-emulator, and what it lacks of the real API.

What is added is what commits and reads rest on: the precondition ``ifGenerationMatch``, an etag that each upload has
for itself, uploads that are cancelled, the answer 416 to a range that begins behind the end, and several requests at a
time, each done as a whole.
"""

from __future__ import annotations

import io
import json
import logging
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import buckets
from gcp_storage_emulator.server import RequestHandler, Router
from gcp_storage_emulator.storage import Storage as EmulatedStorage
from typing_extensions import override

TOKEN = "made-up-token-that-must-never-be-shown"


@dataclass
class Fault:
    """What goes wrong with the next requests that match."""

    method: str
    path: str = ""
    """Must be part of the path."""
    status: int = 503
    message: str = "Backend Error"
    executed: bool = False
    """Whether the store does what it is asked, and only the answer is lost."""
    times: int = 1


@dataclass
class GCSServer:
    """A running server. ``faults`` are used up in order; ``seen`` tells which requests came."""

    faults: list[Fault] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of each request."""
    tokens: set[str] = field(default_factory=set)
    """What requests were authorized by."""
    ignores_conditions: bool = False
    """As the emulator is by itself: an object is overwritten where it should be created only if absent."""

    def start(self) -> None:
        for name in ("api", "gcp_storage_emulator"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self.objects = _Objects(use_memory_fs=True)
        self.lock = threading.Lock()
        owner = self

        class Handler(_Handler):
            server_of_tests = owner

        self._server = _QuietServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def reset(self) -> None:
        self.faults.clear()
        self.seen.clear()
        self.tokens.clear()
        self.ignores_conditions = False

    def new_bucket(self, name: str) -> str:
        buckets.create_bucket(name, self.objects)
        return name

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def options(self) -> dict[str, Any]:
        """What ``Storage`` takes for ``gs``."""
        return {"endpoint_url": self.endpoint, "token": "anon"}

    def next_fault(self, method: str, path: str) -> Fault | None:
        for fault in self.faults:
            if fault.times and fault.method == method and fault.path in path:
                fault.times -= 1
                return fault
        return None

    def has(self, bucket: str, name: str) -> bool:
        try:
            self.objects.get_file_obj(bucket, name)
        except NotFound:
            return False
        return True


class _Objects(EmulatedStorage):  # type: ignore[misc]
    def create_file(self, bucket_name: str, file_name: str, content: bytes, file_obj: Any, *arguments: Any) -> Any:
        file_obj["generation"] = str(time.time_ns())
        file_obj["etag"] = f"C{file_obj['generation']}="
        return super().create_file(bucket_name, file_name, content, file_obj, *arguments)


class _QuietServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that are gone when they have what they need."""


class _Handler(RequestHandler):  # type: ignore[misc]
    """One request. Each is done under the server's lock: a store's objects change at one moment."""

    server_of_tests: GCSServer
    rfile: Any
    wfile: Any
    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments: Any) -> None:
        BaseHTTPRequestHandler.__init__(self, *arguments)

    @property
    def storage(self) -> EmulatedStorage:
        return self.server_of_tests.objects

    @override
    def do_GET(self) -> None:
        self._handle("GET")

    @override
    def do_POST(self) -> None:
        self._handle("POST")

    @override
    def do_PUT(self) -> None:
        self._handle("PUT")

    @override
    def do_DELETE(self) -> None:
        self._handle("DELETE")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass

    def _handle(self, method: str) -> None:
        server, parts = self.server_of_tests, urlsplit(self.path)
        self._body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        server.seen.append((method, unquote(parts.path)))
        if "Authorization" in self.headers:
            server.tokens.add(self.headers["Authorization"])
        fault = server.next_fault(method, unquote(parts.path))
        if fault is not None and not fault.executed:
            self._refuse(fault.status, fault.message)
            return
        with server.lock:
            if self._is_refused(method, parse_qs(parts.query)):
                return
            connection = self.rfile, self.wfile
            self.rfile = io.BytesIO(self._body)
            if fault is not None:
                self.wfile = io.BytesIO()
            try:
                Router(self).handle(method)
            finally:
                self.rfile, self.wfile = connection
        if fault is not None:
            self._refuse(fault.status, fault.message)

    def _is_refused(self, method: str, query: dict[str, list[str]]) -> bool:
        """Refuse what the emulator would do, and the real store does not."""
        server, parts = self.server_of_tests, unquote(urlsplit(self.path).path).split("/")
        if method == "DELETE" and "upload_id" in query:
            self._refuse(499, "The upload was cancelled")
            return True
        if query.get("ifGenerationMatch") == ["0"] and "upload_id" not in query and not server.ignores_conditions:
            bucket = parts[parts.index("b") + 1]
            if server.has(bucket, query["name"][0] if "name" in query else self._name()):
                self._refuse(412, "At least one of the pre-conditions you specified did not hold.")
                return True
        if method == "GET" and "Range" in self.headers and "o" in parts:
            bucket, name = parts[parts.index("b") + 1], "/".join(parts[parts.index("o") + 1 :])
            first = self.headers["Range"].removeprefix("bytes=").partition("-")[0]
            if first and server.has(bucket, name) and int(first) >= len(self.storage.get_file(bucket, name)):
                self._refuse(416, "Request range not satisfiable")
                return True
        return False

    def _name(self) -> str:
        """The name of the object in the body of an upload in one request."""
        described = self._body.split(b"\n\n", 1)[1].split(b"\n--", 1)[0]
        name: str = json.loads(described)["name"]
        return name

    def _refuse(self, status: int, message: str) -> None:
        body = json.dumps({"error": {"code": status, "message": message}}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
