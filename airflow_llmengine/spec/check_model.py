"""What of ``model_config`` today's vLLM can't bring about, and what of it contradicts itself.

A field that is accepted and then ignored would be a defect, so each that has no effect is refused, with what to use
instead; which those are says ``engine_fields``. A value that asks for nothing (``enable_auto_tool_choice: false``) is
no reason to refuse. What only the installed vLLM or the model's files can tell, the worker refuses before it loads.
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_llmengine.spec.check_paths import checkpoint_refusals
from airflow_llmengine.spec.engine_fields import Becomes, fields_that_become
from airflow_llmengine.spec.multimodal_limits import multimodal_limits
from airflow_llmengine.spec.replica_nodes import nodes_of
from airflow_llmengine.spec.request import CreateBatchCompletionsV1ModelConfig, CreateBatchCompletionsV1Request
from airflow_llmengine.spec.rope_scaling import rope_type
from airflow_llmengine.spec.validation import Refusal
from airflow_llmengine.spec.wire_faults import shown_number

_AT_LEAST_ONE = (
    "max_num_seqs",
    "pipeline_parallel_size",
    "tensor_parallel_size",
    "max_num_batched_tokens",
    "block_size",
    "num_gpu_blocks_override",
)

_MAY_BE_EMPTY = ("chat_template", "limit_mm_per_prompt", "quantization_param_path", "tool_call_parser")
"""Texts that say nothing when they are empty, or of which another rule says what is wrong."""

_MOST_SWAP_SPACE = 2**20
"""GiB: more is a slip of the pen, and at last no number that a quantity can be made of."""

_SAME = (("num_shards", "tensor_parallel_size"), ("max_context_length", "max_model_len"))
"""Names of one thing, the contract's own first and vLLM's second."""


def model_refusals(request: CreateBatchCompletionsV1Request) -> Iterator[Refusal]:
    """Refuse what contradicts itself, what is out of bounds, and what would have no effect."""
    model = request.model_cfg
    for older, newer in _SAME:
        if model.is_given(older) and model.is_given(newer) and getattr(model, older) != getattr(model, newer):
            values = [shown_number(getattr(model, name)) for name in (older, newer)]
            reason = f"is {values[0]}, but {newer}, which means the same, is {values[1]}"
            yield Refusal(f"model_config.{older}", reason, "give one of the two")
    yield from _bound_refusals(model)
    yield from _revision_refusals(model)
    for field in fields_that_become(Becomes.REFUSED):
        if model.is_given(field.name):
            yield Refusal(f"model_config.{field.name}", field.sentence, field.remedy)
    yield from _tool_call_refusals(model)
    yield from _translation_refusals(model)
    yield from _swap_space_refusals(request)
    if model.skip_tokenizer_init and (request.content is not None or request.tool_config is not None):
        name = "content" if request.content is not None else "tool_config"
        reason = f"works from token ids to token ids, and {name} is about text"
        yield Refusal("model_config.skip_tokenizer_init", reason, "leave it out, or give records with token ids")


def _tool_call_refusals(model: CreateBatchCompletionsV1ModelConfig) -> Iterator[Refusal]:
    if model.enable_auto_tool_choice and not model.tool_call_parser:
        reason = "needs to know how this model writes tool calls"
        yield Refusal("model_config.enable_auto_tool_choice", reason, "give tool_call_parser too")
    if model.tool_call_parser and not model.enable_auto_tool_choice:
        # So vLLM has it: without the one it never looks at the other.
        reason = "has no effect by itself"
        yield Refusal("model_config.tool_call_parser", reason, "give enable_auto_tool_choice: true too")


def _translation_refusals(model: CreateBatchCompletionsV1ModelConfig) -> Iterator[Refusal]:
    if model.limit_mm_per_prompt is not None:
        try:
            multimodal_limits(model.limit_mm_per_prompt)
        except ValueError as error:
            remedy = 'write it as image=2,video=1 or as {"image": 2}'
            yield Refusal("model_config.limit_mm_per_prompt", str(error), remedy)
    if model.rope_scaling and rope_type(model.rope_scaling) is None:
        remedy = "give it, as the model's documentation has it, for example yarn"
        yield Refusal("model_config.rope_scaling", "names no rope_type", remedy)


def _swap_space_refusals(request: CreateBatchCompletionsV1Request) -> Iterator[Refusal]:
    space = request.model_cfg.swap_space
    if space is None:
        return
    if space < 0:
        yield Refusal("model_config.swap_space", f"must be 0 or more, not {shown_number(space)}")
    elif space > _MOST_SWAP_SPACE:
        yield Refusal("model_config.swap_space", f"must be at most {_MOST_SWAP_SPACE} GiB, not {shown_number(space)}")
    elif space and nodes_of(request) > 1:
        reason = "is memory that the processes of one node share, and nodes_per_worker is more than 1"
        yield Refusal("model_config.swap_space", reason, "leave it out; to preempt less, lower max_num_seqs")


def _revision_refusals(model: CreateBatchCompletionsV1ModelConfig) -> Iterator[Refusal]:
    """What names a revision of files that are not fetched from the hub, or of code that does not run."""
    if model.revision and model.checkpoint_path:
        reason = "has no effect: the files come from checkpoint_path, which has no revisions"
        yield Refusal("model_config.revision", reason, "leave one of the two out")
    if model.tokenizer_revision and model.checkpoint_path and not model.tokenizer:
        reason = "has no effect: the tokenizer comes from checkpoint_path, which has no revisions"
        yield Refusal("model_config.tokenizer_revision", reason, "leave it out, or give tokenizer too")
    if model.code_revision and not model.trust_remote_code:
        reason = "has no effect: code that comes with the model does not run"
        yield Refusal("model_config.code_revision", reason, "leave it out, or give trust_remote_code: true too")


def _bound_refusals(model: CreateBatchCompletionsV1ModelConfig) -> Iterator[Refusal]:
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, str) and name not in _MAY_BE_EMPTY and not value.strip():
            yield Refusal(f"model_config.{name}", "is empty")
        # They are told in logs, line by line.
        if isinstance(value, str) and name != "chat_template" and not value.isprintable():
            yield Refusal(f"model_config.{name}", "has control characters in it", "leave them out")
    if model.checkpoint_path is not None and model.checkpoint_path.strip() and model.checkpoint_path.isprintable():
        yield from checkpoint_refusals("model_config.checkpoint_path", model.checkpoint_path)
    if "://" in model.model and model.checkpoint_path is None:
        reason = "is a URL, and is taken for an id of the Hugging Face hub"
        yield Refusal("model_config.model", reason, "give the URL as checkpoint_path, and a name here")
    if model.tokenizer is not None and "://" in model.tokenizer:
        remedy = "put its files beside the checkpoint's, or give a directory or an id of the hub"
        yield Refusal("model_config.tokenizer", "can't be fetched from a URL", remedy)
    for name in _AT_LEAST_ONE:
        if model.is_given(name) and getattr(model, name) < 1:
            yield Refusal(f"model_config.{name}", f"must be at least 1, not {shown_number(getattr(model, name))}")
    if model.max_model_len is not None and model.max_model_len < 1 and model.max_model_len != -1:
        reason = f"must be at least 1, or -1 for what the memory allows, not {shown_number(model.max_model_len)}"
        yield Refusal("model_config.max_model_len", reason)
    share = model.gpu_memory_utilization
    if share is not None and not 0 < share <= 1:
        yield Refusal(
            "model_config.gpu_memory_utilization", f"must be above 0 and at most 1, not {shown_number(share)}"
        )
