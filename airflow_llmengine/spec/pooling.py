"""What the records of a pooling model have in common: no text is generated, so there is no sampling."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from airflow_llmengine.spec.wire_model import WireModel
from airflow_llmengine.spec.wire_types import FLAG, TEXT, TEXT_NOT_NULL, Choice, integer


class PoolingFields(WireModel):
    """Fields of embeddings, scores and rerankings, in the words of the API and of vLLM's additions to it."""

    private_text: ClassVar[bool] = True

    model: Annotated[str | None, TEXT_NOT_NULL] = None
    """The job's model or its ``served_model_name``, if given; it can't be null."""
    user: Annotated[str | None, TEXT] = None
    """Who the record is for; given back in the result."""
    truncate_prompt_tokens: Annotated[int | None, integer(-1)] = None
    """Of a longer input this many tokens are kept; -1: as many as the model takes. Else a longer one is an error."""
    truncation_side: Annotated[Literal["left", "right"] | None, Choice(("left", "right"))] = None
    """The side at which ``truncate_prompt_tokens`` cuts; by default the tokenizer's own."""
    use_activation: Annotated[bool | None, FLAG] = None
    """Whether the model's last step, such as normalising a vector or a sigmoid, is done; by default it mostly is."""
