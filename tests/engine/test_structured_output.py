"""Structured output on the real engine: each form is kept to, or the record says why not; what is cut is truncated."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.engines.base import Answer, RecordRejectedError
from airflow_llmengine.worker.records import Record
from tests.engine.conftest import RunningEngine
from tests.engine.records import CAPITAL, chat, completion, v1

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

Fields = dict[str, Any]

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 10, "maximum": 99},
        "kind": {"$ref": "#/$defs/kind"},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
    "$defs": {"kind": {"enum": ["cat", "dog"]}},
}
QUESTION = "The answer is"
ANIMALS = 'An animal: {"name": "Tom", "age": 12, "kind": "cat"}\nAn animal: '
"""The small model needs to be shown what it is asked for, or may write white space for ever."""

GRAMMAR = 'root ::= "[" digit ("," digit){2} "]"\ndigit ::= [0-9]'


def json_schema(schema: Any) -> Fields:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "animal", "schema": schema}}}


def follows_schema(text: str) -> bool:
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


FORMS: dict[str, tuple[Fields, Callable[[str], Any]]] = {
    "guided_regex": ({"guided_regex": "[0-9]{3}-[a-c]{2}"}, re.compile("[0-9]{3}-[a-c]{2}").fullmatch),
    "guided_choice": ({"guided_choice": ["yes", 'a "b"\n\\', "é😀"]}, {"yes", 'a "b"\n\\', "é😀"}.__contains__),
    "guided_json": ({"guided_json": SCHEMA}, follows_schema),
    "guided_grammar": ({"guided_grammar": GRAMMAR}, re.compile(r"\[[0-9],[0-9],[0-9]\]").fullmatch),
    "json_schema": (json_schema(SCHEMA), follows_schema),
}


def texts(answer: Answer) -> list[str]:
    choices = answer.body["choices"]
    return [choice["message"]["content"] if "message" in choice else choice["text"] for choice in choices]


def reasons(answer: Answer) -> list[str]:
    return [choice["finish_reason"] for choice in answer.body["choices"]]


def error_of(running: RunningEngine, record: Record) -> RecordRejectedError:
    """The record's error; records beside it and after it are answered."""

    async def among_others() -> Any:
        return await asyncio.gather(
            running.engine.complete(completion(CAPITAL, guided_choice=["Paris", "Rome"])),
            running.engine.complete(record),
            return_exceptions=True,
        )

    before, error = running.run(among_others())
    assert texts(before) == ["Paris"]
    assert running.answer(v1(CAPITAL)).body["text"].startswith(" Paris")
    assert isinstance(error, RecordRejectedError), error
    assert error.message.isprintable()
    return error


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_kept_to(running: RunningEngine, form: str) -> None:
    fields, fits = FORMS[form]
    free = running.answer(completion(CAPITAL, max_tokens=8))
    answers = running.answers(
        completion(ANIMALS, max_tokens=100, **fields),
        completion([ANIMALS, f"Once more. {ANIMALS}"], n=2, temperature=1, top_k=1, max_tokens=100, **fields),
        chat(f"Go on. {ANIMALS}", max_tokens=100, **fields),
    )
    assert not fits_or_none(fits, texts(free)[0])
    assert [len(answer.body["choices"]) for answer in answers] == [1, 4, 1]
    for answer in answers:
        assert reasons(answer) == ["stop"] * len(answer.body["choices"])
        assert all(fits(text) for text in texts(answer)), texts(answer)
        assert not answer.truncated
    assert running.answer(completion(CAPITAL, max_tokens=8)).body["choices"] == free.body["choices"]


def fits_or_none(fits: Callable[[str], Any], text: str) -> bool:
    try:
        return bool(fits(text))
    except ValueError:
        return False


def test_any_json_object(running: RunningEngine) -> None:
    asked = 'Answer with {"a": 1} and nothing else.'
    fields: Fields = {"response_format": {"type": "json_object"}, "max_tokens": 120, "logit_bias": {"28": -100}}
    answers = running.answers(chat(asked, **fields), completion('{"a": 1}\n{"a": 1}\n', **fields))
    for answer in answers:
        (text,) = texts(answer)
        assert text.lstrip().startswith("{")
        # A small model may go on for ever: then what there is is counted as what it is.
        assert answer.truncated is (reasons(answer) == ["length"])
        assert answer.truncated or isinstance(json.loads(text), dict)


