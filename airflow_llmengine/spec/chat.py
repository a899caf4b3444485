"""A chat record of a V2 input: the OpenAI chat request as far as vLLM serves it, and our sampling fields for it."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from airflow_llmengine.spec.completion import ChatCompletionStreamOptions, ResponseFormat
from airflow_llmengine.spec.wire_model import WireModel
from airflow_llmengine.spec.wire_types import (
    FLAG,
    FREE_OBJECT,
    FREE_OBJECT_LIST,
    INTEGER_LIST,
    MESSAGES,
    STOP_SEQUENCES,
    TEXT,
    TEXT_LIST,
    TEXT_NOT_NULL,
    TOOL_CHOICE,
    Choice,
    integer,
    map_of,
    number,
)

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a reasoning model thinks before it answers."""


class ChatCompletionV2Request(WireModel):
    """One chat record. A sampling field that was not given takes the model's own generation config."""

    private_text: ClassVar[bool] = True

    messages: Annotated[list[dict[str, Any]], MESSAGES, Field(repr=False)]
    """The conversation.

    Each message has a ``role``; its ``content`` is a string, a list of parts or null, and what else it holds (``name``,
    ``tool_calls``, ``tool_call_id``) is passed on to the model's template.
    """
    model: Annotated[str | None, TEXT_NOT_NULL] = None
    """The job's model or its ``served_model_name``, if given; it can't be null."""
    frequency_penalty: Annotated[float | None, number(-2, 2)] = 0
    """Taken off a token's logit once for each time that it is in the answer already."""
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
    n: Annotated[int | None, integer(1, 128)] = 1
    """Choices."""
    presence_penalty: Annotated[float | None, number(-2, 2)] = 0
    """Taken off the logit of every token that is in the answer already."""
    response_format: ResponseFormat | None = None
    """What form the answer must have."""
    seed: Annotated[int | None, integer()] = None
    """Seed of the sampling: the same record gives the same answer."""
    stop: Annotated[str | list[str] | None, STOP_SEQUENCES] = None
    """A string, or up to 4, at which generation ends."""
    stream: Annotated[bool | None, FLAG] = False
    """A batch has no stream: true is an error of the record."""
    stream_options: ChatCompletionStreamOptions | None = None
    """Options of a stream, which a batch does not have."""
    temperature: Annotated[float | None, number(0, 2)] = 1
    """Sampling temperature; 0 is greedy decoding."""
    top_p: Annotated[float | None, number(0, 1)] = 1
    """Sample from the likeliest tokens that together have this probability; 1 is all."""
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
    user: Annotated[str | None, TEXT] = None
    """Who the record is for; given back in the result."""

    best_of: Annotated[int | None, integer(0, 20)] = 1
    """Answers to generate, of which the ``n`` best are kept."""
    top_k: Annotated[int | None, integer(-1)] = None
    """Sample from this many of the likeliest tokens only; -1 is all."""
    min_p: Annotated[float | None, number()] = None
    """Leave out tokens less probable than this share of the likeliest one's probability."""
    use_beam_search: Annotated[bool | None, FLAG] = None
    """Whether to search by beams instead of sampling."""
    length_penalty: Annotated[float | None, number()] = None
    """Exponent of the length by which beam search divides a score."""
    repetition_penalty: Annotated[float | None, number()] = None
    """Divides the logit of every token that is in prompt or answer already; 1 is none."""
    early_stopping: Annotated[bool | None, FLAG] = None
    """Whether beam search ends as soon as it has enough whole candidates."""
    stop_token_ids: Annotated[list[int] | None, INTEGER_LIST] = None
    """Token ids at which generation ends."""
    include_stop_str_in_output: Annotated[bool | None, FLAG] = None
    """Whether the stop string is part of the text."""
    ignore_eos: Annotated[bool | None, FLAG] = None
    """Whether generation goes on after the end-of-sequence token."""
    min_tokens: Annotated[int | None, integer()] = None
    """Fewest tokens before generation may end."""
    skip_special_tokens: Annotated[bool | None, FLAG] = True
    """Whether special tokens are left out of the text."""
    spaces_between_special_tokens: Annotated[bool | None, FLAG] = True
    """Whether special tokens in the text are set apart by spaces."""
    add_special_tokens: Annotated[bool | None, FLAG] = None
    """Whether the tokenizer adds its special tokens to what the template made; templates mostly have them."""
    guided_json: Annotated[dict[str, Any] | None, FREE_OBJECT] = None
    """JSON Schema that the answer must follow."""
    guided_regex: Annotated[str | None, TEXT] = None
    """Regular expression that the answer must match."""
    guided_choice: Annotated[list[str] | None, TEXT_LIST] = None
    """Strings of which the answer must be one."""
    guided_grammar: Annotated[str | None, TEXT] = None
    """Context-free grammar that the answer must follow."""
    guided_decoding_backend: Annotated[str | None, TEXT] = None
    """Library that enforces the structure; a setting of the whole engine now."""
    guided_whitespace_pattern: Annotated[str | None, TEXT] = None
    """Regular expression for white space in guided JSON. Gone from vLLM."""

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
