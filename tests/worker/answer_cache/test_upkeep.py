"""What a cache holds, and making it smaller, while others are at work on it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.storage.filesystem import Location, Storage
from airflow_llmengine.worker import cli
from airflow_llmengine.worker.answer_cache import upkeep
from airflow_llmengine.worker.answer_cache.answer_files import new_name
from airflow_llmengine.worker.answer_cache.answer_origin import AboutOrigin
from airflow_llmengine.worker.answer_cache.known_answers import KnownAnswers
from airflow_llmengine.worker.answer_cache.upkeep import Pruned, look_at_cache, prune
from tests.storage.s3_server import S3Server
from tests.worker.answer_cache.answers import WRITTEN, answer, find, look_up, put

DAY = 86_400.0
ABOUT = AboutOrigin(engine="vllm", engine_version="0.32.0", model="small", model_identity="a" * 40)


@pytest.fixture
def storage() -> Storage:
    return Storage()


@pytest.fixture
def cache(tmp_path: Path, storage: Storage) -> Location:
    return storage.location(str(tmp_path / "cache"))


def origin(cache: Location, name: str) -> Location:
    folder = cache.child(f"v1-{name}")
    folder.child("about.json").create(ABOUT.encode())
    return folder


def pruned(cache: Location, **options: Any) -> Pruned:
    return prune(cache.storage, cache.url, now=WRITTEN + DAY, **options)


def files(folder: Location) -> list[str]:
    return [file.name for file in folder.list() if file.name != "about.json"]


def test_small_files_become_one_with_each_key_once(cache: Location) -> None:
    folder = origin(cache, "one")
    for start in range(0, 60, 10):
        put(folder, range(start, start + 15), written=WRITTEN + start)
    done = pruned(cache)
    assert (done.files_before, done.files_after, done.answers) == (6, 1, 25)
    assert done.bytes_after < done.bytes_before
    (name,) = files(folder)
    # Its name tells when the newest was written.
    assert name.startswith(new_name(WRITTEN + 50)[:24])
    found = find(folder, range(70))
    assert found.keys() == set(range(65))
    assert all((got.body, got.truncated) == (answer(number).body, number % 3 == 0) for number, got in found.items())


def test_old_answers_go_and_what_was_written_later_beside_them_stays(cache: Location) -> None:
    folder = origin(cache, "one")
    put(folder, range(10), written=WRITTEN - 40 * DAY)
    put(folder, range(10, 20), written=WRITTEN - 5 * DAY)
    assert pruned(cache).files_after == 1
    put(folder, range(20, 30), written=WRITTEN)
    done = pruned(cache, older_than_seconds=30 * DAY)
    assert (done.answers, done.files_after) == (10, 1)
    assert find(folder, range(40)).keys() == set(range(10, 30))


def test_a_full_file_is_left_alone(cache: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = origin(cache, "one")
    for start in range(0, 50, 10):
        put(folder, range(start, start + 10), written=WRITTEN + start)
    monkeypatch.setattr(upkeep, "FULL_ANSWERS", 20)
    assert pruned(cache).files_after == 3
    before = files(folder)
    assert pruned(cache).files_after == 3
    assert files(folder) == before


def test_the_oldest_files_of_all_models_go_until_the_rest_fits(cache: Location) -> None:
    old, new = origin(cache, "old"), origin(cache, "new")
    put(old, range(10), written=WRITTEN - 2)
    put(old, range(10, 20), written=WRITTEN)
    put(new, range(10), written=WRITTEN - 1)
    size = max(file.size for folder in (old, new) for file in folder.list())
    done = pruned(cache, max_bytes=2 * size)
    assert done.answers == 10
    assert find(old, range(20)).keys() == set(range(10, 20))
    assert find(new, range(20)).keys() == set(range(10))
    assert pruned(cache, max_bytes=0).files_after == 0
    assert list(cache.walk()) == []


def test_a_dry_run_changes_nothing(cache: Location) -> None:
    folder = origin(cache, "one")
    put(folder, range(10), written=WRITTEN - 40 * DAY)
    put(folder, range(10, 20), written=WRITTEN)
    before = files(folder)
    done = pruned(cache, older_than_seconds=30 * DAY, dry_run=True)
    assert (done.answers, done.files_before, done.files_after) == (10, 2, 1)
    assert files(folder) == before


def test_damaged_files_are_told_and_go(cache: Location) -> None:
    folder = origin(cache, "one")
    put(folder, range(10))
    folder.child(new_name(WRITTEN)).create(b"PAR1 and no more")
    (found,) = look_at_cache(cache.storage, cache.url)
    assert [file.summary is None for file in sorted(found.files, key=lambda file: file.entry.size)] == [True, False]
    assert pruned(cache).damaged == 1
    assert find(folder, range(10)).keys() == set(range(10))


def test_other_files_and_folders_are_left_alone(cache: Location) -> None:
    folder = origin(cache, "one")
    put(folder, range(3), written=WRITTEN - 40 * DAY)
    others = [folder.child("notes.txt"), folder.child("answers-of-mine.parquet"), cache.child("mine/x")]
    others.append(cache.child("v1-mine/about.json"))
    for other in others:
        other.create(b"mine")
    # Of a later format, which may mean something else by the same names.
    others.append(put(cache.child("v2-later"), range(3), written=WRITTEN - 40 * DAY))
    pruned(cache, older_than_seconds=DAY)
    assert sorted(entry.url for entry in cache.walk()) == sorted(other.url for other in others)


def test_a_reader_that_began_before_a_prune_finds_what_is_left_or_goes_without(cache: Location) -> None:
    folder = origin(cache, "one")
    for number in range(5):
        put(folder, [number])
    known = KnownAnswers(folder)
    known.load()
    pruned(cache)
    assert look_up(known, range(5)) == {}
    assert find(folder, range(5)).keys() == set(range(5))


def test_writing_and_reading_go_on_while_two_prune(cache: Location) -> None:
    """Whatever comes between what, no answer is lost but for a reader that looked just before."""
    folder = origin(cache, "one")
    for number in range(20):
        put(folder, [number])
    stop = threading.Event()
    failures: list[BaseException] = []

    def keep_pruning() -> None:
        while not stop.is_set():
            try:
                pruned(cache)
            except BaseException as error:  # noqa: BLE001 - told below
                failures.append(error)
                return

    pruners = [threading.Thread(target=keep_pruning) for _ in range(2)]
    for pruner in pruners:
        pruner.start()
    for number in range(20, 40):
        put(folder, [number])
        find(folder, range(40))
    stop.set()
    for pruner in pruners:
        pruner.join()
    assert failures == []
    assert find(folder, range(40)).keys() == set(range(40))


def run(*arguments: str) -> int:
    return cli.main(["cache", *arguments])


def test_stats_for_people_and_programs(cache: Location, capsys: pytest.CaptureFixture[str]) -> None:
    put(origin(cache, "one"), range(10), written=WRITTEN)
    put(cache.child("v1-nameless"), range(5), written=WRITTEN - DAY)
    assert run("stats", cache.url) == ExitCode.DONE
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "not known"
    assert said[4] == f"small ({'a' * 40}), vllm 0.32.0"
    assert said[5].startswith("  10 answers, ")
    assert said[6] == "  written from 2023-11-14 22:13 UTC to 2023-11-14 22:13 UTC"
    assert said[8].startswith("in all: 15 answers, ")
    assert run("stats", cache.url, "--json") == ExitCode.DONE
    told = json.loads(capsys.readouterr().out)
    assert (told["answers"], told["files"]) == (15, 2)
    assert [one["answers"] for one in told["origins"]] == [5, 10]
    assert told["origins"][1]["about"] == ABOUT.model_dump()
    assert told["origins"][1]["oldest"] == WRITTEN


def test_nothing_is_told_of_what_was_pruned_as_a_whole(cache: Location, capsys: pytest.CaptureFixture[str]) -> None:
    put(origin(cache, "one"), range(10), written=WRITTEN)
    assert run("prune", cache.url, "--max-bytes", "1") == ExitCode.DONE
    capsys.readouterr()
    assert run("stats", cache.url) == ExitCode.DONE
    assert capsys.readouterr().out == "in all: 0 answers, 0 bytes in 0 files\n"


def test_prune_tells_what_it_did(cache: Location, capsys: pytest.CaptureFixture[str]) -> None:
    folder = origin(cache, "one")
    put(folder, range(10), written=WRITTEN)
    put(folder, range(10), written=WRITTEN)
    assert run("prune", cache.url, "--older-than", "10000d", "--dry-run") == ExitCode.DONE
    assert capsys.readouterr().out.startswith("would delete 0 answers; 2 files of ")
    assert run("prune", cache.url, "--max-bytes", "1GB") == ExitCode.DONE
    assert " are 1 of " in capsys.readouterr().out
    assert run("prune", cache.url, "--older-than", "1h") == ExitCode.DONE
    assert capsys.readouterr().out.endswith(" are 0 of 0 bytes\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["stats", ""], "is empty: give the cache_path of the jobs"),
        (["stats", "https://x/y"], "cache_path: can't be written to"),
        (["prune", "/x", "--max-bytes", "many"], "'many' is not a size such as 500MB"),
        (["prune", "/x", "--older-than", "30"], "'30' is not an age"),
    ],
)
def test_what_can_not_be_looked_after_is_told(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(*arguments)
    assert ended.value.code == ExitCode.BAD_REQUEST
    assert said in capsys.readouterr().err


def test_without_its_packages_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    script = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name: None if name == 'pyarrow' else find(name)\n"
        "from airflow_llmengine.worker import cli\n"
        f"sys.exit(cli.main(['cache', 'stats', {str(tmp_path)!r}]))\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == ExitCode.BAD_REQUEST
    assert "needs the package pyarrow" in ended.stderr
    assert "install airflow-llmengine[parquet] there" in ended.stderr


@pytest.fixture(scope="module")
def bucket() -> Iterator[Location]:
    with S3Server.running() as server:
        yield Storage({"s3": server.options}).location(f"s3://{server.new_bucket()}/some/cache")


@pytest.mark.slow
def test_a_bucket_is_pruned_like_a_folder(bucket: Location) -> None:
    folder = origin(bucket, "one")
    for start in range(0, 50, 10):
        put(folder, range(start, start + 10), written=WRITTEN - start * DAY)
    done = pruned(bucket, older_than_seconds=25 * DAY)
    assert (done.answers, done.files_before, done.files_after) == (20, 5, 1)
    assert find(folder, range(50)).keys() == set(range(30))
