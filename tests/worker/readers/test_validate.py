from __future__ import annotations

from typing import Any

import pytest

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.embedding import EmbeddingRequest
from airflow_llmengine.spec.request import CreateBatchCompletionsV1RequestContent
from airflow_llmengine.spec.results import RecordError, RecordErrorType
from airflow_llmengine.spec.scoring import RerankRequest, ScoreRequest
from airflow_llmengine.worker.readers.validate import is_batch_line, to_record
from airflow_llmengine.worker.records import PromptRecord, RawRecord, Record
from tests.worker.readers.files import request_for

REQUEST = request_for("x")
CONTENT = CreateBatchCompletionsV1RequestContent(prompts=[], max_new_tokens=5, temperature=0)
MESSAGES = [{"role": "user", "content": "a secret"}]
SECRET = "a secret"


def raw(value: Any) -> RawRecord:
    return RawRecord(index=6, location="line 7 of x.jsonl", value=value, size=1)


def accepted(value: Any, content: CreateBatchCompletionsV1RequestContent | None = None) -> Record:
    record = to_record(raw(value), REQUEST, content)
    assert isinstance(record, Record), record
    assert (record.index, record.location) == (6, "line 7 of x.jsonl")
    return record


def refused(value: Any, content: CreateBatchCompletionsV1RequestContent | None = None) -> RecordError:
    error = to_record(raw(value), REQUEST, content)
    assert isinstance(error, RecordError), error
    assert error.index == 6
    assert error.message.startswith("line 7 of x.jsonl: ")
    assert SECRET not in error.message
    return error


def batch_line(**fields: Any) -> dict[str, Any]:
    line = {"custom_id": "c-1", "method": "POST", "url": "/v1/completions", "body": {"prompt": SECRET}}
    return {name: value for name, value in {**line, **fields}.items() if value is not ...}


def pooling_line(endpoint: str, **body: Any) -> dict[str, Any]:
    return batch_line(url=f"/v1/{endpoint}", body=body)


def test_fields_tell_what_a_record_is() -> None:
    completion, chat = accepted({"prompt": SECRET, "n": 2}), accepted({"messages": MESSAGES})
    assert isinstance(completion.request, CompletionV2Request)
    assert completion.request.given() == {"prompt": SECRET, "n": 2}
    assert isinstance(chat.request, ChatCompletionV2Request)
    assert chat.request.messages == MESSAGES
    assert (chat.custom_id, chat.is_batch_line) == (None, False)


@pytest.mark.parametrize("prompt", ["text", ["one", "two"], [1, 2, 3], [[1], [2, 3]]])
def test_every_kind_of_prompt_is_kept(prompt: Any) -> None:
    record = accepted({"prompt": prompt}).request
    assert isinstance(record, CompletionV2Request)
    assert record.prompt == prompt


def test_a_v1_prompt_shares_the_parameters() -> None:
    record = accepted("{{ text }}", CONTENT)
    assert record.request == PromptRecord("{{ text }}", CONTENT)


def test_a_v1_prompt_is_text_and_refused_where_there_is_no_tokenizer() -> None:
    model = REQUEST.model_cfg.model_copy(update={"skip_tokenizer_init": True})
    error = to_record(raw("text"), REQUEST.model_copy(update={"model_cfg": model}), CONTENT)
    assert isinstance(error, RecordError)
    assert error.type is RecordErrorType.UNSUPPORTED
    assert "the prompt: is text, and with skip_tokenizer_init" in error.message


