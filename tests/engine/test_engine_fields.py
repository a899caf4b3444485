"""Each field of ``model_config``, and ``engine_args``, against the installed vLLM's own classes: no weights are loaded.

A version of vLLM that renames or drops an argument turns this red, with the argument's name.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_llmengine.spec.check import check
from airflow_llmengine.spec.engine_args import NOT_TO_BE_SET, SERVING_ARGUMENTS, WITHOUT_EFFECT_ON_ANSWERS
from airflow_llmengine.spec.engine_fields import ENGINE_FIELDS, FIELD_OF, Becomes
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.engines import vllm
from airflow_llmengine.worker.engines.load import EngineUnavailableError
from airflow_llmengine.worker.engines.vllm import VLLMEngine
from airflow_llmengine.worker.engines.vllm_argument_names import engine_argument_names, unknown_arguments
from airflow_llmengine.worker.weights.model_files import ModelFiles
from airflow_llmengine.worker.weights.model_source import ModelSource
from tests.engine.conftest import RunningEngine
from tests.engine.records import job

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

HEADS = 3
"""Into so many parts the small model's attention can be shared."""

CASES: Mapping[str, tuple[Any, str, Any]] = {
    "max_model_len": (77, "model_config.max_model_len", 77),
    "max_num_seqs": (7, "scheduler_config.max_num_seqs", 7),
    "enforce_eager": (True, "model_config.enforce_eager", True),
    "trust_remote_code": (True, "model_config.trust_remote_code", True),
    "pipeline_parallel_size": (2, "parallel_config.pipeline_parallel_size", 2),
    "tensor_parallel_size": (HEADS, "parallel_config.tensor_parallel_size", HEADS),
    "quantization": ("fp8", "model_config.quantization", "fp8"),
    "load_format": ("safetensors", "load_config.load_format", "safetensors"),
    "config_format": ("hf", "model_config.config_format", "hf"),
    "tokenizer_mode": ("slow", "model_config.tokenizer_mode", "slow"),
    "max_num_batched_tokens": (4321, "scheduler_config.max_num_batched_tokens", 4321),
    "tokenizer": ("{checkpoint}", "model_config.tokenizer", "{checkpoint}"),
    "dtype": ("bfloat16", "model_config.dtype", "torch.bfloat16"),
    "seed": (12, "model_config.seed", 12),
    "revision": ("-dash", "model_config.revision", "-dash"),
    "code_revision": ("abc", "model_config.code_revision", "abc"),
    "tokenizer_revision": ("abc", "model_config.tokenizer_revision", "abc"),
    "rope_scaling": (
        {"type": "yarn", "factor": 2},
        "model_config.hf_text_config.rope_parameters",
        # The small model's own length and base are kept.
        {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 8192, "rope_theta": 100000.0},
    ),
    "disable_sliding_window": (True, "model_config.disable_sliding_window", True),
    "skip_tokenizer_init": (True, "model_config.skip_tokenizer_init", True),
    "served_model_name": (
        "a name, with=signs.and {braces}",
        "model_config.served_model_name",
        "a name, with=signs.and {braces}",
    ),
    "block_size": (64, "cache_config.block_size", 64),
    "gpu_memory_utilization": (0.5, "cache_config.gpu_memory_utilization", 0.5),
    "cache_dtype": ("fp8", "cache_config.cache_dtype", "fp8"),
    "num_gpu_blocks_override": (50, "cache_config.num_gpu_blocks_override", 50),
    "enable_prefix_caching": (False, "cache_config.enable_prefix_caching", False),
    "num_shards": (HEADS, "parallel_config.tensor_parallel_size", HEADS),
    "max_context_length": (99, "model_config.max_model_len", 99),
}
"""Fields with a value, and where in vLLM's resolved config it stands as what."""

OF_A_HUB = frozenset({"revision", "code_revision", "tokenizer_revision"})

SERVED: Mapping[str, tuple[dict[str, Any], str, Any]] = {
    "disable_log_requests": ({"disable_log_requests": False}, "enable_log_requests", True),
    "chat_template": ({"chat_template": "{{ messages }}"}, "chat_template", "{{ messages }}"),
    "tool_call_parser": (
        {"tool_call_parser": "hermes", "enable_auto_tool_choice": True},
        "tool_call_parser",
        "hermes",
    ),
    "enable_auto_tool_choice": (
        {"tool_call_parser": "hermes", "enable_auto_tool_choice": True},
        "enable_auto_tool_choice",
        True,
    ),
    "response_role": ({"response_role": "bot"}, "response_role", "bot"),
}
"""Fields that the serving objects are made with, and not the engine: where in the parsed arguments they stand."""

