"""What must hold of a request that gives the model a tool. That its records are V1 is seen when the input is opened."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_llmengine.spec.code_block_form import CLOSING, MARKER, OPENING
from airflow_llmengine.spec.request import (
    CreateBatchCompletionsV1Request,
    CreateBatchCompletionsV1RequestContent,
    ToolConfig,
)
from airflow_llmengine.spec.validation import Refusal
from airflow_llmengine.spec.wire_faults import LONGEST_SHOWN, shown_number

_TOOL = "code_evaluator"


def tool_refusals(request: CreateBatchCompletionsV1Request) -> Iterator[Refusal]:
    """Say why the job's tool can't be had as it is asked for."""
    tool = request.tool_config
    if tool is None:
        return
    if tool.name != _TOOL:
        name = tool.name if len(tool.name) <= LONGEST_SHOWN else tool.name[:LONGEST_SHOWN] + "..."
        yield Refusal("tool_config.name", f"there is no tool {name!a}", f"use {_TOOL}")
        return
    yield from _bound_refusals(tool, int(request.effective("max_runtime_sec")))
    if request.content is not None:
        for index in stops_inside_blocks(request.content):
            yield Refusal(f"content.stop_sequences[{index}]", STOPS_INSIDE_BLOCKS, "leave it out, or tool_config")


STOPS_INSIDE_BLOCKS = "is part of the form of a block of code, so that code_evaluator would never get a whole one"
"""Why a stop sequence is refused."""


def stops_inside_blocks(content: CreateBatchCompletionsV1RequestContent) -> list[int]:
    """Which of the stop sequences would end every completion before its first block is whole: their places."""
    return [
        index
        for index, stop in enumerate(content.stop_sequences or ())
        # The marker itself asks for what is done anyway. What is empty, the engine refuses.
        if stop and stop != MARKER and any(stop in part for part in (OPENING, CLOSING, MARKER))
    ]


def _bound_refusals(tool: ToolConfig, max_runtime_sec: int) -> Iterator[Refusal]:
    for name in ("max_iterations", "execution_timeout_seconds"):
        value = tool.effective(name)
        if value < 1:
            yield Refusal(f"tool_config.{name}", f"must be at least 1, not {shown_number(value)}")
    timeout = tool.effective("execution_timeout_seconds")
    if timeout > max_runtime_sec:
        reason = f"one run may take {shown_number(timeout)} s, and the whole job max_runtime_sec, {max_runtime_sec} s"
        yield Refusal("tool_config.execution_timeout_seconds", reason, "give fewer seconds")
