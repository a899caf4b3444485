"""Which GPUs a worker gets: the cheapest that the model fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from airflow_llmengine.spec.hardware.engine_memory import EngineSettings, Fit, capability_fault, fit
from airflow_llmengine.spec.hardware.gpus import Gpu
from airflow_llmengine.spec.hardware.layout import LayoutError, Parallelism, gpu_counts, layout_of
from airflow_llmengine.spec.hardware.model_facts import ModelFacts


@dataclass(frozen=True, slots=True)
class Tried:
    """GPUs of a type that were looked at."""

    gpu: Gpu
    gpus: int
    """On each node; 0: no number of them was possible."""
    fit: Fit | None
    fault: str | None = None
    """Why they can't share the model, or compute with it, whatever their memory."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What was found."""

    taken: Fit | None
    """None: nothing fits."""
    tried: tuple[Tried, ...]
    """All that was looked at, the taken one included, in order."""


def choose(
    facts: ModelFacts, settings: EngineSettings, offers: Sequence[Gpu], asked: Parallelism, *, type_given: bool = False
) -> Choice:
    """Take the cheapest GPUs that a batch has room on.

    Of each type the fewest that fit: as many as were asked for, or a power of two up to what a node has. Among the
    types the first in order of the offers; or, where all have a price, the least in all. Where a batch has room
    nowhere, the most room on which the engine still starts is taken.

    Args:
        facts: The model.
        settings: What of the request memory depends on.
        offers: The types, the cheapest first.
        asked: What the request says of numbers.
        type_given: Whether the request says the type. If it says their number too, then only what surely can't work
            is not taken: more of them than are thought to be on a node may be there, and the engine may need less to
            compute than is reckoned.
    """
    tried: list[Tried] = []
    fitting: list[Fit] = []
    for gpu in offers:
        for attempt in _attempts(facts, settings, gpu, asked, type_given=type_given):
            tried.append(attempt)
            if attempt.fit is not None and attempt.fit.fits:
                fitting.append(attempt.fit)
                break
        if fitting and not _priced(offers):
            break
    decided = type_given and (asked.gpus is not None or asked.tensor is not None)
    found = [each.fit for each in tried if each.fit is not None]
    starting = [each for each in found if each.starts or (decided and each.might_start)]
    if fitting:
        # The first of equal ones.
        return Choice(min(fitting, key=_price) if _priced(offers) else fitting[0], tuple(tried))
    return Choice(max(starting, key=_sequences, default=None), tuple(tried))


def _attempts(
    facts: ModelFacts, settings: EngineSettings, gpu: Gpu, asked: Parallelism, *, type_given: bool
) -> Iterator[Tried]:
    fault = capability_fault(settings, gpu)
    if fault:
        yield Tried(gpu, 0, None, fault)
        return
    counts = gpu_counts(asked, gpu.per_node)
    if not counts:
        yield Tried(gpu, 0, None, f"a node has {gpu.per_node} at most, too few for so many pipeline stages")
    for count in counts:
        fault = _count_fault(gpu, count, asked, type_given=type_given)
        if fault:
            yield Tried(gpu, count, None, fault)
            continue
        try:
            layout = layout_of(asked, count, facts, settings.quantization)
        except LayoutError as error:
            yield Tried(gpu, count, None, str(error))
            continue
        yield Tried(gpu, count, fit(facts, settings, gpu, layout))


def _count_fault(gpu: Gpu, count: int, asked: Parallelism, *, type_given: bool) -> str | None:
    if gpu.is_slice and count * asked.nodes > 1:
        return "slices of a GPU can't share a model: use one, and data_parallelism for more speed"
    if count > gpu.per_node and not (type_given and asked.gpus is not None):
        return f"a node has {gpu.per_node} of them at most"
    return None


def _priced(offers: Sequence[Gpu]) -> bool:
    return all(gpu.price is not None for gpu in offers)


def _price(found: Fit) -> float:
    return (found.gpu.price or 0.0) * found.layout.gpus * found.layout.nodes


def _sequences(found: Fit) -> float:
    """Room of the KV cache in what a batch wants."""
    return found.room / max(1, found.wanted)
