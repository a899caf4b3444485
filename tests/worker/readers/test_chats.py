"""What tells that an input is one of chats."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pytest

from airflow_llmengine.worker.readers.chats import RECORDS_THAT_TELL, begins_with_chats
from airflow_llmengine.worker.records import RawRecord

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def records(*values: Any) -> Iterator[RawRecord]:
    return (RawRecord(index, f"line {index + 1}", value, 9) for index, value in enumerate(values))


def line(url: Any, body: Any = CHAT) -> dict[str, Any]:
    return {"custom_id": "a", "method": "POST", "url": url, "body": body}


@pytest.mark.parametrize(
    "value",
    [CHAT, {**CHAT, "chat_template": None}, {"messages": "none of the kind"}, line("/v1/chat/completions")],
)
def test_a_thousand_chats_tell_and_fewer_do_not(value: Any) -> None:
    assert begins_with_chats(records(*repeat(value, RECORDS_THAT_TELL)))
    assert not begins_with_chats(records(*repeat(value, RECORDS_THAT_TELL - 1)))


@pytest.mark.parametrize("place", [0, RECORDS_THAT_TELL - 1])
@pytest.mark.parametrize(
    "other",
    [
        {"prompt": "hi"},
        {**CHAT, "prompt": "hi"},
        {**CHAT, "chat_template": "{{ messages }}"},
        line("/v1/completions"),
        line("/v1/nothing"),
        line(["/v1/chat/completions"]),
        line("/v1/chat/completions", {**CHAT, "chat_template": "x"}),
        line("/v1/chat/completions", "hi"),
        {"body": CHAT},
        "hi",
        None,
    ],
)
def test_one_other_record_among_them_tells_otherwise(other: Any, place: int) -> None:
    values: list[Any] = [CHAT] * (RECORDS_THAT_TELL + 1)
    values[place] = other
    assert not begins_with_chats(records(*values))


def test_what_comes_later_is_not_even_read() -> None:
    def input_records() -> Iterator[RawRecord]:
        yield from records(*repeat(CHAT, RECORDS_THAT_TELL))
        pytest.fail("it reads on")

    assert begins_with_chats(input_records())
