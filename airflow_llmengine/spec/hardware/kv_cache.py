"""What the KV cache takes on a GPU for each token, and how much of it a job needs and wants."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_llmengine.spec.hardware.model_facts import ModelFacts

BLOCK_TOKENS = 16
"""vLLM gives the cache out in blocks of this many tokens, and keeps one for itself."""

TYPICAL_TOKENS = 1024
"""Prompt and completion together of a record, where a job's own records are not known."""

WANTED_SEQUENCES = 32
"""Sequences in flight that a batch wants at least, unless ``max_num_seqs`` says another number.

A step of the engine reads all weights, however many sequences it serves: until there are some dozens, the next one is
nearly free. So where a model only just fits, twice the GPUs do more than twice the work. Beyond that more room is
welcome and not worth another GPU: in particular ``max_num_seqs`` sequences of ``max_model_len``, which would ask for a
whole node for a small model of 128 k tokens, is not reserved: vLLM only needs one such sequence to fit, and computes
again what does not.
"""


@dataclass(frozen=True, slots=True)
class KVCache:
    """The cache of one rank: the GPU of the pipeline stage that has most layers."""

    full: float
    """Bytes of a token in the layers that look at the whole sequence."""
    windowed: float
    """Bytes of a token in those that look back a window only."""
    window: int
    """Tokens that those keep of a sequence: the window, and what one step of the engine adds."""

    def sequence(self, tokens: int) -> int:
        """Bytes of a sequence of so many tokens, blocks and all."""
        whole = (-(-tokens // BLOCK_TOKENS) + 1) * BLOCK_TOKENS
        return round(whole * self.full + min(whole, self.window + 2 * BLOCK_TOKENS) * self.windowed)

    def longest(self, room: int) -> int:
        """Tokens of the longest sequence that has room in so many bytes; 0: none has."""
        low, high = 0, 2**40
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.sequence(middle) <= room else (low, middle - 1)
        return low


def kv_cache(
    facts: ModelFacts, *, number_bytes: float, tensor_parallel: int, pipeline_parallel: int, step_tokens: int
) -> KVCache:
    """Work out what a token takes.

    vLLM divides the KV heads among the ranks, and gives each rank at least one. MLA's compressed vector can't be
    divided: every rank holds it whole.

    Args:
        facts: The model.
        number_bytes: Of a number in the cache.
        tensor_parallel: Ranks that share each layer.
        pipeline_parallel: Stages that share the layers.
        step_tokens: Tokens that one step of the engine may add to a sequence (``max_num_batched_tokens``).
    """
    if facts.latent is not None:
        layer = (facts.latent.kv_rank + facts.latent.rope_size) * number_bytes + facts.latent.index_bytes
    else:
        layer = 2 * max(1, facts.kv_heads // tensor_parallel) * facts.head_size * number_bytes
    windowed = facts.windowed_layers if facts.window else 0
    return KVCache(
        full=layer * -(-(facts.layers - windowed) // pipeline_parallel),
        windowed=layer * -(-windowed // pipeline_parallel),
        window=(facts.window or 0) + step_tokens,
    )


def wanted_bytes(cache: KVCache, max_length: int, max_sequences: int | None) -> int:
    """Bytes that a batch wants: see ``WANTED_SEQUENCES``, each of ``TYPICAL_TOKENS`` or as long as any may be.

    Args:
        cache: What a token takes.
        max_length: Tokens of the longest sequence.
        max_sequences: ``max_num_seqs``, if it was given.
    """
    sequences = WANTED_SEQUENCES if max_sequences is None else max_sequences
    return sequences * cache.sequence(min(max_length, TYPICAL_TOKENS))
