"""What a job is on the wire: ``CreateBatchCompletionsV1Request`` and its parts.

Fields stand in the order of the contract. What the fields mean together (which exclude each other, what today's vLLM or
Kubernetes would refuse) is ``check``'s business.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import Field

from airflow_llmengine.spec.wire_model import WireModel
from airflow_llmengine.spec.wire_types import (
    FLAG,
    FREE_OBJECT,
    QUANTITY,
    TEXT,
    TEXT_LIST,
    Choice,
    integer,
    map_of,
    number,
)


class GpuType(StrEnum):
    """The kinds of GPU that a worker can ask for; the last two are slices (MIG) of an H100."""

    NVIDIA_TESLA_T4 = "nvidia-tesla-t4"
    NVIDIA_AMPERE_A10 = "nvidia-ampere-a10"
    NVIDIA_AMPERE_A100 = "nvidia-ampere-a100"
    NVIDIA_AMPERE_A100E = "nvidia-ampere-a100e"
    NVIDIA_HOPPER_H100 = "nvidia-hopper-h100"
    NVIDIA_HOPPER_H100_1G20GB = "nvidia-hopper-h100-1g20gb"
    NVIDIA_HOPPER_H100_3G40GB = "nvidia-hopper-h100-3g40gb"


class ToolConfig(WireModel):
    """A tool that the model may use while it writes a completion of a V1 job."""

    name: Annotated[str, TEXT]
    """The tool; ``code_evaluator`` is the only one."""
    max_iterations: Annotated[int | None, integer()] = 10
    """Rounds of generation and tool run for one completion."""
    execution_timeout_seconds: Annotated[int | None, integer()] = 60
    """Seconds that one run of the tool may take."""
    should_retry_on_error: Annotated[bool | None, FLAG] = True
    """Whether the names that earlier blocks of the same completion defined are there for later ones."""


class CreateBatchCompletionsV1RequestContent(WireModel):
    """The prompts of a V1 job, and one set of sampling parameters for all of them."""

    private_text: ClassVar[bool] = True

    prompts: Annotated[list[str], TEXT_LIST, Field(repr=False)]
    """The prompts, passed to the model letter for letter."""
    max_new_tokens: Annotated[int, integer()]
    """The most tokens that one completion may have."""
    temperature: Annotated[float, number(0, 1)]
    """Sampling temperature; 0 is greedy decoding."""
    stop_sequences: Annotated[list[str] | None, TEXT_LIST] = None
    """Strings at which generation ends; they are not part of the completion."""
    return_token_log_probs: Annotated[bool | None, FLAG] = False
    """Whether each result lists its tokens with the natural logarithm of each one's probability."""
    presence_penalty: Annotated[float | None, number(0, 2)] = None
    """Taken off the logit of every token that is in the completion already; 0 is none."""
    frequency_penalty: Annotated[float | None, number(0, 2)] = None
    """Taken off a token's logit once for each time that it is in the completion already; 0 is none."""
    top_k: Annotated[int | None, integer(-1)] = None
    """Sample from this many of the likeliest tokens only; -1 is all."""
    top_p: Annotated[float | None, number(None, 1, above=0)] = None
    """Sample from the likeliest tokens that together have this probability; 1 is all."""
    skip_special_tokens: Annotated[bool | None, FLAG] = True
    """Whether special tokens are left out of the text."""


