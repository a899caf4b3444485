"""Further arguments of the engine, as far as they are judged without it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_llmengine.spec.engine_args import (
    NOT_TO_BE_SET,
    SERVING_ARGUMENTS,
    WITHOUT_EFFECT_ON_ANSWERS,
    engine_args_refusals,
    parse_engine_args,
)
from airflow_llmengine.spec.engine_fields import ENGINE_FIELDS
from airflow_llmengine.spec.identity import fingerprint
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.validation import RequestInvalidError

REQUEST = CreateBatchCompletionsV1Request.model_validate(
    {"input_data_path": "in.jsonl", "output_data_path": "out.jsonl", "model_config": {"model": "m"}}
)


def print_of(engine_args: dict[str, Any] | None) -> str:
    return fingerprint(REQUEST, input_identity="i", engine="vllm", engine_args=engine_args)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (None, {}),
        ("", {}),
        ({}, {}),
        ("{}", {}),
        ({"max_logprobs": 40, "seed_of": None}, {"max_logprobs": 40}),
        ('{"max_logprobs": 40}', {"max_logprobs": 40}),
        (
            {"compilation_config": {"level": 0, "sizes": (1, 2)}, "ignore_patterns": ("a", "b")},
            {"compilation_config": {"level": 0, "sizes": [1, 2]}, "ignore_patterns": ["a", "b"]},
        ),
        ({"hf_overrides": {"rope_parameters": {}}}, {"hf_overrides": {"rope_parameters": {}}}),
        ({"async_scheduling": "True", "numa_bind": "false"}, {"async_scheduling": True, "numa_bind": False}),
        ({"reasoning_parser": "-odd"}, {"reasoning_parser": "-odd"}),
    ],
    ids=str,
)
def test_what_is_given_is_read(given: Any, read: dict[str, Any]) -> None:
    assert parse_engine_args(given) == read


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("{", "engine_args: is not valid JSON"),
        ('{"a": NaN}', "engine_args: is not valid JSON"),
        ("[]", "engine_args: must be an object: arguments of vLLM by their Python names, with JSON values"),
        (5, "engine_args: must be an object: arguments of vLLM by their Python names, with JSON values"),
        (
            {"--Max-Logprobs": 1},
            'engine_args["--Max-Logprobs"]: is no Python name of an argument of vLLM; write it as max_logprobs',
        ),
        ({"a b": 1}, 'engine_args["a b"]: is no Python name of an argument of vLLM'),
        ({3: 1}, 'engine_args["3"]: is no Python name of an argument of vLLM'),
        (
            {"max_model_len": 1},
            "engine_args.max_model_len: has a field in the request; give model_config.max_model_len",
        ),
        (
            {"kv_cache_dtype": "fp8"},
            "engine_args.kv_cache_dtype: has a field in the request; give model_config.cache_dtype",
        ),
        (
            {"kv_offloading_size": 4},
            "engine_args.kv_offloading_size: has a field in the request; give model_config.swap_space",
        ),
        (
            {"max_seq_len_to_capture": 4},
            "engine_args.max_seq_len_to_capture: vLLM no longer has it, and what came after",
        ),
        ({"port": 80}, "engine_args.port: can't be set: there is no HTTP server; leave it out"),
        ({"nnodes": 2}, "engine_args.nnodes: can't be set: how the engine spans nodes follows from"),
        ({"hf_token": "hf_secret"}, "engine_args.hf_token: can't be set: files come from where model_config says"),
        (
            '{"max_logprobs": 1, "max_logprobs": 2}',
            "engine_args: is not valid JSON: the field max_logprobs is given twice",
        ),
        ({"a": float("inf")}, "engine_args.a: must be a finite number"),
        ({"a": {1, 2}}, "engine_args.a: must be a JSON value, not a Python set"),
        ({"a": {1: 2}}, "engine_args.a: must be a JSON value: names in it must be strings"),
        ({"a": {"b": {1, 2}}}, "engine_args.a: must be a JSON value"),
        ({"a": {"b": float("nan")}}, "engine_args.a: must be a JSON value"),
        ({"a": "\ud800"}, "engine_args.a: holds half of a surrogate pair"),
        ({"a": ["b", "--api-key=x"]}, "engine_args.a: holds a string that begins with a dash"),
        ({"a": "x" * 20_000}, "engine_args: takes 20009 bytes as JSON, and 16384 is the most"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_can_not_be_given_is_refused(given: Any, line: str) -> None:
    with pytest.raises(RequestInvalidError) as caught:
        parse_engine_args(given)
    (refusal,) = caught.value.refusals
    assert str(refusal).startswith(line)
    assert "hf_secret" not in str(refusal)
    assert str(refusal).isprintable()


def test_all_refusals_come_at_once() -> None:
    assert len(list(engine_args_refusals({"port": 1, "dtype": "x", "a": float("nan"), "fine": 1}))) == 3


def test_every_name_of_the_contract_and_of_its_arguments_is_refused_but_for_overrides_of_the_model() -> None:
    names = {field.name for field in ENGINE_FIELDS} | {field.argument for field in ENGINE_FIELDS if field.argument}
    for name in sorted(names):
        assert bool(list(engine_args_refusals({name: "x"}))) == (name != "hf_overrides"), name


def test_no_list_of_names_holds_what_another_refuses() -> None:
    for name in SERVING_ARGUMENTS | WITHOUT_EFFECT_ON_ANSWERS:
        assert not list(engine_args_refusals({name: "x"})), name
    assert not NOT_TO_BE_SET.keys() & {field.name for field in ENGINE_FIELDS}


def test_they_make_another_job_unless_they_concern_speed_alone() -> None:
    plain = print_of(None)
    assert print_of({}) == plain
    assert print_of({"async_scheduling": True, "cpu_offload_gb": 4}) == plain
    other = print_of({"max_logprobs": 40})
    assert other != plain
    assert print_of({"async_scheduling": True, "max_logprobs": 40}) == other
    assert print_of({"max_logprobs": 41}) != other


def test_they_are_read_again_as_they_were_written() -> None:
    given = {"override_generation_config": {"temperature": 0.1, "x": [1, "é\n\"'"]}, "async_scheduling": False}
    assert parse_engine_args(json.dumps(parse_engine_args(given))) == given
