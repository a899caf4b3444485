"""What a user reads about a request or a record that the schema refuses."""

from __future__ import annotations

import json
import pickle
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from airflow_llmengine.spec.batch_line import BatchLine
from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.embedding import EmbeddingRequest
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request, CreateBatchCompletionsV1RequestContent
from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.spec.scoring import PAIRS, RerankRequest, ScoreRequest
from airflow_llmengine.spec.validation import RequestInvalidError, parse_request, record_error_of, refusals_of
from airflow_llmengine.spec.wire_model import WireModel
from tests.spec.sample_requests import content_with, lines_of, request_with

SECRET = "the customer's own words"


def record_error(model: type[WireModel], value: Any) -> tuple[RecordErrorType, str]:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(value)
    return record_error_of(caught.value, model)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"max_runtime_secs": 60}, "max_runtime_secs: unknown field; did you mean max_runtime_sec?"),
        ({"output_path": "x"}, "output_path: unknown field; did you mean output_data_path?"),
        ({"label": {}}, "label: unknown field; did you mean labels?"),
        ({"model_cfg": {}}, "model_cfg: unknown field; did you mean model_config?"),
        ({"max_model_len": 8}, "max_model_len: unknown field; did you mean model_config.max_model_len?"),
        ({"temperature": 0}, "temperature: unknown field; did you mean content.temperature?"),
        ({"zzz": 1}, "zzz: unknown field; the nearest known field is "),
        ({"model": {"num_shard": 2}}, "model_config.num_shard: unknown field; did you mean num_shards?"),
        (
            {"input_data_path": None, "content": content_with(stop_sequence=["x"])},
            "content.stop_sequence: unknown field; did you mean stop_sequences?",
        ),
        (
            {"tool_config": {"name": "code_evaluator", "max_iteration": 3}},
            "tool_config.max_iteration: unknown field; did you mean max_iterations?",
        ),
    ],
)
def test_an_unknown_field_is_answered_with_the_nearest_known_one(fields: dict[str, Any], line: str) -> None:
    (given,) = lines_of(request_with(**fields))
    assert given.startswith(line)


@pytest.mark.parametrize(
    ("model", "value", "said"),
    [
        (
            CompletionV2Request,
            {"prompt": "a", "max_new_tokens": 4},
            "max_new_tokens: unknown field; did you mean max_tok",
        ),
        (
            CompletionV2Request,
            {"prompt": "a", "stop_sequence": ["x"]},
            "stop_sequence: unknown field; did you mean stop?",
        ),
        (
            CompletionV2Request,
            {"prompt": "a", "stop_sequences": []},
            "stop_sequences: unknown field; did you mean stop?",
        ),
        (
            CompletionV2Request,
            {"prompt": "a", "max_completion_tokens": 4},
            "max_completion_tokens: unknown field; did you mean max_tokens?",
        ),
        (
            CompletionV2Request,
            {"prompt": "a", "Temperature": 1},
            "Temperature: unknown field; did you mean temperature?",
        ),
        (ChatCompletionV2Request, {"messages": [], "message": []}, "message: unknown field; did you mean messages?"),
        (
            CompletionV2Request,
            {"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schem": {}}}},
            "response_format.json_schema.schem: unknown field; did you mean schema?",
        ),
        (
            BatchLine,
            {"customid": "1", "method": "POST", "url": "/v1/completions", "body": {}},
            "customid: unknown field; did you mean custom_id?",
        ),
    ],
)
def test_so_is_an_unknown_field_of_a_record(model: type[WireModel], value: Any, said: str) -> None:
    assert said in record_error(model, value)[1]


@pytest.mark.parametrize("seconds", [0, -1, 172_801, "0", 1.5])
def test_a_runtime_out_of_bounds_is_refused_with_the_range(seconds: Any) -> None:
    shown = repr(seconds)
    assert lines_of(request_with(max_runtime_sec=seconds)) == [
        f"max_runtime_sec: must be an integer from 1 to 172800, not {shown}"
    ]


