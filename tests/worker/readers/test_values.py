from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.readers import values
from airflow_llmengine.worker.readers.limits import MAX_NESTING
from airflow_llmengine.worker.readers.values import ValueRefusedError, load_value

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)


def refusal(raw: bytes) -> ValueRefusedError:
    with pytest.raises(ValueRefusedError) as caught:
        load_value(raw)
    return caught.value


@given(JSON, st.booleans())
def test_a_value_is_what_was_written(value: Any, ascii_only: bool) -> None:
    loaded = load_value(json.dumps(value, ensure_ascii=ascii_only).encode())
    assert json.dumps(loaded) == json.dumps(value)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"123456789012345678901234567890", 123456789012345678901234567890),
        (b"0.1", 0.1),
        (b"1E400000000000000000000000000000000000000e".rstrip(b"e").replace(b"E4", b"E-4"), 0.0),
        (b"5.0", 5.0),
        (b"-0.0", -0.0),
        (b'"\\u0000"', "\0"),
        (b'"\\ud83d\\ude00"', "😀"),
        (b'"\\\\ud800"', "\\ud800"),
        ('"\u2028\u0085\ufeff"'.encode(), "\u2028\u0085\ufeff"),
        (b' \t"x"\r', "x"),
        (b'{"": 1}', {"": 1}),
    ],
)
def test_what_json_allows_is_kept(raw: bytes, value: Any) -> None:
    loaded = load_value(raw)
    assert (type(loaded), repr(loaded)) == (type(value), repr(value))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "ends too early at column 1"),
        (b'{"prompt": "secret', "unterminated string at column 12"),
        (b'{"prompt": "secret"', "ends too early at column 20"),
        (b'{"prompt" "secret"}', "expecting ':' delimiter at column 11"),
        (b'{"prompt": "a"} {"prompt": "secret"}', "extra data at column 17"),
        (b"{'prompt': 'secret'}", "expecting property name enclosed in double quotes at column 2"),
        (b'{"prompt": "secret",}', "at column 2"),
        (b'{"prompt": "tab\there"}', "invalid control character at column 16"),
        (b'{"prompt": "\\x"}', "invalid \\escape at column 13"),
        (b'{"prompt": "\\u12"}', "invalid \\uXXXX escape"),
        (b"01", "extra data at column 2"),
        (b"1.", "extra data at column 2"),
        (b".5", "expecting value at column 1"),
        (b"+1", "expecting value at column 1"),
        (b"None", "expecting value at column 1"),
        (b'\x0c"x"', "expecting value at column 1"),
        (b'{\n"a": 1,\n"b" 2}', "at line 3 of it, column 5"),
    ],
)
def test_a_syntax_error_is_told_with_its_place_and_without_the_text(raw: bytes, reason: str) -> None:
    refused = refusal(raw)
    assert refused.error_type is RecordErrorType.INVALID_JSON
    assert refused.is_syntax
    assert reason in refused.reason
    assert "secret" not in refused.reason


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"t": NaN}', "NaN is not a number in JSON"),
        (b'{"t": Infinity}', "Infinity is not a number in JSON"),
        (b'{"t": -Infinity}', "Infinity is not a number in JSON"),
        (b"[1e999]", "too large for a 64-bit float"),
        (b"[-1e999]", "too large for a 64-bit float"),
        (b"[" + b"9" * 5000 + b"]", "an integer has thousands of digits"),
        (b'{"secret": 1, "secret": 1}', "one key twice"),
        (b'{"a": {"secret": 1, "s\\u0065cret": 2}}', "one key twice"),
        (b"[" * (MAX_NESTING + 1) + b"]" * (MAX_NESTING + 1), "nested more than 256 deep"),
        (b'{"a":' * 100_000, "nested more than 256 deep"),
    ],
)
def test_what_is_understood_differently_by_others_is_refused(raw: bytes, reason: str) -> None:
    refused = refusal(raw)
    assert refused.error_type is RecordErrorType.INVALID_JSON
    assert not refused.is_syntax
    assert reason in refused.reason
    assert "secret" not in refused.reason


