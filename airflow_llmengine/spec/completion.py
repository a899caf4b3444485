"""A completion record of a V2 input: ``CompletionV2Request``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from airflow_llmengine.spec.sampling import SamplingFields
from airflow_llmengine.spec.wire_types import FLAG, PROMPT, TEXT, integer, map_of


class CompletionV2Request(SamplingFields):
    """One completion record. A sampling field that was not given takes the model's own generation config."""

    add_special_tokens: Annotated[bool | None, FLAG] = None
    """Whether the tokenizer adds its special tokens to the prompt."""
    prompt: Annotated[str | list[str] | list[int] | list[list[int]] | None, PROMPT, Field(repr=False)]
    """A string, strings, token ids, or lists of token ids; ``n`` choices for each, in order."""
    echo: Annotated[bool | None, FLAG] = False
    """Whether the text starts with the prompt."""
    logit_bias: Annotated[dict[str, int] | None, map_of(integer())] = None
    """Added to the logits of tokens, by token id."""
    logprobs: Annotated[int | None, integer(0, 5)] = None
    """How many of the likeliest tokens to list with their log probabilities at each place."""
    max_tokens: Annotated[int | None, integer(0)] = 16
    """The most tokens that one choice may have."""
    suffix: Annotated[str | None, TEXT, Field(repr=False)] = None
    """Text that comes after the completion."""
