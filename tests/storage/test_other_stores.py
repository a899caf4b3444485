"""Stores that are reached through fsspec's common interface, and those that can't be."""

from __future__ import annotations

import hashlib
import http.server
import logging
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError
from fsspec.registry import _registry

from airflow_llmengine.storage.errors import (
    StorageChangedError,
    StorageDeniedError,
    StorageError,
    StorageNoBucketError,
    StorageNotFoundError,
    StorageUnsupportedError,
)
from airflow_llmengine.storage.failures import diagnose
from airflow_llmengine.storage.filesystem import Storage, content_identity
from airflow_llmengine.storage.inputs import list_input
from tests.storage.azurite import ACCOUNT, KEY, Azurite
from tests.storage.conftest import BUCKET, QUICK, Place
from tests.storage.gcs_server import TOKEN, Fault, GCSServer
from tests.storage.s3_server import S3Server

# aiohttp's advice to those who hand it megabytes at once.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")


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


# Commits


def test_a_create_whose_answer_is_lost_is_known_by_its_content(gcs: Place, gcs_server: GCSServer) -> None:
    gcs_server.faults.append(Fault("POST", "/upload/", executed=True))

    assert gcs.at("file").create(b"ours")
    assert not gcs.at("file").create(b"theirs")
    assert gcs.at("file").read_bytes() == b"ours"


def test_a_store_that_overwrites_is_refused(gcs: Place, gcs_server: GCSServer) -> None:
    """As the emulator does by itself."""
    gcs_server.ignores_conditions = True
    storage = Storage({"gs": gcs_server.options}, retry=QUICK)

    with pytest.raises(StorageUnsupportedError, match="overwrites files that it was told to create only if absent"):
        storage.location(f"{gcs.base}/a").create(b"x")

    assert gcs.storage.location(gcs.base).list() == []


