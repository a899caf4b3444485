"""What completion and chat records have in common: sampling, stopping, and the form of the answer."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from airflow_llmengine.spec.wire_model import WireModel
from airflow_llmengine.spec.wire_types import (
    FLAG,
    FREE_OBJECT,
    INTEGER_LIST,
    STOP_SEQUENCES,
    TEXT,
    TEXT_LIST,
    TEXT_NOT_NULL,
    integer,
    number,
)


class JsonSchema(WireModel):
    """The JSON Schema that an answer must follow."""

    private_text: ClassVar[bool] = True

    description: Annotated[str | None, TEXT] = None
    """What the schema is for."""
    name: Annotated[str, TEXT]
    """Its name."""
    schema_: Annotated[dict[str, Any] | None, FREE_OBJECT, Field(alias="schema")] = None
    """The schema itself. On the wire ``schema``, a name that pydantic keeps for itself."""
    strict: Annotated[bool | None, FLAG] = False
    """Whether the schema is to be followed to the letter."""


class ResponseFormatText(WireModel):
    """The answer is any text."""

    private_text: ClassVar[bool] = True

    type: Literal["text"]


class ResponseFormatJsonSchema(WireModel):
    """The answer is JSON that follows a schema."""

    private_text: ClassVar[bool] = True

    type: Literal["json_schema"]
    json_schema: JsonSchema
    """The schema."""


class ResponseFormatJsonObject(WireModel):
    """The answer is a JSON object."""

    private_text: ClassVar[bool] = True

    type: Literal["json_object"]


ResponseFormat = Annotated[
    ResponseFormatText | ResponseFormatJsonSchema | ResponseFormatJsonObject, Field(discriminator="type")
]
"""What form the answer must have; its ``type`` tells which."""


class ChatCompletionStreamOptions(WireModel):
    """Options of a stream, which a batch does not have."""

    include_usage: Annotated[bool | None, FLAG] = None
    """Whether the stream ends with the token counts."""


class SamplingFields(WireModel):
    """Fields of both kinds of records. One that was not given takes the model's own generation config."""

    private_text: ClassVar[bool] = True

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
    response_format: ResponseFormat | None = None
    """What form the answer must have."""
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
    model: Annotated[str | None, TEXT_NOT_NULL] = None
    """The job's model or its ``served_model_name``, if given; it can't be null."""
    frequency_penalty: Annotated[float | None, number(-2, 2)] = 0
    """Taken off a token's logit once for each time that it is in the answer already."""
    n: Annotated[int | None, integer(1, 128)] = 1
    """Choices; of a completion record, for each prompt."""
    presence_penalty: Annotated[float | None, number(-2, 2)] = 0
    """Taken off the logit of every token that is in the answer already."""
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
    user: Annotated[str | None, TEXT] = None
    """Who the record is for; given back in the result."""