def test_the_deepest_nesting_is_read_also_after_many_brackets() -> None:
    deep = b"[" * (MAX_NESTING - 1) + b"]" * (MAX_NESTING - 1)
    brackets_in_text = json.dumps("[{" * 1000 + '"\\').encode()
    assert isinstance(load_value(b"[" + deep + b"," + brackets_in_text + b"," + b"[]," * 1000 + b"[]]"), list)


@pytest.mark.parametrize(
    "raw",
    [
        b'"x\xff"',
        b'"\xed\xa0\x80"',  # a surrogate in three bytes, as CESU-8 has it
        b'"\xc0\xaf"',  # too long a form
        b'"\xf0\x9f\x98"',
        "x".encode("utf-16"),
    ],
)
def test_bytes_that_are_not_utf8_are_refused(raw: bytes) -> None:
    refused = refusal(raw)
    assert refused.error_type is RecordErrorType.INVALID_UNICODE
    assert not refused.is_syntax
    assert "is not UTF-8" in refused.reason


@pytest.mark.parametrize(
    "raw",
    [
        b'"x\\ud800y"',
        b'"\\uDFFF"',
        b'"\\ud83d \\ude00"',
        b'"\\ude00\\ud83d"',
        b'"\\ud83d\\ud83d\\ude00"',
        b'{"messages": [{"content": "\\ud800"}]}',
        b'{"\\ud800": 1}',
        '"😀\\ud800"'.encode(),
    ],
)
def test_half_a_surrogate_pair_is_refused_wherever_it_stands(raw: bytes) -> None:
    refused = refusal(raw)
    assert refused.error_type is RecordErrorType.INVALID_UNICODE
    assert not refused.is_syntax
    assert "surrogate pair" in refused.reason


def test_a_custom_id_is_kept_where_it_can_be_read() -> None:
    assert refusal(b'{"custom_id": "a", "body": {"prompt": "\\ud800"}}').custom_id == "a"
    assert refusal(b'{"custom_id": "\\ud800"}').custom_id is None
    assert refusal(b'{"custom_id": 3, "x": "\\ud800"}').custom_id is None


def test_not_a_number_never_comes_out() -> None:
    for raw in (b"NaN", b"1e400", b"-1e400"):
        with pytest.raises(ValueRefusedError):
            load_value(raw)
    assert math.isfinite(load_value(b"1.7976931348623157e308"))


KEYS = ['"a"', '"b"', '"\\u0061"', '"a\\""', '"\\\\"', '"\\\\\\""', '":"', '"\\u005c"', '"\\ud83d\\ude00"', '"\\ud800"']
"""Keys as they are written: some are the same, and some have quotes, colons or backslashes in them."""

WRITTEN = st.recursive(
    st.sampled_from(["1", "-0", "1.50", "1e5", "1e999", "null", "NaN", "01", "9" * 30, *KEYS])
    | st.floats(allow_nan=False, allow_infinity=False).map(repr),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from([":", " : "]), inner), max_size=4).map(
            lambda members: "{" + ",".join(map("".join, members)) + "}"
        )
    ),
)


@given(WRITTEN)
@settings(max_examples=1000)
def test_the_fast_parser_makes_no_difference(text: str) -> None:
    def load() -> tuple[str, Any]:
        try:
            return "value", repr(load_value(text.encode()))
        except ValueRefusedError as refused:
            return refused.reason, (refused.error_type, refused.is_syntax, refused.custom_id)

    fast = load()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "_load_plain", lambda _raw: values._NOT_PLAIN)
        assert fast == load()


@pytest.mark.parametrize(
    "raw",
    [b'{"prompt": "a \\"b\\" \\n", "max_tokens": 5, "stop": ["a", {"b": 0.5}], "x": null}', '["\u2028😀"]'.encode()],
)
def test_a_usual_record_is_read_by_the_fast_parser(raw: bytes) -> None:
    assert values._load_plain(raw) == json.loads(raw)
