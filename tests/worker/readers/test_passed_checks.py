from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmengine.spec import check_record
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.worker.readers import validate
from airflow_llmengine.worker.readers.passed_checks import MOST_BYTES, MOST_KEPT, PassedChecks
from airflow_llmengine.worker.readers.raw_records import load_record
from airflow_llmengine.worker.readers.validate import to_record
from airflow_llmengine.worker.records import RawRecord, Record
from tests.worker.readers.files import request_for

REQUEST = request_for("/x")
WITHOUT_TOKENIZER = REQUEST.model_copy(
    update={"model_cfg": REQUEST.model_cfg.model_copy(update={"skip_tokenizer_init": True})}
)

TEXTS = ["a", "ä", "", None, 3, [], [""], ["a"], [1, 2], [[1], []], {"a": 1}]
PARTS = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "odd"}, "a"]
CONTENTS = [*TEXTS, *([part] for part in PARTS)]
MESSAGES = [[{"role": "user", "content": content}] for content in CONTENTS]
FIELDS: dict[str, list[Any]] = {
    "max_tokens": [16, 16.0, "16", True, 0, -1, None, 2**70],
    "temperature": [0, 0.0, False, "0", 3, None],
    "n": [1, 2, 1.0],
    "best_of": [1, 2],
    "seed": [1, -1, 2**64],
    "stop": ["a", ["a"], [], ["a"] * 5],
    "logit_bias": [{"1": 2}, {"a": 2}, {"1": 2**70}],
    "use_beam_search": [True, False],
    "echo": [True, 1],
    "model": ["stand-in", "other"],
    "guided_json": [{"type": "object"}, {"$ref": "http://x"}],
    "media_io_kwargs": [{}, {"image": {}}],
    "metadata": [{"user": "a"}],
    "user": ["a", "b"],
    "unknown": [1],
}


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=2, unique=True))
    record = {name: draw(st.sampled_from(FIELDS[name])) for name in names}
    kind = draw(st.sampled_from(["prompt", "messages", "line of prompt", "line of messages", "both"]))
    if "prompt" in kind or kind == "both":
        record["prompt"] = draw(st.sampled_from(TEXTS))
    if "messages" in kind or kind == "both":
        record["messages"] = draw(st.sampled_from([*MESSAGES, [], "a", MESSAGES[0] * 2, [{"content": "a"}], ["a"]]))
    if not kind.startswith("line"):
        return record
    url = "/v1/chat/completions" if kind.endswith("messages") else "/v1/completions"
    line = {"custom_id": "a", "method": "POST", "url": url, "body": record}
    wrong: dict[str, Any] = draw(
        st.sampled_from([{}, {}, {"custom_id": ""}, {"method": "GET"}, {"url": 3}, {"body": 3}, {"more": 1}])
    )
    return {**line, **wrong}


@given(st.lists(records(), max_size=8), st.sampled_from([REQUEST, WITHOUT_TOKENIZER]))
@settings(max_examples=400, deadline=None)
def test_what_is_remembered_makes_no_difference(values: list[dict[str, Any]], request_: Any) -> None:
    assert_no_difference([*values, *values], request_)


@pytest.mark.parametrize("field", ["prompt", "messages"])
def test_whatever_text_was_passed_before_another_is_judged_by_itself(field: str) -> None:
    texts: list[Any] = TEXTS if field == "prompt" else MESSAGES
    fields: dict[str, Any]
    for fields in {}, {"media_io_kwargs": {"image": {}}}:
        for pair in itertools.permutations(texts, 2):
            assert_no_difference([{field: text, **fields} for text in pair], REQUEST)


def assert_no_difference(values: list[dict[str, Any]], request_: Any) -> None:
    passed = PassedChecks()
    for index, value in enumerate(values):
        raw = load_record(index, f"line {index}", json.dumps(value).encode())
        remembering, anew = to_record(raw, request_, None, passed), to_record(raw, request_, None)
        assert remembering == anew
        if isinstance(anew, Record):
            assert isinstance(remembering, Record)
            # Equal models may differ in 1 and 1.0.
            assert repr(remembering.request.model_dump()) == repr(anew.request.model_dump())  # type: ignore[union-attr]
            assert remembering.request.model_fields_set == anew.request.model_fields_set  # type: ignore[union-attr]


def test_a_record_that_is_made_from_another_is_a_record_of_its_own() -> None:
    passed = PassedChecks()
    made = []
    for prompt in ("one", "two", "drei Schüsse", "one"):
        raw = load_record(0, "line 1", json.dumps({"prompt": prompt, "seed": 1, "stop": None}).encode())
        record = to_record(raw, REQUEST, None, passed)
        assert isinstance(record, Record)
        made.append(record.request)
    assert [request.prompt for request in made] == ["one", "two", "drei Schüsse", "one"]  # type: ignore[union-attr]
    assert made[0] == made[3] != made[1]
    assert made[0] is not made[3]
    for request in made:
        assert isinstance(request, CompletionV2Request)
        assert request.given() == {"prompt": request.prompt, "seed": 1, "stop": None}


def test_records_share_nothing_that_could_be_changed() -> None:
    passed = PassedChecks()
    for fields in {"stop": ["a"]}, {"logit_bias": {"1": 2}}, {"response_format": {"type": "text"}}:
        one, other = (
            to_record(load_record(0, "line 1", json.dumps({"prompt": text, **fields}).encode()), REQUEST, None, passed)
            for text in ("one", "other")
        )
        assert isinstance(one, Record)
        assert isinstance(other, Record)
        (name,) = fields
        assert getattr(one.request, name) == getattr(other.request, name)
        assert getattr(one.request, name) is not getattr(other.request, name)


def test_half_of_a_surrogate_pair_is_refused_beside_fields_that_are_known() -> None:
    """A table's template can spell one, where a JSON file is refused before."""
    passed = PassedChecks()
    for prompt, is_record in (("a", True), ("\ud800", False), ("ä", True)):
        record = to_record(RawRecord(0, "row 1", {"prompt": prompt}, size=1), REQUEST, None, passed)
        assert isinstance(record, Record) is is_record


def test_records_that_differ_in_their_text_alone_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Any] = []

    def check(record: Any, *arguments: Any) -> Any:
        checked.append(record)
        return check_record.check_record(record, *arguments)

    monkeypatch.setattr(validate, "check_record", check)
    passed = PassedChecks()
    for index in range(5):
        for value in ({"prompt": f"{index}"}, {"messages": [{"role": "user", "content": f"{index}"}]}):
            to_record(load_record(0, "line 1", json.dumps(value).encode()), REQUEST, None, passed)
    assert len(checked) == 2


@pytest.mark.parametrize("value", ["", ["a"], [1]])
def test_what_is_no_text_is_always_checked(value: Any) -> None:
    assert PassedChecks().key({"prompt": value}, CompletionV2Request) is None


def test_little_is_remembered() -> None:
    passed = PassedChecks()
    assert passed.key({"prompt": "a", "user": "u" * MOST_BYTES}, CompletionV2Request) is None
    keys = [passed.key({"prompt": "a", "seed": seed}, CompletionV2Request) for seed in range(MOST_KEPT + 1)]
    for seed, key in enumerate(keys):
        assert key is not None
        passed.add(key, CompletionV2Request(prompt="a", seed=seed))
    assert keys[-1] in passed
    assert keys[0] not in passed
