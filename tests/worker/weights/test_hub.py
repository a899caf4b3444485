"""Models of the hub, against a double of it: see ``hub_server``."""

from __future__ import annotations

import errno
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants, hf_api
from huggingface_hub.utils import close_session  # type: ignore[attr-defined]

from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.storage.errors import StorageError
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.engines.base import ModelNotFoundError
from airflow_llmengine.worker.weights import hub as hub_module
from airflow_llmengine.worker.weights.hub import LEFTOVER_SECONDS
from airflow_llmengine.worker.weights.hub_errors import explain
from airflow_llmengine.worker.weights.model_files import ModelFiles
from airflow_llmengine.worker.weights.model_source import ModelSource
from tests.waiting import wait_until
from tests.worker.weights.checkpoints import model
from tests.worker.weights.hub_server import TOKEN, HubServer, Repository

ROOT = Path(__file__).resolve().parents[3]
FILES = model()
NEEDED = len(FILES)
"""For each file its size is asked for, and then the file, unless it is empty."""


def request(name: str = "org/small", **fields: Any) -> CreateBatchCompletionsV1Request:
    return CreateBatchCompletionsV1Request.model_validate(
        {"input_data_path": "in", "output_data_path": "out", "model_config": {"model": name, **fields}}
    )


def files(name: str = "org/small", pinned: str | None = None, **fields: Any) -> ModelFiles:
    return ModelFiles(Storage(), request(name, **fields), pinned=lambda: pinned)


def find(name: str = "org/small", pinned: str | None = None, **fields: Any) -> ModelSource:
    return ModelFiles(Storage(), request(name, **fields), pinned=lambda: pinned).find()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """A hub with one small model, and an empty cache."""
    server = HubServer({"org/small": Repository({**FILES, "pytorch_model.bin": b"the same again"})})
    server.start()
    monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
    # What huggingface_hub offers at its top belongs to an object that has read the endpoint when it was made.
    monkeypatch.setattr(hf_api.api, "endpoint", server.endpoint)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub_module, "FRESH_SECONDS", 0)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/no/such/token")
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    yield server
    server.stop()


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def test_a_model_is_fetched_into_the_hubs_cache(hub: HubServer, tmp_path: Path) -> None:
    commit = hub.repositories["org/small"].commit
    found = find()
    assert (found.identity, found.directory.name) == (commit, commit)
    assert found.directory.is_relative_to(tmp_path / "hub")
    assert content(found.directory) == FILES
    assert hub.kinds() == {"model": 1, "tree": 1, "resolve": 2 * NEEDED - 1}


def test_64_workers_with_one_cache_ask_as_much_as_one(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "FRESH_SECONDS", 60)
    hub.slow = 0.2
    with ThreadPoolExecutor(64) as workers:
        found = set(workers.map(lambda _number: find(), range(64)))
    assert len(found) == 1
    assert hub.kinds() == {"model": 1, "tree": 1, "resolve": 2 * NEEDED - 1}


