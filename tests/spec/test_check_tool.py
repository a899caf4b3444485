"""What is refused of a job that gives the model a tool."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_llmengine.spec.check import check
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request

TOO_LONG = "one run may take 101 s, and the whole job max_runtime_sec, 100 s; give fewer seconds"


def refused(stop_sequences: list[str] | None = None, **tool: Any) -> list[str]:
    request = CreateBatchCompletionsV1Request.model_validate(
        {
            "output_data_path": "out.json",
            "max_runtime_sec": 100,
            "model_config": {"model": "small"},
            "content": {
                "prompts": ["a"],
                "max_new_tokens": 1,
                "temperature": 0,
                "stop_sequences": stop_sequences,
            },
            "tool_config": {"name": "code_evaluator", **tool},
        }
    )
    return [str(refusal) for refusal in check(request)]


@pytest.mark.parametrize(
    "tool",
    [
        {},
        {"max_iterations": 1, "execution_timeout_seconds": 1},
        {"execution_timeout_seconds": 100},
        {"max_iterations": None, "execution_timeout_seconds": None, "should_retry_on_error": None},
    ],
)
def test_a_tool_within_its_bounds_is_taken(tool: dict[str, Any]) -> None:
    assert refused(**tool) == []


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ({"max_iterations": 0}, "tool_config.max_iterations: must be at least 1, not 0"),
        ({"execution_timeout_seconds": 0}, "tool_config.execution_timeout_seconds: must be at least 1, not 0"),
        ({"execution_timeout_seconds": 101}, f"tool_config.execution_timeout_seconds: {TOO_LONG}"),
    ],
)
def test_a_tool_beyond_its_bounds_is_refused(tool: dict[str, Any], said: str) -> None:
    assert refused(**tool) == [said]


@pytest.mark.parametrize("stop", ["\n", "`", "```", "python\n", ">>>", "\n>>>", ">>>\n", "```\n", "\n```\n"])
def test_a_stop_sequence_that_lets_no_block_be_whole_is_refused(stop: str) -> None:
    (line,) = refused(stop_sequences=["END", stop])
    assert line == (
        "content.stop_sequences[1]: is part of the form of a block of code, so that code_evaluator would never get a "
        "whole one; leave it out, or tool_config"
    )


def test_other_stop_sequences_are_taken_and_so_is_the_marker() -> None:
    assert refused(stop_sequences=["\n>>>\n", "\n\n", "Question:", "```js\n", " >>>"]) == []


def test_a_tool_that_there_is_not_is_refused_for_that_alone() -> None:
    assert refused(name="browser", max_iterations=0, stop_sequences=["\n"]) == [
        "tool_config.name: there is no tool 'browser'; use code_evaluator"
    ]
