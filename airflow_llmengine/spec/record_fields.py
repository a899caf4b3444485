"""What becomes of every field of a record: the one table that the docs read, and that tests hold the worker to.

The names are those of the requests of vLLM's API, in the version that is tested; a test of the engine holds them to the
installed one, and another holds ``check_record`` and the worker's translation to what is said here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_llmengine.spec.check_chat import UNSERVED
from airflow_llmengine.spec.scoring import PAIRS


class Becomes(StrEnum):
    """What a field turns into."""

    FIELD = "field"
    """The field of vLLM's request that ``field`` names, unchanged."""
    TRANSLATED = "translated"
    """The field of vLLM's request that ``field`` names, with another value: the sentence says which."""
    OURS = "ours"
    """Nothing of vLLM's: the sentence says what the worker does with it."""
    REFUSED = "refused"
    """An error of the record, unless the value asks for what happens anyway: the sentence says why."""


@dataclass(frozen=True, slots=True)
class RecordField:
    """What becomes of one field."""

    name: str
    """By its name in the record."""
    becomes: Becomes
    sentence: str = ""
    """For a person: what is to be known beyond the field's meaning, or why it is refused. Without a full stop."""
    field: str | None = None
    """The field of vLLM's request that carries it; None: none does."""


FROM_THE_GENERATION_CONFIG = (
    "frequency_penalty",
    "max_tokens",
    "min_p",
    "presence_penalty",
    "repetition_penalty",
    "temperature",
    "top_k",
    "top_p",
)
"""Fields of vLLM's requests that take the model's own generation config where they are not given.

But not ``max_tokens`` of a completion, for which the API has a default of its own.
"""


def _same(*names: str) -> tuple[RecordField, ...]:
    return tuple(RecordField(name, Becomes.FIELD, field=name) for name in names)


def _noted(name: str, sentence: str) -> RecordField:
    return RecordField(name, Becomes.FIELD, sentence, field=name)


def _renamed(name: str, field: str) -> RecordField:
    return RecordField(name, Becomes.FIELD, field=field)


def _translated(name: str, field: str, sentence: str) -> RecordField:
    return RecordField(name, Becomes.TRANSLATED, sentence, field=field)


def _ours(name: str, sentence: str) -> RecordField:
    return RecordField(name, Becomes.OURS, sentence)


def _refused(name: str, sentence: str) -> RecordField:
    return RecordField(name, Becomes.REFUSED, sentence)


def _by_name(*fields: RecordField | tuple[RecordField, ...]) -> dict[str, RecordField]:
    flat = [one for each in fields for one in (each if isinstance(each, tuple) else (each,))]
    return {field.name: field for field in flat}


CONTENT_FIELDS = _by_name(
    _translated("prompts", "prompt", "a request for each"),
    _renamed("max_new_tokens", "max_tokens"),
    _renamed("stop_sequences", "stop"),
    _translated("return_token_log_probs", "logprobs", "0, for the chosen token alone; not passed if false"),
    _same("temperature", "presence_penalty", "frequency_penalty", "top_k", "top_p", "skip_special_tokens"),
)
"""Of a V1 content, in vLLM's completion request."""

_NEEDS_A_CALL_PARSER = "needs `tool_call_parser` and `enable_auto_tool_choice`, unless the choice is `none`"

_SAMPLING_FIELDS = _by_name(
    _ours(
        "best_of",
        "it asks vLLM for that many, and keeps the `n` with the highest mean log probability per token; less than `n` "
        "is an error",
    ),
    _same("top_k", "min_p", "repetition_penalty", "stop_token_ids", "include_stop_str_in_output", "ignore_eos"),
    _same("min_tokens", "skip_special_tokens", "spaces_between_special_tokens", "frequency_penalty", "n"),
    _same("presence_penalty", "stop", "temperature", "top_p"),
    _noted(
        "use_beam_search",
        "the width is `best_of`, else `n`, and the engine's `max_logprobs` must be twice as much; an error together "
        "with what vLLM's beam search drops: stop strings and tokens, penalties, bias, seed, sampling, structure",
    ),
    _noted("length_penalty", "an error without `use_beam_search`"),
    _refused("early_stopping", "vLLM's beam search has no such choice"),
    _noted("response_format", "`text`, `json_object` or `json_schema`; one of this and the `guided_` fields"),
    *(
        _translated(f"guided_{kind}", "structured_outputs", f"its `{kind}`")
        for kind in ("json", "regex", "choice", "grammar")
    ),
    _ours("guided_decoding_backend", "an error unless it is `auto` or the engine's own: vLLM has one for all records"),
    _refused("guided_whitespace_pattern", "nothing in today's vLLM reads it"),
    _ours("model", "vLLM gets the served name; another model's is an error"),
    _noted("seed", "-1, by which vLLM means none, is an error"),
    _refused("stream", "a batch has no stream"),
    _refused("stream_options", "a batch has no stream, and every result has its usage"),
    _ours("user", "`metadata.user` of the result"),
)

