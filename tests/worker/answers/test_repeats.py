"""Who waits for whom among records that ask the same."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.answers import repeats as module
from airflow_llmengine.worker.answers.keys import AnswerKeys
from airflow_llmengine.worker.answers.known_outcomes import KnownOutcomes
from airflow_llmengine.worker.answers.local_file import LocalFile
from airflow_llmengine.worker.answers.repeats import Repeats
from airflow_llmengine.worker.engines.base import Answer
from airflow_llmengine.worker.records import Record

KEY, OTHER = b"k" * 16, b"o" * 16
ANSWER = Answer({"text": "a"}, 1, 2)
PERMANENT = (RecordErrorType.UNSUPPORTED, "no")
PASSING = (RecordErrorType.INTERNAL, "not now")


@pytest.fixture
def repeats() -> Repeats[str]:
    return Repeats(AnswerKeys(), KnownOutcomes(LocalFile()))


def test_a_record_is_known_by_what_it_asks(repeats: Repeats[str]) -> None:
    asked: list[dict[str, Any]] = [{}, {"user": "ada"}, {"prompt": "b"}, {"temperature": 1}]
    keys = [
        repeats.key(Record(index, "", CompletionV2Request.model_validate({"prompt": "a", "temperature": 0, **fields})))
        for index, fields in enumerate(asked)
    ]
    assert keys[0] == keys[1] != keys[2]
    assert keys[3] is None


@pytest.mark.parametrize("outcome", [ANSWER, PERMANENT, (RecordErrorType.ENGINE_CRASH, "it died")])
def test_those_who_wait_get_what_the_first_one_gets(
    repeats: Repeats[str], outcome: Answer | tuple[RecordErrorType, str]
) -> None:
    assert not repeats.wait(KEY, "first")
    assert repeats.wait(KEY, "second")
    assert repeats.wait(KEY, "third")
    assert not repeats.wait(OTHER, "another")
    assert repeats.waiting == 2
    assert repeats.known(KEY) is None
    assert repeats.settle(KEY, outcome) == ["second", "third"]
    assert repeats.waiting == 0
    assert repeats.known(KEY) == outcome
    assert repeats.known(OTHER) is None
    assert repeats.settle(OTHER, outcome) == []


def test_after_an_error_that_may_be_over_one_other_goes_first(repeats: Repeats[str]) -> None:
    for one in ("first", "second", "third"):
        repeats.wait(KEY, one)
    assert repeats.settle(KEY, PASSING) == []
    assert repeats.instead(KEY) == [("second", KEY)]
    assert repeats.waiting == 1
    # Who comes now waits for that one.
    assert repeats.wait(KEY, "fourth")
    assert repeats.settle(KEY, ANSWER) == ["third", "fourth"]
    assert repeats.known(KEY) == ANSWER


def test_after_a_second_such_error_each_is_on_its_own(repeats: Repeats[str]) -> None:
    for _time in range(2):
        for one in ("first", "second", "third", "fourth"):
            repeats.wait(KEY, one)
        assert repeats.settle(KEY, PASSING) == []
        assert repeats.instead(KEY) == [("second", KEY)]
        assert repeats.settle(KEY, PASSING) == []
        assert repeats.instead(KEY) == [("third", None), ("fourth", None)]
        assert repeats.waiting == 0
        # Forgotten: who comes later is the first once more.


def test_an_error_that_may_be_over_is_forgotten(repeats: Repeats[str]) -> None:
    assert not repeats.wait(KEY, "first")
    assert repeats.settle(KEY, PASSING) == []
    assert repeats.instead(KEY) == []
    assert repeats.known(KEY) is None
    assert not repeats.wait(KEY, "second")


def test_only_so_many_wait(repeats: Repeats[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 2)
    repeats.wait(KEY, "first")
    repeats.wait(KEY, "second")
    before = repeats.full
    repeats.wait(KEY, "third")
    with_two = repeats.full
    repeats.settle(KEY, ANSWER)
    assert [before, with_two, repeats.full] == [False, True, False]


def test_what_was_known_is_forgotten_at_the_end(repeats: Repeats[str]) -> None:
    repeats.wait(KEY, "first")
    repeats.settle(KEY, ANSWER)
    repeats.close()
    assert repeats.known(KEY) is None