def test_a_store_without_exclusive_create_is_refused(gcs: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, _ = gcs.storage.backend_of(gcs.base)

    def pipe_file(path: str, value: bytes, **options: Any) -> None:
        raise NotImplementedError

    monkeypatch.setattr(backend._filesystem, "pipe_file", pipe_file)  # type: ignore[attr-defined]

    with pytest.raises(StorageUnsupportedError, match="this store can't do that"):
        gcs.at("a").create(b"x")


@pytest.mark.parametrize("store", ["gcs", "azure"])
def test_an_exception_leaves_nothing(request: pytest.FixtureRequest, store: str) -> None:
    place: Place = request.getfixturevalue(store)

    def write_half() -> None:
        with place.at("output").writer() as out:
            out.write(b"half" * 2**21)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()

    assert not place.at("output").exists()


# Reading and listing


@pytest.mark.parametrize("store", ["gcs", "azure"])
def test_a_file_that_is_replaced_while_it_is_read_is_told(request: pytest.FixtureRequest, store: str) -> None:
    place: Place = request.getfixturevalue(store)
    place.at("file").replace(b"a" * (20 * 2**20))

    with place.at("file").open_read() as file:
        assert file.read(10) == b"a" * 10
        place.at("file").replace(b"b" * (20 * 2**20))
        with pytest.raises(StorageChangedError, match="file: it was replaced while it was being read"):
            file.read()


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_nobody_can_ask_for_stale_listings(
    s3: Place, s3_server: S3Server, gcs: Place, gcs_server: GCSServer, scheme: str
) -> None:
    place, options = (s3, s3_server.options) if scheme == "s3" else (gcs, gcs_server.options)
    stale = {scheme: {**options, "use_listings_cache": True, "skip_instance_cache": False}}
    folder = Storage(stale, retry=QUICK).location(place.base)

    assert folder.list() == []
    place.put("a")
    assert [entry.name for entry in folder.list()] == ["a"]
    place.put("b")
    assert [entry.name for entry in folder.walk()] == ["a", "b"]
    place.at("a").delete()
    assert folder.child("a").info() is None
    assert [entry.name for entry in folder.list()] == ["b"]


def test_placeholders_of_folders_are_no_files(gcs: Place) -> None:
    backend, path = gcs.storage.backend_of(gcs.base)
    for name in ("folder/", "folder/empty/"):
        backend._filesystem.pipe_file(f"{path}/{name}", b"")  # type: ignore[attr-defined]
    gcs.put("folder/file")

    assert [entry.name for entry in gcs.at("folder").list()] == ["file"]
    assert [entry.name for entry in gcs.at("folder").walk()] == ["file"]
    assert gcs.at("folder").folders() == ["empty"]
    gcs.at("folder").delete_tree()
    assert gcs.at("folder").folders() == []


def test_a_name_that_looks_like_a_generation_is_a_name(gcs_server: GCSServer, gcs: Place) -> None:
    gcs.put("part#1", "part#2")
    storage = Storage({"gs": gcs_server.options}, retry=QUICK)

    assert storage.location(f"{gcs.base}/part#1").read_bytes() == b"part#1"
    assert storage.location(f"{gcs.base}/part#3").info() is None


def test_the_same_content_put_again_is_the_same_file_on_googles_store(gcs: Place) -> None:
    gcs.put("file")
    first = gcs.at("file").info()
    gcs.put("file")

    assert gcs.at("file").info() == first
    assert first is not None
    assert first.md5 == hashlib.md5(b"file", usedforsecurity=False).hexdigest()


# Failures


def test_transient_failures_are_tried_again(gcs: Place, gcs_server: GCSServer) -> None:
    gcs.put("file")
    gcs_server.faults.append(Fault("GET", "/file", status=503))

    assert gcs.at("file").read_bytes() == b"file"
    assert not gcs_server.faults[0].times


@pytest.mark.parametrize(
    ("status", "kind", "reason"),
    [
        (401, StorageDeniedError, "the store answered 401; check the credentials and what they permit"),
        (403, StorageDeniedError, "the store answered 403; check the credentials and what they permit"),
        (404, StorageNotFoundError, "it does not exist; check its spelling"),
        (400, StorageError, "the store answered 400"),
    ],
)
def test_googles_refusals_are_one_sentence(
    gcs: Place,
    gcs_server: GCSServer,
    caplog: pytest.LogCaptureFixture,
    status: int,
    kind: type[StorageError],
    reason: str,
) -> None:
    gcs_server.faults.append(Fault("GET", "/file", status=status, message=f"{TOKEN} is invalid"))

    with pytest.raises(StorageError, match=f"^Cannot read {gcs.base}/file: {reason}") as caught:
        gcs.at("file").read_bytes()

    assert type(caught.value) is kind
    assert TOKEN not in str(caught.value)
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


@pytest.mark.parametrize(("store", "kind"), [("gcs", "bucket"), ("azure", "container")])
def test_what_holds_all_files_and_does_not_exist_is_told(request: pytest.FixtureRequest, store: str, kind: str) -> None:
    place: Place = request.getfixturevalue(store)
    file = place.storage.location(place.base.replace(BUCKET, "no-such-bucket", 1))
    told = f"the {kind} does not exist; create it or correct its name"

    for action in (lambda: file.create(b""), file.require_commits, lambda: file.replace(b"")):
        with pytest.raises(StorageNotFoundError, match=told):
            action()
    with pytest.raises(StorageNotFoundError, match=told), file.writer() as out:
        out.write(b"x")
    assert file.list() == []


def test_a_container_that_does_not_exist_is_told_to_who_reads(azure: Place) -> None:
    with pytest.raises(StorageNoBucketError, match="the container does not exist; create it or correct its name"):
        azure.storage.location("az://no-such-container/file").read_bytes()


def test_a_key_that_azure_does_not_take_is_one_sentence(azurite: Azurite, azure: Place) -> None:
    wrong = azurite.connection_string.replace(KEY, "bm90IHRoZSBrZXk=")
    storage = Storage({"az": {"connection_string": wrong}}, retry=QUICK)

    with pytest.raises(
        StorageDeniedError, match=rf"^Cannot read {azure.base}/file: the store answered 403 [A-Z]\w+;"
    ) as caught:
        storage.location(f"{azure.base}/file").read_bytes()

    assert "check the credentials" in str(caught.value)
    assert "AccountKey" not in str(caught.value)


def test_azure_without_an_account_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StorageUnsupportedError) as caught:
        Storage().location("az://container/file").exists()

    assert str(caught.value) == (
        "az://container/file names no storage account: write abfs://container@account.dfs.core.windows.net/..., or "
        "set account_name in the storage options of az, or AZURE_STORAGE_ACCOUNT_NAME."
    )


def test_azure_without_a_token_is_without_credentials() -> None:
    found = diagnose(ClientAuthenticationError("DefaultAzureCredential failed to retrieve a token"))
    refused = diagnose(ClientAuthenticationError(response=SimpleNamespace(status_code=403, reason="Forbidden")))

    assert (found.error, found.transient) == (StorageDeniedError, False)
    assert found.reason.startswith("no valid credentials were found")
    assert refused.reason.startswith("the store answered 403;")


def test_azure_takes_its_account_from_the_url() -> None:
    storage = Storage({"az": {"account_key": KEY}}, retry=QUICK)

    backend, path = storage.backend_of(f"abfss://data@{ACCOUNT}.dfs.core.windows.net/folder/file")

    assert backend._filesystem.account_name == ACCOUNT  # type: ignore[attr-defined]
    assert backend._address(path) == "data/folder/file"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("az://box/key", {"az": {"connection_string": "made up, and secret"}}),
        ("gs://box/key", {"gs": {"token": {"type": "service_account", "private_key": "made up, and secret"}}}),
    ],
    ids=["connection string", "service account"],
)
def test_credentials_that_are_none_are_told_and_not_shown(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(StorageDeniedError, match=r"Cannot open .*: the options or credentials .* not valid") as told:
        Storage(options, retry=QUICK).location(url).info()
    assert "secret" not in str(told.value)
