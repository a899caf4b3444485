"""From a request, a model and what a cluster has to the hardware of its workers, with the arithmetic told.

What the request gives is kept; what it does not give is worked out; what can't work is refused with the numbers.
Nothing is ever replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_llmengine.spec.hardware.choice import Choice, Tried, choose
from airflow_llmengine.spec.hardware.engine_memory import EngineSettings, Fit, engine_settings
from airflow_llmengine.spec.hardware.gpus import GIB, Gpu, gpu_of
from airflow_llmengine.spec.hardware.host_resources import HostResources, cpu_resources, host_resources, swap_bytes
from airflow_llmengine.spec.hardware.kv_cache import TYPICAL_TOKENS, WANTED_SEQUENCES, kv_cache
from airflow_llmengine.spec.hardware.layout import Layout, LayoutError, Parallelism, gpu_counts, layout_of
from airflow_llmengine.spec.hardware.model_facts import ModelFacts
from airflow_llmengine.spec.hardware.weights import loaded_bytes, stored_bytes
from airflow_llmengine.spec.request import CreateBatchCompletionsV1ModelConfig, CreateBatchCompletionsV1Request
from airflow_llmengine.spec.validation import Refusal, RequestInvalidError

SAY_THE_TYPE = (
    "say gpu_type, or list the cluster's types, the cheapest first, in gpu_types of the connection's field cluster"
)


@dataclass(frozen=True, slots=True)
class Model:
    """What could be found out of a job's model."""

    facts: ModelFacts | None
    """None: its config could not be read."""
    source: str
    """Where the config was found, or why it was not."""
    may_pass: bool = False
    """Whether it may be found when it is looked for again: the hub or a store did not answer just then."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """What each worker of a job gets."""

    gpu: Gpu | None
    """None: no GPU."""
    layout: Layout | None
    host: HostResources | None
    """None: the model is not known, and the pod's own defaults stand."""
    explanation: tuple[str, ...]
    """The arithmetic, a line each."""

    def summary(self, request: CreateBatchCompletionsV1Request) -> str:
        """What each worker gets, in one clause: what the request gives stands above what was worked out."""
        gpus = "no GPU" if self.gpu is None or self.layout is None else _counted(self.gpu, self.layout)
        if self.host is None:
            return gpus
        cores = str(self.host.cores) if request.cpus is None else str(request.cpus)
        # A limit includes shared memory; what was worked out does not.
        memory = f"{_gib(self.host.memory)} of memory and shared memory"
        if request.memory is not None:
            memory = f"{request.memory} of memory"
        disk = None if self.host.storage is None else _gib(self.host.storage)
        if request.storage is not None:
            disk = str(request.storage)
        return f"{gpus}, {cores} cores, {memory}" + ("" if disk is None else f", {disk} of disk")


def infer_gpus(
    request: CreateBatchCompletionsV1Request, model: Model, listed: Sequence[Gpu], *, weights_on_disk: bool = False
) -> Hardware:
    """Work out the GPUs of each worker.

    Args:
        request: A checked request.
        model: What is known of its model.
        listed: The kinds of GPU that the cluster has, the cheapest first; may be empty.
        weights_on_disk: Whether the pod's own disk takes the weights.

    Raises:
        RequestInvalidError: What it gives does not go together, or fits nowhere; or too little is known.
    """
    offers = _offers(request, listed)
    asked = parallelism_of(request)
    if model.facts is None:
        return _unchecked(request, model, offers, asked)
    settings = engine_settings(request.model_cfg, model.facts)
    choice = choose(model.facts, settings, offers, asked, type_given=request.gpu_type is not None)
    if choice.taken is None:
        raise RequestInvalidError([_refusal(request, model, settings, choice, asked)])
    layout = choice.taken.layout
    return Hardware(
        gpu=choice.taken.gpu,
        layout=layout,
        host=host_resources(
            ranks=layout.gpus,
            checkpoint_bytes=stored_bytes(model.facts),
            nodes=layout.nodes,
            weights_on_disk=weights_on_disk,
            swap=swap_bytes(request.model_cfg, layout.gpus),
        ),
        explanation=(*_explained(model, model.facts, settings, choice, choice.taken), *_too_long(request, model.facts)),
    )


def infer_without_gpus(
    request: CreateBatchCompletionsV1Request, model: Model, *, weights_on_disk: bool = False
) -> Hardware:
    """Work out cores, memory and disk of workers whose engine runs on the CPU.

    Raises:
        RequestInvalidError: It asks for what only an engine with GPUs has.
    """
    facts = model.facts
    if request.model_cfg.swap_space:
        reason = "is memory for each GPU, and the workers have none"
        raise RequestInvalidError([Refusal("model_config.swap_space", reason, "leave it out")])
    if facts is None:
        return Hardware(None, None, None, (f"the model's size is not known: {model.source}",))
    settings = engine_settings(request.model_cfg, facts)
    loaded = loaded_bytes(facts, settings.quantization, settings.plain_bytes)
    cache = kv_cache(
        facts, number_bytes=settings.cache_bytes, tensor_parallel=1, pipeline_parallel=1, step_tokens=8192
    ).sequence(1 if settings.starts_short else settings.max_length)
    host = cpu_resources(
        loaded_bytes=loaded, kv_bytes=cache, checkpoint_bytes=stored_bytes(facts), weights_on_disk=weights_on_disk
    )
    line = f"no GPU: memory holds weights {_gib(loaded)} and a sequence of {settings.max_length:,} tokens {_gib(cache)}"
    return Hardware(None, None, host, (_known(model, facts, settings), line))


