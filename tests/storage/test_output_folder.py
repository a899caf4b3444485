"""An output of several files: put in its place as a whole, and recognised again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.manifest import Manifest, OutputFile
from airflow_llmengine.storage.backend import temporary_name
from airflow_llmengine.storage.cleaning import delete_leftovers
from airflow_llmengine.storage.errors import (
    StorageChangedError,
    StorageDocumentError,
    StorageNotFoundError,
    StorageUnsupportedError,
)
from airflow_llmengine.storage.inputs import list_input
from airflow_llmengine.storage.job_directory import JobDirectory
from airflow_llmengine.storage.output_folder import OutputFolder, folder_digest
from airflow_llmengine.storage.s3 import PART_BYTES
from tests.storage.conftest import BUCKET, Place
from tests.storage.s3_server import Fault, S3Server

# As in test_every_store.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")


def nothing() -> None:
    """Nobody stops it."""


def written(place: Place, **files: str) -> OutputFolder:
    folder = OutputFolder(place.at("out"), place.at("out.job/ab-1/output"))
    for name, content in files.items():
        with folder.open(name.replace("__", "/")) as file:
            file.write(content.encode())
            file.records = len(content)
    return folder


def finish(place: Place, files: list[OutputFile], **fields: Any) -> JobDirectory:
    directory = JobDirectory(place.storage, f"{place.base}/out/")
    directory.write_manifest(
        Manifest(
            **{
                "output_data_path": directory.output.url,
                "fingerprint": "ab",
                "generation": 1,
                "owner": "o",
                "output_format": "parquet",
                "output_bytes": 1,
                "output_sha256": folder_digest(files),
                "files": files,
                "records": 3,
                "succeeded": 3,
                "failed": 0,
                "prompt_tokens": 0,
                "completion_tokens": 0,
                "model": "m",
                "engine": "e",
                "created": 1,
                "finished": 2,
                **fields,
            }
        )
    )
    return directory


def standing(place: Place) -> dict[str, str]:
    root = place.at("out")
    return {name: root.child(name).read_bytes().decode() for name in sorted(root.walk_names())}


def test_files_appear_together_and_others_go(place: Place) -> None:
    place.put("out/a", "out/p=1/gone", "out/_kept", "out.job/current.json")
    folder = written(place, a="new", p__b="ü")
    assert standing(place) == {"_kept": "out/_kept", "a": "out/a", "p=1/gone": "out/p=1/gone"}

    files = folder.put(nothing)

    assert standing(place) == {"_kept": "out/_kept", "a": "new", "p/b": "ü"}
    assert [(file.name, file.records, file.bytes) for file in files] == [("a", 3, 3), ("p/b", 1, 2)]
    folder.discard()
    assert list(place.at("out.job/ab-1").walk_names()) == []


def test_the_output_is_recognised_until_a_file_is_changed_added_or_gone(place: Place) -> None:
    files = written(place, a="new", p__b="other").put(nothing)
    directory = finish(place, files)
    assert directory.valid_manifest() is not None
    place.put("out/_SUCCESS", "out/.hidden")
    assert directory.valid_manifest() is not None
    assert directory.output_exists()

    place.put("out/p/c")
    assert directory.valid_manifest() is None
    place.at("out/p/c").delete()
    place.at("out/p/b").replace(b"0ther")
    assert directory.valid_manifest() is None
    place.at("out/p/b").replace(b"other")
    assert directory.valid_manifest() is not None
    place.at("out/p/b").delete()
    assert directory.valid_manifest() is None


def test_the_manifest_of_a_folder_is_no_data_of_the_folder_above(place: Place) -> None:
    finish(place, written(place, a="new").put(nothing))
    place.put("plain.manifest.json")
    found = [entry.url.removeprefix(place.at("").url) for entry in list_input(place.storage, f"{place.base}/")]
    assert found == ["/out/a", "/plain.manifest.json"]
    found = [entry.name for entry in list_input(place.storage, f"{place.base}/*")]
    assert found == ["a", "plain.manifest.json"]


def test_a_folder_that_is_not_there_is_no_output(place: Place) -> None:
    assert not JobDirectory(place.storage, f"{place.base}/out/").output_exists()


def test_who_is_told_to_stop_stops_before_the_next_file(place: Place) -> None:
    calls: list[None] = []

    def stop_at_third() -> None:
        calls.append(None)
        if len(calls) == 3:
            raise KeyboardInterrupt

    place.put("out/x")
    with pytest.raises(KeyboardInterrupt):
        written(place, a="1", b="2", c="3").put(stop_at_third)
    assert standing(place) == {"a": "1", "b": "2", "x": "out/x"}


def test_what_another_has_put_while_the_scratch_went_is_as_good(place: Place) -> None:
    one, other = written(place, a="same", b="same"), written(place, a="same", b="same")
    files = one.put(nothing)
    place.at("out.job").delete_tree()
    assert other.put(nothing) == files


def test_what_is_gone_and_stands_nowhere_is_missed(place: Place) -> None:
    folder = written(place, a="mine")
    place.at("out.job").delete_tree()
    with pytest.raises(StorageNotFoundError):
        folder.put(nothing)
    folder = written(place, a="mine")
    place.at("out.job").delete_tree()
    place.put("out/a")
    with pytest.raises(StorageNotFoundError):
        folder.put(nothing)


def test_a_file_that_is_changed_on_its_way_is_noticed(s3: Place) -> None:
    folder = written(s3, a="mine")
    (name,) = s3.at("out.job/ab-1/output").walk_names()
    s3.at(f"out.job/ab-1/output/{name}").replace(b"evil")
    with pytest.raises(StorageChangedError, match="it is another file by now"):
        folder.put(nothing)


def test_a_store_that_copies_by_itself_sends_nothing(s3: Place, s3_server: S3Server) -> None:
    folder = written(s3, a="mine")
    folder.put(nothing)
    assert [path for path in s3_server.sent if "output" in path] == []
    assert standing(s3) == {"a": "mine"}
    assert [path for path in s3_server.sent if path.endswith("/out/a")] != []


def test_a_store_that_does_not_copy_by_itself_is_copied_through_here(s3: Place, s3_server: S3Server) -> None:
    folder = written(s3, a="mine")
    s3_server.faults.append(Fault("PUT", path="/out/a", status=501, code="NotImplemented"))
    files = folder.put(nothing)
    assert standing(s3) == {"a": "mine"}
    assert finish(s3, files).valid_manifest() is not None


def test_a_copy_through_here_is_compared(gcs: Place) -> None:
    folder = written(gcs, a="mine")
    (name,) = gcs.at("out.job/ab-1/output").walk_names()
    gcs.at(f"out.job/ab-1/output/{name}").replace(b"evil")
    with pytest.raises(StorageChangedError, match="was changed while it was put in its place"):
        folder.put(nothing)


def test_a_block_that_ends_with_an_exception_leaves_no_file(place: Place) -> None:
    folder = OutputFolder(place.at("out"), place.at("aside"))

    def write_half() -> None:
        with folder.open("a") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert folder.put(nothing) == []
    assert list(place.at("").walk_names()) == []


def test_what_the_killed_had_begun_to_write_is_given_up(s3: Place, s3_server: S3Server) -> None:
    folder = OutputFolder(s3.at("out"), s3.at("out.job/ab-1/output"))
    with folder.open("kept") as file:
        file.write(b"small")
    s3.at("out.job/ab-1/output/dead/large").open_write().write(bytes(PART_BYTES))
    beside = s3.at("out.job/ab-1/output2/large").open_write()
    beside.write(bytes(PART_BYTES))

    s3.at("out.job/ab-1/output").abort_writes()

    answer = s3_server.client.list_multipart_uploads(Bucket=BUCKET, Prefix=s3.base.partition(f"{BUCKET}/")[2])
    assert [upload["Key"].rpartition("/")[0].rpartition("/")[2] for upload in answer["Uploads"]] == ["output2"]
    beside.discard()
    folder.put(nothing)
    assert standing(s3) == {"kept": "small"}


def test_leftovers_of_each_file_of_a_folder_are_deleted(s3: Place, local: Place) -> None:
    written(s3, a="new", p__b="ü").put(nothing)
    s3.at("out/p/b").open_write().write(bytes(PART_BYTES))
    assert delete_leftovers(s3.storage, f"{s3.base}/out/", older_than_seconds=-60) == 1
    written(local, a="new", p__b="ü").put(nothing)
    temporary = Path(local.at("out/p").url) / temporary_name()
    temporary.touch()
    assert delete_leftovers(local.storage, f"{local.base}/out/", older_than_seconds=-60) == 1
    assert not temporary.exists()


def test_a_folder_that_is_a_link_is_neither_written_nor_emptied(local: Place, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("1")
    output = Path(local.at("out").url)
    output.mkdir(parents=True)
    (output / "p").symlink_to(elsewhere)
    for folder in (written(local, a="1"), written(local, p__b="1")):
        with pytest.raises(StorageUnsupportedError, match=r"The folder .*/out/p of the output is a link: delete it"):
            folder.put(nothing)
    (elsewhere / "precious").unlink()
    with pytest.raises(StorageUnsupportedError, match=r"/out/p of the output is a link"):
        written(local, p__b="1").put(nothing)
    assert list(elsewhere.iterdir()) == []
    assert standing(local) == {}


@pytest.mark.parametrize("name", ["../elsewhere", "p/../../x", "/etc/passwd", "", "p//a", "."])
def test_a_manifest_that_names_another_place_is_none(local: Place, name: str) -> None:
    files = written(local, a="1").put(nothing)
    directory = finish(local, files)
    path = Path(directory.manifest.url)
    path.write_text(path.read_text().replace('"name": "a"', f'"name": {json.dumps(name)}'))
    assert directory.valid_manifest() is None
    with pytest.raises(StorageDocumentError, match="names no file below the folder"):
        directory.read_manifest()
