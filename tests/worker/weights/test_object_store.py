"""A checkpoint on an object store becomes a folder: whole, once, and under every fault that can be made here."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.storage import s3 as s3_store
from airflow_llmengine.storage.errors import (
    StorageChangedError,
    StorageDeniedError,
    StorageError,
    StorageNotFoundError,
    StorageUnsupportedError,
)
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.engines.base import ModelChangedError, ModelNotFoundError
from airflow_llmengine.worker.weights import folder as cache_folder
from airflow_llmengine.worker.weights.model_files import ModelFiles
from airflow_llmengine.worker.weights.model_source import ModelSource
from tests.storage.s3_server import Fault, S3Server
from tests.worker.weights.checkpoints import RANGE, model, put, ranges

HIDDEN = ".llmengine-"


def request(url: str, **fields: Any) -> CreateBatchCompletionsV1Request:
    return CreateBatchCompletionsV1Request.model_validate(
        {
            "input_data_path": "in",
            "output_data_path": "out",
            "model_config": {"model": "small", "checkpoint_path": url, **fields},
        }
    )


class Shelf(NamedTuple):
    """A bucket, and a cache that it is fetched into."""

    server: S3Server
    storage: Storage
    bucket: str
    folder: str
    """The model's, in the bucket."""
    cache: Path

    def put(self, files: dict[str, bytes]) -> str:
        return put(self.server, self.bucket, files, self.folder)

    def find(self, url: str, pinned: str | None = None, **fields: Any) -> ModelSource:
        return ModelFiles(self.storage, request(url, **fields), pinned=lambda: pinned).find()

    def reads(self) -> int:
        """How many ranges of objects were asked for."""
        return sum(method == "GET" and "list-type" not in query for method, _path, query in self.server.seen)


@pytest.fixture
def shelf(server: S3Server, storage: Storage, bucket: str, cache: Path) -> Shelf:
    return Shelf(server, storage, bucket, f"{uuid.uuid4().hex[:8]}/models/small", cache)


