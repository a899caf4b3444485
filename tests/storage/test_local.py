"""The local file system: what other processes see, and what is left when one dies."""

from __future__ import annotations

import errno
import os
import random
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.storage.errors import (
    StorageDeniedError,
    StorageError,
    StorageNotFoundError,
    StorageUnsupportedError,
)
from airflow_llmengine.storage.filesystem import Storage
from tests.storage.conftest import Place


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


# Races of processes

RACER = """
    import sys
    from airflow_llmengine.storage.filesystem import Storage

    folder, me = sys.argv[1:]
    storage = Storage()
    print("ready", flush=True)
    sys.stdin.readline()
    won = [name for name in range(25) if storage.location(f"{folder}/{name}").create(me.encode() * 500_000)]
    print(*won)
"""


def test_of_processes_that_race_exactly_one_creates_and_a_reader_sees_whole_files(tmp_path: Path) -> None:
    folder = tmp_path / "chunks"
    racers = [start(RACER, folder, number) for number in range(8)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()

    seen: dict[str, bytes] = {}
    while any(racer.poll() is None for racer in racers):
        for name in map(str, range(25)):
            if (folder / name).exists():
                content = (folder / name).read_bytes()
                assert content in (b"%d" % number * 500_000 for number in range(8))
                assert seen.setdefault(name, content) == content
        time.sleep(0.002)

    won = [racer.communicate()[0].split() for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 8
    assert sorted(name for names in won for name in names) == sorted(map(str, range(25)))
    for number, names in enumerate(won):
        assert all((folder / name).read_bytes() == b"%d" % number * 500_000 for name in names)
    assert sorted(path.name for path in folder.iterdir()) == sorted(map(str, range(25)))


REPLACER = """
    import sys
    from airflow_llmengine.storage.filesystem import Storage

    path, me, seconds = sys.argv[1:]
    import time
    location, until = Storage().location(path), time.monotonic() + float(seconds)
    while time.monotonic() < until:
        location.replace(me.encode() * 200_000)
"""


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "heartbeat.json"
    path.write_bytes(b"0" * 200_000)
    writers = [start(REPLACER, path, number, 1.0) for number in (1, 2)]

    contents = set()
    while any(writer.poll() is None for writer in writers):
        contents.add(path.read_bytes())

    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    assert contents <= {b"0" * 200_000, b"1" * 200_000, b"2" * 200_000}
    assert contents & {b"1" * 200_000, b"2" * 200_000}
    assert [found.name for found in tmp_path.iterdir()] == ["heartbeat.json"]


# Death

WRITER = """
    import sys
    from airflow_llmengine.storage.filesystem import Storage

    storage, folder = Storage(), sys.argv[1]
    storage.location(f"{folder}/first").create(b"f" * 300_000)
    print("begun", flush=True)
    for number in range(10**6):
        storage.location(f"{folder}/created-{number}").create(b"c" * 300_000)
        with storage.location(f"{folder}/written-{number}").writer() as out:
            for _ in range(30):
                out.write(b"w" * 10_000)
        storage.location(f"{folder}/replaced").replace(b"%d" % (number % 10) * 300_000)
"""


def test_a_killed_writer_leaves_whole_files_only(tmp_path: Path) -> None:
    chance = random.Random(7)
    attempts = leftovers = 0
    while attempts < 8 or (not leftovers and attempts < 50):
        folder = tmp_path / str(attempts)
        attempts += 1
        writer = start(WRITER, folder)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "begun\n"
        time.sleep(chance.uniform(0.0, 0.1))
        writer.kill()
        writer.communicate()

        location = Storage().location(str(folder))
        entries = location.list()
        assert entries
        for entry in entries:
            content = Path(entry.url).read_bytes()
            assert len(content) == 300_000, entry
            assert len(set(content)) == 1
        leftovers += len(list(folder.iterdir())) - len(entries)
        location.child("any").delete_leftovers(older_than_seconds=-1)
        assert len(list(folder.iterdir())) == len(entries)
    assert leftovers, "no kill hit a file that was being written"


def test_leftovers_go_by_age(local: Place, tmp_path: Path) -> None:
    old, new = (tmp_path / f".llmengine-{digit * 24}.tmp" for digit in "01")
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    local.put("output")

    assert local.at("output").delete_leftovers(older_than_seconds=3600) == 1

    assert not old.exists()
    assert new.exists()
    assert local.at("output").exists()
    assert local.at("no-folder/output").delete_leftovers(older_than_seconds=0) == 0


def test_what_is_committed_is_on_the_disk_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def record(module: Any, name: str) -> None:
        real = getattr(module, name)

        def recorded(*arguments: Any, **options: Any) -> Any:
            kind = name
            if name == "fsync":
                kind += " folder" if stat.S_ISDIR(os.fstat(arguments[0]).st_mode) else " file"
            calls.append(kind)
            return real(*arguments, **options)

        monkeypatch.setattr(module, name, recorded)

    storage = Storage()
    for name in ("fsync", "link", "replace"):
        record(os, name)

    storage.location(str(tmp_path / "a")).create(b"x")
    assert calls == ["fsync file", "link", "fsync folder"]
    calls.clear()
    storage.location(str(tmp_path / "b")).replace(b"x")
    assert calls == ["fsync file", "replace", "fsync folder"]
    calls.clear()
    with storage.location(str(tmp_path / "c")).writer() as out:
        out.write(b"x")
    assert calls == ["fsync file", "replace", "fsync folder"]
    calls.clear()
    storage.location(str(tmp_path / "new" / "folders" / "d")).create(b"x")
    assert calls == ["fsync folder", "fsync folder", "fsync file", "link", "fsync folder"]


# What kind of files they are


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_files_have_the_mode_of_ordinary_files(local: Place, tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        local.at("created").create(b"x")
        local.at("replaced").replace(b"x")
        with local.at("folder/written").writer() as out:
            out.write(b"x")
        (tmp_path / "ordinary").write_bytes(b"x")
        (tmp_path / "ordinary-folder").mkdir()
    finally:
        os.umask(before)

    expected = (tmp_path / "ordinary").stat().st_mode
    assert [(tmp_path / name).stat().st_mode for name in ("created", "replaced", "folder/written")] == [expected] * 3
    assert (tmp_path / "folder").stat().st_mode == (tmp_path / "ordinary-folder").stat().st_mode
    assert (tmp_path / "created").stat().st_nlink == 1


def test_a_place_is_named_by_path_or_by_url(local: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = local.at("a/b")

    for url in (
        f"file://{tmp_path}/a/b",
        f"file://localhost{tmp_path}/a/b",
        "a/b",
        "./a/../a//b/",
        "local://" + expected.url,
    ):
        assert local.storage.location(url) == expected
    assert expected.is_local


def test_without_hard_links_commits_are_refused(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)  # what FAT and some network file systems answer

    for action in (lambda: local.at("a").create(b"x"), local.at("a").require_commits):
        with pytest.raises(StorageUnsupportedError, match="has no hard links"):
            action()
    assert local.storage.location(local.base).list() == []


def test_a_link_whose_answer_was_lost_is_known_for_ours(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def lost(source: str, target: str) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, "File exists")  # what a repeated request to an NFS server is answered

    monkeypatch.setattr(os, "link", lost)

    assert local.at("a").create(b"x")
    assert not local.at("a").create(b"x")


def test_a_folder_that_vanishes_is_made_anew(local: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link
    vanished: list[object] = []

    def vanish_once(source: Any, target: Any) -> None:
        if not vanished:
            vanished.append(source)
            Path(source).unlink()
            (tmp_path / "folder").rmdir()
        link(source, target)

    monkeypatch.setattr(os, "link", vanish_once)

    assert local.at("folder/a").create(b"x")
    assert local.at("folder/a").read_bytes() == b"x"


def test_a_place_that_is_a_folder_is_told(local: Place) -> None:
    local.put("folder/file")
    folder = local.at("folder")

    with pytest.raises(StorageError, match=r"Cannot read .*/folder: it is a folder, not a file\."):
        folder.read_bytes()
    with pytest.raises(StorageError, match="is a folder, not a file; give the name of a file"):
        folder.require_commits()
    with pytest.raises(StorageError, match="it is a folder, not a file"):
        folder.replace(b"x")
    with pytest.raises(StorageError, match="it is a folder, not a file"), folder.writer() as out:
        out.write(b"x")
    assert [entry.name for entry in folder.list()] == ["file"]
    assert [path.name for path in Path(local.base).iterdir()] == ["folder"]


def test_a_file_in_the_place_of_a_folder_is_told(local: Place) -> None:
    local.put("file")
    below = local.at("file/below")

    assert below.info() is None
    assert below.list() == []
    below.delete()
    below.delete_tree()
    for action in (lambda: below.create(b"x"), lambda: below.replace(b"x"), below.require_commits, below.open_write):
        with pytest.raises(StorageError, match="a file stands where a folder should be"):
            action()


def test_a_full_disk_is_told_and_leaves_nothing(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(StorageError, match=r"Cannot create .*/a: no space left on device"):
        local.at("a").create(b"x")
    with (
        pytest.raises(StorageError, match=r"Cannot write .*/a: no space left on device"),
        local.at("a").writer() as out,
    ):
        out.write(b"x")
    assert list(Path(local.base).iterdir()) == []


def test_denied_is_told(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_arguments: object, **_options: object) -> int:  # root, as tests may run, is denied nothing
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", denied)

    with pytest.raises(StorageDeniedError, match=r"Cannot create .*/a: permission denied; check who may"):
        local.at("a").create(b"x")


def test_a_read_only_file_system_is_told(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_arguments: object, **_options: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "open", read_only)

    with pytest.raises(StorageDeniedError, match="read-only file system"):
        local.at("a").require_commits()


def test_a_stale_handle_is_tried_again(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    local.put("a")
    read, calls = Path.read_bytes, []

    def stale_once(path: Path) -> bytes:
        calls.append(path)
        if len(calls) == 1:
            raise OSError(errno.ESTALE, "Stale file handle")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", stale_once)

    assert local.at("a").read_bytes() == b"a"


def test_a_read_that_fails_is_told(local: Place) -> None:
    with pytest.raises(StorageError, match="Cannot read /proc/self/mem: input/output error"):
        local.storage.location("/proc/self/mem").open_read().read()  # its first page can't be read


# Symbolic links


def test_links_are_followed_and_circles_are_not(local: Place, tmp_path: Path) -> None:
    local.put("data/a", "elsewhere/b")
    (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "c").symlink_to(tmp_path / "data" / "a")
    (tmp_path / "data" / "up").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "data" / "self").symlink_to("self")
    os.mkfifo(tmp_path / "data" / "pipe")

    data = local.at("data")

    assert sorted(data.walk_names()) == ["a", "c", "link/b"]
    assert [entry.name for entry in data.list()] == ["a", "c"]
    assert data.folders() == ["link", "up"]


def test_deleting_a_tree_leaves_what_links_lead_to(local: Place, tmp_path: Path) -> None:
    local.put("tree/a", "elsewhere/b")
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "elsewhere")

    local.at("tree").delete_tree()

    assert not (tmp_path / "tree").exists()
    assert local.at("elsewhere/b").exists()


def test_trees_deleted_by_several_at_once(local: Place) -> None:
    script = """
        import sys
        from airflow_llmengine.storage.filesystem import Storage
        print("ready", flush=True); sys.stdin.readline()
        Storage().location(sys.argv[1]).delete_tree()
    """
    for folder in range(40):
        below = Path(local.base, "tree", str(folder))
        below.mkdir(parents=True)
        for file in range(40):
            (below / str(file)).touch()
    deleters = [start(script, local.at("tree").url) for _ in range(3)]
    for deleter in deleters:
        assert deleter.stdout is not None
        deleter.stdout.readline()
    for deleter in deleters:
        deleter.communicate("go\n")

    assert [deleter.returncode for deleter in deleters] == [0, 0, 0]
    assert not Path(local.at("tree").url).exists()


def test_a_file_deleted_while_it_is_listed_is_left_out(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    local.put("a", "b")
    scandir = os.scandir

    class Deleting:
        def __init__(self, path: str) -> None:
            self._entries = scandir(path)

        def __enter__(self) -> list[os.DirEntry[str]]:
            entries = sorted(self._entries, key=lambda entry: entry.name)
            Path(entries[0].path).unlink()
            return entries

        def __exit__(self, *_arguments: object) -> None:
            self._entries.close()

    monkeypatch.setattr(os, "scandir", Deleting)

    assert [entry.name for entry in local.storage.location(local.base).list()] == ["b"]


def test_not_found_is_told(local: Place) -> None:
    with pytest.raises(StorageNotFoundError, match=r"^Cannot read .*/a: it does not exist; check its spelling\.$"):
        local.at("a").read_bytes()