COMPLETION_FIELDS = _SAMPLING_FIELDS | _by_name(
    _same("prompt", "add_special_tokens", "echo", "logprobs"),
    _noted("logit_bias", "from -100 to 100 each"),
    _noted("max_tokens", "0 is an error without `echo`"),
    _noted("suffix", "an error unless the model supports it"),
)
"""Of a completion record, in vLLM's completion request."""

CHAT_FIELDS = (
    _SAMPLING_FIELDS
    | _by_name(
        _same("logprobs", "parallel_tool_calls", "add_special_tokens", "echo", "add_generation_prompt"),
        _noted("messages", "what is not text is an error unless the model takes it"),
        _noted("max_completion_tokens", "an error if `max_tokens` is given and differs"),
        _noted("tools", _NEEDS_A_CALL_PARSER),
        _noted("tool_choice", _NEEDS_A_CALL_PARSER),
        _noted("reasoning_effort", "an error where neither the template nor a `reasoning_parser` reads it"),
        _noted("include_reasoning", "`false` is an error without a `reasoning_parser` in `engine_args`"),
        _noted("continue_final_message", "`add_generation_prompt` is `false` then"),
        _noted("chat_template_kwargs", "a value that the template does not read is an error"),
        _noted("documents", "an error if the template does not read them"),
        _noted("chat_template", "an error unless `engine_args` has `trust_request_chat_template`"),
        _noted("mm_processor_kwargs", "an error unless `engine_args` has `trust_request_mm_kwargs`"),
        _noted("media_io_kwargs", "an error unless `engine_args` has `trust_request_mm_kwargs`"),
        _same("prompt_logprobs", "bad_words", "allowed_token_ids", "truncate_prompt_tokens", "return_token_ids"),
        _noted("truncation_side", "an error without `truncate_prompt_tokens`"),
        _noted("thinking_token_budget", "an error without a `reasoning_parser` in `engine_args`"),
        _noted("top_logprobs", "an error without `logprobs`"),
        _noted("logit_bias", "from -100 to 100 each"),
        _noted("max_tokens", "0 is an error"),
        _ours("metadata", "`metadata` of the result"),
    )
    | _by_name(*(_refused(name, unserved.sentence) for name, unserved in UNSERVED.items()))
)
"""Of a chat record, in vLLM's chat request."""

_POOLING_FIELDS = _by_name(
    _ours("model", "vLLM gets the served name; another model's is an error"),
    _ours("user", "`metadata.user` of the result"),
    _same("truncate_prompt_tokens", "use_activation"),
    _noted("truncation_side", "an error without `truncate_prompt_tokens`"),
)

EMBEDDING_FIELDS = _POOLING_FIELDS | _by_name(
    _same("input", "dimensions", "encoding_format", "add_special_tokens"),
    _noted("embed_dtype", "another than the default is an error without base64"),
    _noted("endianness", "another than the default is an error without base64"),
)
"""Of an embedding, in vLLM's request of the same endpoint."""

_SCORING_FIELDS = _POOLING_FIELDS | _by_name(_same("max_tokens_per_query", "max_tokens_per_doc"))

SCORE_FIELDS = _SCORING_FIELDS | _by_name(_same(*dict.fromkeys(name for pair in PAIRS for name in pair)))
"""Of a score, in vLLM's request for the pair of names that is given."""

RERANK_FIELDS = _SCORING_FIELDS | _by_name(_same("query", "documents", "top_n"))
"""Of a reranking, in vLLM's request of the same endpoint."""
