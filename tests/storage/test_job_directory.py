"""The files beside an output."""

from __future__ import annotations

import json
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.job_state import (
    CancelRequest,
    CurrentJob,
    HandedOverPod,
    Heartbeat,
    InputEnd,
    JobDocument,
    JobHandle,
    PinnedInput,
    PinnedModel,
)
from airflow_llmengine.spec.manifest import Manifest
from airflow_llmengine.storage.errors import StorageDocumentError, StorageNotFoundError, StorageUnsupportedError
from airflow_llmengine.storage.filesystem import Location, Storage
from airflow_llmengine.storage.job_directory import JobDirectory, JobScratch
from airflow_llmengine.storage.output import OutputWriter
from tests.storage.conftest import Place
from tests.storage.s3_server import S3Server

PINNED = PinnedInput(input_identity="files:sha256:1", input_format="json_lines", chunk_records=256, chunk_tokens=1000)


def directory_of(place: Place) -> JobDirectory:
    return JobDirectory(place.storage, f"{place.base}/out/output.jsonl")


def scratch_of(place: Place, generation: int = 1) -> JobScratch:
    directory = directory_of(place)
    return directory.scratch(JobHandle(path=directory.output.url, fingerprint="ab12", generation=generation))


def heartbeat(replica: int, **fields: Any) -> Heartbeat:
    given: dict[str, Any] = {
        "replicas": 4,
        "phase": "generating",
        "host": "h",
        "pid": 1,
        "started": 1.0,
        "updated": 2.0,
    }
    return Heartbeat(replica=replica, **given, **fields)


def finish(directory: JobDirectory, content: bytes = b"[]\n", **changes: Any) -> Manifest:
    """Put an output and its manifest."""
    with OutputWriter(directory.output) as writer:
        writer.write(content)
    written = writer.close()
    fields: dict[str, Any] = {
        "output_data_path": directory.output.url,
        "fingerprint": "ab12",
        "generation": 1,
        "owner": "dag/task",
        "output_format": "json",
        "output_bytes": written.bytes,
        "output_sha256": written.sha256,
        "output_etag": written.etag,
        "records": 0,
        "succeeded": 0,
        "failed": 0,
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "model": "m",
        "engine": "echo",
        "engine_version": "1",
        "created": 1.0,
        "finished": 2.0,
    }
    manifest = Manifest(**{**fields, **changes})
    directory.write_manifest(manifest)
    return manifest


def test_the_layout_is_the_contract(local: Place, tmp_path: Path) -> None:
    directory, scratch = directory_of(local), scratch_of(local)
    directory.write_current(CurrentJob(fingerprint="ab12", generation=1, owner="o", series="s"))
    directory.write_cancel(CancelRequest(fingerprint="ab12", generation=1, reason="r", requested=1.0))
    scratch.write_job(
        JobDocument(plugin_version="1", request={"a": 1}, owner="o", series="s", created=1, launched=1, deadline=2)
    )
    scratch.pin_input(PINNED)
    scratch.write_end(InputEnd(records=1, chunks=1))
    for chunk in (0, 17, 999, 1000, 123_456, 1_234_567, 123_456_789):
        scratch.commit_chunk(chunk, b"{}\n")
    scratch.commit_part(18, b"{}\n")
    scratch.commit_part(18, b"{}\n")
    scratch.write_heartbeat(heartbeat(3))
    finish(directory)

    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()) == [
        "out/output.jsonl",
        "out/output.jsonl.job/ab12-1/chunks/000/00000000.jsonl",
        "out/output.jsonl.job/ab12-1/chunks/000/00000017.jsonl",
        "out/output.jsonl.job/ab12-1/chunks/000/00000018.part-0.jsonl",
        "out/output.jsonl.job/ab12-1/chunks/000/00000018.part-1.jsonl",
        "out/output.jsonl.job/ab12-1/chunks/000/00000999.jsonl",
        "out/output.jsonl.job/ab12-1/chunks/001/00001000.jsonl",
        "out/output.jsonl.job/ab12-1/chunks/123/00123456.jsonl",
        "out/output.jsonl.job/ab12-1/chunks/1234/01234567.jsonl",
        "out/output.jsonl.job/ab12-1/chunks/123456/123456789.jsonl",
        "out/output.jsonl.job/ab12-1/end.json",
        "out/output.jsonl.job/ab12-1/input.json",
        "out/output.jsonl.job/ab12-1/job.json",
        "out/output.jsonl.job/ab12-1/replicas/3.json",
        "out/output.jsonl.job/cancel.json",
        "out/output.jsonl.job/current.json",
        "out/output.jsonl.manifest.json",
    ]
    assert scratch.committed_chunks() == {0, 17, 999, 1000, 123_456, 1_234_567, 123_456_789}