def test_what_could_not_be_read_stays_the_error_that_it_is() -> None:
    error = RecordError(type=RecordErrorType.INVALID_JSON, message="as it was", index=3, custom_id="c")
    broken = RawRecord(index=3, location="line 4", value=None, size=1, error=error)
    assert to_record(broken, REQUEST, None) is error
    assert to_record(broken, REQUEST, CONTENT) is error


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ([1, 2], "a record must be an object, not an array"),
        (None, "a record must be an object, not null"),
        (SECRET, "a record must be an object, not a string"),
        (42, "a record must be an object, not a number"),
        (0.5, "a record must be an object, not a number"),
        (True, "a record must be an object, not true or false"),
        ({}, "it has neither prompt nor messages: give prompt"),
        ({"text": SECRET}, "it has neither prompt nor messages: give prompt"),
        ({SECRET: 1, "promt": SECRET}, "it has neither prompt nor messages: did you mean prompt?"),
        ({"prompts": [SECRET]}, "it has neither prompt nor messages: did you mean prompt?"),
        ({"message": MESSAGES}, "it has neither prompt nor messages: did you mean messages?"),
        ({"input": SECRET}, "a record with input must be the body of an OpenAI batch line, beside custom_id, method"),
        ({"queries": SECRET, "documents": [SECRET]}, "a record with queries must be the body of an OpenAI batch line"),
        ({"prompt": SECRET, "messages": MESSAGES}, "it has both prompt and messages"),
        ({"prompt": None}, "prompt: is null"),
        ({"prompt": {"text": SECRET}}, "prompt: "),
        ({"prompt": [SECRET, 1]}, "prompt"),
        ({"prompt": SECRET, "max_tokns": 3}, "max_tokens"),
        ({"prompt": SECRET, "max_tokens": -1, "n": SECRET}, "max_tokens: must be an integer of at least 0"),
        ({"prompt": SECRET, "stream": True}, "stream: a batch has no stream"),
        ({"prompt": SECRET, "model": "another"}, "model: is not the job's"),
        ({"messages": SECRET}, "messages: "),
        ({"messages": [{"content": SECRET}]}, "messages[0]"),
    ],
)
def test_an_invalid_record_says_what_is_wrong_with_which_field(value: Any, what: str) -> None:
    error = refused(value)
    assert error.type is RecordErrorType.INVALID_RECORD
    assert error.message.removeprefix("line 7 of x.jsonl: ").startswith(what) or what in error.message
    assert error.custom_id is None


def test_all_faults_are_told_at_once() -> None:
    message = refused({"prompt": SECRET, "max_tokens": -1, "n": 0, "temperatur": 1}).message
    for field in ("max_tokens", "n: ", "temperature"):
        assert field in message


@pytest.mark.parametrize("name", ["tiny", "tiny-chat"])
def test_a_record_may_name_the_jobs_model(name: str) -> None:
    for value in ({"prompt": "a", "model": name}, {"messages": MESSAGES, "model": name}):
        record = accepted(value).request
        assert not isinstance(record, PromptRecord)
        assert record.model == name


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", "", "b"]}, "prompt[1]"),
        ({"prompt": [[1], []]}, "prompt[1]"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"messages": []}, "messages"),
        (batch_line(body={"prompt": ""}), "body.prompt"),
        (batch_line(body={"prompt": [[1], []]}), "body.prompt[1]"),
        (pooling_line("embeddings", input=""), "body.input"),
        (pooling_line("embeddings", input=[]), "body.input"),
        (pooling_line("embeddings", input=["a", ""]), "body.input[1]"),
        (pooling_line("embeddings", input=[[]]), "body.input[0]"),
        (pooling_line("score", queries="", documents=["a"]), "body.queries"),
        (pooling_line("score", text_1="a", text_2=[]), "body.text_2"),
        (pooling_line("rerank", query="", documents=["a"]), "body.query"),
        (pooling_line("rerank", query="a", documents=["b", ""]), "body.documents[1]"),
    ],
)
def test_an_empty_prompt_has_a_type_of_its_own(value: Any, where: str) -> None:
    error = refused(value)
    assert error.type is RecordErrorType.EMPTY_PROMPT
    assert error.message == f"line 7 of x.jsonl: {where}: is empty"


def test_an_empty_v1_prompt_and_one_that_is_no_string() -> None:
    assert refused("", CONTENT).type is RecordErrorType.EMPTY_PROMPT
    for value, kind in [(3, "a number"), (None, "null"), (["a"], "an array"), ({"prompt": "a"}, "an object")]:
        error = refused(value, CONTENT)
        assert error.type is RecordErrorType.INVALID_RECORD
        assert error.message == f"line 7 of x.jsonl: a prompt must be a string, not {kind}"


