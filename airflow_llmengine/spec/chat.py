"""A chat record of a V2 input: the OpenAI chat request as far as vLLM serves it, and our sampling fields for it.

A field of that API which vLLM does not serve is known all the same, so that ``check_chat`` can say what to do instead,
and so that a client's files run where such a field asks for nothing.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from airflow_llmengine.spec.sampling import SamplingFields
from airflow_llmengine.spec.wire_types import (
    FLAG,
    FREE_OBJECT,
    FREE_OBJECT_LIST,
    INTEGER_LIST,
    MESSAGES,
    TEXT,
    TEXT_LIST,
    TOOL_CHOICE,
    Choice,
    integer,
    map_of,
    number,
)

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a reasoning model thinks before it answers."""

TruncationSide = Literal["left", "right"]
"""Which end of a prompt is cut off."""


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
    prompt_logprobs: Annotated[int | None, integer(0, 20)] = None
    """How many of the likeliest tokens to list, with the prompt's own, at each place of the prompt."""
    max_tokens: Annotated[int | None, integer(0)] = None
    """The most tokens that one choice may have; by default what the model's length leaves."""
    max_completion_tokens: Annotated[int | None, integer(0)] = None
    """Newer name of ``max_tokens``."""
    bad_words: Annotated[list[str] | None, TEXT_LIST] = None
    """Words that the answer may not have."""
    allowed_token_ids: Annotated[list[int] | None, INTEGER_LIST] = None
    """The only tokens that the answer may have, by id."""
    truncate_prompt_tokens: Annotated[int | None, integer(-1)] = None
    """Cut the prompt to this many tokens; -1 is as many as the model takes."""
    truncation_side: Annotated[TruncationSide | None, Choice(("left", "right"))] = None
    """With ``truncate_prompt_tokens``: which end is cut off; the tokenizer's own choice by default."""
    return_token_ids: Annotated[bool | None, FLAG] = False
    """Whether the result has the token ids of prompt and answer too."""
    tools: Annotated[list[dict[str, Any]] | None, FREE_OBJECT_LIST] = None
    """Functions that the model may call."""
    tool_choice: Annotated[str | dict[str, Any] | None, TOOL_CHOICE] = None
    """Whether it may, must or must not call one, or which; by default it may, where there are ``tools``."""
    parallel_tool_calls: Annotated[bool | None, FLAG] = True
    """Whether it may call several at once."""
    reasoning_effort: Annotated[
        ReasoningEffort | None, Choice(("none", "minimal", "low", "medium", "high", "xhigh", "max"))
    ] = None
    """How much a reasoning model thinks before it answers."""
    thinking_token_budget: Annotated[int | None, integer(-1)] = None
    """The most tokens that a reasoning model may think; -1 is no limit."""
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
    media_io_kwargs: Annotated[dict[str, Any] | None, FREE_OBJECT] = None
    """How media are read, by ``image``, ``audio`` or ``video``."""
    metadata: Annotated[dict[str, str] | None, map_of(TEXT)] = None
    """The user's own names and values; given back in the result."""
    store: Annotated[bool | None, FLAG] = False
    """Whether the API keeps the answer. Nothing is kept here but the output."""
    service_tier: Annotated[str | None, TEXT] = None
    """How fast the API answers, and at what price. An engine of one's own has none."""
    modalities: Annotated[list[str] | None, TEXT_LIST] = None
    """What the answer is made of. It is text."""
    audio: Annotated[dict[str, Any] | None, FREE_OBJECT] = None
    """How an answer in speech sounds. vLLM answers with text."""
    prediction: Annotated[dict[str, Any] | None, FREE_OBJECT] = None
    """Text that the answer is likely to have, for speed. vLLM takes none."""
    web_search_options: Annotated[dict[str, Any] | None, FREE_OBJECT] = None
    """How the API searches the web. A batch does not."""
    moderation: Annotated[dict[str, Any] | None, FREE_OBJECT] = None
    """How the API judges prompt and answer. vLLM does not."""
    functions: Annotated[list[dict[str, Any]] | None, FREE_OBJECT_LIST] = None
    """Older form of ``tools``."""
    function_call: Annotated[str | dict[str, Any] | None, TOOL_CHOICE] = None
    """Older form of ``tool_choice``."""
    verbosity: Annotated[str | None, TEXT] = None
    """How long the API's own models make their answers."""
    safety_identifier: Annotated[str | None, TEXT] = None
    """Whom the API holds responsible."""
    prompt_cache_key: Annotated[str | None, TEXT] = None
    """How the API finds prompts that begin alike."""
    prompt_cache_options: Annotated[dict[str, Any] | None, FREE_OBJECT] = None
    """How it keeps them."""
    prompt_cache_retention: Annotated[str | None, TEXT] = None
    """How long it keeps them."""
