"""A double of the Hugging Face hub over HTTP: repositories of small files, and the ways in which the hub refuses.

It stands for what the hub's client asks for a model: what a revision is (`/api/models/.../revision/...`), which files
there are (`.../tree/...`), and the files (`/<id>/resolve/<commit>/<file>`). Storage of large files elsewhere (LFS, Xet)
is left out: the double serves every file itself.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_made_up_token"


@dataclass
class Repository:
    """A model's repository."""

    files: dict[str, bytes]
    gated: bool = False
    private: bool = False
    branches: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.branches.setdefault("main", self.commit)

    @property
    def commit(self) -> str:
        named = sorted((name, etag(content)) for name, content in self.files.items())
        return hashlib.sha1(repr(named).encode(), usedforsecurity=False).hexdigest()


@dataclass
class HubServer:
    """A running hub."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    seen: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of each request, the refused ones included."""
    busy: int = 0
    """How many of the next requests are too many."""
    busy_status: int = 429
    retry_after: str | None = "0"
    slow: float = 0.0
    """Seconds by which each file comes late."""
    slow_files: str = ""
    """Only those whose path has this in it."""

    def start(self) -> None:
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def kinds(self) -> Counter[str]:
        """How many requests about models came, of each kind."""
        about = (path for _method, path in self.seen if "/models/" in path or "/resolve/" in path)
        found = (re.search(r"/(tree|resolve)/", path) for path in about)
        return Counter("model" if match is None else match[1] for match in found)

    def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - the handler has a self of its own
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_arguments: object) -> None:
                """Say nothing."""

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                path = unquote(urlsplit(self.path).path)
                if path == "/api/agent-harnesses":
                    # The client asks once for each process, by the way and in each thread: it is nobody's turn.
                    self.answer(404, b"", {})
                    return
                with hub._lock:
                    hub.seen.append((self.command, path))
                    hub.busy -= 1
                    is_busy = hub.busy >= 0
                if is_busy:
                    after = {} if hub.retry_after is None else {"Retry-After": hub.retry_after}
                    self.answer(hub.busy_status, b"too many requests", after)
                    return
                api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?/?", path)
                file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
                found = api or file
                repository = hub.repositories.get(found[1]) if found else None
                has_token = self.headers.get("Authorization") == f"Bearer {TOKEN}"
                if repository is None or (repository.private and not has_token):
                    self.answer(401, b"", {"X-Error-Code": "RepoNotFound"})
                    return
                if api:
                    self.describe(repository, api[1], api[2], api[3] or "main")
                elif file:
                    if repository.gated and not has_token:
                        self.answer(403, b"", {"X-Error-Code": "GatedRepo"})
                        return
                    self.send(repository, file[3])

            def describe(self, repository: Repository, name: str, kind: str | None, revision: str) -> None:
                commit = repository.branches.get(revision, revision)
                if commit != repository.commit:
                    self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
                    return
                if kind == "tree":
                    answer: object = [
                        {"type": "file", "path": path, "size": len(content), "oid": etag(content)}
                        for path, content in repository.files.items()
                    ]
                else:
                    siblings = [{"rfilename": path} for path in repository.files]
                    answer = {"id": name, "modelId": name, "sha": commit, "siblings": siblings, "tags": []}
                self.answer(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

            def send(self, repository: Repository, path: str) -> None:
                content = repository.files.get(path)
                if content is None:
                    self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
                    return
                if self.command == "GET" and hub.slow_files in path:
                    time.sleep(hub.slow)
                headers = {"ETag": f'"{etag(content)}"', "X-Repo-Commit": repository.commit, "Accept-Ranges": "bytes"}
                self.answer(200, content, headers)

            def answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for header, value in headers.items():
                    self.send_header(header, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

        return Handler


@functools.lru_cache(1000)
def etag(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()
