"""What somebody else has put into a cache is not taken for an answer if it can't be one."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.worker.answer_cache.answer_form import is_answer

REQUEST = CompletionV2Request.model_validate({"prompt": "a"})
BODY: dict[str, Any] = {"choices": [{"text": "b"}], "usage": {}}


def test_what_an_engine_may_have_made_is_an_answer() -> None:
    assert is_answer(BODY, REQUEST)


@pytest.mark.parametrize(
    "fields",
    [{"choices": []}, {"choices": [{}]}, {"usage": None}, {"error": {"type": "internal"}}, {"response": {"body": {}}}],
)
def test_what_would_be_read_as_something_else_is_none(fields: dict[str, Any]) -> None:
    assert not is_answer({**BODY, **fields}, REQUEST)
