"""What a record's place gives an answer; the answer itself stays as it is, for it may be that of other records too."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from airflow_llmengine.spec.batch_line import BatchRecord
from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.embedding import EmbeddingRequest
from airflow_llmengine.spec.job_state import JobHandle
from airflow_llmengine.worker.elements import ElementWriter
from airflow_llmengine.worker.engines.base import Answer
from airflow_llmengine.worker.records import Record

WRITER = ElementWriter(JobHandle(path="out.jsonl", fingerprint="ab12", generation=1), created=7.5)


def call(name: str) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": "clock", "arguments": "{}"}}


def chat_body(*choices: list[dict[str, Any]] | None) -> dict[str, Any]:
    return {
        "id": "of the engine",
        "created": 1,
        "choices": [
            {"index": index, "message": {"content": None} | ({} if calls is None else {"tool_calls": calls})}
            for index, calls in enumerate(choices)
        ],
        "usage": {},
    }


def element(request: BatchRecord, body: dict[str, Any], index: int = 3) -> dict[str, Any]:
    before = copy.deepcopy(body)
    finished = WRITER.answer(Record(index, "line 4", request), Answer(body, 1, 2))
    assert body == before
    found: dict[str, Any] = json.loads(finished.element)
    return found


def chat(**fields: Any) -> ChatCompletionV2Request:
    return ChatCompletionV2Request.model_validate({"messages": [{"role": "user", "content": "a"}], **fields})


def test_calls_without_a_name_are_named_by_their_place() -> None:
    body = chat_body([call(""), call("functions.clock:0")], None, [call(""), call("")])
    for index in (3, 17):
        choices = element(chat(), body, index)["choices"]
        assert [[one["id"] for one in choice["message"].get("tool_calls", ())] for choice in choices] == [
            [f"chatcmpl-tool-{index}-0-0", "functions.clock:0"],
            [],
            [f"chatcmpl-tool-{index}-2-0", f"chatcmpl-tool-{index}-2-1"],
        ]


@pytest.mark.parametrize(
    ("fields", "metadata"),
    [
        ({}, None),
        ({"metadata": {}}, None),
        ({"user": "ada"}, {"user": "ada"}),
        ({"metadata": {"team": "a"}}, {"team": "a"}),
        ({"metadata": {"team": "a"}, "user": "ada"}, {"team": "a", "user": "ada"}),
    ],
)
def test_metadata_and_user_come_back_at_the_end(fields: dict[str, Any], metadata: dict[str, str] | None) -> None:
    found = element(chat(**fields), chat_body(None))
    assert found.get("metadata") == metadata
    assert list(found) == ["id", "created", "choices", "usage", *(["metadata"] if metadata else [])]
    assert (found["id"], found["created"]) == ("chatcmpl-ab12-3", 7)


def test_user_comes_back_with_every_kind_of_record() -> None:
    completion = CompletionV2Request.model_validate({"prompt": "a", "user": "ada"})
    embedding = EmbeddingRequest.model_validate({"input": "a", "user": "ada"})
    for request in (completion, embedding):
        assert element(request, {"id": "", "choices": [], "data": []})["metadata"] == {"user": "ada"}


TINY = 1.9e-06
"""It can be written in several ways."""


@pytest.mark.parametrize(
    "body",
    [
        {"choices": [{"text": '\x00\x1f\x7f\u0085\u2028 " \\ / \U0001f600\t\n', "logprobs": None}], "created": 0},
        {"choices": [{"text": "a half: \ud800", "logprobs": None}]},
        {"choices": [{"text": "a"}, {"text": "b", "logprobs": {"token_logprobs": [TINY]}}]},
        {"choices": [{"text": "a", "logprobs": None, "prompt_logprobs": [{"1": {"logprob": TINY}}]}]},
        {"choices": [{"text": "a"}], "prompt_logprobs": [{"1": {"logprob": TINY}}]},
        {"data": [{"embedding": [TINY, 1e-05, 1e16]}]},
        {"text": "a", "tokens": [{"token": "a", "log_prob": TINY}]},
    ],
)
def test_an_answer_is_written_as_python_writes_it(body: dict[str, Any]) -> None:
    request = CompletionV2Request(prompt="a")
    written = WRITER.answer(Record(3, "line 4", request), Answer(body, 1, 2)).element
    is_text = "\\ud800" not in json.dumps(body)
    assert written == json.dumps(json.loads(written), ensure_ascii=not is_text, separators=(",", ":")).encode()
