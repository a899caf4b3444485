"""What somebody else puts beside an output, or among the inputs, does no harm elsewhere and holds nobody up.

Who can write there can spoil the job itself; see docs/threat_model.md.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.job_state import CurrentJob, Heartbeat, JobHandle
from airflow_llmengine.spec.manifest import Manifest
from airflow_llmengine.storage.cleaning import delete_scratch
from airflow_llmengine.storage.errors import StorageDocumentError, StorageUnsupportedError
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.inputs import list_input
from airflow_llmengine.storage.job_directory import MAX_DOCUMENT_BYTES, JobDirectory, JobScratch
from airflow_llmengine.storage.launch import LaunchRefusedError, launch_job
from airflow_llmengine.storage.status import glance, job_status
from tests.fuzz.state import STATE
from tests.storage.conftest import Place
from tests.worker.readers.files import request_for

FINGERPRINT = "0123abcd"


def planted_current(folder: Path, **fields: Any) -> JobDirectory:
    """An output's job directory whose ``current.json`` somebody else has written."""
    (folder / "out.json.job").mkdir()
    document = {"fingerprint": FINGERPRINT, "generation": 1, "owner": "o", "series": "s", **fields}
    (folder / "out.json.job" / "current.json").write_text(json.dumps(document))
    return JobDirectory(Storage(), str(folder / "out.json"))


def scratch_in(folder: Path) -> tuple[JobScratch, Path]:
    root = folder / "out.json.job" / f"{FINGERPRINT}-1"
    handle = JobHandle(path=str(folder / "out.json"), fingerprint=FINGERPRINT, generation=1)
    return JobDirectory(Storage(), handle.path).scratch(handle), root


@pytest.fixture
def treasure(tmp_path: Path) -> Path:
    """Somebody's own files, which a link may lead to."""
    path = tmp_path / "treasure"
    (path / "below").mkdir(parents=True)
    for name in ("a", "below/b", "1234567.json"):
        (path / name).write_text("dear")
    return path


def content_of(path: Path) -> dict[str, str]:
    return {str(file.relative_to(path)): file.read_text() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("where", ["", "chunks", "claims", "chunks/000"])
def test_deleting_scratch_leaves_what_links_lead_to(tmp_path: Path, treasure: Path, where: str) -> None:
    before = content_of(treasure)
    scratch, root = scratch_in(tmp_path)
    (root / where).parent.mkdir(parents=True)
    (root / where).symlink_to(treasure, target_is_directory=True)
    delete_scratch(Storage(), scratch.handle)
    assert content_of(treasure) == before
    assert not os.path.lexists(root)


def test_a_job_directory_that_is_a_link_is_refused_at_launch(tmp_path: Path, treasure: Path) -> None:
    before = content_of(treasure)
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "out.json.job").symlink_to(treasure, target_is_directory=True)
    request = request_for(tmp_path / "in.jsonl", output_data_path=str(tmp_path / "out.json"))
    with pytest.raises(LaunchRefusedError, match=r"The job directory .*/out\.json\.job is a link"):
        launch_job(Storage(), request, owner="o", series="s")
    assert content_of(treasure) == before


def test_a_link_in_the_place_of_a_commit_is_not_written_through(tmp_path: Path, treasure: Path) -> None:
    before = content_of(treasure)
    scratch, root = scratch_in(tmp_path)
    (root / "chunks" / "000").mkdir(parents=True)
    (root / "chunks" / "000" / "00000000.jsonl").symlink_to(treasure / "a")
    (root / "replicas").mkdir()
    (root / "replicas" / "0.json").symlink_to(treasure / "a")
    assert not scratch.commit_chunk(0, b"x")
    scratch.write_heartbeat(Heartbeat.model_validate(STATE[7]))
    assert content_of(treasure) == before
    assert scratch.read_heartbeat(0) is not None


@pytest.mark.parametrize("fingerprint", ["../../elsewhere", "..", "a/../../b", "/etc/x", "a/b", "", "x" * 300, "a\n"])
def test_a_document_that_names_another_place_is_refused(tmp_path: Path, fingerprint: str) -> None:
    if fingerprint == "..":  # a part of a name, as it is followed by the generation
        assert job_status(Storage(), str(planted_current(tmp_path, fingerprint="..").output.url)).state == "launched"
        return
    directory = planted_current(tmp_path, fingerprint=fingerprint)
    with pytest.raises(StorageDocumentError, match="is damaged, or no file of this program"):
        job_status(Storage(), directory.output.url)


def test_a_manifest_tells_of_the_output_that_it_stands_beside(tmp_path: Path) -> None:
    """Not of the one that it names: both may have been copied, or somebody may have written it."""
    output = tmp_path / "out.json"
    output.write_bytes(b"[]\n")
    sha = "37517e5f3dc66819f61f5a7bb8ace1921282415f10551d2defa5c3eb0985b570"
    document = STATE[8] | {"output_data_path": "/etc/passwd", "output_bytes": 3, "output_sha256": sha}
    (tmp_path / "out.json.manifest.json").write_text(json.dumps(document))
    manifest = JobDirectory(Storage(), str(output)).valid_manifest()
    assert manifest is not None
    assert manifest.handle.path == manifest.output_data_path == str(output)


LOOKS = {"glance": glance, "status": job_status}


