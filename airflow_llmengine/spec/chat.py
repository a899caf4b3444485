"""A chat record of a V2 input: the OpenAI chat request as far as vLLM serves it, and our sampling fields for it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from airflow_llmengine.spec.sampling import SamplingFields
from airflow_llmengine.spec.wire_types import (
    FLAG,
    FREE_OBJECT,
    FREE_OBJECT_LIST,
    MESSAGES,
    TEXT,
    TOOL_CHOICE,
    Choice,
    integer,
    map_of,
    number,
)

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a reasoning model thinks before it answers."""


class ChatCompletionV2Request(SamplingFields):
    """One chat record. A sampling field that was not given takes the model's own generation config."""

    messages: Annotated[list[dict[str, Any]], MESSAGES, Field(repr=False)]
    """The conversation.

    Each message has a ``role``; its ``content`` is a string, a list of parts or null, and what else it holds (``name``,
    ``tool_calls``, ``tool_call_id``) is passed on to the model's template.
    """
    logit_bias: Annotated[dict[str, float] | None, map_of(number())] = None
    """Added to the logits of tokens, by token id."""
    logprobs: Annotated[bool | None, FLAG] = False
    """Whether to list the log probability of each token of the answer."""
    top_logprobs: Annotated[int | None, integer(0, 20)] = None
    """With ``logprobs``: how many of the likeliest tokens to list at each place."""
    max_tokens: Annotated[int | None, integer(0)] = None
    """The most tokens that one choice may have; by default what the model's length leaves."""
    max_completion_tokens: Annotated[int | None, integer(0)] = None
    """Newer name of ``max_tokens``."""
    tools: Annotated[list[dict[str, Any]] | None, FREE_OBJECT_LIST] = None
    """Functions that the model may call."""
    tool_choice: Annotated[str | dict[str, Any] | None, TOOL_CHOICE] = None
    """Whether it may, must or must not call one, or which."""
    parallel_tool_calls: Annotated[bool | None, FLAG] = True
    """Whether it may call several at once."""
    reasoning_effort: Annotated[
        ReasoningEffort | None, Choice(("none", "minimal", "low", "medium", "high", "xhigh", "max"))
    ] = None
    """How much a reasoning model thinks before it answers."""
    include_reasoning: Annotated[bool | None, FLAG] = True
    """Whether the reasoning is part of the result."""
    add_special_tokens: Annotated[bool | None, FLAG] = None
    """Whether the tokenizer adds its special tokens to what the template made; templates mostly have them."""
    echo: Annotated[bool | None, FLAG] = False
    """Whether the answer starts with the last message, if that has the same role."""
    add_generation_prompt: Annotated[bool | None, FLAG] = True
    """Whether the template opens the answer."""
    continue_final_message: Annotated[bool | None, FLAG] = False
    """Whether the answer continues the last message."""
    chat_template: Annotated[str | None, TEXT] = None
    """Jinja template for this record instead of the model's own."""
    chat_template_kwargs: Annotated[dict[str, Any] | None, FREE_OBJECT] = None
    """Values that the template may use."""
    documents: Annotated[list[dict[str, Any]] | None, FREE_OBJECT_LIST] = None
    """Documents that the template may show to the model."""
    mm_processor_kwargs: Annotated[dict[str, Any] | None, FREE_OBJECT] = None
    """Arguments of the multimodal processor."""