@pytest.mark.parametrize("output", ["s3://bucket", "s3://bucket/", "/", "memory://"])
def test_an_output_must_name_a_file(output: str) -> None:
    with pytest.raises(StorageUnsupportedError, match="give the name of a file in it"):
        JobDirectory(Storage(), output)


# Documents


def test_documents_are_read_as_they_were_written(place: Place) -> None:
    directory, scratch = directory_of(place), scratch_of(place)
    current = CurrentJob(fingerprint="ab12", generation=2, owner="dag/täsk", series="s")
    cancel = CancelRequest(fingerprint="ab12", generation=2, reason="enough", requested=5.5)
    handed_over = HandedOverPod(
        fingerprint="ab12",
        generation=2,
        series="s",
        namespace="batch",
        pod="a-pod",
        container="base",
        server="https://a",
        start_by=6,
    )
    job = JobDocument(
        plugin_version="1", request={"a": [1, {"b": None}]}, owner="o", series="s", created=1, launched=2, deadline=3
    )
    for read in (
        directory.read_current,
        directory.read_cancel,
        directory.read_handed_over,
        directory.read_manifest,
        scratch.read_job,
        scratch.read_input,
        scratch.read_model,
        scratch.read_end,
    ):
        assert read() is None
    assert scratch.read_heartbeats() == []

    directory.write_current(current)
    directory.write_cancel(cancel)
    directory.write_handed_over(handed_over)
    scratch.write_job(job)

    assert directory.read_current() == current
    assert directory.read_cancel() == cancel
    assert directory.read_handed_over() == handed_over
    assert scratch.read_job() == job
    directory.clear_cancel()
    directory.clear_cancel()
    assert directory.read_cancel() is None
    later = job.model_copy(update={"deadline": 9.0})
    scratch.write_job(later)
    assert scratch.read_job() == later


def test_the_first_to_pin_wins(place: Place) -> None:
    scratch = scratch_of(place)
    other = PINNED.model_copy(update={"input_identity": "files:sha256:2"})

    assert scratch.pin_input(PINNED) == PINNED
    assert scratch.pin_input(other) == PINNED
    assert scratch.read_input() == PINNED
    assert scratch.write_end(InputEnd(records=5, chunks=1)) == InputEnd(records=5, chunks=1)
    assert scratch.write_end(InputEnd(records=6, chunks=1)) == InputEnd(records=5, chunks=1)
    first, second = (PinnedModel(model_identity=name, engine="echo", engine_version="1") for name in "xy")
    assert scratch.pin_model(first) == scratch.pin_model(second) == scratch.read_model() == first


def test_of_many_that_pin_all_get_the_same(place: Place) -> None:
    scratch = scratch_of(place)
    start = threading.Barrier(4)

    def pin(number: int) -> PinnedInput:
        start.wait()
        return scratch.pin_input(PINNED.model_copy(update={"input_identity": str(number)}))

    with ThreadPoolExecutor(4) as threads:
        pinned = list(threads.map(pin, range(4)))

    assert len({document.input_identity for document in pinned}) == 1
    assert scratch.read_input() == pinned[0]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "not JSON of that form"),
        (b'{"fingerprint": "ab', "not JSON of that form"),
        (b"[]", "not JSON of that form"),
        (b"\xff\xfe", "not JSON of that form"),
        (b'{"fingerprint": "secret"}', "generation: Field required"),
        (b'{"fingerprint": "a", "generation": "secret", "owner": "o", "series": "s"}', "generation: "),
    ],
)
def test_a_document_that_is_not_what_it_should_be_is_an_error_that_names_it(
    local: Place, content: bytes, fault: str
) -> None:
    directory = directory_of(local)
    directory.root.child("current.json").replace(content)

    with pytest.raises(StorageDocumentError) as caught:
        directory.read_current()

    assert f"{directory.root}/current.json is damaged, or no file of this program" in str(caught.value)
    assert fault in str(caught.value)
    assert "secret" not in str(caught.value)