def completed_request(request: CreateBatchCompletionsV1Request, hardware: Hardware) -> CreateBatchCompletionsV1Request:
    """The request with the GPUs' number and how they share the model, as its engine is told.

    None of that is a part of the job's fingerprint. What was given stays as it was; the type stays out where requests
    have no name for it.
    """
    layout = hardware.layout
    if layout is None:
        return request
    model = request.model_cfg
    added: dict[str, int] = {}
    if not (model.is_given("tensor_parallel_size") or model.is_given("num_shards")) and layout.tensor > 1:
        added["tensor_parallel_size"] = layout.tensor
    if not model.is_given("pipeline_parallel_size") and layout.pipeline > 1:
        added["pipeline_parallel_size"] = layout.pipeline
    update: dict[str, object] = {"gpus": layout.gpus} if request.gpus is None else {}
    if added:
        update["model_cfg"] = model.model_copy(update=added)
    return request.model_copy(update=update)


def parallelism_of(request: CreateBatchCompletionsV1Request) -> Parallelism:
    """What a request says of GPUs and of how they share the model."""
    model = request.model_cfg
    return Parallelism(
        tensor=_given_tensor(model),
        pipeline=model.pipeline_parallel_size,
        nodes=request.nodes_per_worker or 1,
        gpus=request.gpus,
    )


def _given_tensor(model: CreateBatchCompletionsV1ModelConfig) -> int | None:
    if model.is_given("tensor_parallel_size"):
        return model.tensor_parallel_size
    return model.num_shards if model.is_given("num_shards") else None


def _offers(request: CreateBatchCompletionsV1Request, listed: Sequence[Gpu]) -> list[Gpu]:
    if request.gpu_type is not None:
        return [gpu_of(request.gpu_type, listed)]
    if not listed:
        raise RequestInvalidError(
            [Refusal("gpu_type", "is not given, and which GPUs there are is not known", SAY_THE_TYPE)]
        )
    return list(listed)


def _unchecked(
    request: CreateBatchCompletionsV1Request, model: Model, offers: Sequence[Gpu], asked: Parallelism
) -> Hardware:
    """Go by what was given, where nothing is known of the model."""
    missing = [] if asked.gpus or asked.tensor else ["gpus"]
    missing += [] if request.gpu_type is not None else ["gpu_type"]
    if missing:
        names = " and ".join(missing)
        raise RequestInvalidError(
            [
                Refusal(
                    missing[0],
                    f"{names} can't be worked out, for the model's size is not known ({model.source})",
                    f"give {names}",
                )
            ]
        )
    gpu = offers[0]
    try:
        layout = layout_of(asked, gpu_counts(asked, gpu.per_node)[0], None)
    except LayoutError as error:
        raise RequestInvalidError(
            [Refusal(_blamed(request), str(error), "make them agree, or leave one out")]
        ) from None
    line = f"{_counted(gpu, layout)}: as given; whether the model fits was not checked ({model.source})"
    return Hardware(gpu, layout, None, (line,))


def _blamed(request: CreateBatchCompletionsV1Request) -> str:
    """The field at which a refusal of numbers points."""
    if request.gpus is not None:
        return "gpus"
    if request.model_cfg.is_given("tensor_parallel_size"):
        return "model_config.tensor_parallel_size"
    if request.model_cfg.is_given("num_shards"):
        return "model_config.num_shards"
    return "gpu_type" if request.gpu_type is not None else "model_config.model"


def _refusal(
    request: CreateBatchCompletionsV1Request,
    model: Model,
    settings: EngineSettings,
    choice: Choice,
    asked: Parallelism,
) -> Refusal:
    """What was tried, with the numbers, and what would help."""
    facts = model.facts
    assert facts is not None  # noqa: S101
    tried = "; ".join(_shortfall(each) for each in _last_of_each(choice.tried))
    fits = [each.fit for each in choice.tried if each.fit is not None]
    best = max(fits, key=lambda found: found.longest, default=None)
    reason = f"the model does not fit: {_known(model, facts, settings)}. {tried}"
    if best is not None and best.longest > 0:
        remedy = f"give model_config.max_model_len of at most {best.longest}, or larger or more GPUs"
    elif best is not None:
        more = _nodes_that_would_do(facts, settings, choice, asked)
        remedy = "give larger or more GPUs, or a quantized model" + (f"; {more}" if more else "")
    else:
        remedy = "give numbers that go together, or leave out those that can be worked out"
    return Refusal(_blamed(request), reason, remedy)


