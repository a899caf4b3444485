"""A model in a directory of this machine: whether it is one, and what names its content."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.engines.base import ModelChangedError, ModelNotFoundError
from airflow_llmengine.worker.weights import local
from airflow_llmengine.worker.weights.local import DIGEST_PREFIX, checkpoint_digest, dense_digest
from airflow_llmengine.worker.weights.model_files import ModelFiles
from airflow_llmengine.worker.weights.model_source import ModelSource


def job(**model: Any) -> CreateBatchCompletionsV1Request:
    return CreateBatchCompletionsV1Request.model_validate(
        {"input_data_path": "in", "output_data_path": "out", "model_config": {"model": "org/name", **model}}
    )


def find_model(request: CreateBatchCompletionsV1Request, pinned: str | None = None) -> ModelSource:
    return ModelFiles(Storage(), request, pinned=lambda: pinned).find()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "checkpoint"
    (directory / "tokenizer").mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "tokenizer" / "vocabulary.txt").write_text("a b c")
    (directory / "weights").write_bytes(bytes(1000))
    return directory


def test_a_checkpoint_is_a_directory_with_a_config(checkpoint: Path) -> None:
    found = find_model(job(checkpoint_path=str(checkpoint)))
    assert found == ModelSource(checkpoint, checkpoint_digest(checkpoint))
    assert find_model(job(model=str(checkpoint))) == found
    assert find_model(job(checkpoint_path=f"file://{checkpoint}")) == found


def test_a_folder_has_no_revisions(checkpoint: Path) -> None:
    folder = str(checkpoint)
    for fields, named in (
        ({"model": folder, "revision": "v2"}, "revision"),
        ({"model": folder, "tokenizer_revision": "v2"}, "tokenizer_revision"),
        ({"model": folder, "tokenizer": folder, "tokenizer_revision": "v2"}, "tokenizer_revision"),
    ):
        with pytest.raises(ModelNotFoundError, match=f"model_config.{named}: the files are a folder here, which has"):
            find_model(job(**fields))


def test_a_checkpoint_other_than_the_one_that_the_job_began_with(checkpoint: Path) -> None:
    request = job(checkpoint_path=str(checkpoint))
    assert find_model(request, pinned=checkpoint_digest(checkpoint)).directory == checkpoint
    with pytest.raises(ModelChangedError, match=r"weights are checkpoint-sample-.* an earlier .* used another:"):
        find_model(request, pinned="another")


def test_a_tokenizer_in_a_directory_of_its_own(checkpoint: Path) -> None:
    found = find_model(job(checkpoint_path=str(checkpoint), tokenizer=str(checkpoint / "tokenizer")))
    assert found.tokenizer == checkpoint / "tokenizer"


@pytest.mark.parametrize(
    ("config", "elsewhere"),
    [
        ('{"auto_map": {"AutoConfig": "org/code--configuration.Config"}}', True),
        ('{"auto_map": {"AutoTokenizer": ["org/code--tokenization.Tokenizer", null]}}', True),
        ('{"auto_map": {"AutoConfig": "configuration.Config"}}', False),
        ('{"auto_map": 1}', False),
        ("[]", False),
        ("{", False),
    ],
)
def test_code_of_another_repository(checkpoint: Path, config: str, elsewhere: bool) -> None:
    (checkpoint / "tokenizer_config.json").write_text(config)
    assert ModelSource(checkpoint, None).names_code_elsewhere() is elsewhere


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
    monkeypatch.setattr(local, "WHOLE_FILE_BYTES", 999)
    monkeypatch.setattr(local, "SAMPLE_BYTES", 10)
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


def test_a_tensor_that_was_trained_on_is_noticed_by_the_dense_digest_alone(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file keeps its size, beginning and end, and the change is small and lies between two samples."""
    monkeypatch.setattr(local, "WHOLE_FILE_BYTES", 999)
    monkeypatch.setattr(local, "SAMPLE_BYTES", 100)
    monkeypatch.setattr(local, "SHORT_SAMPLE_BYTES", 8)
    monkeypatch.setattr(local, "SAMPLE_EVERY_BYTES", 1000)
    offsets = {"a": [0, 1600], "b": [1600, 1700], "c": [1700, 5000]}
    header = json.dumps({name: {"dtype": "U8", "data_offsets": pair} for name, pair in offsets.items()}).encode()
    weights = checkpoint / "weights.safetensors"
    content = bytearray(len(header).to_bytes(8, "little") + header + bytes(5000))
    weights.write_bytes(content)
    before, dense = checkpoint_digest(checkpoint), dense_digest(checkpoint)
    assert dense_digest(checkpoint) == dense
    for place in (8 + len(header) + 1600, 8 + len(header) + 1707, 3000, len(content) - 1):
        changed = content.copy()
        changed[place] = 1
        weights.write_bytes(changed)
        assert dense_digest(checkpoint) != dense
        assert (checkpoint_digest(checkpoint) == before) is (place != len(content) - 1)


def test_a_local_model_is_identified_by_its_content_wherever_it_lies(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(checkpoint)
    identities = {
        ModelFiles(Storage(), request).identify()
        for request in (
            job(checkpoint_path=str(checkpoint)),
            job(model=str(checkpoint)),
            job(checkpoint_path=str(tmp_path / "link")),
        )
    }
    (identity,) = identities
    assert identity is not None
    assert identity.weights == find_model(job(model=str(checkpoint))).identity
    assert identity.content == dense_digest(checkpoint)
    with pytest.raises(ModelChangedError):
        ModelFiles(Storage(), job(model=str(checkpoint)), pinned=lambda: "another").identify()


@pytest.mark.parametrize(
    ("name", "content", "reads"),
    [
        ("chat_template.jinja", "{{ messages }}", False),
        ("chat_template.jinja", "Today is {{ strftime_now('%d %b %Y') }}", True),
        ("tokenizer_config.json", '{"chat_template": "{{ strftime_now() }}"}', True),
    ],
)
def test_a_template_that_writes_the_date_is_seen(checkpoint: Path, name: str, content: str, reads: bool) -> None:
    (checkpoint / name).write_text(content)
    assert find_model(job(model=str(checkpoint))).template_reads_date() is reads
