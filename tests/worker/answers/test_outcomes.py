"""Outcomes as bytes: what comes back is what was there, so that a copied answer is the generated one."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.answers.outcomes import decode_outcome, encode_outcome, holds_for_others
from airflow_llmengine.worker.elements import encode_element
from airflow_llmengine.worker.engines.base import Answer

TEXT = st.text(st.characters(exclude_categories=()), max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(TEXT, VALUES, max_size=4), st.integers(0), st.integers(0), st.booleans())
def test_an_answer_comes_back_as_it_was(body: dict[str, Any], prompt: int, completion: int, truncated: bool) -> None:
    found = decode_outcome(encode_outcome(Answer(body, prompt, completion, truncated)))
    assert isinstance(found, Answer)
    # As it is written: the order of fields, and numbers to the last digit.
    assert encode_element(found.body) == encode_element(body)
    assert (found.prompt_tokens, found.completion_tokens, found.truncated) == (prompt, completion, truncated)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_stay_what_they_are(number: float) -> None:
    found = decode_outcome(encode_outcome(Answer({"a": number}, 0, 0)))
    assert isinstance(found, Answer)
    assert repr(found.body["a"]) == repr(number)


def test_what_is_nested_deep_comes_back() -> None:
    body: dict[str, Any] = {}
    for _ in range(400):
        body = {"a": body}
    found = decode_outcome(encode_outcome(Answer(body, 1, 2)))
    assert isinstance(found, Answer)
    assert encode_element(found.body) == encode_element(body)


@pytest.mark.parametrize("error_type", RecordErrorType)
def test_a_fault_comes_back_as_it_was(error_type: RecordErrorType) -> None:
    fault = (error_type, "the \ud800 is é wrong")
    assert decode_outcome(encode_outcome(fault)) == fault


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'["internal"]', b"[{},1,2]", b"[{},1,2,3]", b'["other", "x"]'])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whoever says it
        decode_outcome(data)


def test_what_holds_for_others() -> None:
    passing = {error for error in RecordErrorType if not holds_for_others((error, "why"))}
    assert passing == {RecordErrorType.TIMEOUT, RecordErrorType.INTERNAL}
    assert holds_for_others(Answer({}, 0, 0))