class CreateBatchCompletionsV1ModelConfig(WireModel):
    """Which model, and how its engine is set up.

    A field that was not given is not passed to the engine: the engine's own default stands. Where nothing else is said,
    a field is the vLLM engine argument of the same name.
    """

    max_model_len: Annotated[int | None, integer()] = None
    """Longest sequence, prompt and completion together, in tokens."""
    max_num_seqs: Annotated[int | None, integer()] = None
    """Most sequences that the engine runs at once."""
    enforce_eager: Annotated[bool | None, FLAG] = None
    """Whether CUDA graphs are off."""
    trust_remote_code: Annotated[bool | None, FLAG] = False
    """Whether code that comes with the model may run."""
    pipeline_parallel_size: Annotated[int | None, integer()] = None
    """Number of pipeline stages."""
    tensor_parallel_size: Annotated[int | None, integer()] = None
    """Number of GPUs that share each layer; see also ``num_shards``."""
    quantization: Annotated[str | None, TEXT] = None
    """How the weights are quantized, where the model's own config does not say."""
    disable_log_requests: Annotated[bool | None, FLAG] = None
    """The negation of vLLM's ``enable_log_requests``."""
    chat_template: Annotated[str | None, TEXT, Field(repr=False)] = None
    """Jinja template for chat records instead of the model's own; passed on letter for letter."""
    tool_call_parser: Annotated[str | None, TEXT] = None
    """How tool calls are read out of a chat completion."""
    enable_auto_tool_choice: Annotated[bool | None, FLAG] = None
    """Whether the model may decide by itself to call a tool."""
    load_format: Annotated[str | None, TEXT] = None
    """Format of the weights."""
    config_format: Annotated[str | None, TEXT] = None
    """Format of the model's config."""
    tokenizer_mode: Annotated[str | None, TEXT] = None
    """Which implementation of the tokenizer."""
    limit_mm_per_prompt: Annotated[str | None, TEXT] = None
    """Most multimodal items of each kind in one prompt: ``image=2``, or JSON."""
    max_num_batched_tokens: Annotated[int | None, integer()] = None
    """Most tokens in one step of the engine."""
    tokenizer: Annotated[str | None, TEXT] = None
    """Name or directory of the tokenizer, if it is not the model's own."""
    dtype: Annotated[str | None, TEXT] = None
    """Data type of weights and activations."""
    seed: Annotated[int | None, integer()] = None
    """Seed of the engine."""
    revision: Annotated[str | None, TEXT] = None
    """Branch, tag or commit of the model."""
    code_revision: Annotated[str | None, TEXT] = None
    """Branch, tag or commit of the code that comes with the model."""
    rope_scaling: Annotated[dict[str, Any] | None, FREE_OBJECT] = None
    """Scaling of the rotary position embedding; a part of vLLM's ``hf_overrides``."""
    tokenizer_revision: Annotated[str | None, TEXT] = None
    """Branch, tag or commit of the tokenizer."""
    quantization_param_path: Annotated[str | None, TEXT] = None
    """File with scales of the KV cache. Gone from vLLM."""
    max_seq_len_to_capture: Annotated[int | None, integer()] = None
    """Longest sequence that CUDA graphs cover, in tokens. Gone from vLLM."""
    disable_sliding_window: Annotated[bool | None, FLAG] = None
    """Whether the model's sliding attention window is off."""
    skip_tokenizer_init: Annotated[bool | None, FLAG] = None
    """Whether the engine works without a tokenizer, from token ids to token ids."""
    served_model_name: Annotated[str | None, TEXT] = None
    """Another name of the model that records may use and results show."""
    override_neuron_config: Annotated[dict[str, Any] | None, FREE_OBJECT] = None
    """Settings of the Neuron device. Gone from vLLM."""
    mm_processor_kwargs: Annotated[dict[str, Any] | None, FREE_OBJECT] = None
    """Arguments of the multimodal processor."""
    block_size: Annotated[int | None, integer()] = None
    """Tokens in one block of the KV cache."""
    gpu_memory_utilization: Annotated[float | None, number()] = None
    """Share of the GPU's memory that the engine may take, from 0 to 1."""
    swap_space: Annotated[float | None, number()] = None
    """GiB of CPU memory for each GPU to swap to; a part of vLLM's ``kv_offloading_size``, which is that of all GPUs."""
    cache_dtype: Annotated[str | None, TEXT] = None
    """Data type of the KV cache: vLLM's ``kv_cache_dtype``."""
    num_gpu_blocks_override: Annotated[int | None, integer()] = None
    """Number of KV cache blocks, instead of what the engine measures."""
    enable_prefix_caching: Annotated[bool | None, FLAG] = None
    """Whether the KV cache of shared prefixes is kept."""
    model: Annotated[str, TEXT]
    """Name of the model, and its Hugging Face id to load unless ``checkpoint_path`` is set."""
    checkpoint_path: Annotated[str | None, TEXT] = None
    """Where the weights are: a local directory or an object-store prefix."""
    num_shards: Annotated[int | None, integer(1)] = 1
    """Tensor parallel size where ``tensor_parallel_size`` is not given."""
    max_context_length: Annotated[int | None, integer(1)] = None
    """Older name of ``max_model_len``, in tokens."""
    response_role: Annotated[str | None, TEXT] = None
    """Role of the message that answers a chat record."""
    labels: Annotated[dict[str, str], map_of(TEXT)] = Field(default_factory=dict)
    """Labels of every Kubernetes object of the job; the job's own ``labels`` win."""


class CreateBatchCompletionsV1Request(WireModel):
    """A job: a model, many records, and where the results shall stand."""

    input_data_path: Annotated[str | None, TEXT] = None
    """URL of the records: a file, a prefix or a glob. Exactly one of this and ``content``."""
    output_data_path: Annotated[str, TEXT]
    """URL at which the result stands once the job has succeeded, and never before."""
    labels: Annotated[dict[str, str], map_of(TEXT)] = Field(default_factory=dict)
    """Labels of every Kubernetes object of the job; they win over ``model_config.labels``."""
    data_parallelism: Annotated[int | None, integer(1, 64)] = 1
    """Number of replicas that share the records."""
    max_runtime_sec: Annotated[int | None, integer(1, 172_800)] = 86_400
    """Seconds that the whole job may take, restarts included."""
    priority: Annotated[str | None, TEXT] = None
    """PriorityClass of the pods."""
    tool_config: ToolConfig | None = None
    """A tool that the model may use; V1 only."""
    cpus: Annotated[str | int | float | None, QUANTITY] = None
    """CPU cores of each worker: a Kubernetes quantity or a number."""
    gpus: Annotated[int | None, integer()] = None
    """GPUs of each worker; inferred from the model when not given."""
    memory: Annotated[str | int | float | None, QUANTITY] = None
    """Memory of each worker: a Kubernetes quantity, or a number of bytes."""
    gpu_type: Annotated[GpuType | None, Choice(tuple(GpuType))] = None
    """Kind of the GPUs; inferred when not given."""
    storage: Annotated[str | int | float | None, QUANTITY] = None
    """Ephemeral storage of each worker: a Kubernetes quantity, or a number of bytes."""
    nodes_per_worker: Annotated[int | None, integer()] = None
    """Pods that one replica spans, each with ``gpus`` GPUs."""
    content: Annotated[CreateBatchCompletionsV1RequestContent | None, Field(repr=False)] = None
    """The records themselves. Exactly one of this and ``input_data_path``."""
    model_cfg: Annotated[CreateBatchCompletionsV1ModelConfig, Field(alias="model_config")]
    """The model and its engine. On the wire ``model_config``, a name that pydantic keeps for itself."""