def content(folder: Path) -> dict[str, bytes]:
    """What an engine sees."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.relative_to(folder).as_posix().startswith(".")
    }


def test_it_is_fetched_whole_and_once(shelf: Shelf) -> None:
    files = model()
    url = shelf.put({**files, "original/consolidated.00.pth": b"not needed", ".gitattributes": b"", "model.onnx": b"n"})
    shelf.server.seen.clear()
    found = shelf.find(url)
    assert content(found.directory) == files
    assert found.directory.parent == shelf.cache
    assert found.directory.name.startswith("small-")
    assert shelf.reads() == ranges(files)
    shelf.server.seen.clear()
    assert shelf.find(f"{url}/") == found, "however it is written"
    assert shelf.reads() == 0
    assert len(shelf.server.seen) == 1, "it takes one listing to know that it is here"
    assert not list(found.directory.glob(f"{HIDDEN}fetch*")), "nothing is left of the fetch"


def test_a_changed_checkpoint_is_another_folder_and_another_identity(shelf: Shelf) -> None:
    before = shelf.find(shelf.put(model(1)))
    assert before.identity is not None
    url = shelf.put({"tokenizer/vocabulary.json": b'{"word": 2}'})
    with pytest.raises(ModelChangedError, match=r"are checkpoint-etags-sha256:.* attempt of this job used checkpoint-"):
        shelf.find(url, pinned=before.identity)
    assert len(list(shelf.cache.glob("small-*"))) == 1, "it is refused before it is fetched"
    after = shelf.find(url)
    assert (after.directory != before.directory, after.identity != before.identity) == (True, True)
    assert content(before.directory)["tokenizer/vocabulary.json"] == b'{"word": 1}', "who uses it keeps it"


def test_its_identity_needs_no_cache(shelf: Shelf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = shelf.put(model())
    first = shelf.find(url)
    monkeypatch.setenv("LLMENGINE_MODEL_CACHE", str(tmp_path / "another"))
    second = shelf.find(url, pinned=first.identity)
    assert (second.identity, second.directory.name) == (first.identity, first.directory.name)


def test_many_workers_at_once_fetch_it_once(shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    files = model()
    url = shelf.put(files)
    # Late answers, so that all have begun before it is whole.
    shelf.server.faults.append(Fault("GET", path="model-1", delay=0.1, times=100))
    shelf.server.seen.clear()
    with caplog.at_level(logging.INFO, "airflow_llmengine"), ThreadPoolExecutor(8) as workers:
        found = list(workers.map(lambda _number: shelf.find(url), range(8)))
    assert len(set(found)) == 1
    assert content(found[0].directory) == files
    assert shelf.reads() == ranges(files)
    assert f"waiting for another worker, which is at the fetch of {url}" in caplog.text


def test_where_the_file_system_knows_no_locks_it_is_fetched_all_the_same(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    files = model()
    url = shelf.put(files)
    shelf.server.faults.append(Fault("GET", path="model-1", delay=0.05, times=100))
    with ThreadPoolExecutor(3) as workers:
        found = list(workers.map(lambda _number: shelf.find(url), range(3)))
    assert len(set(found)) == 1
    assert content(found[0].directory) == files
    assert f"the file system of {shelf.cache} knows no file locks" in caplog.text


def interrupted(shelf: Shelf, url: str, after: int) -> None:
    """Fetch so many ranges, and then be refused."""
    shelf.server.faults.append(Fault("GET", path="/models/", status=403, code="AccessDenied", times=1000, wait=after))
    with pytest.raises(StorageDeniedError):
        shelf.find(url)
    shelf.server.reset()


def test_a_fetch_goes_on_where_an_earlier_one_ended(shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    files = model()
    url = shelf.put(files)
    interrupted(shelf, url, 20)
    with caplog.at_level(logging.INFO, "airflow_llmengine"):
        assert content(shelf.find(url).directory) == files
    assert shelf.reads() == ranges(files) - 20
    assert "were there already" in caplog.text


def test_what_an_earlier_fetch_left_is_not_believed(shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    files = model()
    url = shelf.put(files)
    interrupted(shelf, url, 20)
    largest = max(shelf.cache.glob(f"*/{HIDDEN}fetch/*.partial"), key=lambda path: path.stat().st_size)
    with largest.open("r+b") as partial:
        partial.seek(RANGE // 2)
        partial.write(b"damaged")
    with caplog.at_level(logging.INFO, "airflow_llmengine"):
        assert content(shelf.find(url).directory) == files
    assert "what an earlier worker left of model-1.safetensors is damaged" in caplog.text
    assert shelf.reads() == ranges(files) - 20 + 1


def test_notes_that_were_cut_off_are_none(shelf: Shelf) -> None:
    files = model()
    url = shelf.put(files)
    interrupted(shelf, url, 20)
    for notes in shelf.cache.glob(f"*/{HIDDEN}fetch/*.ranges"):
        with notes.open("ab") as file:
            file.write(b"\xff\x00 x\n3 abc\n999999 0")
    assert content(shelf.find(url).directory) == files


def test_a_file_that_somebody_deleted_is_fetched_again(shelf: Shelf) -> None:
    files = model()
    url = shelf.put(files)
    found = shelf.find(url)
    (found.directory / "config.json").unlink()
    shelf.server.seen.clear()
    assert content(shelf.find(url).directory) == files
    assert shelf.reads() == 1


def test_a_checkpoint_that_is_changed_while_it_is_fetched(shelf: Shelf) -> None:
    url = shelf.put(model(1))
    changed = model(2)

    def change() -> None:
        shelf.put({"model-1.safetensors": changed["model-1.safetensors"]})

    shelf.server.faults.append(Fault("GET", path="model-1", wait=3, delay=0, met=change))
    with pytest.raises(StorageChangedError, match="the checkpoint was changed while it was fetched; run the job again"):
        shelf.find(url)
    found = content(shelf.find(url).directory)
    assert found["model-1.safetensors"] == changed["model-1.safetensors"]


def test_a_store_that_reads_on_in_an_object_that_was_replaced(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """As stores do whose reads know no condition: the change is found at the file's end."""
    intact = s3_store.S3Backend.read_part
    monkeypatch.setattr(
        s3_store.S3Backend,
        "read_part",
        lambda backend, path, start, end, _tag: intact(backend, path, start, end, None),
    )
    url = shelf.put(model(1))
    changed = model(2)["model-1.safetensors"]

    def change() -> None:
        shelf.put({"model-1.safetensors": changed})

    shelf.server.faults.append(Fault("GET", path="model-1", wait=3, delay=0, met=change))
    with pytest.raises(StorageChangedError, match="the checkpoint was changed while it was fetched"):
        shelf.find(url)