def test_text_as_the_form_asks_for_nothing(running: RunningEngine) -> None:
    free, text = running.answers(completion(CAPITAL), completion(CAPITAL, response_format={"type": "text"}))
    assert texts(free) == texts(text)
    assert reasons(text) == ["length"]
    assert not text.truncated


def test_a_broken_schema_and_a_broken_grammar_cost_their_own_rows(running: RunningEngine) -> None:
    """Case 8 of the public bug reports, all at once."""

    async def all_at_once() -> list[Any]:
        records = [
            completion(CAPITAL, max_tokens=90, guided_json=SCHEMA),
            completion(CAPITAL, guided_json={"type": "strin"}),
            completion(CAPITAL, guided_grammar="root ::= ("),
            completion(CAPITAL),
        ]
        return await asyncio.gather(*map(running.engine.complete, records), return_exceptions=True)

    schema, strin, grammar, none = running.run(all_at_once())
    assert follows_schema(texts(schema)[0])
    for error, field in ((strin, "guided_json: "), (grammar, "guided_grammar: ")):
        assert isinstance(error, RecordRejectedError), error
        assert error.error_type is RecordErrorType.REJECTED_BY_ENGINE
        assert error.message.startswith(field)
    assert texts(none)[0].startswith(" Paris")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"guided_regex": "(["}, "guided_regex"),
        ({"guided_regex": "(?=a)a"}, "guided_regex"),
        ({"guided_regex": r"(a)\1"}, "guided_regex"),
        ({"guided_regex": r"\p{L}+"}, "guided_regex"),
        ({"guided_regex": "a\0b"}, "guided_regex"),
        ({"guided_grammar": 'x ::= "a"'}, "guided_grammar"),
        ({"guided_grammar": "root ::= root"}, "guided_grammar"),
        ({"guided_grammar": "root ::= missing"}, "guided_grammar"),
        ({"guided_json": {"$ref": "#"}}, "guided_json"),
        ({"guided_json": {"properties": {"a": {"$ref": "#/$defs/none"}}}}, "guided_json"),
        ({"guided_json": {"type": "integer", "multipleOf": 3}}, "guided_json"),
        ({"guided_json": {"type": "string", "not": {"const": "a"}}}, "guided_json"),
        ({"guided_json": {"enum": []}}, "guided_json"),
        ({"guided_json": {"type": "integer", "minimum": 5, "maximum": 2}}, "guided_json"),
        ({"guided_json": {"type": "string", "pattern": "(["}}, "guided_json"),
        ({"guided_json": {"type": "string", "pattern": "^(?!a)[ab]$"}}, "guided_json"),
        ({"guided_json": {"type": "object", "required": "a"}}, "guided_json"),
        (json_schema({"type": "strin"}), "response_format"),
        (json_schema({"type": "array", "items": {}, "uniqueItems": True}), "response_format"),
    ],
    ids=str,
)
def test_what_can_not_be_kept_to_costs_its_own_row(running: RunningEngine, fields: Fields, field: str) -> None:
    for record in (completion(CAPITAL, **fields), chat("hi", **fields)):
        error = error_of(running, record)
        assert error.error_type in (RecordErrorType.REJECTED_BY_ENGINE, RecordErrorType.UNSUPPORTED)
        assert error.message.startswith(f"{field}: ")
        assert "Internal" not in error.message


def test_a_recursive_schema(running: RunningEngine) -> None:
    tree = {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"n": {"enum": [1]}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                "required": ["n", "next"],
                "additionalProperties": False,
            }
        },
    }
    answer = running.answer(completion('{"n": 1, "next": null}\n', guided_json=tree, max_tokens=60))
    if not answer.truncated:
        jsonschema.validate(json.loads(texts(answer)[0]), tree)


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_regex": "(a+)+b"},
        {"guided_regex": "((a{1,1000}){1,1000}){1,1000}"},
        {"guided_choice": [f"word {number}" for number in range(5000)]},
        {"guided_json": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(1000)}}},
    ],
    ids=["nested", "repeated", "5000 choices", "1000 properties"],
)
def test_a_structure_that_is_large_holds_nobody_up(running: RunningEngine, fields: Fields) -> None:
    async def beside_another() -> list[Any]:
        large = asyncio.create_task(running.engine.complete(completion(CAPITAL, max_tokens=4, **fields)))
        other = await asyncio.wait_for(running.engine.complete(completion(CAPITAL, max_tokens=4)), 60)
        async with asyncio.timeout(120):
            return [other, *await asyncio.gather(large, return_exceptions=True)]

    other, large = running.run(beside_another())
    assert texts(other)[0].startswith(" Paris")
    assert isinstance(large, Answer | RecordRejectedError), large


