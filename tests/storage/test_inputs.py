"""Which files an input stands for, and what identifies them."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_llmengine.storage.errors import StorageNotFoundError
from airflow_llmengine.storage.filesystem import FileEntry, Location, Storage
from airflow_llmengine.storage.inputs import input_identity, list_input, names_below
from tests.storage.conftest import Place
from tests.storage.s3_server import S3Server


def names(place: Place, pattern: str) -> list[str]:
    """What a URL below the place stands for, as paths below the place."""
    entries = list_input(place.storage, f"{place.base}/{pattern}")
    assert all(entry.url.startswith(f"{place.base}/") for entry in entries)
    return [entry.url[len(place.base) + 1 :] for entry in entries]


def identity(place: Place, pattern: str) -> str:
    return input_identity(place.storage, list_input(place.storage, f"{place.base}/{pattern}"))


def test_a_file_stands_for_itself(place: Place) -> None:
    place.put("data/a.jsonl", "data/b.jsonl", "data/_c.jsonl", "data/.d", "data/e.manifest.json", "data/e")

    for name in ("data/a.jsonl", "data/_c.jsonl", "data/.d", "data/e.manifest.json"):
        assert names(place, name) == [name]


def test_a_folder_stands_for_the_files_below_it_in_the_order_of_their_paths(place: Place) -> None:
    place.put("data/b", "data/a/z", "data/a-0", "data/a0", "data/B", "data/10", "data/9", "data/é", "other/x")
    expected = ["10", "9", "B", "a-0", "a/z", "a0", "b", "é"]

    assert names(place, "data/") == [f"data/{name}" for name in expected]
    assert names(place, "data") == [f"data/{name}" for name in expected]


def test_what_is_no_data_is_left_out(place: Place) -> None:
    place.put(
        "data/a.jsonl",
        "data/_SUCCESS",
        "data/.hidden",
        "data/_temporary/b.jsonl",
        "data/.git/config",
        "data/deep/_c/d",
        "data/output.json",
        "data/output.json.manifest.json",
        "data/output.json.job/current.json",
        "data/output.json.job/ab-1/chunks/000/00000000.jsonl",
        "data/app.manifest.json",
        "data/print.jobs/e.jsonl",
    )
    expected = ["data/a.jsonl", "data/app.manifest.json", "data/output.json", "data/print.jobs/e.jsonl"]

    assert names(place, "data/") == expected
    assert names(place, "dat*/") == expected
    assert names(place, "data/**") == expected
    assert names(place, "data/*") == expected


def test_what_is_left_out_can_be_asked_for(place: Place) -> None:
    place.put("_data/a", "_data/_b", "x/_d/e", "x/_d/_f", "y.job/g", "h", "h.manifest.json")

    assert names(place, "_data/") == ["_data/a"]
    assert names(place, "_data/*") == ["_data/a"]
    assert names(place, "_data/_*") == ["_data/_b"]
    assert names(place, "*/_d/*") == ["x/_d/e"]
    assert names(place, "y.job/") == ["y.job/g"]
    assert names(place, "*.job/") == ["y.job/g"]
    assert names(place, "*.manifest.json") == ["h.manifest.json"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.jsonl", ["a.jsonl", "b.jsonl"]),
        ("?.jsonl", ["a.jsonl", "b.jsonl"]),
        ("[b-z].jsonl", ["b.jsonl"]),
        ("[!b]*.jsonl", ["a.jsonl"]),
        ("day=*/x.jsonl", ["day=1/x.jsonl", "day=2/x.jsonl"]),
        ("day=*/", ["day=1/more/z.jsonl", "day=1/x.jsonl", "day=2/x.jsonl", "day=2/y.json"]),
        ("day=*", ["day=1/more/z.jsonl", "day=1/x.jsonl", "day=2/x.jsonl", "day=2/y.json"]),
        ("*/more/*", ["day=1/more/z.jsonl"]),
        ("**/*.jsonl", ["a.jsonl", "b.jsonl", "day=1/more/z.jsonl", "day=1/x.jsonl", "day=2/x.jsonl"]),
        ("**/x.jsonl", ["day=1/x.jsonl", "day=2/x.jsonl"]),
        ("day=1/**/*.jsonl", ["day=1/more/z.jsonl", "day=1/x.jsonl"]),
        ("**/more/**", ["day=1/more/z.jsonl"]),
        ("day=[12]/[xy].json*", ["day=1/x.jsonl", "day=2/x.jsonl", "day=2/y.json"]),
    ],
)
def test_a_glob_stands_for_what_it_matches(memory: Place, pattern: str, expected: list[str]) -> None:
    memory.put("a.jsonl", "b.jsonl", "day=1/x.jsonl", "day=1/more/z.jsonl", "day=2/x.jsonl", "day=2/y.json")

    assert names(memory, pattern) == expected


def test_globs_work_everywhere(place: Place) -> None:
    place.put("a.jsonl", "day=1/x.jsonl", "day=1/more/z.jsonl", "day=2/x.jsonl", "other/x.jsonl")

    assert names(place, "day=*/*.jsonl") == ["day=1/x.jsonl", "day=2/x.jsonl"]
    assert names(place, "day=*/**/*.jsonl") == ["day=1/more/z.jsonl", "day=1/x.jsonl", "day=2/x.jsonl"]


def test_names_are_taken_literally_first(place: Place) -> None:
    place.put("a[1].jsonl", "a1.jsonl", "b*/c", "bb/d")

    assert names(place, "a[1].jsonl") == ["a[1].jsonl"]
    assert names(place, "b*") == ["b*/c"]
    assert names(place, "a[1]*") == ["a1.jsonl"]


def test_a_key_that_is_also_a_prefix_is_the_key(s3: Place) -> None:
    s3.put("data", "data/a", "data/b")

    assert names(s3, "data") == ["data"]
    assert names(s3, "data/") == ["data/a", "data/b"]
    assert names(s3, "dat*") == ["data", "data/a", "data/b"]


def test_the_roots_can_be_listed(memory: Place, s3: Place) -> None:
    memory.put("a")
    s3.put("a")
    folder = s3.base.rpartition("/")[2]

    assert f"{memory.base}/a" in [entry.url for entry in list_input(memory.storage, "memory://*")]
    assert f"{s3.base}/a" in [entry.url for entry in list_input(s3.storage, s3.base.replace(folder, f"{folder}*"))]
    with pytest.raises(StorageNotFoundError, match="names no bucket"):
        list_input(s3.storage, "s3://buck*/a")


def test_keys_may_have_empty_parts(s3: Place) -> None:
    s3.put("data//a", "data/b", "data/../c")

    assert names(s3, "data/") == ["data//a", "data/b"]
    assert names(s3, "data/*") == ["data/b"]
    assert names(s3, "data//a") == ["data//a"]
    with pytest.raises(StorageNotFoundError):
        names(s3, "dat*//a")


def test_nothing_is_an_error(place: Place) -> None:
    place.put("data/_only/a", "data/.hidden", "part-1")

    for pattern in ("nothing", "nothing/", "data", "data/", "dat", "part", "*.jsonl", "data/**", "part-1/"):
        with pytest.raises(StorageNotFoundError, match="There is no input at "):
            names(place, pattern)


def test_the_error_says_how_to_match_the_beginnings_of_names(s3: Place) -> None:
    s3.put("part-1", "part-2")

    with pytest.raises(StorageNotFoundError, match=rf"write {s3.base}/part-\*"):
        names(s3, "part-")
    assert names(s3, "part-*") == ["part-1", "part-2"]


def test_files_are_found_through_links(local: Place, tmp_path: Path) -> None:
    # As Kubernetes mounts a ConfigMap.
    local.put("mount/..2026/a.jsonl")
    (tmp_path / "mount" / "..data").symlink_to("..2026")
    (tmp_path / "mount" / "a.jsonl").symlink_to("..data/a.jsonl")

    assert names(local, "mount/") == ["mount/a.jsonl"]
    assert names(local, "mount/*.jsonl") == ["mount/a.jsonl"]


# Identity


def test_identity_is_that_of_the_content(place: Place) -> None:
    place.put("data/a", "data/b")
    first = identity(place, "data/")
    assert first.startswith("files:sha256:")
    assert identity(place, "data/") == first

    place.at("data/b").replace(b"changed")
    changed = identity(place, "data/")
    place.at("data/b").replace(b"data/b")

    assert changed != first
    if place.base.startswith("az://"):  # its tag is that of the upload
        assert identity(place, "data/") not in (first, changed)
    else:
        assert identity(place, "data/") == first


def test_identity_changes_with_number_names_and_order(place: Place) -> None:
    place.put("data/a", "data/b")
    entries = list_input(place.storage, f"{place.base}/data/")
    first = input_identity(place.storage, entries)

    assert input_identity(place.storage, entries[::-1]) != first
    assert input_identity(place.storage, entries[:1]) != first
    place.at("data/c").replace(b"")
    assert identity(place, "data/") != first
    place.at("data/c").delete()
    place.at("data/b").delete()
    place.at("data/z").replace(b"data/b")
    assert identity(place, "data/") != first


def test_identity_stays_when_all_is_moved(place: Place) -> None:
    if place.base.startswith("az://"):
        pytest.skip("a copy has a tag of its own on Azure")
    for folder in ("one", "deep/two"):
        place.at(f"{folder}/a").replace(b"1")
        place.at(f"{folder}/x/b").replace(b"2")

    assert identity(place, "one/") == identity(place, "deep/two/") == identity(place, "o*/")
    assert identity(place, "one/a") == identity(place, "deep/two/a")
    assert identity(place, "one/a") != identity(place, "one/")


def test_identity_is_not_confused_by_names(memory: Place) -> None:
    def digest(*files: tuple[str, str]) -> str:
        return input_identity(memory.storage, [FileEntry(f"x://{name}", name, 1, tag) for name, tag in files])

    digests = {
        digest(("r/a", "b"), ("r/c", "d")),
        digest(("r/a", 'b"], ["c'), ("r/c", "d")),
        digest(("r/a\n", "b"), ("r/c", "d")),
        digest(("r/a", "bc"), ("r/d", "e")),
    }

    assert len(digests) == 4


def test_object_stores_are_not_read_for_the_identity(s3: Place, s3_server: S3Server) -> None:
    s3.put("data/a", "data/b")

    identity(s3, "data/")

    assert s3_server.count("GET", "data/a") == s3_server.count("HEAD", "data/a") == 0


def test_identity_of_nothing_is_an_identity(memory: Place) -> None:
    assert input_identity(memory.storage, []).startswith("files:sha256:")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("data", ["p=1/q=2/a.jsonl", "p=1/q=2/b.jsonl"]),
        ("data/", ["p=1/q=2/a.jsonl", "p=1/q=2/b.jsonl"]),
        ("data/p=1", ["q=2/a.jsonl", "q=2/b.jsonl"]),
        ("data/p=1/q=2/a.jsonl", ["a.jsonl"]),
        ("data/p=*/q=2/b.jsonl", ["p=1/q=2/b.jsonl"]),
        ("data/p=1/q=2/[ab].jsonl", ["a.jsonl", "b.jsonl"]),
        ("data/**/a.jsonl", ["p=1/q=2/a.jsonl"]),
        ("da*", ["data/p=1/q=2/a.jsonl", "data/p=1/q=2/b.jsonl"]),
    ],
)
def test_files_are_called_by_their_paths_below_the_root(place: Place, pattern: str, expected: list[str]) -> None:
    place.put("data/p=1/q=2/a.jsonl", "data/p=1/q=2/b.jsonl")
    url = f"{place.base}/{pattern}"
    assert names_below(place.storage.location(url), list_input(place.storage, url)) == expected


def test_a_file_below_a_folder_that_is_spelt_like_a_glob_has_its_name(tmp_path: Path) -> None:
    file = tmp_path / "[old]" / "a?.jsonl"
    file.parent.mkdir()
    file.write_text("{}")
    storage = Storage()
    assert names_below(storage.location(str(file)), list_input(storage, str(file))) == ["a?.jsonl"]


def test_no_name_has_what_a_url_keeps_private() -> None:
    url = "https://host/data/a.parquet?X-Signature=se/cret"
    entry = FileEntry(url, "cret", 1)
    assert names_below(Location(Storage(), url), [entry]) == ["a.parquet"]
