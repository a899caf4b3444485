"""The body of an embedding: a line of an OpenAI batch file for ``/v1/embeddings``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from airflow_llmengine.spec.pooling import PoolingFields
from airflow_llmengine.spec.wire_types import FLAG, PROMPT, Choice, integer


class EmbeddingRequest(PoolingFields):
    """What turns texts into vectors: the API's fields, and vLLM's own for the tokens and for the form of a vector."""

    input: Annotated[str | list[str] | list[int] | list[list[int]], PROMPT, Field(repr=False)]
    """A string, strings, token ids, or lists of token ids; a vector for each, in order."""
    dimensions: Annotated[int | None, integer(1)] = None
    """Length of the vectors, for models that were trained for several; by default the model's own."""
    encoding_format: Annotated[Literal["float", "base64"] | None, Choice(("float", "base64"))] = "float"
    """Numbers, or the vector's bytes in base64."""
    embed_dtype: Annotated[
        Literal["float32", "float16", "bfloat16"] | None, Choice(("float32", "float16", "bfloat16"))
    ] = "float32"
    """With base64: the type of each number."""
    endianness: Annotated[Literal["native", "big", "little"] | None, Choice(("native", "big", "little"))] = "native"
    """With base64: the order of each number's bytes."""
    add_special_tokens: Annotated[bool | None, FLAG] = True
    """Whether the tokenizer adds its special tokens to a text."""