@pytest.mark.parametrize("form", FORMS)
def test_an_answer_that_max_tokens_cuts_is_truncated_and_keeps_its_text(running: RunningEngine, form: str) -> None:
    fields, fits = FORMS[form]
    fields = fields if form != "guided_choice" else {"guided_choice": ["a long answer indeed", "and one more of them"]}
    for record in (completion(CAPITAL, max_tokens=2, **fields), chat("Tell me.", max_tokens=2, **fields)):
        answer = running.answer(record)
        assert reasons(answer) == ["length"]
        assert texts(answer)[0]
        assert not fits_or_none(fits, texts(answer)[0])
        assert answer.truncated
        assert "truncated" not in json.dumps(answer.body)


def test_one_choice_that_is_cut_makes_the_record_truncated(running: RunningEngine) -> None:
    fields: Fields = {"guided_choice": ["yes", "a very long answer that is cut"], "max_tokens": 3, "temperature": 1}
    answer = running.answer(completion(CAPITAL, n=8, seed=1, logit_bias={}, **fields))
    assert set(reasons(answer)) <= {"stop", "length"}
    assert answer.truncated is ("length" in reasons(answer))


def test_a_choice_that_needs_all_of_its_tokens_is_whole(running: RunningEngine) -> None:
    answer = running.answer(completion(QUESTION, guided_choice=["yes", "no"], max_tokens=1))
    assert texts(answer)[0] in ("yes", "no")
    assert reasons(answer) == ["length"]
    assert not answer.truncated


def test_text_that_is_cut_is_no_truncated_answer(running: RunningEngine) -> None:
    answers = running.answers(
        v1(CAPITAL, max_new_tokens=1), completion(CAPITAL, max_tokens=1), chat("hi", max_tokens=1)
    )
    assert [answer.truncated for answer in answers] == [False] * 3


def test_structure_goes_with_the_other_fields(running: RunningEngine) -> None:
    choice: Fields = {"guided_choice": ["yes", "no"]}
    (likelier,) = texts(running.answer(completion(QUESTION, **choice)))
    other = "yes" if likelier == "no" else "no"
    # Whatever the tokens are in which it may be written.
    encode = running.engine._started().client.get_tokenizer().encode
    beginnings = [encode(likelier[: length + 1]) for length in range(len(likelier))]
    banned = {str(tokens[0]): -100 for tokens in beginnings}
    biased, echoed, told, stopped, best = running.answers(
        completion(QUESTION, logit_bias=banned, **choice),
        completion(QUESTION, echo=True, **choice),
        completion(QUESTION, logprobs=1, **choice),
        completion(CAPITAL, guided_json=SCHEMA, stop=[":"], max_tokens=30),
        completion(CAPITAL, best_of=3, n=2, temperature=1, seed=5, **choice),
    )
    assert texts(biased) == [other]
    assert texts(echoed) == [QUESTION + likelier]
    assert "".join(told.body["choices"][0]["logprobs"]["tokens"]).startswith(likelier)
    assert texts(stopped)[0].endswith('"name"')
    assert reasons(stopped) == ["stop"]
    assert not stopped.truncated
    assert len(texts(best)) == 2
    assert set(texts(best)) <= {"yes", "no"}


def test_the_library_is_the_engines(running: RunningEngine) -> None:
    for name in ("auto", "xgrammar"):
        answer = running.answer(completion(CAPITAL, guided_choice=["yes", "no"], guided_decoding_backend=name))
        assert texts(answer)[0] in ("yes", "no")
    error = error_of(running, completion(CAPITAL, guided_choice=["yes"], guided_decoding_backend="outlines"))
    assert error.error_type is RecordErrorType.UNSUPPORTED
    assert error.message.startswith("guided_decoding_backend: is a setting of the whole engine, and there xgrammar;")


def test_what_is_kept_to_does_not_hang_on_what_came_first(running: RunningEngine) -> None:
    # Left alone, vLLM takes each record for the library that suits it, and compiles all with the first one's.
    three = completion(CAPITAL, guided_json={"type": "integer", "multipleOf": 3})
    first = error_of(running, three).message
    running.answer(completion(CAPITAL, guided_choice=["yes"]))
    assert error_of(running, three).message == first
