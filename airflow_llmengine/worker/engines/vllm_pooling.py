"""How a model of vLLM's answers embeddings, scores and rerankings. Needs no vLLM: it is handed what it uses."""

from __future__ import annotations

import base64
import json
from array import array
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_llmengine.spec.embedding import EmbeddingRequest
from airflow_llmengine.spec.pooling import PoolingFields
from airflow_llmengine.worker.engines.vllm_pooling_records import inputs, pooling_request, unable


@dataclass(frozen=True, slots=True)
class RequestForm:
    """What vLLM reads one kind of request by."""

    validate: Callable[[Any], Any]
    """From a body to vLLM's request object; raises pydantic's ``ValidationError``."""
    known: Collection[str]
    """The fields that it has."""


@dataclass(frozen=True, slots=True)
class Pooling:
    """vLLM's serving objects of a pooling model; a model that generates has none of them."""

    tasks: Collection[str]
    """What the model does, in vLLM's words."""
    embedding: Any
    """None if it computes no embeddings."""
    scores: Any
    """None if it scores no texts; it then reranks none either."""
    forms: Mapping[type[PoolingFields], RequestForm]

    @property
    def is_able(self) -> bool:
        """Whether the model answers any pooling record."""
        return self.embedding is not None or self.scores is not None

    def body(self, request: PoolingFields, model: str) -> dict[str, Any]:
        """The body of vLLM's request for a record.

        Raises:
            RecordRejectedError: The model does something else, or vLLM has not all of the record's fields.
        """
        if self._serving(request) is None:
            raise unable(request, self.tasks)
        return pooling_request(request, model, self.forms[type(request)].known)

    async def answer(self, request: PoolingFields, body: dict[str, Any]) -> dict[str, Any]:
        """Answer with the response object; raises what vLLM raises."""
        as_numbers = isinstance(request, EmbeddingRequest) and request.effective("encoding_format") == "float"
        if as_numbers:
            # As text they would be written, read and written again, which takes milliseconds for each vector.
            body = {**body, "encoding_format": "base64"}
        response = await self._serving(request)(self.forms[type(request)].validate(body))
        answer: dict[str, Any] = json.loads(response.body)
        if as_numbers:
            for item in answer["data"]:
                item["embedding"] = array("f", base64.b64decode(item["embedding"])).tolist()
        return answer

    async def longest_input(self, body: Mapping[str, Any], count: Callable[[str], Awaitable[int]]) -> int:
        """Tokens of the longest of a request's inputs; 0 where it can't be told.

        Args:
            body: The request.
            count: Counts the tokens of a text.
        """
        together = getattr(self.scores, "io_processor_name", None) == "cross-encoder"
        tokens = [len(one) if isinstance(one, list) else await count(one) for one in inputs(body, together=together)]
        return max(tokens, default=0)

    def _serving(self, request: PoolingFields) -> Any:
        return self.embedding if isinstance(request, EmbeddingRequest) else self.scores
