from __future__ import annotations

import json

import pytest

from airflow_llmengine.worker.readers import InputInvalidError
from airflow_llmengine.worker.readers.detection import InputFormat, detect_format

ARRAY, LINES = InputFormat.JSON_ARRAY, InputFormat.JSON_LINES
OBJECT, CONTENT = InputFormat.JSON_DOCUMENT, InputFormat.V1_CONTENT

RECORD = {"prompt": 'text with } and ] and " and \n', "n": 1, "prompts_of": {"prompts": 1}}
PROMPTS = {"max_new_tokens": 5, "prompts": ["a", "b"], "temperature": 0}
LONG = "x" * 2000


def pretty(value: object) -> str:
    return json.dumps(value, indent=2)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        # Nothing, or nothing that could be a document.
        ("", LINES),
        (" \r\n\t ", LINES),
        ("null\n", LINES),
        ('"x"', LINES),
        ("42\n43", LINES),
        ("prompt,n\na,1", LINES),
        # One array.
        ("[]", ARRAY),
        (" \n[ ]\n ", ARRAY),
        (json.dumps([RECORD, RECORD]), ARRAY),
        (pretty([RECORD, RECORD]) + "\n", ARRAY),
        ('[\n{"prompt": "a"},\n{"prompt": "b"}\n]\n', ARRAY),
        ('[{"prompt": "a"}\n,{"prompt": "b"}\n]', ARRAY),
        ("[1,2]", ARRAY),
        ('[{"prompt": "' + LONG, ARRAY),
        # Lines of which the first is an array.
        ('[1,2]\n{"prompt": "a"}\n', LINES),
        ("[1,2]\r\n[3,4]", LINES),
        ("[1,2] [3,4]", LINES),
        # One object.
        (json.dumps(RECORD), OBJECT),
        (pretty(RECORD) + "\r\n", OBJECT),
        ('{"messages": [\n{"role": "system"},\n{"role": "user"}\n]}', OBJECT),
        ('{\n"prompt": "' + LONG, OBJECT),
        ('{\n"prompt": nul}', OBJECT),
        ("{\n}", OBJECT),
        # A V1 content object.
        (json.dumps(PROMPTS), CONTENT),
        (pretty(PROMPTS), CONTENT),
        ('{"pr\\u006fmpts": []}', CONTENT),
        ('{"max_new_tokens": 5, "prompts": ["' + LONG, CONTENT),
        ('{\n"prompts": ["' + LONG, CONTENT),
        ('{"prompts": ["a" "b"]}', CONTENT),
        # Lines.
        (json.dumps(RECORD) + "\n" + json.dumps(RECORD), LINES),
        ("\n\n" + json.dumps(RECORD) + "\r\n" + json.dumps(RECORD), LINES),
        (json.dumps(PROMPTS) + "\n" + json.dumps(PROMPTS), LINES),
        (json.dumps(RECORD) + json.dumps(RECORD), LINES),
        (json.dumps(RECORD) + ",\n" + json.dumps(RECORD), LINES),
        ('{"prompt": "' + LONG, LINES),
        # Lines of which the first is broken.
        ('{"prompt": "a}\n{"prompt": "b"}\n', LINES),
        ('{"prompt": "a"\n{"prompt": "b"}\n', LINES),
        ('{"prompt": "a\n{"prompt": "b"}\n{"prompt": "c"}\n', LINES),
        ('{"prompt": "a\nb"}\n{"prompt": "c"}\n', LINES),
        ('{"prompt": nul}', LINES),
        ('{"prompt": nul}\n{"prompt": "b"}', LINES),
        ('{prompt: "a"}', LINES),
        ("{'prompts': ['a']}", LINES),
    ],
)
def test_what_a_file_is_shows_in_its_head(text: str, found: InputFormat) -> None:
    assert detect_format(text.encode(), "x") is found


@pytest.mark.parametrize("value", [RECORD, [RECORD], [RECORD, PROMPTS]])
@pytest.mark.parametrize("between", ["", "\n", "\n\n", ",\n"])
def test_values_over_several_lines_each_are_refused_as_a_whole(value: object, between: str) -> None:
    with pytest.raises(
        InputInvalidError, match=r"^x holds several JSON values that stand on more than one line each: "
    ):
        detect_format(between.join([pretty(value)] * 3).encode(), "x")


def test_a_head_that_is_not_utf8_is_no_trouble() -> None:
    assert detect_format(b'{"prompt": "\xff"}\n{"prompt": "a"}', "x") is LINES
    assert detect_format(b'[{"prompt": "\xff"}]', "x") is ARRAY
    assert detect_format(b'{"\xff": "\xff", "prompts": []}', "x") is OBJECT
    assert detect_format(b"\xff\xfe\xfd", "x") is LINES
    assert detect_format("😀".encode()[:3], "x") is LINES


def test_a_head_of_nothing_but_brackets_is_no_trouble() -> None:
    assert detect_format(b"[" * 2**17, "x") is ARRAY
    assert detect_format(b'{"a":' * 2**15, "x") is LINES
    assert detect_format(b"[" * 1000 + b"]" * 1000, "x") is ARRAY
