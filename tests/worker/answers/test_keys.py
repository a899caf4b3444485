"""Which records have the same key, and which have none: each field of each kind of record is looked at."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from airflow_llmengine.spec.batch_line import BatchRecord
from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.embedding import EmbeddingRequest
from airflow_llmengine.spec.record_fields import CHAT_FIELDS, COMPLETION_FIELDS
from airflow_llmengine.spec.request import CreateBatchCompletionsV1RequestContent
from airflow_llmengine.spec.sampling import ResponseFormatJsonObject
from airflow_llmengine.spec.scoring import RerankRequest, ScoreRequest
from airflow_llmengine.worker.answers.keys import CHANGES_NOTHING, KEY_BYTES, AnswerKeys, lasts
from airflow_llmengine.worker.records import PromptRecord, Record

MESSAGES = [{"role": "user", "content": "Hello"}]
GREEDY: dict[type[BatchRecord], dict[str, Any]] = {
    CompletionV2Request: {"prompt": "Hello", "temperature": 0},
    ChatCompletionV2Request: {"messages": MESSAGES, "temperature": 0},
    EmbeddingRequest: {"input": "Hello"},
    ScoreRequest: {"queries": "Hello", "documents": "World"},
    RerankRequest: {"query": "Hello", "documents": ["World"]},
}
FIELDS = [(kind, name) for kind in GREEDY for name in kind.model_fields]


def key(request: BatchRecord | PromptRecord, keys: AnswerKeys | None = None, **place: Any) -> bytes | None:
    where = {"index": 0, "location": "line 1", **place}
    return (keys or AnswerKeys()).of(Record(request=request, **where))


def completion(**fields: Any) -> bytes | None:
    return key(CompletionV2Request.model_validate({"prompt": "Hello", **fields}))


def chat(**fields: Any) -> ChatCompletionV2Request:
    return ChatCompletionV2Request.model_validate({"messages": MESSAGES, "temperature": 0, **fields})


def content(**fields: Any) -> CreateBatchCompletionsV1RequestContent:
    return CreateBatchCompletionsV1RequestContent.model_validate(
        {"prompts": [], "max_new_tokens": 9, "temperature": 0, **fields}
    )


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=[f"{kind.__name__}-{name}" for kind, name in FIELDS])
def test_a_field_is_in_the_key_unless_it_is_known_to_change_nothing(kind: type[BatchRecord], name: str) -> None:
    base = kind.model_validate(GREEDY[kind])
    other = ResponseFormatJsonObject(type="json_object") if name == "response_format" else 1e-7
    changed = base.model_copy(update={name: other})
    assert changed.is_given(name)
    assert (key(changed) == key(base)) is (name in CHANGES_NOTHING)


def test_a_field_that_changes_nothing_is_one_that_vllm_is_not_given() -> None:
    fields = COMPLETION_FIELDS | CHAT_FIELDS
    # Of these the engine makes another answer, or none.
    ours = {"best_of", "guided_decoding_backend"}
    assert {name for name, field in fields.items() if field.field is None} - ours == CHANGES_NOTHING


@pytest.mark.parametrize("kind", GREEDY)
def test_a_key_is_the_same_wherever_the_record_stands(kind: type[BatchRecord]) -> None:
    request = kind.model_validate(GREEDY[kind])
    again = kind.model_validate({**GREEDY[kind], "user": "ada", "model": "m"})
    found = key(request)
    assert found is not None
    assert len(found) == KEY_BYTES
    assert found == key(again, index=7, location="line 8", custom_id="c", is_batch_line=True)


def test_a_key_is_the_same_in_another_process_and_another_year() -> None:
    assert completion(temperature=0) == bytes.fromhex("68e10b47dbcbcc83b5a059225d4c1779")


def test_kinds_do_not_share_keys() -> None:
    keys = [key(kind.model_validate(fields)) for kind, fields in GREEDY.items()]
    assert len({*keys, key(PromptRecord("Hello", content()))}) == len(keys) + 1
    # Not even where they have the same fields.
    pooling: tuple[Any, ...] = (EmbeddingRequest, ScoreRequest, RerankRequest)
    without_fields = [kind.model_construct() for kind in pooling]
    assert len({key(request) for request in without_fields}) == len(without_fields)


@pytest.mark.parametrize(
    ("fields", "determined"),
    [
        ({}, False),
        ({"temperature": None}, False),
        ({"temperature": 1}, False),
        ({"temperature": 1e-6}, False),
        ({"temperature": 0}, True),
        ({"temperature": 1, "seed": 0}, True),
        ({"seed": 4}, True),
        ({"seed": None}, False),
        ({"use_beam_search": True}, True),
        ({"use_beam_search": False}, False),
        ({"temperature": 0, "n": 3}, True),
        ({"n": 3}, False),
    ],
)
def test_only_a_determined_answer_has_a_key(fields: dict[str, Any], determined: bool) -> None:
    assert (completion(**fields) is not None) is determined
    sampled = {"messages": MESSAGES, **fields}
    assert (key(ChatCompletionV2Request.model_validate(sampled)) is not None) is determined


def test_a_default_that_is_spelled_out_is_none_given() -> None:
    defaults = {"n": 1, "best_of": 1, "max_tokens": 16, "echo": False, "skip_special_tokens": True, "stop": None}
    assert completion(temperature=0, **defaults) == completion(temperature=0)
    assert key(PromptRecord("a", content(return_token_log_probs=False, skip_special_tokens=True))) == key(
        PromptRecord("a", content())
    )
    # Without them, the model's own generation config may say something else.
    for name, default in (("top_p", 1), ("frequency_penalty", 0), ("presence_penalty", 0)):
        assert completion(temperature=0, **{name: default}) != completion(temperature=0)
    assert key(chat(add_generation_prompt=True)) != key(chat())


def test_the_order_of_fields_makes_no_difference_and_that_inside_of_them_may() -> None:
    one = CompletionV2Request.model_validate_json('{"prompt": "a", "temperature": 0, "max_tokens": 3}')
    other = CompletionV2Request.model_validate_json('{"max_tokens": 3, "temperature": 0.0, "prompt": "a"}')
    assert key(one) == key(other)
    schemas: list[dict[str, Any]] = [{"properties": {"a": {}, "b": {}}}, {"properties": {"b": {}, "a": {}}}]
    assert len({key(chat(guided_json=schema)) for schema in schemas}) == 2


def test_the_end_of_one_value_is_not_the_beginning_of_the_next() -> None:
    assert completion(temperature=0, stop="ab", suffix="c") != completion(temperature=0, stop="a", suffix="bc")
    assert key(PromptRecord("bc", content(stop_sequences=["a"]))) != key(
        PromptRecord("c", content(stop_sequences=["ab"]))
    )


CONTENT_VALUES: dict[str, Any] = {
    "max_new_tokens": 10,
    "temperature": 1,
    "stop_sequences": ["."],
    "return_token_log_probs": True,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "top_k": -1,
    "top_p": 1,
    "skip_special_tokens": False,
}


def test_all_parameters_of_v1_are_in_the_key() -> None:
    assert CONTENT_VALUES.keys() | {"prompts"} == CreateBatchCompletionsV1RequestContent.model_fields.keys()
    found = {key(PromptRecord("a", content(**{name: value}))) for name, value in CONTENT_VALUES.items()}
    # Of another temperature none is determined.
    assert len(found | {key(PromptRecord("a", content()))}) == len(CONTENT_VALUES) + 1


def test_v1_is_determined_by_its_temperature_alone() -> None:
    keys = AnswerKeys()
    greedy, sampled = content(), content(temperature=0.5)
    assert key(PromptRecord("a", greedy), keys) == key(PromptRecord("a", content()))
    assert key(PromptRecord("a", sampled), keys) is None
    assert key(PromptRecord("b", greedy), keys) not in (None, key(PromptRecord("a", greedy), keys))


def test_what_a_tool_helps_to_write_has_no_key() -> None:
    assert key(PromptRecord("a", content()), AnswerKeys(uses_tool=True)) is None


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_what_is_no_text_has_no_key(text: str) -> None:
    assert key(chat().model_copy(update={"messages": [{"role": "user", "content": text}]})) is None
    assert key(PromptRecord(text, content())) is None


def test_what_is_nested_too_deep_has_no_key() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    assert key(chat().model_copy(update={"documents": [{"a": deep}]})) is None


def part(value: str) -> list[dict[str, Any]]:
    """A message of one part, given as JSON."""
    parts = TypeAdapter(list[dict[str, Any]]).validate_json(f"[{value}]")
    return [{"role": "user", "content": parts}]


@pytest.mark.parametrize(
    ("fields", "holds"),
    [
        ({}, True),
        ({"chat_template": "{{ messages[0].content }}"}, True),
        ({"chat_template": "{{ strftime_now('%d') }}"}, False),
        ({"messages": part('{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}')}, True),
        ({"messages": part('{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}')}, False),
        ({"messages": part('{"type": "input_image", "image_url": "file:///a.png"}')}, False),
        ({"messages": part('{"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}')}, True),
    ],
)
def test_what_is_fetched_or_tells_the_date_does_not_last(fields: dict[str, Any], holds: bool) -> None:
    assert lasts(Record(0, "line 1", chat(**fields))) is holds


def test_records_without_media_last() -> None:
    assert all(
        lasts(Record(0, "line 1", request))
        for request in (
            PromptRecord("https://example.org", content()),
            RerankRequest.model_validate(GREEDY[RerankRequest]),
        )
    )
