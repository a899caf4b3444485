"""What holds for every kind of store."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_llmengine.storage.errors import StorageNotFoundError
from airflow_llmengine.storage.filesystem import Location, content_identity
from airflow_llmengine.storage.output import OutputWriter
from tests.storage.conftest import Place

# aiohttp's advice to those who hand it megabytes at once, as the libraries of other stores than S3 do.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")


def write_half(target: Location) -> None:
    with target.writer() as out:
        out.write(b"half")
        raise KeyboardInterrupt


def test_a_file_is_created_only_if_absent(place: Place) -> None:
    file = place.at("folder/file.json")

    assert file.create(b"first")
    assert not file.create(b"second")
    assert file.read_bytes() == b"first"


def test_an_empty_file_can_be_created_and_read(place: Place) -> None:
    file = place.at("empty")

    assert file.create(b"")
    assert not file.create(b"later")
    assert file.read_bytes() == b""
    assert file.open_read().read() == b""
    info = file.info()
    assert info is not None
    assert info.size == 0


def test_of_threads_that_race_exactly_one_creates(place: Place) -> None:
    file = place.at("race")
    place.at("warm").create(b"")
    start = threading.Barrier(6)

    def create(number: int) -> bool:
        start.wait()
        return file.create(str(number).encode() * 1000)

    with ThreadPoolExecutor(6) as threads:
        created = list(threads.map(create, range(6)))

    assert created.count(True) == 1
    assert file.read_bytes() == str(created.index(True)).encode() * 1000


def test_a_file_is_replaced(place: Place) -> None:
    file = place.at("file")

    file.replace(b"one")
    file.replace(b"two")

    assert file.read_bytes() == b"two"


def test_what_does_not_exist_is_told(place: Place) -> None:
    file = place.at("nothing")

    assert not file.exists()
    assert file.info() is None
    assert file.list() == []
    assert file.folders() == []
    assert list(file.walk()) == []
    file.delete()
    file.delete_tree()
    with pytest.raises(StorageNotFoundError, match="nothing: it does not exist"):
        file.read_bytes()
    with pytest.raises(StorageNotFoundError, match="nothing: it does not exist"):
        file.open_read()


def test_a_folder_is_not_a_file(place: Place) -> None:
    place.put("folder/file")

    assert not place.at("folder").exists()


def test_listings_give_children_by_name_with_sizes(place: Place) -> None:
    place.put("folder/b", "folder/a", "folder/below/c", "folder-2/d", "folder.txt")
    folder = place.at("folder")

    assert [(entry.name, entry.url, entry.size) for entry in folder.list()] == [
        ("a", place.at("folder/a").url, 8),
        ("b", place.at("folder/b").url, 8),
    ]
    assert folder.folders() == ["below"]
    assert {entry.url for entry in folder.walk()} == {place.at(f"folder/{name}").url for name in ("a", "b", "below/c")}
    assert set(folder.walk_names()) == {"a", "b", "below/c"}


def test_listings_are_never_stale(place: Place) -> None:
    folder = place.at("folder")
    elsewhere = Place(place.storage, place.base)

    assert folder.list() == []
    elsewhere.put("folder/a")
    assert [entry.name for entry in folder.list()] == ["a"]
    elsewhere.put("folder/b", "folder/x/c")
    assert [entry.name for entry in folder.list()] == ["a", "b"]
    assert folder.folders() == ["x"]
    elsewhere.at("folder/a").delete()
    assert [entry.name for entry in folder.list()] == ["b"]
    assert place.at("folder/a").info() is None


def test_a_file_is_deleted_and_a_tree_too(place: Place) -> None:
    place.put("tree/a", "tree/b/c", "tree/b/d/e", "tree-2/a")

    place.at("tree/a").delete()
    assert not place.at("tree/a").exists()
    place.at("tree").delete_tree()

    assert list(place.at("tree").walk()) == []
    assert place.at("tree-2/a").exists()


def test_a_written_file_appears_when_the_block_ends(place: Place) -> None:
    file = place.at("new/output")

    with file.writer() as out:
        out.write(b"one ")
        assert not file.exists()
        out.write(bytearray(b"two"))
        assert not file.exists()

    assert file.read_bytes() == b"one two"
    assert [entry.name for entry in place.at("new").list()] == ["output"]


def test_an_exception_leaves_what_stood_before(place: Place) -> None:
    file, absent = place.at("output"), place.at("absent")
    file.replace(b"before")

    for target in (file, absent):
        with pytest.raises(KeyboardInterrupt):
            write_half(target)

    assert file.read_bytes() == b"before"
    assert not absent.exists()
    assert [entry.name for entry in place.storage.location(place.base).list()] == ["output"]


def test_closing_what_wraps_the_writer_does_not_commit(place: Place) -> None:
    file = place.at("output")

    def write_half_as_text() -> None:
        with file.writer() as out:
            text = io.TextIOWrapper(out, encoding="utf-8")
            text.write("half")
            text.close()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half_as_text()

    assert not file.exists()


def test_an_empty_output_can_be_written(place: Place) -> None:
    with place.at("output").writer():
        pass

    assert place.at("output").read_bytes() == b""


def test_a_file_is_read_piece_by_piece_from_anywhere(place: Place) -> None:
    content = bytes(range(256)) * 20_000  # more than one buffer
    place.at("file").replace(content)

    with place.at("file").open_read() as file:
        assert file.read(3) == content[:3]
        assert file.tell() == 3
        file.seek(3_000_001)
        assert file.read(100_000) == content[3_000_001:3_100_001]
        file.seek(-2, 2)
        assert file.read() == content[-2:]
        assert file.read() == b""


def test_lines_are_read(place: Place) -> None:
    place.at("file").replace(b"one\ntwo\n\nthree")

    with place.at("file").open_read() as file:
        assert list(file) == [b"one\n", b"two\n", b"\n", b"three"]


def test_two_readers_have_places_of_their_own(place: Place) -> None:
    place.at("file").replace(b"0123456789")

    with place.at("file").open_read() as one, place.at("file").open_read() as two:
        assert one.read(4) == b"0123"
        assert two.read(2) == b"01"
        assert one.read() == b"456789"
        assert two.read() == b"23456789"


def test_content_identity_is_the_sha256(place: Place) -> None:
    place.at("file").replace(b"abc")

    assert (
        content_identity(place.at("file")) == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


def test_odd_names_are_names(place: Place) -> None:
    names = sorted(["a b", "a+b%20c", "ünï-漢字", "a\u2028b", "#x", "a'b\"c", "x" * 200, "a=b&c", "a?b", "[a]*"])

    for name in names:
        assert place.at(f"folder/{name}").create(name.encode())
    entries = place.at("folder").list()

    assert [entry.name for entry in entries] == names
    assert [place.storage.location(entry.url).read_bytes().decode() for entry in entries] == names
    assert sorted(place.at("folder").walk_names()) == names
    place.at("folder").delete_tree()
    assert place.at("folder").list() == []


def test_the_probe_for_commits_leaves_nothing(place: Place) -> None:
    place.at("folder/output").require_commits()

    assert list(place.at("folder").walk_names()) == []


def test_files_that_are_being_written_are_not_listed(place: Place) -> None:
    place.put("folder/.llmengine-0123456789abcdef01234567.tmp", "folder/file")
    folder = place.at("folder")

    assert [entry.name for entry in folder.list()] == ["file"]
    assert [entry.name for entry in folder.walk()] == ["file"]
    assert list(folder.walk_names()) == ["file"]
    folder.delete_tree()
    assert not place.at("folder/.llmengine-0123456789abcdef01234567.tmp").exists()


def test_locations_are_equal_when_they_are_the_same_place(place: Place) -> None:
    assert place.at("a/b") == place.at("a").child("b")
    assert place.at("a/b/") == place.at("a/b")
    assert place.at("a/b").sibling(".job") == place.at("a/b.job")
    assert place.at("a/b").name == "b"


@pytest.mark.parametrize("name", ["", "..", "a/../b", "/a", "a//b", "."])
def test_a_child_lies_below(place: Place, name: str) -> None:
    with pytest.raises(ValueError, match="is not a name below"):
        place.at("a").child(name)


def test_the_output_writer_counts_what_stands(place: Place) -> None:
    with OutputWriter(place.at("output")) as writer:
        writer.write(b"ab")
        writer.write(b"c")
    written = writer.close()

    assert (written.bytes, written.sha256) == (3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    info = place.at("output").info()
    assert info is not None
    assert info.identity == (None if written.etag is None else f"etag:{written.etag}")
    assert (written.etag is not None) == place.base.startswith(("s3://", "gs://", "az://"))


def test_the_output_writer_discards_on_an_exception(place: Place) -> None:
    place.put("output")

    writer = OutputWriter(place.at("output"))

    def write_half_of_it() -> None:
        with writer:
            writer.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half_of_it()

    assert place.at("output").read_bytes() == b"output"
    with pytest.raises(ValueError, match="discarded"):
        writer.write(b"more")
    with pytest.raises(ValueError, match="discarded"):
        writer.close()


def test_the_output_writer_closed_twice_gives_the_same(place: Place) -> None:
    writer = OutputWriter(place.at("output"))
    writer.write(b"x")

    first = writer.close()
    assert writer.close() == first
    writer.discard()  # too late, and no harm
    assert place.at("output").read_bytes() == b"x"
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"more")
