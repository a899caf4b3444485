"""From a row's element to its values."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest

from airflow_llmengine.spec.output_schema import ColumnKind, ColumnType
from airflow_llmengine.spec.results import RecordError, RecordErrorType
from airflow_llmengine.worker.elements import SKIPPED, encode_element
from airflow_llmengine.worker.tables.results import (
    RowResult,
    UnfitValueError,
    fitted,
    read_row,
    read_values,
    valid_text,
)

SENTIMENT = {
    "sentiment": ColumnType("string"),
    "score": ColumnType("integer"),
    "share": ColumnType("number", nullable=True),
}


def completion(text: str, *, finish_reason: str = "stop") -> bytes:
    return encode_element(
        {
            "choices": [{"index": 0, "text": text, "finish_reason": finish_reason}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 3},
        }
    )


def chat(content: str | None) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    return encode_element({"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})


def test_a_completion_and_a_chat_are_read_alike() -> None:
    expected = RowResult("hello", finish_reason="stop", prompt_tokens=7, completion_tokens=3)
    assert read_row(completion("hello"), None) == expected
    assert read_row(chat("hello"), None) == expected
    assert read_row(chat(None), None).completion is None


def test_an_error_has_its_type_and_its_message() -> None:
    error = RecordError(type=RecordErrorType.EMPTY_PROMPT, message="row 3 of a.csv: the prompt is empty", index=2)
    result = read_row(encode_element(error.wire()), SENTIMENT)
    assert result == RowResult(error="empty_prompt: row 3 of a.csv: the prompt is empty")


def test_a_skipped_row_has_nothing() -> None:
    assert read_row(SKIPPED, SENTIMENT, skipped=True) == RowResult()


def test_an_answer_of_the_schema_becomes_values() -> None:
    result = read_row(completion('{"sentiment": "good", "score": 4, "share": null}'), SENTIMENT)
    assert result.values == {"sentiment": "good", "score": 4, "share": None}
    assert (result.error, result.unfit) == (None, None)


def test_an_answer_that_was_cut_has_no_values_and_is_no_failure() -> None:
    result = read_row(completion('{"sentiment": "go', finish_reason="length"), SENTIMENT, truncated=True)
    assert (result.values, result.unfit, result.finish_reason) == (None, None, "length")
    assert result.error is not None
    assert result.error.startswith("truncated: max_tokens")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no JSON", "is not JSON"),
        ("[1]", "is no JSON object"),
        ('{"score": 1}', "sentiment is missing or null"),
        ('{"sentiment": null, "score": 1}', "sentiment is missing or null"),
        ('{"sentiment": "a", "score": "1"}', "score is no number"),
        ('{"sentiment": "a", "score": true}', "score is no number"),
        ('{"sentiment": "a", "score": 1.5}', "score is no whole number"),
        ('{"sentiment": "a", "score": 9223372036854775808}', "score is a number that a column of 64-bit integers"),
        ('{"sentiment": 1, "score": 1}', "sentiment is no text"),
        ('{"sentiment": "a", "score": 1, "share": NaN}', "is not JSON"),
        ('{"sentiment": "a", "score": 1, "share": 1e999}', "share is a number that a column of 64-bit floats"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_an_answer_that_does_not_fit_says_why_and_not_what_it_is(text: str, told: str) -> None:
    result = read_row(completion(text), SENTIMENT)
    assert result.values is None
    assert result.unfit is not None
    assert told in result.unfit
    assert result.error == f"invalid_output: {result.unfit}"
    assert result.completion == text


def test_nested_values_are_fitted_and_their_place_is_named() -> None:
    inner = ColumnType(
        "struct", fields=(("any name", ColumnType("number")), ("b", ColumnType("boolean", nullable=True)))
    )
    columns = {"rows": ColumnType("list", item=inner)}
    text = '{"rows": [{"any name": 1, "b": true}, {"any name": 2.5}]}'
    assert read_values(text, columns) == {"rows": [{"any name": 1.0, "b": True}, {"any name": 2.5, "b": None}]}
    with pytest.raises(UnfitValueError, match=r'^rows\[1\]\["any name"\] is no number in the completion$'):
        read_values('{"rows": [{"any name": 1}, {"any name": "x"}]}', columns)
    with pytest.raises(UnfitValueError, match=r"^rows is no list"):
        read_values('{"rows": {}}', columns)
    with pytest.raises(UnfitValueError, match=r"^rows\[0\] is no object"):
        read_values('{"rows": [1]}', columns)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("date", "2024-02-29", datetime.date(2024, 2, 29)),
        ("timestamp", "2024-02-29T12:00:00Z", datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)),
        ("timestamp", "2024-02-29T12:00:00.5+02:00", datetime.datetime(2024, 2, 29, 10, 0, 0, 500000, datetime.UTC)),
        ("timestamp", "2024-02-29T12:00:00", datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)),
    ],
)
def test_dates_and_times_are_values(kind: ColumnKind, text: str, expected: datetime.date) -> None:
    assert fitted(text, ColumnType(kind), ".when") == expected


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("date", "2023-02-29"),
        ("date", 20240229),
        ("timestamp", "2024-02-30T12:00:00Z"),
        ("timestamp", "0001-01-01T00:00:00+23:59"),
        ("timestamp", "yesterday"),
    ],
)
def test_what_is_no_date_does_not_fit(kind: ColumnKind, value: Any) -> None:
    with pytest.raises(UnfitValueError, match=r"^when is no date"):
        fitted(value, ColumnType(kind), ".when")


@pytest.mark.parametrize(("value", "expected"), [(5, 5), (5.0, 5), (-(2**63), -(2**63))])
def test_whole_numbers_are_integers_however_they_are_written(value: Any, expected: int) -> None:
    found = fitted(value, ColumnType("integer"), ".n")
    assert (found, type(found)) == (expected, int)


def test_an_integer_of_a_number_column_is_a_float() -> None:
    assert isinstance(fitted(3, ColumnType("number"), ".n"), float)
    with pytest.raises(UnfitValueError, match="64-bit floats"):
        fitted(10**400, ColumnType("number"), ".n")


def test_a_lone_surrogate_becomes_a_replacement_character() -> None:
    assert valid_text("a\ud83db") == "a\ufffdb"
    assert valid_text("\ud83d\ude00") == "\U0001f600"
    assert read_values('{"s": "\\ud83d"}', {"s": ColumnType("string")}) == {"s": "\ufffd"}
    assert read_row(completion("x\udc00"), None).completion == "x\ufffd"


@pytest.mark.parametrize("element", [b"{}", b'{"choices": []}', b"[]", b"null", b"not JSON", b'{"error": {}}'])
def test_what_no_worker_wrote_is_damage(element: bytes) -> None:
    with pytest.raises(ValueError, match=r"one of its lines is no answer|Expecting value|validation errors"):
        read_row(element, None)


def test_no_message_has_the_models_text() -> None:
    secret = "the model's own words"
    for text in (secret, json.dumps([secret]), json.dumps({"sentiment": 1, "score": secret, "share": secret})):
        result = read_row(completion(text), SENTIMENT)
        assert result.error is not None
        assert secret not in result.error