def test_an_object_that_is_deleted_while_it_is_fetched(shelf: Shelf) -> None:
    url = shelf.put(model())

    def delete() -> None:
        shelf.server.client.delete_object(Bucket=shelf.bucket, Key=f"{shelf.folder}/model-1.safetensors")

    shelf.server.faults.append(Fault("GET", path="model-1", wait=3, delay=0, met=delete))
    with pytest.raises(StorageChangedError, match="the checkpoint was changed while it was fetched"):
        shelf.find(url)


def test_a_storm_of_503_is_ridden_out(shelf: Shelf) -> None:
    files = model()
    url = shelf.put(files)
    shelf.server.faults += [Fault("GET", path="/models/", times=8, code="SlowDown"), Fault("GET", half=True, wait=3)]
    assert content(shelf.find(url).directory) == files


def test_a_store_that_is_busy_for_too_long(shelf: Shelf) -> None:
    url = shelf.put(model())
    shelf.server.faults.append(Fault("GET", path="/models/", times=1000, code="SlowDown"))
    with pytest.raises(StorageError, match=r"Cannot read s3://.*: the store answered 503 SlowDown; try again later"):
        shelf.find(url)


def corrupting(monkeypatch: pytest.MonkeyPatch, times: int, damage: Callable[[bytes], bytes]) -> None:
    """Let so many ranges arrive damaged."""
    intact = s3_store.S3Backend.read_part
    left = [times]
    lock = threading.Lock()

    def read_part(backend: s3_store.S3Backend, path: str, start: int, end: int, tag: str | None) -> bytes:
        data = intact(backend, path, start, end, tag)
        with lock:
            left[0] -= 1
            return damage(data) if left[0] >= 0 else data

    monkeypatch.setattr(s3_store.S3Backend, "read_part", read_part)


