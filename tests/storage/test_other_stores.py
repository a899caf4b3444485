"""Stores that are reached through fsspec's common interface, and those that can't be."""

from __future__ import annotations

import http.server
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fsspec.registry import _registry, register_implementation

from airflow_llmengine.storage.errors import StorageNotFoundError, StorageUnsupportedError
from airflow_llmengine.storage.filesystem import Storage, content_identity
from airflow_llmengine.storage.inputs import list_input
from tests.storage.conftest import BUCKET, QUICK, OtherObjectStore, Place
from tests.storage.s3_server import Fault, S3Server


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """The URL of a web server that serves ``tmp_path``."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_QuietHandler, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_file_on_the_web_is_an_input(web: str, tmp_path: Path) -> None:
    (tmp_path / "input.jsonl").write_bytes(b'{"prompt": "a"}\n')
    storage = Storage(retry=QUICK)

    (entry,) = list_input(storage, f"{web}/input.jsonl")

    assert (entry.name, entry.size) == ("input.jsonl", 16)
    location = storage.location(entry.url)
    assert location.read_bytes() == b'{"prompt": "a"}\n'
    assert location.open_read().readline() == b'{"prompt": "a"}\n'
    assert content_identity(location).startswith("sha256:")
    with pytest.raises(StorageNotFoundError):
        storage.location(f"{web}/nothing").read_bytes()


def test_the_web_is_no_place_for_a_job(web: str) -> None:
    location = Storage(retry=QUICK).location(f"{web}/output.json?signature=secret")

    for action in (
        lambda: location.create(b"x"),
        lambda: location.replace(b"x"),
        location.open_write,
        location.require_commits,
        location.delete,
        location.delete_tree,
    ):
        with pytest.raises(StorageUnsupportedError, match=f"^{web}/output.json can only be read: ") as caught:
            action()
        assert "secret" not in str(caught.value)


def test_an_unknown_scheme_is_told() -> None:
    with pytest.raises(
        StorageUnsupportedError, match=r"Nothing can open nonsense://a/b: the scheme 'nonsense' is unknown"
    ):
        Storage().location("nonsense://a/b").exists()


@pytest.mark.parametrize(
    ("url", "module", "package", "extra"),
    [
        ("s3://bucket/a", "s3fs", "s3fs", "s3"),
        ("gs://bucket/a", "gcsfs", "gcsfs", "gcs"),
        ("az://container/a", "adlfs", "adlfs", "azure"),
        ("abfs://container@account.dfs.core.windows.net/a", "adlfs", "adlfs", "azure"),
    ],
)
def test_a_package_that_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, url: str, module: str, package: str, extra: str
) -> None:
    for protocol in ("s3", "gs", "az"):
        monkeypatch.delitem(_registry, protocol, raising=False)
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(StorageUnsupportedError) as caught:
        Storage().location(url).exists()

    assert str(caught.value) == (
        f"Nothing can open {url} here: install the package {package}, or airflow-llmengine[{extra}]."
    )


def test_a_create_whose_answer_is_lost_is_known_by_its_content(other: Place, s3_server: S3Server) -> None:
    s3_server.faults.append(Fault("PUT", executed=True))

    assert other.at("file").create(b"ours")
    assert not other.at("file").create(b"theirs")
    assert other.at("file").read_bytes() == b"ours"


def test_a_store_that_overwrites_is_refused(s3_server: S3Server, other: Place) -> None:
    s3_server.ignores_conditions = True
    storage = Storage({"gs": s3_server.options}, retry=QUICK)

    with pytest.raises(StorageUnsupportedError, match="overwrites files that it was told to create only if absent"):
        storage.location(f"{other.base}/a").create(b"x")

    assert other.storage.location(other.base).list() == []


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_nobody_can_ask_for_stale_listings(other: Place, s3_server: S3Server, scheme: str) -> None:
    options = {scheme: {**s3_server.options, "use_listings_cache": True, "skip_instance_cache": False}}
    folder = Storage(options, retry=QUICK).location(other.base.replace("gs", scheme, 1))

    assert folder.list() == []
    other.put("a")
    assert [entry.name for entry in folder.list()] == ["a"]
    other.put("b")
    assert [entry.name for entry in folder.walk()] == ["a", "b"]
    other.at("a").delete()
    assert folder.child("a").info() is None
    assert [entry.name for entry in folder.list()] == ["b"]


def test_an_exception_aborts_the_upload(other: Place, s3_server: S3Server) -> None:
    def write_half() -> None:
        with other.at("output").writer() as out:
            out.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()

    prefix = other.base.removeprefix(f"gs://{BUCKET}/")
    assert "Uploads" not in s3_server.client.list_multipart_uploads(Bucket=BUCKET, Prefix=prefix)


class NotImplementedStore(OtherObjectStore):
    """Stands for a file system whose ``pipe_file`` knows no ``mode``."""

    protocol = ("gs",)

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        raise NotImplementedError


def test_a_store_without_exclusive_create_is_refused(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(_registry, "gs", raising=False)
    register_implementation("gs", NotImplementedStore, clobber=True)
    storage = Storage({"gs": s3_server.options}, retry=QUICK)

    with pytest.raises(StorageUnsupportedError, match="this store can't do that"):
        storage.location(f"gs://{BUCKET}/a").create(b"x")