def test_a_batch_line_brings_its_record_and_its_name() -> None:
    completion = accepted(batch_line())
    chat = accepted(batch_line(url="/v1/chat/completions", body={"messages": MESSAGES, "max_tokens": 3}))
    assert (completion.custom_id, completion.is_batch_line) == ("c-1", True)
    assert completion.request == CompletionV2Request(prompt=SECRET)
    assert isinstance(chat.request, ChatCompletionV2Request)
    assert chat.request.max_tokens == 3


@pytest.mark.parametrize("value", [SECRET, [SECRET, "b"], [1, 2, 3], [[1], [2, 3]]])
def test_every_kind_of_input_is_kept(value: Any) -> None:
    record = accepted(pooling_line("embeddings", input=value, encoding_format=None, dimensions="3"))
    assert isinstance(record.request, EmbeddingRequest)
    assert record.request.given() == {"input": value, "encoding_format": None, "dimensions": 3}


@pytest.mark.parametrize(
    ("first", "second"),
    [("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")],
)
@pytest.mark.parametrize("sides", [(SECRET, "b"), (SECRET, ["b", "c"]), ([SECRET], "b"), (["a", "b"], ["c", "d"])])
def test_both_sides_of_a_score_have_the_names_that_vllm_has_for_them(first: str, second: str, sides: Any) -> None:
    record = accepted(pooling_line("score", **{first: sides[0], second: sides[1]}))
    assert isinstance(record.request, ScoreRequest)
    assert record.request.given() == {first: sides[0], second: sides[1]}


def test_a_reranking_is_a_record() -> None:
    record = accepted(pooling_line("rerank", query=SECRET, documents=["a", "b"], top_n=1, model="tiny"))
    assert isinstance(record.request, RerankRequest)
    assert record.request.top_n == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (pooling_line("embeddings"), "body.input: is required"),
        (pooling_line("embeddings", input=None), "body.input: must be a string, a list of strings, a list of token"),
        (pooling_line("embeddings", input={"a": 1}), "body.input: must be a string"),
        (pooling_line("embeddings", input=[SECRET, 3]), "body.input[1]: must be a string"),
        (pooling_line("embeddings", input=[2**70]), "body.input: holds a whole number of more than 64 bits"),
        (pooling_line("embeddings", input=SECRET, dimensions=0), "body.dimensions: must be an integer of at least 1"),
        (pooling_line("embeddings", input=SECRET, encoding_format="bytes"), "body.encoding_format: must be one of"),
        (pooling_line("embeddings", input=SECRET, endianness="big"), "body.endianness: has an effect only with enc"),
        (pooling_line("embeddings", input=SECRET, embed_dtype="float16"), "body.embed_dtype: has an effect only"),
        (pooling_line("embeddings", input=SECRET, truncate_prompt_tokens=0), "body.truncate_prompt_tokens: is 0"),
        (pooling_line("embeddings", input=SECRET, truncate_prompt_tokens=-2), "body.truncate_prompt_tokens: must be"),
        (pooling_line("embeddings", input=SECRET, truncation_side="left"), "body.truncation_side: nothing is cut"),
        (pooling_line("embeddings", input=SECRET, model="another"), "body.model: is not the job's"),
        (pooling_line("embeddings", input=SECRET, max_tokens=3), "body.max_tokens: unknown field"),
        (pooling_line("embeddings", prompt=SECRET), "body.input: is required"),
        (
            pooling_line("score", queries=SECRET),
            "body.queries, documents: a score has two sides; give these two and no others, not queries",
        ),
        (
            pooling_line("score"),
            "body.queries, documents: a score has two sides; give these two and no others, not nei",
        ),
        (
            pooling_line("score", queries=SECRET, text_2="b"),
            "body.queries, documents: a score has two sides; give these two and no others, not queries, text_2",
        ),
        (
            pooling_line("score", queries=SECRET, documents="b", items="c"),
            "body.queries, documents: a score has two sides",
        ),
        (pooling_line("score", data_1=["a", "b"], data_2=["c"]), "body.data_1: has 2 texts, and data_2 1; give one"),
        (pooling_line("score", data_1=[3], data_2=["c"]), "body.data_1[0]: must be a string"),
        (pooling_line("score", data_1={"content": []}, data_2="c"), "body.data_1: must be a string or a list of st"),
        (pooling_line("rerank", query=[SECRET], documents=["a"]), "body.query: must be a string"),
        (pooling_line("rerank", query=SECRET), "body.documents: is required"),
        (pooling_line("rerank", query=SECRET, documents=["a"], top_n=-1), "body.top_n: must be an integer of at lea"),
    ],
)
def test_an_invalid_pooling_record_names_the_field(line: dict[str, Any], said: str) -> None:
    error = refused(line)
    assert error.type is RecordErrorType.INVALID_RECORD
    assert error.message.removeprefix("line 7 of x.jsonl: ").startswith(said)