NEEDS_OTHERS: Mapping[str, tuple[Any, str, str]] = {
    "limit_mm_per_prompt": ("image=2,video=0", "has no effect: the model takes text only", "limit_mm_per_prompt"),
    "mm_processor_kwargs": ({"num_crops": 4}, "has no effect: the model takes text only", "mm_processor_kwargs"),
    "swap_space": (2, "is memory for each GPU, and there is none here", "kv_offloading_size"),
}
"""Fields that a small text model on the CPU is refused for: with a value, and why."""

OURS = {field.name for field in ENGINE_FIELDS if field.becomes is Becomes.OURS}


def test_each_field_has_its_case() -> None:
    refused = {field.name for field in ENGINE_FIELDS if field.becomes is Becomes.REFUSED}
    cases = [*CASES, *SERVED, *NEEDS_OTHERS, *OURS, *refused]
    assert sorted(cases) == sorted(field.name for field in ENGINE_FIELDS)


def arguments_of(checkpoint: Path, fields: Mapping[str, Any], further: Mapping[str, Any] | None = None) -> Any:
    # Nothing of the small job's own.
    bare = {"max_model_len": None, "max_num_seqs": None, "dtype": None}
    if OF_A_HUB & fields.keys():
        # As a hub's model is once it was fetched: a folder has no revisions.
        of_a_hub = {"model": "org/small", "checkpoint_path": None, "trust_remote_code": True}
        request = job(checkpoint, **{**bare, **of_a_hub, **fields})
        assert check(request) == []
        return vllm._arguments(request, ModelSource(checkpoint, None), None, further)
    request = job(checkpoint, **{**bare, **fields})
    assert check(request) == []
    return vllm._arguments(request, ModelFiles(Storage(), request).find(), None, further)


def configured(checkpoint: Path, fields: Mapping[str, Any], further: Mapping[str, Any] | None = None) -> Any:
    return vllm._configured(arguments_of(checkpoint, fields, further))


def at(place: str, root: Any) -> Any:
    for name in place.split("."):
        root = getattr(root, name)
    return root


@pytest.mark.parametrize("field", CASES)
@pytest.mark.usefixtures("running")
def test_the_resolved_config_carries_it(quickstart_model: Path, field: str) -> None:
    value, place, expected = CASES[field]
    value, expected = (str(quickstart_model) if each == "{checkpoint}" else each for each in (value, expected))
    _parsed, config = configured(quickstart_model, {field: value})
    found = at(place, config)
    assert (found if isinstance(found, dict) else str(found)) == (
        expected if isinstance(expected, dict) else str(expected)
    )


@pytest.mark.parametrize("field", SERVED)
@pytest.mark.usefixtures("running")
def test_the_serving_objects_are_made_with_it(quickstart_model: Path, field: str) -> None:
    fields, place, expected = SERVED[field]
    parsed, _config = configured(quickstart_model, fields)
    assert getattr(parsed, place) == expected


@pytest.mark.parametrize("field", NEEDS_OTHERS)
@pytest.mark.usefixtures("running")
def test_what_this_model_or_machine_has_no_use_for_is_refused(quickstart_model: Path, field: str) -> None:
    value, why, argument = NEEDS_OTHERS[field]
    with pytest.raises(EngineUnavailableError, match=re.escape(f"model_config.{field} {why}")):
        configured(quickstart_model, {field: value})
    assert FIELD_OF[field].argument == argument