def test_every_document_that_is_broken_is_an_error(local: Place) -> None:
    directory, scratch = directory_of(local), scratch_of(local)
    readers = {
        "current.json": directory.read_current,
        "cancel.json": directory.read_cancel,
        "handed_over.json": directory.read_handed_over,
        "ab12-1/job.json": scratch.read_job,
        "ab12-1/input.json": scratch.read_input,
        "ab12-1/model.json": scratch.read_model,
        "ab12-1/end.json": scratch.read_end,
        "ab12-1/replicas/0.json": scratch.read_heartbeats,
    }
    for name, read in readers.items():
        directory.root.child(name).replace(b"{")
        with pytest.raises(StorageDocumentError, match=name):
            read()
    with pytest.raises(StorageDocumentError, match=r"input\.json"):
        scratch.pin_input(PINNED)
    directory.manifest.replace(b"{")
    with pytest.raises(StorageDocumentError, match=r"output\.jsonl\.manifest\.json"):
        directory.read_manifest()


def test_what_a_later_version_adds_is_ignored(local: Place) -> None:
    directory = directory_of(local)
    current = CurrentJob(fingerprint="ab12", generation=2, owner="o", series="s")
    directory.root.child("current.json").replace(json.dumps({**current.model_dump(), "new": 1}).encode())

    assert directory.read_current() == current


# The manifest


def test_a_manifest_is_valid_while_its_output_stands(place: Place) -> None:
    directory = directory_of(place)
    assert directory.valid_manifest() is None

    manifest = finish(directory, b'[{"text": "a"}]\n')

    assert directory.valid_manifest() == directory.read_manifest() == manifest
    directory.delete_manifest()
    directory.delete_manifest()
    assert directory.valid_manifest() is directory.read_manifest() is None


def test_a_manifest_is_valid_no_more_when_its_output_changed(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="airflow_llmengine")
    directory = directory_of(place)
    manifest = finish(directory, b"abc")

    directory.output.replace(b"abd")
    assert directory.valid_manifest() is None
    assert "has another" in caplog.messages[-1]
    directory.output.replace(b"ab")
    assert directory.valid_manifest() is None
    assert "has 2 bytes where the manifest says 3" in caplog.messages[-1]
    directory.output.delete()
    assert directory.valid_manifest() is None
    assert "does not exist" in caplog.messages[-1]
    assert directory.read_manifest() == manifest


