"""Where a model is looked for, and what names a local checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import huggingface_hub
import pytest

from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.worker.engines import model_source
from airflow_llmengine.worker.engines.base import ModelNotFoundError
from airflow_llmengine.worker.engines.model_source import DIGEST_PREFIX, ModelSource, checkpoint_digest, find_model


def job(**model: Any) -> CreateBatchCompletionsV1Request:
    return CreateBatchCompletionsV1Request.model_validate(
        {"input_data_path": "in", "output_data_path": "out", "model_config": {"model": "org/name", **model}}
    )


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "checkpoint"
    (directory / "tokenizer").mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "tokenizer" / "vocabulary.txt").write_text("a b c")
    (directory / "weights").write_bytes(bytes(1000))
    return directory


def test_a_checkpoint_is_a_directory_with_a_config(checkpoint: Path) -> None:
    assert find_model(job(checkpoint_path=str(checkpoint))) == ModelSource(str(checkpoint), checkpoint)
    assert find_model(job(model=str(checkpoint))).directory == checkpoint


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"checkpoint_path: there is no directory .*nothing where the worker"):
        find_model(job(checkpoint_path=str(tmp_path / "nothing")))
    with pytest.raises(ModelNotFoundError, match=r"model_config\.model: there is no directory"):
        find_model(job(model=str(tmp_path / "nothing")))


def test_a_directory_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"holds no model: it has no config\.json"):
        find_model(job(checkpoint_path=str(tmp_path)))


def test_a_checkpoint_that_may_not_be_read(checkpoint: Path) -> None:
    """As in a pod, whose user is another than the one who wrote the weights."""
    checkpoint.chmod(0)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        with pytest.raises(ModelNotFoundError, match=r"may not be read by user \d+, as whom the worker runs"):
            checkpoint_digest(checkpoint)
        with pytest.raises(ModelNotFoundError, match=r"may not be read by user"):
            find_model(job(checkpoint_path=str(checkpoint)))
    finally:
        if is_root:
            os.seteuid(0)
        checkpoint.chmod(0o755)


def test_a_name_that_cannot_be_an_id() -> None:
    with pytest.raises(ModelNotFoundError, match="'a/b/c' is neither a directory nor an id"):
        find_model(job(model="a/b/c"))


def test_a_hub_that_cannot_be_reached() -> None:
    # The hub is off in all tests.
    with pytest.raises(ModelNotFoundError, match=r"'org/name' is neither .* nor in the local cache, and .* be reached"):
        find_model(job())


def test_a_model_in_the_local_cache_needs_no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--name" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (tmp_path / "models--org--name" / "refs").mkdir()
    (tmp_path / "models--org--name" / "refs" / "main").write_text("0123")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", _cache_in(tmp_path))
    assert find_model(job()) == ModelSource("org/name", None)
    with pytest.raises(ModelNotFoundError):
        find_model(job(revision="another"))


def _cache_in(directory: Path) -> Callable[..., Any]:
    """The hub client's look into its cache, at another place."""
    from huggingface_hub import try_to_load_from_cache

    return partial(try_to_load_from_cache, cache_dir=directory)


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("RepositoryNotFoundError", 404, "is not on the Hugging Face hub, or is private"),
        ("RevisionNotFoundError", 404, "has no revision 'old'"),
        ("GatedRepoError", 403, "accept its terms"),
        ("HfHubHTTPError", 503, None),
    ],
)
def test_what_the_hub_says(monkeypatch: pytest.MonkeyPatch, name: str, status: int, said: str | None) -> None:
    # The hub can't be had here: its client's errors stand for its answers.
    kind = getattr(huggingface_hub.errors, name)

    def answer(*_arguments: Any, **_fields: Any) -> None:
        raise kind("the hub's own words", response=mock.Mock(status_code=status, headers={}))

    monkeypatch.setattr(huggingface_hub, "model_info", answer)
    if said is None:
        # Loading may still succeed: the hub is there.
        assert find_model(job(revision="old")) == ModelSource("org/name", None)
    else:
        with pytest.raises(ModelNotFoundError, match=said):
            find_model(job(revision="old"))


def test_the_digest_is_the_same_wherever_the_files_lie(checkpoint: Path, tmp_path: Path) -> None:
    before = checkpoint_digest(checkpoint)
    assert before.startswith(DIGEST_PREFIX)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for path in checkpoint.iterdir():
        (elsewhere / path.name).symlink_to(path)
    os.utime(checkpoint / "weights", (0, 0))
    (elsewhere / ".cache").mkdir()
    (elsewhere / ".cache" / "note").write_text("hidden")
    assert checkpoint_digest(elsewhere) == before


@pytest.mark.parametrize("change", ["content", "name", "more", "nested"])
def test_the_digest_changes_with_the_files(checkpoint: Path, change: str) -> None:
    before = checkpoint_digest(checkpoint)
    match change:
        case "content":
            (checkpoint / "weights").write_bytes(bytes(500) + b"\1" + bytes(499))
        case "name":
            (checkpoint / "weights").rename(checkpoint / "weights.2")
        case "more":
            (checkpoint / "added").touch()
        case "nested":
            (checkpoint / "tokenizer" / "vocabulary.txt").write_text("a b d")
    assert checkpoint_digest(checkpoint) != before


@pytest.mark.parametrize("place", [0, -1])
def test_of_large_files_size_beginning_and_end_count(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    monkeypatch.setattr(model_source, "WHOLE_FILE_BYTES", 999)
    monkeypatch.setattr(model_source, "SAMPLE_BYTES", 10)
    before = checkpoint_digest(checkpoint)
    content = bytearray(1000)
    content[500] = 1
    (checkpoint / "weights").write_bytes(content)
    assert checkpoint_digest(checkpoint) == before
    content[place] = 1
    (checkpoint / "weights").write_bytes(content)
    assert checkpoint_digest(checkpoint) != before
    (checkpoint / "weights").write_bytes(bytes(1001))
    assert checkpoint_digest(checkpoint) != before
