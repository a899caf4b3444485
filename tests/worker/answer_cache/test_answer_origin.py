from __future__ import annotations

from typing import Any

import pytest

from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.worker.answer_cache.answer_origin import AnswerOrigin

MODEL = {"model": "org/small", "revision": "main", "dtype": "float16", "max_num_seqs": 8}


def origin(*, engine_args: dict[str, Any] | None = None, **model: Any) -> AnswerOrigin:
    request = CreateBatchCompletionsV1Request.model_validate(
        {"input_data_path": "in", "output_data_path": "out", "model_config": {**MODEL, **model}}
    )
    return AnswerOrigin.of(
        request, engine="vllm", engine_version="0.32.0", model_content="a" * 40, engine_args=engine_args or {}
    )


def test_the_folder_of_a_job_is_the_same_in_every_version_of_python_and_of_this_package() -> None:
    """If this changes, all answers that anybody has kept are lost: a change needs a reason, and a line in CHANGELOG."""
    assert origin().folder_name == "v1-46c9498f30a2f06a1461006004f7f464"
    told = origin(chat_template="{{ messages }}", engine_args={"max_logprobs": 40})
    assert told.folder_name == "v1-d37dcaf4e67ffdcb102d163a606e8606"


@pytest.mark.parametrize(
    "same",
    [
        {"revision": "v2"},
        {"checkpoint_path": "s3://models/small"},
        {"max_num_seqs": 64, "tensor_parallel_size": 4, "labels": {"a": "b"}},
        {"served_model_name": "org/small"},
        {"engine_args": {"async_scheduling": True}},
        {"trust_remote_code": False},
    ],
)
def test_where_the_model_is_and_how_fast_it_runs_changes_no_answer(same: dict[str, Any]) -> None:
    assert origin(**same).folder_name == origin().folder_name


@pytest.mark.parametrize(
    "other",
    [
        {"model": "org/other"},
        {"served_model_name": "small"},
        {"dtype": "bfloat16"},
        {"seed": 1},
        {"max_model_len": 512},
        {"chat_template": "{{ messages }}"},
        {"quantization": "fp8"},
        {"engine_args": {"max_logprobs": 40}},
    ],
)
def test_what_can_change_an_answer_is_another_folder(other: dict[str, Any]) -> None:
    assert origin(**other).folder_name != origin().folder_name


def test_what_people_read_of_an_origin_holds_no_template() -> None:
    assert b"PRIVATE" not in origin(chat_template="{{ PRIVATE }}").about()