def _nodes_that_would_do(facts: ModelFacts, settings: EngineSettings, choice: Choice, asked: Parallelism) -> str | None:
    """How many nodes would be enough, where one is not. It is asked for, never inferred: the network must be fit."""
    if asked.nodes > 1 or asked.tensor or asked.pipeline:
        return None
    offers = list(dict.fromkeys(each.gpu for each in choice.tried if not each.gpu.is_slice))
    for nodes in (2, 4):
        wider = choose(facts, settings, offers, Parallelism(nodes=nodes, gpus=asked.gpus), type_given=True).taken
        if wider is not None:
            return f"with nodes_per_worker: {nodes} it fits {_counted(wider.gpu, wider.layout)}"
    return None


def _last_of_each(tried: Sequence[Tried]) -> list[Tried]:
    """The most GPUs of each type that could be tried, or why none could."""
    last: dict[str, Tried] = {}
    for each in tried:
        if each.fit is not None or each.gpu.name not in last or last[each.gpu.name].fit is None:
            last[each.gpu.name] = each
    return list(last.values())


def _shortfall(tried: Tried) -> str:
    if tried.fit is None:
        number = f"{tried.gpus} x " if tried.gpus else ""
        return f"{number}{tried.gpu.name}: {tried.fault}"
    found = tried.fit
    return (
        f"{_counted(found.gpu, found.layout)}: {_share(found)}, and one sequence of {found.max_length:,} tokens needs "
        f"{_gib(found.needed)} of KV cache"
    )


def _explained(model: Model, facts: ModelFacts, settings: EngineSettings, choice: Choice, taken: Fit) -> list[str]:
    """What was taken and why, in few lines."""
    lines = [_known(model, facts, settings)]
    lines += [
        f"passed over: {_passed_over(each)}" for each in _last_of_each(choice.tried) if each.gpu.name != taken.gpu.name
    ]
    fewer = [each for each in choice.tried if each.gpu == taken.gpu and each.fit is not taken]
    lines += [f"passed over: {_passed_over(each)}" for each in fewer[-1:]]
    lines.append(f"{_counted(taken.gpu, taken.layout)}: {_share(taken)}")
    sequences = settings.max_sequences or WANTED_SEQUENCES
    wish = (
        f"one sequence of max_model_len ({taken.max_length:,} tokens) needs {_gib(taken.needed)} of KV cache, a batch "
        f"({sequences} sequences of {min(TYPICAL_TOKENS, taken.max_length):,} tokens, or that one) wants "
        f"{_gib(taken.wanted)}"
    )
    lines.append(wish + _room(taken))
    return lines


def _too_long(request: CreateBatchCompletionsV1Request, facts: ModelFacts) -> list[str]:
    """A warning, and no refusal: whether the worker's environment lifts the limit is not known here."""
    model, longest = request.model_cfg, facts.longest_allowed
    asked = model.max_model_len or model.max_context_length or 0
    if longest is None or asked <= longest or model.rope_scaling:
        return []
    line = f"max_model_len {asked:,} is more than the {longest:,} of the model's config: vLLM will refuse it, unless "
    return [line + "VLLM_ALLOW_LONG_MAX_MODEL_LEN is set in the worker's environment"]


def _room(taken: Fit) -> str:
    if taken.fits:
        return ""
    if taken.starts:
        return "; there is less, so fewer sequences run at once"
    return "; there is less by this estimate, so the engine may not start: a lower max_model_len would help"


def _passed_over(tried: Tried) -> str:
    if tried.fit is None:
        return _shortfall(tried)
    found = tried.fit
    if found.fits:
        return f"{_counted(found.gpu, found.layout)}, which would fit, costs more"
    return f"{_counted(found.gpu, found.layout)}: {_gib(found.room)} for the KV cache, {_gib(found.wanted)} are wanted"


def _known(model: Model, facts: ModelFacts, settings: EngineSettings) -> str:
    """The model in one clause."""
    loaded = loaded_bytes(facts, settings.quantization, settings.plain_bytes)
    how = settings.quantization.method if settings.quantization else f"{8 * settings.plain_bytes} bit"
    return f"weights of {_gib(loaded)} ({how}) and max_model_len {settings.max_length:,}, by {model.source}"


def _share(found: Fit) -> str:
    per = "each GPU" if found.layout.gpus * found.layout.nodes > 1 else "it"
    return (
        f"{per} has {_gib(found.gpu.memory)}, of which vLLM takes {_gib(found.budget)}: weights {_gib(found.weights)}, "
        f"computing {_gib(found.reserve)}, {_gib(max(0, found.room))} left for the KV cache"
    )


def _counted(gpu: Gpu, layout: Layout) -> str:
    """For example ``4 x nvidia-hopper-h100 (tensor parallel 4)``."""
    ways = [f"tensor parallel {layout.tensor}"] if layout.tensor > 1 else []
    ways += [f"{layout.pipeline} pipeline stages"] if layout.pipeline > 1 else []
    nodes = f" on each of {layout.nodes} nodes" if layout.nodes > 1 else ""
    return f"{layout.gpus} x {gpu.name}{nodes}" + (f" ({', '.join(ways)})" if ways else "")


def _gib(amount: float) -> str:
    return f"{amount / GIB:.1f} GiB"