def test_64_workers_with_caches_of_their_own_wait_as_long_as_the_hub_says(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on 64 nodes at once: each fetches the model, and is refused until the hub's next window of requests."""
    waits: list[float] = []
    monkeypatch.setattr("airflow_llmengine.worker.weights.hub.time.sleep", waits.append)
    hub.busy, hub.retry_after = 64 * 2, "7"

    # A cache is a global of the client's, so that threads can't have one each: this is what one worker in 64 does.
    monkeypatch.setattr(hub_module, "ANSWER_TIMEOUT_SECONDS", 60)
    answers: list[Exception | str] = []
    lock = threading.Lock()

    def resolve() -> None:
        from huggingface_hub import model_info

        sha = hub_module._patiently(lambda: model_info("org/small", timeout=60)).sha
        with lock:
            answers.append(str(sha))

    with ThreadPoolExecutor(64) as workers:
        for one in [workers.submit(resolve) for _ in range(64)]:
            one.result()
    assert set(answers) == {hub.repositories["org/small"].commit}
    assert len(waits) == 64 * 2
    assert all(7 <= wait <= 7 + 4.5 for wait in waits)
    assert len({round(wait, 3) for wait in waits}) > 64, "they don't come back all at once"
    assert find().directory.is_dir()


@pytest.mark.parametrize(("status", "after"), [(429, "0"), (503, None), (500, "0")])
def test_a_busy_hub_is_asked_again(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, status: int, after: str | None
) -> None:
    monkeypatch.setattr("airflow_llmengine.worker.weights.hub.time.sleep", lambda _seconds: None)
    hub.busy, hub.busy_status, hub.retry_after = 5, status, after
    assert content(find().directory) == FILES


def test_a_hub_that_is_busy_for_too_long(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "BUSY_SECONDS", 0)
    hub.busy = 1000
    with pytest.raises(StorageError, match=r"'org/small' can't be fetched: .* hub answered 429; try again later"):
        find()


def test_a_commit_that_is_here_is_not_asked_for(hub: HubServer) -> None:
    commit = hub.repositories["org/small"].commit
    first = find()
    hub.seen.clear()
    assert find(pinned=commit) == first
    assert find(revision=commit) == first
    assert hub.seen == []


def test_a_branch_is_asked_for_by_each_job(hub: HubServer) -> None:
    before = find()
    hub.repositories["org/small"] = Repository({**FILES, "config.json": b'{"changed": true}'})
    after = find()
    assert before.identity != after.identity
    assert content(after.directory)["config.json"] == b'{"changed": true}'
    hub.seen.clear()
    assert find(pinned=before.identity) == before, "a job stays with the commit that it began with"
    assert hub.seen == []


def test_a_branch_that_moves_on_while_another_replica_is_quicker(hub: HubServer) -> None:
    before = find()
    hub.repositories["org/small"] = Repository({**FILES, "config.json": b'{"changed": true}'})
    asked = iter([None, before.identity])
    source = ModelFiles(Storage(), request(), pinned=lambda: next(asked)).find()
    assert source == before


def test_off_the_hub_nothing_is_asked(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    first = find()
    hub.seen.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert find() == first
    with pytest.raises(
        ModelNotFoundError, match=r"'org/name' is neither .* nor in the local cache, and HF_HUB_OFFLINE forbids"
    ):
        find("org/name")
    with pytest.raises(ModelNotFoundError, match=r"'org/small' is neither .* nor in the local cache"):
        find(revision="another")
    assert hub.seen == []


def test_a_cache_that_something_else_filled_serves_off_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--name" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (tmp_path / "models--org--name" / "refs").mkdir()
    (tmp_path / "models--org--name" / "refs" / "main").write_text("0123")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert find("org/name") == ModelSource(snapshot, "0123")


def test_a_hub_that_can_not_be_reached(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = find()
    hub.stop()
    close_session()
    monkeypatch.setattr("airflow_llmengine.worker.weights.hub.time.sleep", lambda _seconds: None)
    assert find() == first, "what is in the cache is used"
    assert f"can't be asked for org/small: commit {first.identity}, which the cache has, is used" in caplog.text
    with pytest.raises(
        StorageError, match=r"'org/name' is neither .* nor in the local cache, and .* be reached"
    ) as failed:
        find("org/name")
    assert failed.value.retry_helps


FIND = """
from tests.worker.weights.test_hub import find
find()
"""


@pytest.mark.slow
def test_a_fetch_that_was_killed_goes_on_with_the_files_that_are_missing(hub: HubServer, tmp_path: Path) -> None:
    hub.slow, hub.slow_files = 60, "model-1"
    settings = {"HF_ENDPOINT": hub.endpoint, "HF_HUB_CACHE": constants.HF_HUB_CACHE, "HF_HUB_OFFLINE": "0"}
    worker = subprocess.Popen([sys.executable, "-c", FIND], cwd=ROOT, env={**os.environ, **settings})
    snapshots = tmp_path / "hub" / "models--org--small" / "snapshots"
    try:
        wait_until(lambda: len([path for path in snapshots.rglob("*") if path.is_file()]) == NEEDED - 1)
    finally:
        worker.kill()
        worker.wait()
    hub.slow = 0
    hub.seen.clear()
    assert content(find().directory) == FILES
    assert [path.rpartition("/")[2] for method, path in hub.seen if (method, "resolve" in path) == ("GET", True)] == [
        "model-1.safetensors"
    ]


def test_what_is_left_of_a_killed_process_is_deleted(hub: HubServer, tmp_path: Path) -> None:
    blobs = tmp_path / "hub" / "models--org--small" / "blobs"
    blobs.mkdir(parents=True)
    old, new = blobs / "a.1.incomplete", blobs / "b.2.incomplete"
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    stamp = new.stat().st_mtime - LEFTOVER_SECONDS - 10
    os.utime(old, (stamp, stamp))
    find()
    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.parametrize(
    ("repository", "fields", "said"),
    [
        (Repository(FILES, gated=True), {}, r"'org/other' is gated on the Hugging Face hub: accept its terms"),
        (Repository(FILES, private=True), {}, r"'org/other' is not on the Hugging Face hub, or is private"),
        (Repository(FILES), {"revision": "old"}, r"'org/other' has no revision 'old'"),
        (None, {}, r"'org/other' is not on the Hugging Face hub, or is private there and HF_TOKEN is not set"),
    ],
    ids=["gated", "private", "revision", "nothing"],
)
def test_what_the_hub_refuses(hub: HubServer, repository: Repository | None, fields: dict[str, str], said: str) -> None:
    if repository is not None:
        hub.repositories["org/other"] = repository
    with pytest.raises(ModelNotFoundError, match=said):
        find("org/other", **fields)


def test_a_token_that_is_not_valid(hub: HubServer) -> None:
    hub.busy, hub.busy_status = 10, 403
    with pytest.raises(ModelNotFoundError, match=r"the Hugging Face hub refuses it \(403\): HF_TOKEN is not valid"):
        find()


def test_a_token_opens_what_is_gated(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["org/gated"] = Repository(FILES, gated=True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert content(find("org/gated").directory) == FILES


def test_a_name_that_can_not_be_an_id(hub: HubServer) -> None:
    with pytest.raises(ModelNotFoundError, match="'a/b/c' is neither a directory nor an id"):
        find("a/b/c")
    assert hub.seen == []


def test_a_tokenizer_of_another_repository_comes_without_its_weights(hub: HubServer, tmp_path: Path) -> None:
    hub.repositories["org/tokenizer"] = Repository({**FILES, "tokenizer.json": b"{}"})
    found = find(tokenizer="org/tokenizer")
    assert found.tokenizer is not None
    assert found.tokenizer.parent.parent.name == "models--org--tokenizer"
    assert not any(name.endswith(".safetensors") for name in content(found.tokenizer))
    with pytest.raises(ModelNotFoundError, match=r"model_config.tokenizer: 'org/none' is not on the"):
        find(tokenizer="org/none")


def test_the_models_own_tokenizer_may_be_of_another_revision(hub: HubServer) -> None:
    hub.repositories["org/small"].branches["old"] = hub.repositories["org/small"].commit
    found = find(tokenizer_revision="old")
    assert found.tokenizer is not None
    assert found.tokenizer.name == hub.repositories["org/small"].commit
    with pytest.raises(ModelNotFoundError, match=r"model_config.tokenizer_revision: 'org/small' has no revision 'new'"):
        find(tokenizer_revision="new")


def test_a_cache_that_can_not_be_written_to_serves_what_it_has(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(errno.EROFS, "read-only")

    first = find()
    hub.seen.clear()
    monkeypatch.setattr(hub_module, "one_at_a_time", refuse)
    assert find() == first
    assert hub.kinds() == {"model": 1}


@pytest.mark.parametrize(
    ("number", "said", "retry_helps"),
    [
        (errno.EROFS, r"HF_HOME: read-only file system; user \d+ must be able to write there\.", False),
        (errno.ENOSPC, r"HF_HOME: no space left on device\.", True),
    ],
)
def test_a_cache_that_takes_nothing(number: int, said: str, retry_helps: bool) -> None:
    told = explain(OSError(number, os.strerror(number)), named="model_config.model: 'org/small'", revision=None)
    assert re.search(said, str(told))
    assert isinstance(told, StorageError)
    assert told.retry_helps is retry_helps


def test_progress_is_told(hub: HubServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "airflow_llmengine"):
        find()
    assert "fetching org/small at commit" in caplog.text
    assert "fetched org/small at commit" in caplog.text


def test_a_model_is_identified_without_a_file_of_it(hub: HubServer, tmp_path: Path) -> None:
    commit = hub.repositories["org/small"].commit
    found = files()
    identity = found.identify()
    assert identity is not None
    assert (identity.weights, identity.content) == (commit, commit)
    assert hub.kinds() == {"model": 1}
    assert list((tmp_path / "hub").rglob("*.safetensors")) == []
    # Meanwhile the branch moves on: what was said holds.
    repository = hub.repositories["org/small"]
    repository.branches[commit] = commit
    repository.branches["main"] = "1" * 40
    assert found.find().identity == commit


def test_64_workers_that_identify_a_model_ask_once(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "FRESH_SECONDS", 60)
    with ThreadPoolExecutor(64) as workers:
        found = set(workers.map(lambda _number: files().identify(), range(64)))
    assert len(found) == 1
    assert hub.kinds() == {"model": 1}


def test_a_commit_needs_no_hub_to_be_identified(hub: HubServer) -> None:
    commit = hub.repositories["org/small"].commit
    for found in (files(revision=commit), files(pinned=commit)):
        identity = found.identify()
        assert identity is not None
        assert identity.weights == commit
    assert hub.seen == []


def test_a_tokenizer_of_its_own_is_a_part_of_what_answers(hub: HubServer) -> None:
    hub.repositories["org/tokenizer"] = Repository({"tokenizer.json": b"{}"})
    plain, other = files().identify(), files(tokenizer="org/tokenizer").identify()
    assert plain is not None
    assert other is not None
    assert other.weights == plain.weights
    assert other.content == f"{plain.content} {hub.repositories['org/tokenizer'].commit}"


def test_a_hub_out_of_reach_tells_no_model_and_a_missing_model_is_refused(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelNotFoundError):
        files("org/none").identify()
    monkeypatch.setattr(hub_module, "BUSY_SECONDS", 0)
    hub.busy = 1000
    assert files().identify() is None