@pytest.mark.parametrize(
    "fields",
    [
        {"embed_dtype": "float32", "endianness": "native", "encoding_format": "float"},
        {"embed_dtype": "float16", "endianness": "big", "encoding_format": "base64"},
        {"truncate_prompt_tokens": 5, "truncation_side": "left"},
        {"truncate_prompt_tokens": -1},
        {"truncate_prompt_tokens": None, "truncation_side": None, "use_activation": None, "user": None},
    ],
    ids=str,
)
def test_fields_of_an_embedding_that_ask_for_something_that_is_done(fields: dict[str, Any]) -> None:
    accepted(pooling_line("embeddings", input=SECRET, **fields))


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (batch_line(url=...), "url: is required"),
        (batch_line(url="/v1/nothing"), "url: must be one of /v1/completions, /v1/chat/completions"),
        (batch_line(url=None), "url: "),
        (batch_line(method=...), "method: is required"),
        (batch_line(method="GET"), "method: must be POST"),
        (batch_line(body=...), "body: is required"),
        (batch_line(body="text"), "body: must be an object"),
        (batch_line(body=None), "body: "),
        (batch_line(bodi={}), "bodi"),
        (batch_line(body={"prompt": SECRET, "stream": True}), "body.stream: a batch has no stream"),
        (batch_line(body={"prompt": SECRET, "n": 0}), "body.n: must be an integer"),
        (batch_line(body={"prompt": SECRET, "max_tokns": 1}), "body.max_tokns: "),
        (batch_line(body={"messages": MESSAGES}), "body.prompt: is required"),
        (batch_line(body={}), "body.prompt: is required"),
        (batch_line(body={"prompt": SECRET, "model": "another"}), "body.model: is not the job's"),
        (batch_line(body=..., prompt=SECRET), "it has prompt beside custom_id"),
        (batch_line(body=..., messages=MESSAGES, method=..., url=...), "it has messages beside custom_id"),
    ],
)
def test_an_invalid_batch_line_names_the_field_and_keeps_its_id(line: dict[str, Any], field: str) -> None:
    error = refused(line)
    assert error.type is RecordErrorType.INVALID_RECORD
    assert field in error.message
    assert error.custom_id == "c-1"


@pytest.mark.parametrize("custom_id", [..., None, "", 3, ["c"]])
def test_a_batch_line_needs_an_id_that_is_a_string(custom_id: Any) -> None:
    error = refused(batch_line(custom_id=custom_id))
    assert "custom_id: " in error.message
    assert error.custom_id is None


@pytest.mark.parametrize(
    ("value", "is_line"),
    [
        (batch_line(), True),
        ({"body": "text"}, True),
        ({"custom_id": "a", "prompt": "b"}, True),
        ({"url": "/v1/completions"}, True),
        ({"method": "POST"}, True),
        ({"prompt": "a"}, False),
        ({"prompt": "a", "url": "b"}, False),
        ({"messages": []}, False),
        ([], False),
        (None, False),
        ("body", False),
    ],
)
def test_what_is_meant_as_a_batch_line(value: Any, is_line: bool) -> None:
    assert is_batch_line(value) is is_line
