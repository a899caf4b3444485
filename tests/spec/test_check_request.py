"""What ``check`` refuses beyond the schema: each kind of fault, with what the user reads."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_llmengine.spec.check import check, validate_request
from tests.spec.sample_requests import content_with, lines_of, parsed, refused, request_with


def test_a_plain_request_is_not_refused() -> None:
    assert validate_request(request_with()).model_cfg.model == "org/model"
    assert refused(input_data_path=None, content=content_with()) == {}


@pytest.mark.parametrize("fields", [{"input_data_path": None}, {"input_data_path": None, "content": None}])
def test_a_request_without_input_is_refused_in_one_sentence(fields: dict[str, Any]) -> None:
    assert lines_of(request_with(**fields)) == [
        "input_data_path: neither input_data_path nor content is given; give exactly one of the two"
    ]


def test_a_request_with_two_inputs_is_refused_in_one_sentence() -> None:
    assert lines_of(request_with(content=content_with())) == [
        "content: content and input_data_path are both given; give exactly one of the two"
    ]


def test_null_is_no_second_input() -> None:
    assert refused(content=None) == {}
    assert refused(input_data_path=None, content=content_with(prompts=[])) == {}


def test_all_refusals_come_at_once() -> None:
    found = refused(
        {"swap_space": -4, "labels": {"-": "x"}},
        input_data_path=None,
        output_data_path="",
        labels={"a": "b c"},
        priority="High",
        gpus=0,
        memory="16gb",
    )
    assert set(found) == {
        "input_data_path",
        "output_data_path",
        "labels.a",
        "priority",
        "gpus",
        "memory",
        "model_config.swap_space",
        'model_config.labels["-"]',
    }
    assert all(line.isprintable() for line in found.values())


@pytest.mark.parametrize(
    ("labels", "path", "said"),
    [
        ({"team": "Data & AI"}, "labels.team", ["'Data & AI'", "letters, digits", "'Data-AI'"]),
        ({"team": "x" * 70}, "labels.team", ["70 characters; 63 are allowed"]),
        ({"a b": "c"}, 'labels["a b"]', ["the key 'a b'", "letters, digits"]),
        ({"": "c"}, 'labels[""]', ["the key ''", "is empty"]),
        ({"UP.com/a": "c"}, 'labels["UP.com/a"]', ["before the '/'", "lower-case"]),
        ({"ok": "fine", "x" * 64: "c"}, 'labels["' + "x" * 57 + '..."]', ["64 characters; 63 are allowed"]),
    ],
)
def test_labels_that_kubernetes_would_refuse_name_key_and_reason(
    labels: dict[str, str], path: str, said: list[str]
) -> None:
    line = refused(labels=labels)[path]
    assert all(part in line for part in said), line
    nested = refused({"labels": labels})[f"model_config.{path}"]
    assert all(part in nested for part in said), nested


def test_every_wrong_label_is_named() -> None:
    assert len(refused({"labels": {"c": "&"}}, labels={"a": "&", "b": "&", "good": "value"})) == 3


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"memory": "16gb"}, "memory: '16gb' is not a Kubernetes quantity; write 16Gi"),
        ({"storage": "1 TB"}, "storage: '1 TB' is not a Kubernetes quantity; write 1Ti"),
        ({"memory": "much"}, "memory: 'much' is not a Kubernetes quantity; write it as a number with a suffix"),
        ({"memory": 16}, "memory: 16 is less than 1Mi of bytes; give the unit"),
        ({"memory": "400m"}, "memory: '400m' is less than 1Mi of bytes; give the unit"),
        ({"memory": 0}, "memory: must be more than 0, not 0"),
        ({"memory": 10**30}, "memory: 1"),
        ({"storage": "-1Gi"}, "storage: must be more than 0, not '-1Gi'"),
        ({"cpus": -1}, "cpus: must be more than 0, not -1"),
        ({"cpus": "4Gi"}, "cpus: '4Gi' is a number of bytes; CPUs are counted in cores"),
        ({"cpus": "four"}, "cpus: 'four' is not a Kubernetes quantity"),
        ({"cpus": 0.0001}, "cpus: 0.0001 is less than 1m"),
        ({"gpus": 0}, "gpus: must be at least 1, not 0"),
        ({"gpus": -2}, "gpus: must be at least 1, not -2"),
        (
            {"gpus": 0, "gpu_type": "nvidia-ampere-a10"},
            "gpus: must be at least 1, not 0, with a gpu_type of nvidia-ampere",
        ),
        ({"nodes_per_worker": 0}, "nodes_per_worker: must be at least 1, not 0"),
        ({"nodes_per_worker": 65}, "nodes_per_worker: must be at most 64, not 65"),
        ({"priority": "High Priority"}, "priority: 'High Priority' may hold only lower-case"),
        ({"priority": ""}, "priority: '' is empty"),
        ({"tool_config": {"name": "browser"}}, "tool_config.name: there is no tool 'browser'; use code_evaluator"),
    ],
)
def test_hardware_priority_and_tools(fields: dict[str, Any], said: str) -> None:
    (line,) = refused(**fields).values()
    assert line.startswith(said), line


@pytest.mark.parametrize(
    ("model", "fields", "said"),
    [
        (
            {"tensor_parallel_size": 4, "pipeline_parallel_size": 2},
            {"gpus": 8},
            "tensor_parallel_size 4 times pipeline_parallel_size 2 needs 8 GPUs, and there are 8 GPUs",
        ),
        ({"pipeline_parallel_size": 3}, {"gpus": 8}, "pipeline_parallel_size is 3, and there are 8 GPUs on each of 2"),
        ({"num_shards": 3, "pipeline_parallel_size": 1}, {}, "tensor_parallel_size 3 times pipeline_parallel_size 1"),
        ({"num_shards": 16}, {"gpus": 4}, "tensor_parallel_size is 16, and there are 4 GPUs on each of 2 nodes"),
        ({"pipeline_parallel_size": 2**40 + 1}, {}, "pipeline_parallel_size is 1099511627777, and there are 1 GPUs"),
    ],
)
def test_ranks_that_nodes_can_not_share(model: dict[str, Any], fields: dict[str, Any], said: str) -> None:
    (line,) = refused(model, nodes_per_worker=2, **fields).values()
    assert line.startswith(f"nodes_per_worker: {said}"), line


@pytest.mark.parametrize(
    "fields",
    [
        {"cpus": 4, "memory": "16Gi", "storage": 10**10, "gpus": 1},
        {"cpus": 0.5, "memory": 1.5e9, "storage": "1e10"},
        {"cpus": "500m", "memory": "64G", "nodes_per_worker": 1},
        {"gpus": 8, "nodes_per_worker": 2},
        {"nodes_per_worker": 3},
        {"nodes_per_worker": 64, "gpus": 8, "data_parallelism": 64},
        {"priority": "gpu-high", "gpu_type": "nvidia-hopper-h100", "data_parallelism": 64},
        {"cpus": None, "memory": None, "storage": None, "gpus": None, "nodes_per_worker": None, "priority": None},
    ],
)
def test_hardware_that_passes(fields: dict[str, Any]) -> None:
    assert refused(**fields) == {}


@pytest.mark.parametrize(
    ("given_input", "output", "said"),
    [
        ("in", "", "output_data_path: is empty"),
        ("in", "  ", "output_data_path: is empty"),
        ("in", " out", "output_data_path: has white space around it"),
        ("in", "out\n", "output_data_path: has white space around it"),
        ("in", "s3:/bucket/key", "output_data_path: has no // after s3:; write s3://"),
        ("in", "S3:bucket/key", "output_data_path: has no // after S3:"),
        ("in", "s3:///key", "output_data_path: names no bucket"),
        ("in", "s3://bucket", "output_data_path: names a bucket and no object in it"),
        ("in", "gs://bucket/", "output_data_path: names a bucket and no object in it"),
        ("in", "s3://bucket/folder/", "output_data_path: names a folder"),
        ("in", "folder/", "output_data_path: names a folder"),
        ("in", "..", "output_data_path: names a folder"),
        ("in", "https://host/out", "output_data_path: results can't be written to https://"),
        ("in", "simplecache::s3://b/k", "output_data_path: is a chain of URLs"),
        ("zip://a.csv::s3://b/k.zip", "out", "input_data_path: is a chain of URLs"),
        ("reference://::s3://b/refs.json", "out", "input_data_path: is a chain of URLs"),
        ("in", "gs://b/a::b", "output_data_path: is a chain of URLs"),
        ("in", "s3://b/x/../k", "output_data_path: has a part . or .. in it"),
        ("in", "az://c/./k", "output_data_path: has a part . or .. in it"),
        ("in", "out\0", "output_data_path: has white space around it, or control characters"),
        ("https://token@host/in", "out", "input_data_path: holds credentials"),
        ("in", "3s://b/k", "output_data_path: has no valid scheme"),
        ("in", "s3://key:secret@b/k", "output_data_path: holds credentials"),
        ("s3://key:secret@b/k", "out", "input_data_path: holds credentials"),
        ("", "out", "input_data_path: is empty"),
        ("gs:/b/k", "out", "input_data_path: has no // after gs:"),
        ("data", "data", "output_data_path: is the same as input_data_path"),
        ("data", "./x/../data", "output_data_path: is the same as input_data_path"),
        ("file:///a/b", "/a//b", "output_data_path: is the same as input_data_path"),
        ("s3a://b/k", "s3://b/k", "output_data_path: is the same as input_data_path"),
        ("s3://b/in/", "s3://b/in/out.json", "output_data_path: lies among the files of input_data_path"),
        ("s3://b/in", "s3://b/in/x/out.json", "output_data_path: lies among the files of input_data_path"),
        ("in/*.json", "in/out.json", "output_data_path: lies among the files of input_data_path"),
        ("in/**", "in/x/out.json", "output_data_path: lies among the files of input_data_path"),
    ],
)
def test_paths_that_are_refused(given_input: str, output: str, said: str) -> None:
    (line,) = refused(input_data_path=given_input, output_data_path=output).values()
    assert line.startswith(said), line
    assert "secret" not in line


@pytest.mark.parametrize(
    ("given_input", "output"),
    [
        ("in.jsonl", "out.jsonl"),
        ("/data/in/", "/data/out.json"),
        ("s3://b/in/", "s3://b/in-out.json"),
        ("s3://b/in/*.jsonl", "s3://b/in/out.json"),
        ("s3://b/in/", "s3://b/in/_results/out.json"),
        ("s3://b/in/", "gs://b/in/out.json"),
        ("memory://in", "memory://out"),
        ("in*", "out/in.json"),
        ("abfs://container@account.dfs.core.windows.net/in", "abfs://container@account.dfs.core.windows.net/out"),
        ("in.jsonl", "weird:name.json"),
        ("in.jsonl", "oci://bucket/out"),
        ("s3://b/a::b.jsonl", "s3://b/o::ut.json"),
    ],
)
def test_paths_that_pass(given_input: str, output: str) -> None:
    assert refused(input_data_path=given_input, output_data_path=output) == {}


@pytest.mark.parametrize(
    ("older", "newer"), [("num_shards", "tensor_parallel_size"), ("max_context_length", "max_model_len")]
)
def test_two_names_of_one_thing_may_not_differ(older: str, newer: str) -> None:
    (line,) = refused({older: 2, newer: 4}).values()
    assert line == f"model_config.{older}: is 2, but {newer}, which means the same, is 4; give one of the two"
    assert refused({older: 4, newer: 4}) == {}
    assert refused({older: None, newer: 4}) == {}
    assert refused({newer: 4}) == {}, "a default never contradicts what was given"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"max_seq_len_to_capture": 8192}, "model_config.max_seq_len_to_capture: vLLM no longer has it"),
        ({"quantization_param_path": "s.json"}, "model_config.quantization_param_path: vLLM no longer has it"),
        ({"override_neuron_config": {}}, "model_config.override_neuron_config: vLLM no longer has it"),
        ({"swap_space": -1}, "model_config.swap_space: must be 0 or more, not -1"),
        ({"swap_space": 1e300}, "model_config.swap_space: must be at most 1048576 GiB, not 1e+300"),
        ({"revision": "v2", "checkpoint_path": "/models/m"}, "model_config.revision: has no effect: the files come"),
        (
            {"tokenizer_revision": "v2", "checkpoint_path": "s3://b/m"},
            "model_config.tokenizer_revision: has no effect: the tokenizer comes from",
        ),
        ({"code_revision": "v2"}, "model_config.code_revision: has no effect: code that comes with the model does"),
        ({"dtype": ""}, "model_config.dtype: is empty"),
        ({"tokenizer_revision": " "}, "model_config.tokenizer_revision: is empty"),
        ({"limit_mm_per_prompt": "image:2"}, "model_config.limit_mm_per_prompt: is neither a list such as image=2"),
        ({"limit_mm_per_prompt": "image=1,image=2"}, "model_config.limit_mm_per_prompt: names a kind twice"),
        ({"limit_mm_per_prompt": "{image"}, "model_config.limit_mm_per_prompt: is not valid JSON"),
        ({"limit_mm_per_prompt": '{"image": -1}'}, "model_config.limit_mm_per_prompt: gives no number of items"),
        ({"limit_mm_per_prompt": '{"image": {"count": "x"}}'}, "model_config.limit_mm_per_prompt: gives no number"),
        ({"rope_scaling": {"factor": 2}}, "model_config.rope_scaling: names no rope_type"),
        ({"tool_call_parser": "hermes"}, "model_config.tool_call_parser: has no effect by itself"),
        ({"enable_auto_tool_choice": True}, "model_config.enable_auto_tool_choice: needs to know how"),
        (
            {"checkpoint_path": "https://host/weights"},
            "model_config.checkpoint_path: a checkpoint can't be fetched from",
        ),
        ({"checkpoint_path": "s3://b/../weights"}, "model_config.checkpoint_path: has a part . or .. in it"),
        ({"checkpoint_path": "s3://"}, "model_config.checkpoint_path: names no bucket"),
        ({"checkpoint_path": "s3:/b/weights"}, "model_config.checkpoint_path: has no // after s3:"),
        ({"checkpoint_path": "s3://key:secret@b/w"}, "model_config.checkpoint_path: holds credentials"),
        ({"checkpoint_path": "simplecache::s3://b/w"}, "model_config.checkpoint_path: is a chain of URLs"),
        ({"model": "s3://b/weights"}, "model_config.model: is a URL, and is taken for an id"),
        ({"tokenizer": "s3://b/tokenizer"}, "model_config.tokenizer: can't be fetched from a URL"),
        ({"checkpoint_path": ""}, "model_config.checkpoint_path: is empty"),
        ({"model": " "}, "model_config.model: is empty"),
        ({"model": "m\nERROR forged"}, "model_config.model: has control characters in it"),
        ({"dtype": "\x1b[2J"}, "model_config.dtype: has control characters in it"),
        ({"max_model_len": 0}, "model_config.max_model_len: must be at least 1"),
        ({"tensor_parallel_size": 0}, "model_config.tensor_parallel_size: must be at least 1, not 0"),
        ({"max_num_seqs": -1}, "model_config.max_num_seqs: must be at least 1, not -1"),
        ({"gpu_memory_utilization": 90}, "model_config.gpu_memory_utilization: must be above 0 and at most 1, not 90"),
    ],
)
def test_what_vllm_or_this_version_can_not_do_is_refused(model: dict[str, Any], said: str) -> None:
    (line,) = refused(model).values()
    assert line.startswith(said), line
    assert "; " in line or "must be" in line or "is empty" in line, "says what to do"


@pytest.mark.parametrize(
    "model",
    [
        {"enable_auto_tool_choice": False, "skip_tokenizer_init": False, "rope_scaling": None, "swap_space": None},
        {"chat_template": "{{ messages }}", "response_role": "assistant", "limit_mm_per_prompt": ""},
        {"checkpoint_path": "/models/m", "max_model_len": 4096, "gpu_memory_utilization": 1, "seed": 0},
        {"checkpoint_path": "s3://b/weights/v1/"},
        {"checkpoint_path": "/m", "tokenizer": "org/t", "tokenizer_revision": "v2", "revision": None},
        {"revision": "v2", "tokenizer_revision": "v3", "code_revision": "v4", "trust_remote_code": True},
        {"checkpoint_path": "az://container@account/weights"},
        {"model": "s3://b/weights", "checkpoint_path": "gs://b/weights"},
        {"cache_dtype": "fp8", "disable_log_requests": True, "trust_remote_code": True, "enforce_eager": "True"},
        {"max_model_len": -1, "pipeline_parallel_size": 2, "block_size": 16, "enable_prefix_caching": False},
        {"tool_call_parser": "hermes", "enable_auto_tool_choice": True, "response_role": "bot"},
        {"swap_space": 4, "rope_scaling": {"type": "yarn", "factor": 2}, "skip_tokenizer_init": True},
        {"limit_mm_per_prompt": '{"image": 2, "video": {"count": 1}}', "mm_processor_kwargs": {"a": 1}},
    ],
)
def test_what_can_be_done_passes(model: dict[str, Any]) -> None:
    assert refused(model) == {}


def test_without_a_tokenizer_the_prompts_of_content_are_refused() -> None:
    (line,) = refused({"skip_tokenizer_init": True}, input_data_path=None, content=content_with()).values()
    assert line.startswith("model_config.skip_tokenizer_init: works from token ids to token ids, and content is")


def test_memory_to_swap_to_is_for_one_node() -> None:
    (line,) = refused({"swap_space": 4}, nodes_per_worker=2).values()
    assert line.startswith("model_config.swap_space: is memory that the processes of one node share")
    assert refused({"swap_space": 0}, nodes_per_worker=2) == {}


def test_an_answer_of_no_tokens_is_refused() -> None:
    (line,) = refused(input_data_path=None, content=content_with(max_new_tokens=0)).values()
    assert line == "content.max_new_tokens: must be at least 1, not 0"


def test_check_does_not_look_at_each_prompt() -> None:
    class Unread(list[str]):
        def __iter__(self) -> Any:
            raise AssertionError("read")

    request = parsed(input_data_path=None, content=content_with())
    assert request.content is not None
    content = request.content.model_copy(update={"prompts": Unread(["a"])})
    assert check(request.model_copy(update={"content": content})) == []