@pytest.mark.usefixtures("running")
def test_where_there_are_gpus_or_images_they_reach_vllms_own_configs(
    quickstart_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On vLLM's config objects: this machine has no GPU, and the small model takes text only."""
    from vllm.config.cache import CacheConfig
    from vllm.config.multimodal import MultiModalConfig
    from vllm.config.structured_outputs import StructuredOutputsConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform

    def resolved(self: Any, **_: Any) -> Any:
        multimodal = MultiModalConfig(
            limit_per_prompt=self.limit_mm_per_prompt, mm_processor_kwargs=self.mm_processor_kwargs
        )
        cache = CacheConfig(kv_offloading_size=self.kv_offloading_size)
        return SimpleNamespace(
            model_config=SimpleNamespace(multimodal_config=multimodal),
            cache_config=cache,
            structured_outputs_config=StructuredOutputsConfig(backend="xgrammar"),
        )

    fields = {"tensor_parallel_size": 4, **{name: case[0] for name, case in NEEDS_OTHERS.items()}}
    arguments = {**arguments_of(quickstart_model, fields), "gpu_memory_utilization": 0.5}
    monkeypatch.setattr(AsyncEngineArgs, "create_engine_config", resolved)
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda _self: False)
    _parsed, config = vllm._configured(arguments)
    assert config.model_config.multimodal_config.get_limit_per_prompt("image") == 2
    assert config.model_config.multimodal_config.get_limit_per_prompt("video") == 0
    assert config.model_config.multimodal_config.mm_processor_kwargs == {"num_crops": 4}
    assert config.cache_config.kv_offloading_size == 8, "2 GiB for each of 4 GPUs"


@pytest.mark.usefixtures("running")
def test_memory_to_swap_to_is_a_kv_cache_in_memory_of_that_size_for_each_gpu(quickstart_model: Path) -> None:
    """As vLLM's own offloading reads it: the size is that of all ranks together, in one piece of shared memory."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    size = arguments_of(quickstart_model, {"swap_space": 2, "num_shards": HEADS})["kv_offloading_size"]
    arguments = AsyncEngineArgs(model=str(quickstart_model), tensor_parallel_size=HEADS, kv_offloading_size=size)
    transfer = arguments.create_engine_config().kv_transfer_config
    assert transfer.kv_connector == "OffloadingConnector"
    assert transfer.kv_connector_extra_config["cpu_bytes_to_use"] == HEADS * 2 * 2**30


@pytest.mark.usefixtures("running")
def test_a_longer_rope_makes_longer_sequences(quickstart_model: Path) -> None:
    _parsed, config = configured(quickstart_model, {"rope_scaling": {"rope_type": "yarn", "factor": 2}})
    assert config.model_config.max_model_len == 2 * 8192
    _parsed, config = configured(quickstart_model, {"rope_scaling": {"rope_type": "linear", "factor": 4}})
    assert config.model_config.max_model_len == 4 * 8192


@pytest.mark.usefixtures("running")
def test_a_tool_parser_that_there_is_not_is_refused_with_those_that_there_are(quickstart_model: Path) -> None:
    fields = {"tool_call_parser": "hermis", "enable_auto_tool_choice": True}
    with pytest.raises(EngineUnavailableError, match=r"tool_call_parser: there is no 'hermis'; vLLM has .*, hermes, "):
        configured(quickstart_model, fields)


@pytest.mark.usefixtures("running")
def test_batches_are_as_large_as_for_vllms_own_offline_class(quickstart_model: Path) -> None:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    _parsed, config = configured(quickstart_model, {})
    tokens, sequences = (defaults[UsageContext.LLM_CLASS] for defaults in EngineArgs.get_batch_defaults(1))
    assert config.scheduler_config.max_num_seqs == sequences
    assert config.scheduler_config.max_num_batched_tokens >= tokens


@pytest.mark.parametrize(
    "template",
    ["{{ a.b }} = {% if x %}\r\n+{% endif %}", "--{'a': \"b\"}", "{#" + "x" * 5000 + "#}", "\n", "{{'\u2028é'}}"],
)
@pytest.mark.usefixtures("running")
def test_a_chat_template_reaches_vllm_letter_for_letter(quickstart_model: Path, template: str) -> None:
    from vllm.renderers.chat_utils import load_chat_template

    parsed, _config = configured(quickstart_model, {"chat_template": template})
    assert load_chat_template(parsed.chat_template) == template


# Names


@pytest.fixture(scope="module")
def parsed_names(running: RunningEngine) -> set[str]:
    """All arguments of ``vllm serve``."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    return {action.dest for action in make_arg_parser(FlexibleArgumentParser())._actions}


