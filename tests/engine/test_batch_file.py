"""Lines of an OpenAI batch file through the reader, the real engine and into result lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.job_state import JobHandle
from airflow_llmengine.spec.results import RecordError
from airflow_llmengine.worker.elements import ElementWriter
from airflow_llmengine.worker.readers.validate import to_record
from airflow_llmengine.worker.records import RawRecord
from tests.engine.conftest import RunningEngine
from tests.engine.records import CAPITAL, job

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

BODY = {"prompt": CAPITAL, "max_tokens": 2, "temperature": 0}
FINGERPRINT = "0123456789abcdef01234567"


def line(**fields: Any) -> dict[str, Any]:
    whole = {"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": BODY, **fields}
    return {name: value for name, value in whole.items() if value is not ...}


@pytest.fixture
def results(running: RunningEngine, tmp_path: Path) -> Any:
    """From lines to result lines, as a worker makes them."""
    request = job(tmp_path)
    writer = ElementWriter(JobHandle(path="out.jsonl", fingerprint=FINGERPRINT, generation=1), created=1234.5)

    def answered(*lines: dict[str, Any]) -> list[dict[str, Any]]:
        elements = []
        for index, value in enumerate(lines):
            record = to_record(RawRecord(index, f"line {index + 1} of in.jsonl", value, size=1), request, None)
            if isinstance(record, RecordError):
                elements.append(writer.error(record, is_batch_line=True).element)
            else:
                elements.append(writer.answer(record, running.answer(record)).element)
        return [json.loads(element) for element in elements]

    return answered


def test_case_10_three_faults_that_name_the_field_and_one_answer(results: Any) -> None:
    *failed, answered = results(
        line(body={**BODY, "stream": True}), line(url="/v1/nothing"), line(url=...), line(url="/v1/completions")
    )
    for index, (result, field) in enumerate(zip(failed, ("body.stream", "url", "url"), strict=True)):
        assert (result["custom_id"], result["response"]) == ("c", None)
        assert result["id"] == f"batch_req_{FINGERPRINT}-{index}"
        assert (result["error"]["type"], result["error"]["index"]) == ("invalid_record", index)
        assert result["error"]["message"].startswith(f"line {index + 1} of in.jsonl: {field}: ")
    assert answered.keys() == {"id", "custom_id", "response", "error"}
    assert (answered["custom_id"], answered["error"]) == ("c", None)
    assert answered["response"].keys() == {"status_code", "request_id", "body"}
    assert answered["response"]["status_code"] == 200
    body = answered["response"]["body"]
    assert body["choices"][0]["text"].startswith(" Paris")
    assert (body["id"], body["created"]) == (f"cmpl-{FINGERPRINT}-3", 1234)


def test_lines_of_one_name_are_all_answered_and_told_by_their_ids(results: Any) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    lines = results(line(), line(url="/v1/chat/completions", body=chat), line(custom_id="d"))
    assert [result["custom_id"] for result in lines] == ["c", "c", "d"]
    ids = [result["response"]["body"]["id"] for result in lines]
    assert ids == [f"cmpl-{FINGERPRINT}-0", f"chatcmpl-{FINGERPRINT}-1", f"cmpl-{FINGERPRINT}-2"]


@pytest.mark.parametrize("custom_id", [..., None, "", 7], ids=str)
def test_a_line_without_a_name_is_told_by_its_place(results: Any, custom_id: Any) -> None:
    _named, nameless = results(line(), line(custom_id=custom_id))
    assert (nameless["custom_id"], nameless["response"]) == (None, None)
    assert nameless["error"]["message"].startswith("line 2 of in.jsonl: custom_id: ")