@pytest.mark.parametrize("look", LOOKS)
def test_a_pipe_or_a_device_in_the_place_of_a_document_holds_nobody_up(tmp_path: Path, look: str) -> None:
    (tmp_path / "out.json.job").mkdir()
    place = tmp_path / "out.json.job" / "current.json"
    os.mkfifo(place)
    for _ in range(2):
        with pytest.raises(StorageDocumentError, match=r"current\.json is not a file"):
            LOOKS[look](Storage(), str(tmp_path / "out.json"))
        place.unlink()
        place.symlink_to("/dev/zero")


@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")
def test_a_huge_document_is_not_read(place: Place) -> None:
    at = place.at("out.json.job/current.json")
    at.replace(b'{"fingerprint": "' + b"x" * MAX_DOCUMENT_BYTES + b'"}')
    with pytest.raises(StorageDocumentError, match="has more than 16777216 bytes") as caught:
        glance(place.storage, place.at("out.json").url)
    assert len(str(caught.value)) < 300


def test_of_a_huge_document_no_more_than_its_beginning_is_held(tmp_path: Path) -> None:
    directory = planted_current(tmp_path)
    with (tmp_path / "out.json.job" / "current.json").open("wb") as file:
        file.truncate(10 * 2**30)  # takes no room on the disk
    with pytest.raises(StorageDocumentError, match="has more than 16777216 bytes"):
        directory.read_current()


def test_the_beginning_of_a_file_is_read_everywhere(place: Place) -> None:
    at = place.at("file")
    for content in (b"", b"a", b"abc"):
        at.replace(content)
        assert [at.read_start(size) for size in (1, 3, 4)] == [content[:1], content, content]


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe", b"", b"null", b"[]", b"\0" * 100])
def test_a_document_that_is_made_to_break_its_reader_is_refused_in_plain_words(tmp_path: Path, content: bytes) -> None:
    planted_current(tmp_path)
    (tmp_path / "out.json.job" / "current.json").write_bytes(content)
    with pytest.raises(StorageDocumentError, match="is damaged, or no file of this program") as caught:
        glance(Storage(), str(tmp_path / "out.json"))
    assert len(str(caught.value)) < 300


def test_what_a_foreign_document_says_is_not_quoted(tmp_path: Path) -> None:
    directory = planted_current(tmp_path)
    document = STATE[8] | {"failures": {"private words": "private words"}, "records": "private words"}
    (tmp_path / "out.json.manifest.json").write_text(json.dumps(document))
    with pytest.raises(StorageDocumentError) as caught:
        directory.read_manifest()
    error: BaseException | None = caught.value
    while error is not None:
        assert "private" not in f"{error} {error!r}"
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("moment", [1e300, -1.0, float("nan"), float("inf")])
def test_a_moment_that_no_calendar_shows_is_refused(tmp_path: Path, moment: float) -> None:
    planted_current(tmp_path)
    scratch, root = scratch_in(tmp_path)
    (root / "replicas").mkdir(parents=True)
    (root / "replicas" / "0.json").write_text(json.dumps(STATE[7] | {"updated": moment}))
    with pytest.raises(StorageDocumentError, match="updated: "):
        scratch.read_heartbeats()


def test_links_that_lead_round_in_circles_end_no_glob(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.jsonl").write_text("{}\n")
    for name in ("x", "y", "z"):
        (folder / name).symlink_to(".", target_is_directory=True)
    found = list_input(Storage(), f"{folder}/**/*.jsonl")
    assert [entry.url for entry in found] == [f"{folder}/a.jsonl"]


def test_a_manifest_of_another_job_proves_nothing(tmp_path: Path) -> None:
    """One with another fingerprint, however well it fits the output."""
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "out.json").write_bytes(b"[]\n")
    sha = "37517e5f3dc66819f61f5a7bb8ace1921282415f10551d2defa5c3eb0985b570"
    document = STATE[8] | {"output_bytes": 3, "output_sha256": sha}
    Manifest.model_validate(document)
    (tmp_path / "out.json.manifest.json").write_text(json.dumps(document))
    request = request_for(tmp_path / "in.jsonl", output_data_path=str(tmp_path / "out.json"))
    assert launch_job(Storage(), request, owner="o", series="s").manifest is None


@pytest.mark.parametrize(
    "url",
    [
        "simplecache::s3://b/k",
        "filecache::https://h/k",
        "zip://a.csv::s3://b/k.zip",
        "reference://::s3://b/references.json",
        "tar://x::/etc/x.tar",
        "gs://b/a::b",
        "dir://x::file:///etc",
    ],
)
def test_a_chained_url_is_refused_whatever_it_begins_with(url: str) -> None:
    with pytest.raises(StorageUnsupportedError, match="is a chained URL"):
        Storage().location(url)


def test_a_current_job_that_is_well_formed_is_read(tmp_path: Path) -> None:
    """So that what is refused above is refused for its fault."""
    assert planted_current(tmp_path).read_current() == CurrentJob(
        fingerprint=FINGERPRINT, generation=1, owner="o", series="s"
    )


def test_control_characters_in_a_document_reach_no_terminal(tmp_path: Path) -> None:
    directory = planted_current(tmp_path)
    root = tmp_path / "out.json.job" / f"{FINGERPRINT}-1"
    root.mkdir()
    (root / "job.json").write_text(json.dumps(STATE[1] | {"owner": "\x1b[2Jforged\nline"}))
    lines = job_status(Storage(), directory.output.url).lines()
    assert any("?[2Jforged?line" in line for line in lines)
    assert all(line.isprintable() for line in lines)