def test_a_number_may_come_as_its_canonical_string() -> None:
    request = parse_request(request_with(max_runtime_sec="3600", model={"gpu_memory_utilization": "0.5"}))
    assert request.max_runtime_sec == 3600
    assert request.given()["max_runtime_sec"] == 3600
    assert request.model_cfg.gpu_memory_utilization == 0.5


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"data_parallelism": 65}, "data_parallelism: must be an integer from 1 to 64, not 65"),
        ({"data_parallelism": True}, "data_parallelism: must be an integer from 1 to 64, not true"),
        ({"data_parallelism": [1]}, "data_parallelism: must be an integer from 1 to 64, not a list"),
        ({"data_parallelism": "4_0"}, "data_parallelism: must be an integer from 1 to 64, not '4_0'; write it as 40"),
        ({"gpus": 10**5000}, "gpus: must be"),
        ({"model": {"num_shards": 0}}, "model_config.num_shards: must be an integer of at least 1, not 0"),
        ({"model": {"enforce_eager": 1}}, "model_config.enforce_eager: must be true or false, not 1"),
        (
            {"model": {"enforce_eager": "TRUE"}},
            "model_config.enforce_eager: must be true or false, not 'TRUE'; write it",
        ),
        ({"model": {"swap_space": float("inf")}}, "model_config.swap_space: must be a number, not inf"),
        ({"model": {"model": None}}, "model_config.model: must be a string, not null"),
        ({"model": {"model": b"m"}}, "model_config.model: must be a string, not a Python bytes"),
        (
            {"model": {"rope_scaling": {"a": [{1: 2}]}}},
            "model_config.rope_scaling.a[0]: must be an object with strings",
        ),
        ({"output_data_path": 3}, "output_data_path: must be a string, not 3"),
        ({"labels": {"team": 3}}, "labels.team: must be a string, not 3"),
        ({"labels": {"team": 3, "a b": None}}, 'labels["a b"]: must be a string, not null'),
        ({"labels": []}, "labels: must be an object, not a list"),
        ({"cpus": True}, 'cpus: must be a quantity such as "500m" or "16Gi", or a number, not true'),
        ({"gpu_type": "h100"}, "gpu_type: must be one of nvidia-tesla-t4, nvidia-ampere-a10,"),
        ({"tool_config": "code_evaluator"}, "tool_config: must be an object, not 'code_evaluator'"),
        ({"tool_config": {}}, "tool_config.name: is required"),
        ({"content": SECRET}, "content: must be an object, not a string"),
        ({"content": content_with(prompts=["a", None, 3])}, "content.prompts[1]: must be a string"),
        ({"content": content_with(prompts="a")}, "content.prompts: must be a list of strings, not a string"),
        ({"content": content_with(top_p=0)}, "content.top_p: must be a number above 0 of at most 1, not 0"),
        ({"content": {}}, "content.max_new_tokens: is required"),
    ],
)
def test_a_wrong_value_is_one_refusal_that_names_field_and_expectation(fields: dict[str, Any], line: str) -> None:
    if isinstance(fields.get("gpus"), int):
        fields = {"model": {"max_context_length": -(10**5000)}}
        line = "model_config.max_context_length: must be an integer of at least 1, not a number of 16610 bits"
    given = lines_of(request_with(**fields))
    assert [found for found in given if found.startswith(line)], given
    assert len({found.partition(":")[0] for found in given}) == len(given), "two refusals of one field"


def test_everything_that_is_wrong_is_said_at_once_in_one_line_each() -> None:
    request = request_with(
        {"num_shards": 0, "tensor_paralel_size": 2},
        data_parallelism=0,
        gpu_type="x",
        content=content_with(temperature=3),
    )
    del request["output_data_path"]
    with pytest.raises(RequestInvalidError) as caught:
        parse_request(request)
    assert {refusal.path for refusal in caught.value.refusals} == {
        "output_data_path",
        "data_parallelism",
        "gpu_type",
        "content.temperature",
        "model_config.num_shards",
        "model_config.tensor_paralel_size",
    }
    assert len(str(caught.value).splitlines()) == len(caught.value.refusals)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301


