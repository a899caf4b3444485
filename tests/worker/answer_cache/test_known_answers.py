from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_llmengine.storage.errors import StorageError
from airflow_llmengine.storage.filesystem import Location, Storage
from airflow_llmengine.worker.answer_cache import known_answers
from airflow_llmengine.worker.answer_cache.answer_files import GROUP_ANSWERS, new_name
from airflow_llmengine.worker.answer_cache.kept_answers import AnswerKeeper
from airflow_llmengine.worker.answer_cache.key_index import KeyIndex
from airflow_llmengine.worker.answer_cache.known_answers import KnownAnswers
from airflow_llmengine.worker.engines.base import Answer
from tests.storage.s3_server import S3Server
from tests.worker.answer_cache.answers import WRITTEN, answer, find, key, local, look_up, put


def test_what_was_written_is_found_and_nothing_else(tmp_path: Path) -> None:
    folder = local(tmp_path)
    put(folder, range(10))
    put(folder, range(10, 2 * GROUP_ANSWERS + 3))
    wanted = [3, 9, 10, GROUP_ANSWERS + 9, GROUP_ANSWERS + 10, 2 * GROUP_ANSWERS + 2, 2 * GROUP_ANSWERS + 3, -1]
    assert find(folder, wanted) == {number: answer(number) for number in wanted[:-2]}


def test_a_key_may_be_asked_for_twice_and_none_is_never_found(tmp_path: Path) -> None:
    folder = local(tmp_path)
    put(folder, range(3))
    known = KnownAnswers(folder)
    known.load()
    found: list[int] = []
    known.look_up([key(2), None, key(2), key(7)], lambda position, _answer: found.append(position))
    assert sorted(found) == [0, 2]


def test_keys_that_share_their_first_half_are_told_apart(tmp_path: Path) -> None:
    folder = local(tmp_path)
    put(folder, [1])
    known = KnownAnswers(folder)
    known.load()
    found: list[int] = []
    known.look_up([key(1)[:8] + b"another." * 1], lambda position, _answer: found.append(position))
    assert found == []


