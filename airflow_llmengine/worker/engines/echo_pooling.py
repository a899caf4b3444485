"""The stand-in engine's answers to pooling records: vectors that hang on the words of a text and on nothing else.

Texts that share words have vectors that are close to one another, so that what comes after has something to sort.
"""

from __future__ import annotations

import base64
import hashlib
import math
import struct
from typing import Any

from airflow_llmengine.spec.embedding import EmbeddingRequest
from airflow_llmengine.spec.pooling import PoolingFields
from airflow_llmengine.spec.scoring import RerankRequest, ScoreRequest

DIMENSIONS = 8
"""Length of a vector, if the record does not say."""

_BFLOAT16_BYTES = 2
"""Of a float32's four: the first ones in big-endian order."""

_FORMATS = {"float32": "f", "float16": "e", "bfloat16": "f"}


def texts_of(request: PoolingFields) -> list[str]:
    """The record's texts; token ids as numbers with spaces between them."""
    match request:
        case EmbeddingRequest():
            value: Any = request.input
            return [" ".join(map(str, one)) if isinstance(one, list) else one for one in _listed(value)]
        case ScoreRequest():
            first, second = _sides(request)
            return [*first, *second]
        case RerankRequest():
            return [request.query, *_listed(request.documents)]
        case _:
            return []


def pooling_body(request: PoolingFields, model: str, words: int) -> dict[str, Any]:
    """The response object but for its ``id`` and ``metadata``, which only its place gives it."""
    body: dict[str, Any] = {"id": ""}
    match request:
        case EmbeddingRequest():
            data: list[dict[str, Any]] = [
                {"index": index, "object": "embedding", "embedding": _written(vector_of(text, request), request)}
                for index, text in enumerate(texts_of(request))
            ]
            body |= {"object": "list", "created": 0, "model": model, "data": data}
        case ScoreRequest():
            first, second = _sides(request)
            pairs = zip(first * len(second) if len(first) == 1 else first, second, strict=True)
            data = [{"index": index, "object": "score", "score": _score(*pair)} for index, pair in enumerate(pairs)]
            body |= {"object": "list", "created": 0, "model": model, "data": data}
        case RerankRequest():
            results: list[dict[str, Any]] = [
                {"index": index, "document": {"text": text}, "relevance_score": _score(request.query, text)}
                for index, text in enumerate(_listed(request.documents))
            ]
            results.sort(key=lambda result: -result["relevance_score"])
            body |= {"model": model, "results": results[: request.top_n or None]}
    body["usage"] = {"prompt_tokens": words, "total_tokens": words}
    return body


def vector_of(text: str, request: EmbeddingRequest | None = None) -> list[float]:
    """The sum of the vectors of the text's words, of length 1."""
    length = (None if request is None else request.dimensions) or DIMENSIONS
    sums = [0.0] * length
    for word in text.split():
        digits = hashlib.shake_256(word.encode()).digest(length)
        sums = [value + digit - 127.5 for value, digit in zip(sums, digits, strict=True)]
    norm = math.hypot(*sums)
    return [value / norm for value in sums] if norm else sums


def _written(vector: list[float], request: EmbeddingRequest) -> list[float] | str:
    if request.effective("encoding_format") == "float":
        return vector
    kind, order = request.effective("embed_dtype"), {"big": ">", "little": "<", "native": "="}
    mark = order[request.effective("endianness")]
    data = struct.pack(f"{mark}{len(vector)}{_FORMATS[kind]}", *vector)
    if kind == "bfloat16":
        first = 0 if struct.pack(f"{mark}H", 1) == b"\0\1" else _BFLOAT16_BYTES
        data = b"".join(data[at + first : at + first + _BFLOAT16_BYTES] for at in range(0, len(data), 4))
    return base64.b64encode(data).decode()


def _score(one: str, other: str) -> float:
    return sum(a * b for a, b in zip(vector_of(one), vector_of(other), strict=True))


def _sides(request: ScoreRequest) -> tuple[list[str], list[str]]:
    first, second = (getattr(request, name) for name in request.pair or ())
    return _listed(first), _listed(second)


def _listed(value: Any) -> list[Any]:
    return [value] if isinstance(value, str) or (value and isinstance(value[0], int)) else value