def test_a_broken_manifest_is_not_valid(local: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="airflow_llmengine")
    directory = directory_of(local)
    finish(directory)
    whole = directory.manifest.read_bytes()
    directory.manifest.replace(whole[: len(whole) // 2])

    assert directory.valid_manifest() is None
    assert "is damaged, or no file of this program" in caplog.messages[-1]


def test_an_object_store_is_asked_and_the_output_not_read(s3: Place, s3_server: S3Server) -> None:
    directory = directory_of(s3)
    manifest = finish(directory)
    s3_server.seen.clear()

    assert directory.valid_manifest() == manifest
    assert [method for method, path, _ in s3_server.seen if path.endswith("output.jsonl")] == ["HEAD"]


def test_without_an_etag_the_checksum_counts(s3: Place) -> None:
    directory = directory_of(s3)
    manifest = finish(directory, output_etag=None)

    assert directory.valid_manifest() == manifest
    finish(directory, output_etag=None, output_sha256="0" * 64)
    assert directory.valid_manifest() is None


# Chunks and parts


def test_a_chunk_is_committed_once(place: Place) -> None:
    scratch = scratch_of(place)

    assert scratch.committed_chunks() == set()
    assert scratch.commit_chunk(3, b"first\n")
    assert not scratch.commit_chunk(3, b"second\n")
    assert scratch.commit_chunk(1003, b"other\n")

    assert scratch.committed_chunks() == {3, 1003}
    assert scratch.read_chunk(3) == b"first\n"
    with scratch.open_chunk(1003) as file:
        assert list(file) == [b"other\n"]
    for read in (scratch.read_chunk, scratch.open_chunk):
        with pytest.raises(StorageNotFoundError, match=r"00000004\.jsonl: it does not exist"):
            read(4)


def test_parts_are_kept_beside_one_another(place: Place) -> None:
    scratch = scratch_of(place)

    assert scratch.read_parts(5) == []
    assert [scratch.commit_part(5, f"{number}\n".encode()) for number in range(12)] == list(range(12))
    assert scratch.commit_part(6, b"x") == 0
    scratch.commit_chunk(7, b"y")

    assert scratch.read_parts(5) == [f"{number}\n".encode() for number in range(12)]
    assert scratch.chunk_files().parts == {5, 6}
    assert scratch.committed_chunks() == {7}


def test_a_part_is_replaced_by_who_wrote_it(place: Place) -> None:
    scratch = scratch_of(place)
    for content in (b"a\n", b"b\n"):
        scratch.commit_part(5, content)
    scratch.replace_part(5, 0, b"a\nmore\n")
    assert scratch.read_parts(5) == [b"a\nmore\n", b"b\n"]


def test_parts_of_several_writers_get_numbers_of_their_own(place: Place) -> None:
    scratch = scratch_of(place)
    start = threading.Barrier(4)

    def commit(number: int) -> int:
        start.wait()
        return scratch.commit_part(5, str(number).encode())

    with ThreadPoolExecutor(4) as threads:
        parts = list(threads.map(commit, range(4)))

    assert sorted(parts) == [0, 1, 2, 3]
    assert sorted(scratch.read_parts(5)) == [b"0", b"1", b"2", b"3"]
    assert [scratch.read_parts(5)[part] for part in parts] == [b"0", b"1", b"2", b"3"]


def test_a_part_of_many_costs_one_request(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = scratch_of(place)
    for number in range(3):
        assert scratch.commit_part(5, b"x", known=number) == number
    create = Location.create
    tried = []

    def count(self: Location, data: bytes) -> bool:
        tried.append(self)
        return create(self, data)

    monkeypatch.setattr(Location, "list", None)
    monkeypatch.setattr(Location, "create", count)
    assert scratch.commit_part(5, b"y", known=3) == 3
    assert len(tried) == 1
    # Another writer's, of which this one does not know.
    assert scratch.commit_part(5, b"z", known=3) == 4


def test_foreign_files_are_no_chunks(local: Place) -> None:
    scratch = scratch_of(local)
    scratch.commit_chunk(1, b"x")
    scratch.commit_part(2, b"x")
    for name in (
        "000/00000003.json",
        "000/3.jsonl",
        "000/000000003.jsonl",
        "001/00000003.jsonl",
        "0/00000003.jsonl",
        "00000003.jsonl",
        "000/00000003.jsonl.gz",
        "000/00000003.part-.jsonl",
        "000/00000003.part-01.jsonl",
        "000/00000003.part--1.jsonl",
        "000/00000003.round-.jsonl",
        "000/00000003.later-1.jsonl",
        "000/deeper/00000003.jsonl",
        "000/.00000003.jsonl.swp",
        "000/.llmengine-0123456789abcdef01234567.tmp",
        "000/\uff10\uff10\uff10\uff10\uff10\uff10\uff10\uff13.jsonl",  # digits, but not these
        "notes.txt",
    ):
        local.storage.location(f"{scratch.root.url}/chunks/{name}").replace(b"x")

    assert scratch.committed_chunks() == {1}
    assert scratch.chunk_files().parts == {2}
    assert scratch.read_parts(3) == []
    assert scratch.commit_part(3, b"x") == 0


def test_a_chunks_number_is_not_negative(local: Place) -> None:
    with pytest.raises(ValueError, match="-1 is not the number of a chunk"):
        scratch_of(local).commit_chunk(-1, b"")


def test_many_chunks_take_one_listing_for_each_thousand(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = scratch_of(local)
    for chunk in range(3_000):
        path = Path(scratch.root.url) / "chunks" / f"{chunk // 1000:03d}" / f"{chunk:08d}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    listed: list[str] = []
    scandir = os.scandir

    def counted(path: str) -> Any:
        listed.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    committed = scratch.committed_chunks()
    monkeypatch.undo()

    assert committed == set(range(3_000))
    assert len(listed) == 1 + 3


def test_chunks_take_one_request_for_each_page_of_a_listing(s3: Place, s3_server: S3Server) -> None:
    scratch = scratch_of(s3)
    for chunk in (0, 1, 1000, 2000, 123_456):
        scratch.commit_chunk(chunk, b"")
    s3_server.seen.clear()

    assert scratch.committed_chunks() == {0, 1, 1000, 2000, 123_456}
    assert len(s3_server.seen) == 1


# Heartbeats


def test_each_replica_has_one_heartbeat(place: Place) -> None:
    scratch = scratch_of(place)
    scratch.write_heartbeat(heartbeat(10))
    scratch.write_heartbeat(heartbeat(2, records_done=1))
    latest = heartbeat(2, records_done=5, failures={"timeout": 1}, chunks_committed=[(0, 3), (7, 7)])
    scratch.write_heartbeat(latest)

    assert scratch.read_heartbeats() == [latest, heartbeat(10)]


def test_foreign_files_are_no_heartbeats(local: Place) -> None:
    scratch = scratch_of(local)
    scratch.write_heartbeat(heartbeat(0))
    for name in ("readme.txt", "1.json.bak", ".2.json", "x.json"):
        scratch.root.child(f"replicas/{name}").replace(b"x")

    assert scratch.read_heartbeats() == [heartbeat(0)]


# Generations


def test_generations_have_scratches_of_their_own(place: Place) -> None:
    directory = directory_of(place)
    assert directory.scratches() == []
    for generation in (1, 2, 10):
        scratch_of(place, generation).commit_chunk(generation, b"x")
    directory.write_current(CurrentJob(fingerprint="ab12", generation=10, owner="o", series="s"))
    directory.root.child("notes/readme.txt").replace(b"x")
    directory.root.child("ab12-0/x").replace(b"x")
    directory.root.child("ab12-x1/x").replace(b"x")

    handles = directory.scratches()

    assert [handle.generation for handle in handles] == [1, 10, 2]
    assert {(handle.path, handle.fingerprint) for handle in handles} == {(directory.output.url, "ab12")}
    assert [directory.scratch(handle).committed_chunks() for handle in handles] == [{1}, {10}, {2}]
    scratch_of(place, 10).delete()
    scratch_of(place, 10).delete()
    assert [handle.generation for handle in directory.scratches()] == [1, 2]
    assert directory.read_current() is not None


def test_a_scratch_lies_in_its_job_directory(local: Place) -> None:
    with pytest.raises(ValueError, match="fingerprint"):
        directory_of(local).scratch(JobHandle(path="x", fingerprint="../../elsewhere/ab", generation=1))


def test_a_deletion_cut_short_leaves_no_chunks_without_their_documents(
    local: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = scratch_of(local)
    scratch.pin_input(PINNED)
    scratch.commit_chunk(0, b"x")
    scratch.write_heartbeat(heartbeat(0))
    deleted: list[str] = []
    delete_tree = type(scratch.root).delete_tree

    def cut_short(location: Any) -> None:
        if deleted:
            raise KeyboardInterrupt
        deleted.append(location.name)
        delete_tree(location)

    monkeypatch.setattr(type(scratch.root), "delete_tree", cut_short)
    with pytest.raises(KeyboardInterrupt):
        scratch.delete()

    assert scratch.committed_chunks() == set()
    assert scratch.read_input() == PINNED