@pytest.fixture(scope="module")
def engine_names(running: RunningEngine) -> set[str]:
    """The fields of the class of the engine's arguments."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    return {field.name for field in dataclasses.fields(AsyncEngineArgs) if not field.name.startswith("_")}


def test_vllm_has_every_argument_that_a_field_becomes(parsed_names: set[str]) -> None:
    assert {field.argument for field in ENGINE_FIELDS if field.argument} - parsed_names == set()


def test_vllm_has_every_argument_that_the_worker_sets(running: RunningEngine, parsed_names: set[str]) -> None:
    assert set(arguments_of(Path(running.engine._request.model_cfg.checkpoint_path or ""), {})) - parsed_names == set()
    several = {"nnodes", "node_rank", "master_addr", "master_port", "distributed_executor_backend"}
    assert several - parsed_names == set()


def test_vllm_has_every_argument_that_engine_args_speaks_of(parsed_names: set[str], engine_names: set[str]) -> None:
    assert SERVING_ARGUMENTS - parsed_names == set()
    assert SERVING_ARGUMENTS & engine_names == set(), "those are taken anyway"
    assert WITHOUT_EFFECT_ON_ANSWERS - engine_names == set()
    assert NOT_TO_BE_SET.keys() - parsed_names - engine_names == set()


def test_the_names_are_read_as_vllm_has_them(engine_names: set[str]) -> None:
    assert engine_argument_names() == engine_names


# ``engine_args``


@pytest.mark.parametrize(
    ("further", "place", "expected"),
    [
        ({"max_logprobs": 7}, "model_config.max_logprobs", 7),
        ({"max_logprobs": "7"}, "model_config.max_logprobs", 7),
        ({"async_scheduling": False}, "scheduler_config.async_scheduling", False),
        ({"ignore_patterns": ["a*", "b c"]}, "load_config.ignore_patterns", ["a*", "b c"]),
        (
            {"override_generation_config": {"temperature": 0.5}},
            "model_config.override_generation_config",
            {"temperature": 0.5},
        ),
        ({"compilation_config": {"mode": 0}}, "compilation_config.mode", 0),
        ({"hf_overrides": {"num_hidden_layers": 3}}, "model_config.hf_config.num_hidden_layers", 3),
    ],
    ids=str,
)
@pytest.mark.usefixtures("running")
def test_a_further_argument_reaches_vllm(
    quickstart_model: Path, further: dict[str, Any], place: str, expected: Any
) -> None:
    fields = {"rope_scaling": {"type": "linear", "factor": 2}}
    _parsed, config = configured(quickstart_model, fields, further)
    assert at(place, config) == expected
    assert config.model_config.hf_config.rope_parameters["rope_type"] == "linear", "both have a part in the overrides"


@pytest.mark.usefixtures("running")
def test_a_further_argument_reaches_the_serving_objects(quickstart_model: Path) -> None:
    further = {"default_chat_template_kwargs": {"enable_thinking": False}, "return_tokens_as_token_ids": True}
    parsed, _config = configured(quickstart_model, {}, further)
    assert {name: getattr(parsed, name) for name in further} == further


@pytest.mark.parametrize(
    ("fields", "further", "said"),
    [
        ({}, {"max_logprobs": "many"}, "max-logprobs"),
        ({}, {"reasoning_parser": "deep"}, "engine_args.reasoning_parser: there is no 'deep'; vLLM has .*deepseek_r1"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2}},
            {"hf_overrides": {"rope_parameters": {}}},
            "engine_args.hf_overrides overrides what model_config.rope_scaling does",
        ),
    ],
    ids=str,
)
@pytest.mark.usefixtures("running")
def test_a_further_argument_that_vllm_can_not_have_is_refused(
    quickstart_model: Path, fields: dict[str, Any], further: dict[str, Any], said: str
) -> None:
    with pytest.raises(EngineUnavailableError, match=said) as caught:
        configured(quickstart_model, fields, further)
    assert "\n" not in str(caught.value)


def test_a_name_that_vllm_does_not_have_is_refused_before_the_model_is_looked_for(tmp_path: Path) -> None:
    engine = VLLMEngine(job(tmp_path / "nothing"))
    with pytest.raises(EngineUnavailableError, match=r"engine_args.max_logprbs: vLLM .* did you mean max_logprobs\?"):
        engine.take_arguments({"max_logprbs": 7})
    assert unknown_arguments(["max_logprobs", "cohere_format"], engine.version) == []
