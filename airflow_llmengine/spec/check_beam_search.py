"""What a record may not ask for together with beam search.

vLLM's beam search is a loop of its own around the engine. It makes one step's request of the temperature alone, ends a
beam at the tokenizer's end-of-sequence token or at ``max_tokens``, and drops the other sampling fields without a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.sampling import ResponseFormatText, SamplingFields

GREATEST_LENGTH_PENALTY = 50
"""A length to the power of more than this, or of less than its negative, may be no number for a computer."""

DROPPED: Mapping[str, tuple[Any, ...]] = {
    "allowed_token_ids": (),
    "bad_words": ([],),
    "frequency_penalty": (0,),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "presence_penalty": (0,),
    "prompt_logprobs": (),
    "repetition_penalty": (1,),
    "response_format": (ResponseFormatText(type="text"),),
    "seed": (),
    "stop": (),
    "stop_token_ids": ([],),
    # Beams are compared by the model's own log probabilities, as if the temperature were 1.
    "temperature": (0, 1),
    "thinking_token_budget": (-1,),
    "tool_choice": ("auto", "none"),
    "top_k": (-1, 0),
    "top_p": (1,),
}
"""Fields that beam search drops, each with the values that ask for nothing."""


def beam_search_faults(record: SamplingFields) -> Iterator[str]:
    """What is wrong in a record with ``use_beam_search``: each in one sentence."""
    for name, without_effect in DROPPED.items():
        if name in record.model_fields_set and getattr(record, name) not in (None, *without_effect):
            yield f"{name}: vLLM's beam search has no such choice; leave it out, or use_beam_search"
    if record.effective("skip_special_tokens") is False and record.spaces_between_special_tokens is False:
        yield "spaces_between_special_tokens: vLLM's beam search has no such choice; leave it out, or use_beam_search"
    if isinstance(record, CompletionV2Request) and record.echo:
        if record.logprobs is not None:
            yield "echo: beam search knows no log probabilities of the prompt; leave out echo or logprobs"
        if record.max_tokens == 0:
            yield "max_tokens: is 0, which leaves nothing for use_beam_search; give at least 1, or leave that out"
    penalty = record.length_penalty
    if penalty is not None and abs(penalty) > GREATEST_LENGTH_PENALTY:
        yield f"length_penalty: must be from -{GREATEST_LENGTH_PENALTY} to {GREATEST_LENGTH_PENALTY}"