@pytest.mark.parametrize(
    "fields",
    [
        {"content": SECRET},
        {"content": content_with(prompts=SECRET)},
        {"content": content_with(temperature=SECRET, stop_sequences=SECRET, top_k=[SECRET])},
        {"content": content_with(prompts=[{"prompt": SECRET}])},
        {"content": [SECRET]},
        {"model": {"chat_template": [SECRET]}},
        {"model": {"chat_template": {"a": SECRET}}},
    ],
)
def test_the_users_text_is_in_no_message_of_a_request(fields: dict[str, Any]) -> None:
    data = request_with(**fields)
    assert SECRET not in "\n".join(lines_of(data))
    with pytest.raises(ValidationError) as caught:
        CreateBatchCompletionsV1Request.model_validate(data)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "value"),
    [
        (CompletionV2Request, {"prompt": {"text": SECRET}}),
        (CompletionV2Request, {"prompt": [1, SECRET], "suffix": [SECRET], "guided_regex": 1, "max_tokens": SECRET}),
        (CompletionV2Request, {"prompt": "a", "response_format": {"type": SECRET}}),
        (CompletionV2Request, {"prompt": "a", "guided_json": SECRET, "logit_bias": {"5": SECRET}, "stream": SECRET}),
        (CompletionV2Request, SECRET),
        (ChatCompletionV2Request, {"messages": SECRET, "tool_choice": SECRET, "tools": [SECRET]}),
        (ChatCompletionV2Request, {"messages": [{"role": 3, "content": SECRET}]}),
        (ChatCompletionV2Request, {"messages": [{"role": "user", "content": [SECRET, 3]}]}),
        (BatchLine, {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": SECRET}),
        (BatchLine, SECRET),
        (EmbeddingRequest, {"input": {"text": SECRET}, "encoding_format": SECRET, "dimensions": SECRET}),
        (EmbeddingRequest, {"input": [1, SECRET], "messages": [{"role": "user", "content": SECRET}]}),
        (ScoreRequest, {"queries": {"content": SECRET}, "documents": [SECRET, 3], "truncation_side": SECRET}),
        (RerankRequest, {"query": [SECRET], "documents": {"a": SECRET}, "top_n": SECRET}),
        (CreateBatchCompletionsV1Request, SECRET),
        (CreateBatchCompletionsV1RequestContent, {"prompts": SECRET}),
    ],
)
def test_nor_in_one_of_a_record(model: type[WireModel], value: Any) -> None:
    assert SECRET not in record_error(model, value)[1]


def test_nor_in_the_repr_of_what_was_read() -> None:
    request = parse_request(
        request_with({"chat_template": SECRET}, input_data_path=None, content=content_with(prompts=[SECRET]))
    )
    record = CompletionV2Request.model_validate({"prompt": SECRET, "suffix": SECRET})
    chat = ChatCompletionV2Request.model_validate({"messages": [{"role": "user", "content": SECRET}]})
    pooled = [EmbeddingRequest(input=SECRET), RerankRequest(query=SECRET, documents=SECRET)]
    pooled += [ScoreRequest.model_validate(dict.fromkeys(pair, SECRET)) for pair in PAIRS]
    asked = {"stop": [SECRET], "guided_json": {SECRET: 1}, "guided_regex": SECRET, "user": SECRET, "n": 2}
    asked_too = {"response_format": {"type": "json_schema", "json_schema": {"name": SECRET, "schema": {SECRET: 1}}}}
    record_too = CompletionV2Request.model_validate({"prompt": "a", **asked, **asked_too})
    told = {"documents": [{"text": SECRET}], "tools": [{"function": {"name": SECRET}}], "prediction": {"a": SECRET}}
    chat_too = ChatCompletionV2Request.model_validate({"messages": [], **told, "metadata": {"a": SECRET}})
    assert SECRET not in f"{record_too!r} {record_too} {chat_too!r}"
    assert repr(record_too) == "CompletionV2Request(n=2)", "what was given, but for texts and what holds them"
    assert request.content is not None
    assert SECRET not in f"{request!r} {request} {request.content!r} {record!r} {chat!r} {pooled!r}"


@pytest.mark.parametrize(
    ("model", "value", "path"),
    [
        (CompletionV2Request, {"prompt": "x\ud800y"}, "prompt"),
        (CompletionV2Request, {"prompt": ["a", "x\ud800y"]}, "prompt[1]"),
        (EmbeddingRequest, {"input": ["a", "x\ud800y"]}, "input[1]"),
        (ScoreRequest, {"queries": "\ud800", "documents": "b"}, "queries"),
        (RerankRequest, {"query": "a", "documents": ["b", "\udc00"]}, "documents[1]"),
        (CompletionV2Request, {"prompt": "a", "stop": "\udc00"}, "stop"),
        (CompletionV2Request, {"prompt": "a", "stop": ["b", "\udc00"]}, "stop[1]"),
        (CompletionV2Request, {"prompt": "a", "guided_json": {"a": [{"b": "\ud800"}]}}, "guided_json.a[0].b"),
        (CompletionV2Request, {"prompt": "a", "guided_json": {"\ud800": 1}}, 'guided_json["\\ud800"]'),
        (ChatCompletionV2Request, {"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        (
            ChatCompletionV2Request,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}]},
            "messages[0].content[0].text",
        ),
        (CreateBatchCompletionsV1RequestContent, content_with(prompts=["a", "\ud83d"]), "prompts[1]"),
    ],
)
def test_half_a_surrogate_pair_is_refused_plainly(model: type[WireModel], value: Any, path: str) -> None:
    error_type, message = record_error(model, value)
    assert error_type is RecordErrorType.INVALID_UNICODE
    assert message.startswith(f"{path}: holds half of a surrogate pair")