def test_what_arrives_damaged_is_fetched_again(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = model()
    url = shelf.put(files)
    corrupting(monkeypatch, 1, lambda data: data[:-1] + bytes([data[-1] ^ 1]))
    assert content(shelf.find(url).directory) == files
    assert "did not arrive as the store has it, and is fetched again" in caplog.text


def test_what_arrives_damaged_each_time_is_not_used(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    url = shelf.put(model())
    corrupting(monkeypatch, 10**6, lambda data: os.urandom(len(data)))
    with pytest.raises(StorageError, match="arrived differently each time"):
        shelf.find(url)
    monkeypatch.undo()


def test_an_etag_that_only_looks_like_a_checksum(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = model()
    url = shelf.put(files)
    monkeypatch.setattr(s3_store, "_md5", lambda _head: "0" * 32)
    with caplog.at_level(logging.INFO, "airflow_llmengine"):
        assert content(shelf.find(url).directory) == files
    assert "its etag seems to be no checksum" in caplog.text


@pytest.mark.parametrize(
    "head",
    [
        {"ETag": '"0123456789abcdef0123456789abcdef-2"'},
        {"ETag": '"0123456789abcdef0123456789abcdef"', "ServerSideEncryption": "aws:kms"},
        {"ETag": '"0123456789abcdef0123456789abcdef"', "SSECustomerAlgorithm": "AES256"},
    ],
    ids=["parts", "kms", "own key"],
)
def test_etags_that_are_no_checksums(head: dict[str, str]) -> None:
    plain = {"ETag": '"0123456789abcdef0123456789abcdef"', "ServerSideEncryption": "AES256"}
    assert s3_store._md5(plain) == "0123456789abcdef0123456789abcdef"
    assert s3_store._md5(head) is None


@pytest.mark.parametrize("damage", ["cut off", "no header", "longer"])
def test_weights_that_are_not_whole_in_the_store(shelf: Shelf, damage: str) -> None:
    files = model()
    whole = files["model-1.safetensors"]
    files["model-1.safetensors"] = {"cut off": whole[:-1], "no header": bytes(5000), "longer": whole + b"0"}[damage]
    url = shelf.put(files)
    with pytest.raises(ModelNotFoundError, match=r"model-1.safetensors is not a whole safetensors file: put it there"):
        shelf.find(url)
    assert not any(shelf.cache.glob("*/model-1.safetensors"))


def test_a_place_where_nothing_is(shelf: Shelf) -> None:
    with pytest.raises(ModelNotFoundError, match=r"checkpoint_path: there is nothing below s3://.*/no/such: check"):
        shelf.find(f"s3://{shelf.bucket}/no/such")
    with pytest.raises(StorageNotFoundError, match="the bucket does not exist"):
        shelf.find("s3://no-such-bucket-here/model")


def test_a_place_without_a_model(shelf: Shelf) -> None:
    url = shelf.put({"below/config.json": b"{}"})
    with pytest.raises(ModelNotFoundError, match=r"there is no model below s3://.*: it has no config\.json"):
        shelf.find(url)


def test_a_store_that_refuses(shelf: Shelf) -> None:
    url = shelf.put(model())
    shelf.server.faults.append(Fault("GET", status=403, code="AccessDenied", times=100))
    with pytest.raises(StorageDeniedError, match=r"Cannot list s3://.*403 AccessDenied; check the credentials"):
        shelf.find(url)


@pytest.mark.parametrize("name", ["../outside", "a/../../outside", "a//outside", "./config.json", "new\u2028line"])
def test_names_that_lead_out_of_the_folder(shelf: Shelf, name: str) -> None:
    url = shelf.put({**model(), name: b"planted"})
    with pytest.raises(ModelNotFoundError, match=r"is an object whose name can't be that of a file"):
        shelf.find(url)
    assert not shelf.cache.exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [("tokenizer", "an object 'tokenizer' beside 'tokenizer/empty.txt'"), ("n" * 256, "name is too long for a file")],
    ids=["a file where a folder must be", "too long"],
)
def test_names_that_no_file_system_holds(shelf: Shelf, name: str, said: str) -> None:
    url = shelf.put({**model(), name: b"planted"})
    with pytest.raises(ModelNotFoundError, match=said):
        shelf.find(url)
    assert not shelf.cache.exists()


def test_a_cache_whose_place_is_a_file(shelf: Shelf) -> None:
    shelf.cache.write_text("")
    with pytest.raises(StorageError, match=r"The checkpoint can't be put into .*; LLMENGINE_MODEL_CACHE names"):
        shelf.find(shelf.put(model()))


def test_a_store_that_does_not_tell_of_changes() -> None:
    storage = Storage()
    storage.location("memory://checkpoint-without-tags/config.json").replace(b"{}")
    with pytest.raises(StorageUnsupportedError, match="does not tell when a file has changed"):
        ModelFiles(storage, request("memory://checkpoint-without-tags")).find()


def test_a_disk_that_is_too_small(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    url = shelf.put(model())
    usage = shutil._ntuple_diskusage(10**9, 10**9 - 10_000, 10_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    shelf.server.seen.clear()
    with pytest.raises(StorageError, match=r"needs 30\.\d kB more in .*, where 10\.0 kB are free:") as caught:
        shelf.find(url)
    assert caught.value.retry_helps
    assert shelf.reads() == 0, "nothing is fetched that won't fit"


def test_a_disk_that_becomes_full(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    url = shelf.put(model())

    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"The checkpoint can't be put into .*: no space left on device;"):
        shelf.find(url)
    monkeypatch.undo()


def test_a_cache_that_may_not_be_written_to(shelf: Shelf, tmp_path: Path) -> None:
    url = shelf.put(model())
    tmp_path.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        with pytest.raises(StorageDeniedError, match=r"permission denied; .*, and user \d+ must be able to"):
            shelf.find(url)
    finally:
        if is_root:
            os.seteuid(0)
        tmp_path.chmod(0o755)


def test_progress_is_shown(shelf: Shelf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("airflow_llmengine.worker.weights.fetch_progress.LINE_SECONDS", 0.05)
    url = shelf.put(model())
    shelf.server.faults.append(Fault("GET", path="model-1", wait=19, delay=0.5))
    said: list[str] = []
    with caplog.at_level(logging.INFO, "airflow_llmengine"):
        ModelFiles(shelf.storage, request(url), say=said.append).find()
    assert f"fetching {url}: 30." in caplog.text
    assert any(f"fetching {url}: " in line and " of 30." in line and "/s" in line for line in said)
    assert said[-1] == "", "nothing takes long any more"


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LLMENGINE_MODEL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder.model_cache() == tmp_path / "airflow-llmengine" / "checkpoints"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder.model_cache() == tmp_path / ".cache" / "airflow-llmengine" / "checkpoints"


def test_the_marker_tells_a_person_what_it_is(shelf: Shelf) -> None:
    url = shelf.put(model())
    found = shelf.find(url)
    marker = json.loads((found.directory / cache_folder.MARKER).read_text())
    assert (marker["url"], marker["identity"]) == (url, found.identity)
    assert marker["files"]["config.json"] == len(model()["config.json"])
