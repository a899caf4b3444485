"""The bodies of scores and rerankings: lines of a batch file for vLLM's endpoints of these names.

The API has none of them. A score says how well two texts go together; a reranking sorts documents by their score.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from airflow_llmengine.spec.pooling import PoolingFields
from airflow_llmengine.spec.wire_types import TEXT, TEXT_OR_TEXTS, integer

PAIRS = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))
"""The names that vLLM has for the two sides of a score: one pair of them is given."""


class ScoringFields(PoolingFields):
    """Fields of scores and of rerankings."""

    max_tokens_per_query: Annotated[int | None, integer(0)] = 0
    """Of a longer query this many tokens are kept; 0 keeps all."""
    max_tokens_per_doc: Annotated[int | None, integer(0)] = 0
    """Of a longer document this many tokens are kept; 0 keeps all."""


class ScoreRequest(ScoringFields):
    """What scores one text, or each of several, with each of others: one with N, or N with N, in order."""

    queries: Annotated[str | list[str] | None, TEXT_OR_TEXTS, Field(repr=False)] = None
    """First side: a string, or strings."""
    documents: Annotated[str | list[str] | None, TEXT_OR_TEXTS, Field(repr=False)] = None
    """Second side."""
    items: Annotated[str | list[str] | None, TEXT_OR_TEXTS, Field(repr=False)] = None
    """Second side, by another name."""
    data_1: Annotated[str | list[str] | None, TEXT_OR_TEXTS, Field(repr=False)] = None
    """First side, by another name."""
    data_2: Annotated[str | list[str] | None, TEXT_OR_TEXTS, Field(repr=False)] = None
    """Second side, by another name."""
    text_1: Annotated[str | list[str] | None, TEXT_OR_TEXTS, Field(repr=False)] = None
    """First side, by another name."""
    text_2: Annotated[str | list[str] | None, TEXT_OR_TEXTS, Field(repr=False)] = None
    """Second side, by another name."""

    @property
    def given_sides(self) -> set[str]:
        """Names of the sides that were given."""
        return {name for pair in PAIRS for name in pair if self.is_given(name)}

    @property
    def pair(self) -> tuple[str, str] | None:
        """The names of the two sides; None if they are not the two of one pair."""
        return next((pair for pair in PAIRS if self.given_sides == set(pair)), None)


class RerankRequest(ScoringFields):
    """What sorts documents by how well they answer a query."""

    query: Annotated[str, TEXT, Field(repr=False)]
    """The query."""
    documents: Annotated[str | list[str], TEXT_OR_TEXTS, Field(repr=False)]
    """A document, or documents."""
    top_n: Annotated[int | None, integer(0)] = 0
    """Only so many of the best are listed; 0 lists all."""
