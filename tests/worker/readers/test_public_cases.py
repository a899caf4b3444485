"""Cases from public bug reports, as far as reading goes: ``#`` is the number in the project's list of cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.results import RecordError
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.readers import open_input
from airflow_llmengine.worker.readers.validate import to_record
from airflow_llmengine.worker.records import PromptRecord, Record
from tests.worker.readers.files import COMPRESSIONS, request_for


def taken(path: Path) -> list[Record | RecordError]:
    return taken_of(request_for(path))


def taken_of(request: CreateBatchCompletionsV1Request) -> list[Record | RecordError]:
    reader = open_input(Storage(), request)
    return [to_record(raw, request, reader.content) for raw in reader.records()]


def prompts(results: list[Record | RecordError]) -> list[Any]:
    return [
        None if isinstance(result, RecordError) else getattr(result.request, "prompt", result.request)
        for result in results
    ]


def errors(results: list[Record | RecordError]) -> list[str | None]:
    return [result.type.value if isinstance(result, RecordError) else None for result in results]


def test_case_4_an_empty_prompt_is_a_row_error_and_no_prompts_are_no_records(tmp_path: Path) -> None:
    path = tmp_path / "input"
    parameters = {"max_new_tokens": 5, "temperature": 0}
    path.write_text(json.dumps({"prompts": ["", "hi"], **parameters}))
    assert errors(taken(path)) == ["empty_prompt", None]
    path.write_text('{"prompt": ""}\n{"prompt": "hi"}\n{"prompt": ["a", ""]}\n{"prompt": []}\n')
    assert errors(taken(path)) == ["empty_prompt", None, "empty_prompt", "empty_prompt"]
    inline = request_for("", input_data_path=None, content={"prompts": ["", "hi"], **parameters})
    assert errors(taken_of(inline)) == ["empty_prompt", None]
    for nothing in (json.dumps({"prompts": [], **parameters}), "[]", "", "\n\n"):
        path.write_text(nothing)
        assert taken(path) == []


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [True, False], ids=["ended", "no last newline"])
def test_case_5_a_line_separator_within_a_string_ends_no_record(
    tmp_path: Path, compression: str, end: bytes, last: bool
) -> None:
    texts = ["a\u2028b", "c\u0085d", "e\u2029f\x7f", "  \u3000 g\ufeff "]
    lines = [json.dumps({"prompt": text}, ensure_ascii=False).encode() for text in texts]
    path = tmp_path / "input"
    path.write_bytes(COMPRESSIONS[compression](end.join(lines) + (end if last else b"")))
    assert prompts(taken(path)) == texts


@pytest.mark.parametrize("document", ["{}\n{}", "[{},\n{}]"], ids=["lines", "array"])
def test_case_6_half_a_surrogate_pair_is_a_row_error_and_a_whole_one_passes(tmp_path: Path, document: str) -> None:
    path = tmp_path / "input"
    lone, pair = '{"prompt":"x\\ud800y"}', '{"prompt":"\\ud83d\\ude00"}'
    path.write_text(document.replace("{}", lone, 1).replace("{}", pair, 1))
    bad, good = taken(path)
    assert errors([bad, good]) == ["invalid_unicode", None]
    assert prompts([good]) == ["😀"]
    assert isinstance(bad, RecordError)
    assert json.dumps(bad.wire(), ensure_ascii=False).encode()


def test_case_6_in_v1_prompts(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_text('{"prompts": ["x\\ud800y", "\\ud83d\\ude00"], "max_new_tokens": 1, "temperature": 0}')
    results = taken(path)
    assert errors(results) == ["invalid_unicode", None]
    assert prompts(results) == [None, "😀"]


def test_case_7_lines_that_are_no_records_cost_only_themselves(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_text('[1,2]\nnull\n"x"\n42\n{"body":"text"}\n{"prompt":"good"}\n')
    results = taken(path)
    assert errors(results) == [*["invalid_record"] * 5, None]
    assert prompts(results)[5] == "good"
    for number, result in enumerate(results[:5]):
        assert isinstance(result, RecordError)
        assert result.index == number
        assert result.message.startswith(f"line {number + 1} of input: ")


@pytest.mark.parametrize("first", ["null", '"x"', "42", '{"body":"text"}', "[1,2]", '{"prompt": "half', "}", "text"])
def test_case_7_whichever_line_comes_first(tmp_path: Path, first: str) -> None:
    path = tmp_path / "input"
    path.write_text(f'{first}\n{{"prompt":"good"}}\n{{"prompt":"better"}}\n')
    assert prompts(taken(path)) == [None, "good", "better"]


def test_case_7_elements_of_an_array(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_text('[[1,2], null, "x", 42, {"body":"text"}, {"prompt":"good"}]')
    results = taken(path)
    assert errors(results) == [*["invalid_record"] * 5, None]
    assert isinstance(results[3], RecordError)
    assert results[3].message == "element [3] of input: a record must be an object, not a number"


def test_case_10_batch_lines_that_are_wrong_name_the_field(tmp_path: Path) -> None:
    def line(number: int, **fields: Any) -> str:
        good = {"custom_id": f"c{number}", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a"}}
        return json.dumps({name: value for name, value in {**good, **fields}.items() if value is not None})

    path = tmp_path / "input"
    path.write_text(
        "\n".join(
            [line(0, body={"prompt": "a", "stream": True}), line(1, url="/v1/nothing"), line(2, url=None), line(3)]
        )
    )
    *bad, good = taken(path)
    assert isinstance(good, Record)
    assert (good.custom_id, good.is_batch_line) == ("c3", True)
    for number, (result, field) in enumerate(zip(bad, ["body.stream", "url", "url"], strict=True)):
        assert isinstance(result, RecordError)
        assert result.type == "invalid_record"
        assert result.message.startswith(f"line {number + 1} of input: {field}: ")
        assert result.custom_id == f"c{number}"


def test_case_11_completions_and_chats_may_be_mixed(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "b"}]}
    batch = {"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": chat}
    path = tmp_path / "input"
    path.write_text(json.dumps([{"prompt": "a"}, chat, batch]))
    assert errors(taken(path)) == [None, None, None]


@pytest.mark.parametrize("text", ["{{ var.value.secret }}", "{% raw %}", "{{ 7*7 }}", "$HOME %s {0} \\n &lt;"])
def test_case_15_prompts_are_the_users_bytes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "input"
    for document in (
        json.dumps({"prompt": text}),
        json.dumps([{"prompt": text}]),
        json.dumps({"prompt": text}) + "\n\n",
    ):
        path.write_text(document)
        assert prompts(taken(path)) == [text]
    content = {"prompts": [text], "max_new_tokens": 1, "temperature": 0}
    path.write_text(json.dumps(content))
    inline = request_for("", input_data_path=None, content=content)
    for results in (taken(path), taken_of(inline)):
        (record,) = results
        assert isinstance(record, Record)
        assert isinstance(record.request, PromptRecord)
        assert record.request.prompt == text
