"""How many bytes a model's weights take: as they are stored, and on each GPU that shares them.

The matrices are reckoned from the config. Where the checkpoint says how large it is, that counts, and the matrices only
say how it is divided: what vLLM copies to every rank (routers, the compressed part of MLA, K and V of fewer heads than
ranks), what it divides, and what it does not load.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from airflow_llmengine.spec.hardware.model_facts import ModelFacts
from airflow_llmengine.spec.hardware.quantization import Quantization

_PLAIN_BYTES = 2
"""vLLM loads a checkpoint of float32 as float16 or bfloat16, unless ``dtype`` says otherwise."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Weights of one kind, of all layers that have them."""

    weights: int
    kind: Literal["attention", "mlp", "experts", "plain"]
    """What quantization treats alike; ``plain`` is never quantized."""
    divided: Literal["by rank", "by head", "not"] = "by rank"
    """Among tensor-parallel ranks; ``by head`` among at most as many as there are KV heads."""
    place: Literal["layer", "embedding", "head"] = "layer"
    """Pipeline stages share the layers; the first has the embedding, the last the head."""


def matrices(facts: ModelFacts) -> list[Matrix]:
    """All weights of a model that are loaded."""
    return [*_attention(facts), *_mlp(facts), *_ends(facts)]


def parameters(facts: ModelFacts) -> int:
    """Number of the weights that are loaded."""
    return sum(matrix.weights for matrix in matrices(facts))


def stored_bytes(facts: ModelFacts) -> int:
    """Bytes of the checkpoint: as its files say, or else as reckoned."""
    return facts.stored_bytes or _reckoned(facts)


def loaded_bytes(facts: ModelFacts, quantization: Quantization | None, plain_bytes: int = _PLAIN_BYTES) -> int:
    """Bytes of one copy of the weights as the engine holds them.

    Args:
        facts: The model.
        quantization: How they are quantized once they are loaded.
        plain_bytes: Of a weight that is not.
    """
    loaded = sum(_bytes(matrix, quantization, plain_bytes) for matrix in matrices(facts))
    return round(loaded * _correction(facts))


def rank_bytes(
    facts: ModelFacts,
    quantization: Quantization | None,
    *,
    tensor_parallel: int,
    pipeline_parallel: int,
    plain_bytes: int = _PLAIN_BYTES,
) -> int:
    """Bytes of the weights on the GPU that has most of them.

    Args:
        facts: The model.
        quantization: How they are quantized once they are loaded.
        tensor_parallel: Ranks that share each layer.
        pipeline_parallel: Stages that share the layers.
        plain_bytes: Of a weight that is not quantized.
    """
    layers = -(-facts.layers // pipeline_parallel) / facts.layers
    found = {"layer": 0.0, "embedding": 0.0, "head": 0.0}
    for matrix in matrices(facts):
        ranks = {
            "by rank": tensor_parallel,
            "by head": min(tensor_parallel, facts.kv_heads),
            "not": 1,
        }[matrix.divided]
        found[matrix.place] += _bytes(matrix, quantization, plain_bytes) / ranks
    ends = [found["embedding"], found["head"]]
    total = layers * found["layer"] + (sum(ends) if pipeline_parallel == 1 else max(ends))
    return round(total * _correction(facts))


def _bytes(matrix: Matrix, quantization: Quantization | None, plain_bytes: int) -> float:
    if quantization is None or matrix.kind == "plain":
        return matrix.weights * plain_bytes
    if quantization.parts == "experts":
        share = 0.0 if matrix.kind == "experts" else 1.0
    else:
        share = quantization.plain_attention if matrix.kind == "attention" else quantization.plain_mlp
    return matrix.weights * (share * plain_bytes + (1 - share) * quantization.bytes_per_weight)


def _reckoned(facts: ModelFacts) -> int:
    """Bytes of the checkpoint, with what it holds beyond what is loaded."""
    plain = 2 if facts.quantization is not None else facts.dtype_bytes
    stored = sum(_bytes(matrix, facts.quantization, plain) for matrix in matrices(facts))
    if facts.draft_layers:
        layer = replace_layers(facts, 1)
        stored += facts.draft_layers * sum(
            _bytes(matrix, facts.quantization, plain) for matrix in matrices(layer) if matrix.place == "layer"
        )
    return round(stored)


def replace_layers(facts: ModelFacts, layers: int) -> ModelFacts:
    """The same model with fewer layers, of the kind that it has most of."""
    mixture = facts.mixture and facts.mixture.model_copy(update={"layers": layers})
    return facts.model_copy(update={"layers": layers, "mixture": mixture, "other_weights": 0})


def _correction(facts: ModelFacts) -> float:
    """What the files say, over what is reckoned."""
    return 1.0 if facts.stored_bytes is None else facts.stored_bytes / _reckoned(facts)


def _attention(facts: ModelFacts) -> Iterator[Matrix]:
    hidden, heads, layers = facts.hidden_size, facts.heads, facts.layers
    latent = facts.latent
    if latent is None:
        yield Matrix(2 * layers * hidden * heads * facts.head_size, "attention")
        yield Matrix(2 * layers * hidden * facts.kv_heads * facts.head_size, "attention", "by head")
        return
    query = heads * (latent.nope_size + latent.rope_size)
    if latent.query_rank is None:
        yield Matrix(layers * hidden * query, "attention")
    else:
        yield Matrix(layers * hidden * latent.query_rank, "attention", "not")
        yield Matrix(layers * latent.query_rank * query, "attention")
    yield Matrix(layers * hidden * (latent.kv_rank + latent.rope_size), "attention", "not")
    yield Matrix(layers * latent.kv_rank * heads * (latent.nope_size + latent.value_size), "attention")
    yield Matrix(layers * heads * latent.value_size * hidden, "attention")


def _mlp(facts: ModelFacts) -> Iterator[Matrix]:
    count, hidden, mixture = (3 if facts.gated else 2), facts.hidden_size, facts.mixture
    dense = facts.layers - (mixture.layers if mixture else 0)
    if dense:
        yield Matrix(dense * count * hidden * facts.intermediate_size, "mlp")
    if mixture is not None:
        yield Matrix(mixture.layers * mixture.experts * count * hidden * mixture.intermediate_size, "experts")
        yield Matrix(mixture.layers * mixture.experts * hidden, "plain", "not")
        if mixture.shared_intermediate_size:
            yield Matrix(mixture.layers * count * hidden * mixture.shared_intermediate_size, "mlp")


def _ends(facts: ModelFacts) -> Iterator[Matrix]:
    embedding = Matrix(facts.vocabulary * facts.hidden_size, "plain", place="embedding")
    yield embedding
    # A tied head of the last stage is a copy, which the maximum of both ends covers.
    yield replace(embedding, place="head", weights=0 if facts.tied else embedding.weights)
    if facts.other_weights:
        yield Matrix(facts.other_weights, "plain", "not", "embedding")