def test_an_index_of_several_runs_finds_what_one_of_one_run_does() -> None:
    import numpy

    keys = numpy.frombuffer(b"".join(map(key, range(1000))), numpy.uint64).reshape(-1, 2)
    index = KeyIndex(run_answers=64)
    index.add(keys[:700], 0)
    index.add(keys[700:], 1)
    index.finish()
    positions, files, rows = index.find(keys[[5, 699, 700, 999], 0])
    places = {int(position): (int(file), int(row)) for position, file, row in zip(positions, files, rows, strict=True)}
    assert places == {0: (0, 5), 1: (0, 699), 2: (1, 0), 3: (1, 299)}


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no Parquet at all" * 100])
def test_a_file_that_is_none_is_left_out_with_a_warning(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    folder = local(tmp_path)
    put(folder, range(5))
    bad = folder.child(new_name(WRITTEN))
    bad.create(content)
    assert find(folder, range(5)).keys() == set(range(5))
    assert [record.levelname for record in caplog.records if bad.name in record.message] == ["WARNING"]


def test_a_file_that_is_cut_or_changed_in_the_middle_gives_no_wrong_answer(tmp_path: Path) -> None:
    folder = local(tmp_path)
    path = Path(put(folder, range(GROUP_ANSWERS * 2)).url)
    whole = path.read_bytes()
    for damaged in (whole[:-100], whole[: len(whole) // 2], whole[:1000] + bytes(5000) + whole[6000:]):
        path.write_bytes(damaged)
        found = find(folder, range(0, GROUP_ANSWERS * 2, 97))
        assert all(got == answer(number) for number, got in found.items())


def test_a_file_of_other_columns_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import pyarrow
    from pyarrow import parquet

    folder = local(tmp_path)
    parquet.write_table(pyarrow.table({"key": [key(1)]}), tmp_path / new_name(WRITTEN))
    assert find(folder, [1]) == {}
    assert "not those of a file of answers" in caplog.text


def test_a_file_that_vanishes_after_its_keys_were_read_is_a_file_without_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    folder = local(tmp_path)
    gone = put(folder, range(5))
    put(folder, range(5, 9))
    known = KnownAnswers(folder)
    known.load()
    gone.delete()
    assert look_up(known, range(9)).keys() == set(range(5, 9))
    # Nothing is wrong: that is what pruning does.
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_a_store_that_gives_nothing_any_more_is_left_alone_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = local(tmp_path)
    for number in range(6):
        put(folder, [number])
    known = KnownAnswers(folder)
    known.load()
    asked = []

    def refuse(location: Location, start: int, end: int, identity: str | None = None) -> bytes:
        asked.append(location.name)
        raise StorageError("the store does not answer")

    monkeypatch.setattr(Location, "read_part", refuse)
    monkeypatch.setattr(known_answers, "REQUESTS_AT_ONCE", 1)
    assert look_up(known, range(6)) == {}
    assert len(asked) == known_answers.FAILURES_UNTIL_GIVEN_UP
    assert caplog.text.count("does without a file") == known_answers.FAILURES_UNTIL_GIVEN_UP


def test_who_gives_up_reads_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = local(tmp_path)
    put(folder, range(5))
    known = KnownAnswers(folder)
    known.load()
    known.give_up()
    monkeypatch.setattr(Location, "read_part", None)
    assert look_up(known, range(5)) == {}


def test_what_a_keeper_wrote_is_found_in_the_order_of_the_input(tmp_path: Path) -> None:
    folder = local(tmp_path)
    keeper = AnswerKeeper(folder, b"{}")
    for number in (3, 1, 2):
        keeper.keep(number, key(number), Answer({"text": f"answer {number}"}, 1, 2))
    keeper.close()
    assert (keeper.kept, keeper.lost) == (3, 0)
    assert {number: got.body for number, got in find(folder, range(5)).items()} == {
        number: f'{{"text":"answer {number}"}}'.encode() for number in (1, 2, 3)
    }
    from pyarrow import parquet

    (file,) = tmp_path.glob("answers-*.parquet")
    assert parquet.read_table(file)["key"].to_pylist() == [key(1), key(2), key(3)]


def test_a_keeper_whose_store_refuses_tells_it_once_and_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_location: Location, _data: bytes, *, durable: bool = True) -> bool:
        raise StorageError("no room")

    monkeypatch.setattr(Location, "create", refuse)
    monkeypatch.setattr("airflow_llmengine.worker.answer_cache.kept_answers.FILE_ANSWERS", 2)
    keeper = AnswerKeeper(local(tmp_path), b"{}")
    for number in range(6):
        keeper.keep(number, key(number), Answer({}, 1, 2))
    keeper.close()
    assert (keeper.kept, keeper.lost) == (0, 6)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def _write(folder: str, writer: int) -> None:
    keeper = AnswerKeeper(local(Path(folder)), b"{}")
    for number in range(writer * 50, writer * 50 + 100):
        keeper.keep(number, key(number), Answer({"text": f"answer {number}"}, number % 7, number % 5))
    keeper.close()
    assert keeper.kept == 100


@pytest.mark.slow
def test_64_processes_write_at_once(tmp_path: Path) -> None:
    """Each writes what half of two others write as well."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__] if __name__ in sys.modules else [])
    writers = [context.Process(target=_write, args=(str(tmp_path), writer)) for writer in range(64)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 64
    found = find(local(tmp_path), range(64 * 50 + 50))
    assert found.keys() == set(range(64 * 50 + 50))
    assert all(got.body == answer(number).body for number, got in found.items())


@pytest.mark.slow
def test_64_writers_at_once_on_an_object_store() -> None:
    with S3Server.running() as server:
        folder = Storage({"s3": server.options}).location(f"s3://{server.new_bucket()}/answers")

        def write(writer: int) -> int:
            keeper = AnswerKeeper(folder, b"{}")
            for number in range(writer * 5, writer * 5 + 10):
                keeper.keep(number, key(number), Answer({"text": f"answer {number}"}, number % 7, number % 5))
            keeper.close()
            return keeper.kept

        with ThreadPoolExecutor(64) as writers:
            assert list(writers.map(write, range(64))) == [10] * 64
        found = find(folder, range(64 * 5 + 5))
        assert found.keys() == set(range(64 * 5 + 5))
        assert all(got.body == answer(number).body for number, got in found.items())