def test_a_field_name_that_is_not_unicode_is_refused_too() -> None:
    error_type, message = record_error(CompletionV2Request, {"prompt": "a", "\ud800": 1})
    assert error_type is RecordErrorType.INVALID_UNICODE
    assert message.isprintable()


def test_a_whole_pair_passes() -> None:
    assert CompletionV2Request.model_validate_json('{"prompt": "\\ud83d\\ude00"}').prompt == "😀"
    assert CompletionV2Request.model_validate(json.loads('{"prompt": "\\ud83d\\ude00"}')).prompt == "😀"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"max_runtime_sec": NaN}', "the request is not JSON: NaN is not a JSON number"),
        ('{"gpus": -Infinity}', "the request is not JSON: -Infinity is not a JSON number"),
        ('{"gpus": 1, "gpus": 2}', "the request is not JSON: the field gpus is given twice in one object"),
        ('{"gpus": 1,}', "the request is not JSON: "),
        ("", "the request is not JSON: "),
        (b"\xff", "the request is not UTF-8 (byte 0)"),
        ("[" * 100_000, "the request is nested too deeply"),
        ("9" * 5_000, "the request is not JSON: "),
        ("[1]", "the document must be an object, not a list"),
        ("null", "the document must be an object, not null"),
    ],
)
def test_text_that_is_no_request_is_one_line(text: str | bytes, line: str) -> None:
    (given,) = lines_of(text)
    assert given.startswith(line)


def test_json_text_may_begin_with_a_byte_order_mark() -> None:
    text = json.dumps(request_with())
    assert parse_request("\ufeff" + text) == parse_request(text) == parse_request(text.encode("utf-8-sig"))


def test_a_record_error_is_one_sentence_however_many_faults_there_are() -> None:
    value = {"prompt": "a", **{f"unknown_{number}": 1 for number in range(500)}}
    _, message = record_error(CompletionV2Request, value)
    assert message.isprintable()
    assert len(message) < 2_000
    assert message.endswith("more faults")
    with pytest.raises(ValidationError) as caught:
        CompletionV2Request.model_validate(value)
    assert len(refusals_of(caught.value, CompletionV2Request)) == 101


def test_of_many_wrong_prompts_the_first_are_named() -> None:
    lines = lines_of(request_with(content=content_with(prompts=[None] * 1_000)))
    assert len([line for line in lines if line.startswith("content.prompts")]) == 10


def test_prompts_are_read_without_python_code_for_each() -> None:
    calls = []

    def count(frame: Any, event: str, argument: Any) -> None:
        calls.append(event)

    def calls_for(prompts: int) -> int:
        data = request_with(input_data_path=None, content=content_with(prompts=["grün"] * prompts))
        calls.clear()
        sys.setprofile(count)
        try:
            CreateBatchCompletionsV1Request.model_validate(data)
        finally:
            sys.setprofile(None)
        return len(calls)

    assert calls_for(10_000) == calls_for(10)


def test_null_means_not_given() -> None:
    request = parse_request(request_with({"num_shards": None}, data_parallelism=None, gpus=2))
    assert not request.is_given("data_parallelism")
    assert not request.is_given("max_runtime_sec")
    assert not request.model_cfg.is_given("num_shards")
    assert request.is_given("gpus")
    assert request.effective("data_parallelism") == 1
    assert request.effective("max_runtime_sec") == 86_400
    assert request.given()["data_parallelism"] is None


def test_requests_do_not_change() -> None:
    request = parse_request(request_with())
    with pytest.raises(ValidationError):
        request.gpus = 3  # type: ignore[misc]
