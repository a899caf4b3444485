"""Tools of chat records on the real engine: shown to the model, called as ``tool_choice`` says, and read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.engines.base import RecordRejectedError
from tests.engine.conftest import RunningEngine
from tests.engine.records import chat
from tests.engine.test_chat import QUESTION, Body, ask, prompt_of
from tests.engine.test_v2 import tokenizer

__all__ = ["ask", "tokenizer"]

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

AS_IT_IS = "{% if tools %}{% endif %}{% for message in messages %}{{ message.content }}{% endfor %}"


def tool(name: str, argument: str, value: str) -> Body:
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string", "enum": [value]}},
        "required": [argument],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "strict": True, "parameters": parameters}}


TOOLS = [tool("get_weather", "city", "Paris"), tool("get_time", "zone", "UTC")]
WEATHER = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
COPYING: Body = {
    "tools": TOOLS,
    "messages": [{"role": "user", "content": WEATHER * 6}],
    "chat_template": AS_IT_IS,
    "parallel_tool_calls": False,
    "max_tokens": 40,
}
"""The model goes on as it began: with a call."""


def calls_of(body: Body) -> list[tuple[str, Any]]:
    calls = body["choices"][0]["message"].get("tool_calls", [])
    assert all(call["type"] == "function" for call in calls)
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


def test_the_model_may_call_a_tool(ask: Callable[..., Body]) -> None:
    for choice in ({}, {"tool_choice": None}, {"tool_choice": "auto"}):
        body = ask("", **COPYING, **choice)
        assert calls_of(body) == [("get_weather", {"city": "Paris"})]
        assert body["choices"][0]["finish_reason"] == "tool_calls"
        assert body["choices"][0]["message"]["content"] is None
    # It need not.
    free = {"chat_template": "{% if tools %}{% endif %}" + QUESTION, "max_tokens": 8}
    assert ask("", tools=TOOLS, **free)["choices"][0]["message"] == ask("", **free)["choices"][0]["message"]


@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}, {"tool_choice": "none"}], ids=str)
def test_tools_that_the_model_is_not_shown_are_refused(running: RunningEngine, choice: Body) -> None:
    with pytest.raises(RecordRejectedError, match="tools: the chat template does not show them") as refused:
        running.answer(chat(QUESTION, tools=TOOLS, **choice))
    assert refused.value.error_type is RecordErrorType.UNSUPPORTED


def test_it_may_not(ask: Callable[..., Body]) -> None:
    body = ask("", **COPYING, tool_choice="none")
    assert body["choices"][0]["message"].keys() == {"role", "content", "refusal"}
    assert body["choices"][0]["message"]["content"].startswith(WEATHER.rstrip())
    assert body["choices"][0]["finish_reason"] == "length"


def test_it_must(ask: Callable[..., Body]) -> None:
    (call,) = calls_of(ask(QUESTION, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=100))
    assert call in [("get_weather", {"city": "Paris"}), ("get_time", {"zone": "UTC"})]


@pytest.mark.parametrize("name", ["get_weather", "get_time"])
def test_it_must_call_this_one(ask: Callable[..., Body], name: str) -> None:
    named = {"type": "function", "function": {"name": name}}
    body = ask(QUESTION, tools=TOOLS, tool_choice=named, parallel_tool_calls=False, max_tokens=100)
    assert [called for called, _arguments in calls_of(body)] == [name]
    # As the API has it, where the model had no choice.
    assert body["choices"][0]["finish_reason"] == "stop"


def twice(ask: Callable[..., Body], **fields: Any) -> Body:
    """An answer that must go on after its first call, and is cut after the second, before a third can open."""
    return ask("", **{**COPYING, "tool_choice": "required", "min_tokens": 31, "max_tokens": 63, **fields})


def test_it_may_call_several_at_once(ask: Callable[..., Body]) -> None:
    assert len(calls_of(twice(ask, parallel_tool_calls=True))) == 2
    assert len(calls_of(twice(ask, parallel_tool_calls=False, min_tokens=0))) == 1


def test_calls_are_named_alike_each_time_and_apart_from_each_other(ask: Callable[..., Body]) -> None:
    first, second = (twice(ask, parallel_tool_calls=True) for _ in range(2))
    assert first["choices"] == second["choices"]
    assert [call["id"] for call in first["choices"][0]["message"]["tool_calls"]] == [
        "chatcmpl-tool-0-0-0",
        "chatcmpl-tool-0-0-1",
    ]


def test_calls_and_what_the_tools_gave_back_reach_the_template(ask: Callable[..., Body], tokenizer: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "get_time", "arguments": '{"zone": "UTC"}'}}
    messages = [
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
    ]
    template = "{{ messages | tojson }}\n{{ tools | tojson }}"
    prompt = prompt_of(
        ask("", messages=messages, tools=TOOLS, chat_template=template, return_token_ids=True, max_tokens=1), tokenizer
    )
    shown, offered = (json.loads(line) for line in prompt.splitlines())
    assert shown[1]["tool_calls"][0]["function"] == {"name": "get_time", "arguments": {"zone": "UTC"}}
    assert shown[2] == {"role": "tool", "tool_call_id": "c1", "content": "12:00"}
    assert [one["function"]["name"] for one in offered] == ["get_weather", "get_time"]


def test_a_call_that_is_cut_off_is_kept_as_text(ask: Callable[..., Body]) -> None:
    body = ask("", **{**COPYING, "max_tokens": 10}, tool_choice="required")
    assert calls_of(body) == []
    assert body["choices"][0]["finish_reason"] == "length"
    assert WEATHER.startswith(body["choices"][0]["message"]["content"])
