from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.hardware.gpus import GIB, Gpu
from airflow_llmengine.spec.hardware.inference import Model, completed_request, infer_gpus, infer_without_gpus
from airflow_llmengine.spec.identity import fingerprint
from airflow_llmengine.spec.validation import RequestInvalidError
from tests.spec.hardware.models import facts_of
from tests.spec.hardware.requests import A10, A100, ALL, H100, T4, a_request, counted, infer

UNKNOWN = Model(None, "the hub can't be reached")
LLAMA = "Llama-3.1-8B-Instruct"
LEAST = {"input_data_path": "in.jsonl", "output_data_path": "out.jsonl", "model_config": {"model": "m"}}


def refusal(name: str, *listed: Any, **fields: Any) -> str:
    with pytest.raises(RequestInvalidError) as raised:
        infer(name, *listed, **fields)
    return str(raised.value)


# Case 21: what is given in part


def test_gpus_alone_get_the_cheapest_type_on_which_that_many_are_enough() -> None:
    assert counted(infer(LLAMA, *ALL, gpus=1, max_model_len=8192)) == (1, "nvidia-ampere-a100")
    assert counted(infer(LLAMA, *ALL, gpus=2, max_model_len=8192)) == (2, "nvidia-tesla-t4")
    assert counted(infer(LLAMA, A10, H100, gpus=1)) == (1, "nvidia-hopper-h100")


def test_gpus_alone_without_a_list_are_refused() -> None:
    assert refusal(LLAMA, gpus=1) == (
        "gpu_type: is not given, and which GPUs there are is not known; say gpu_type, or list the cluster's types, the "
        "cheapest first, in gpu_types of the connection's field cluster"
    )


def test_a_type_alone_gets_as_many_as_are_needed() -> None:
    assert counted(infer(LLAMA, gpu_type="nvidia-ampere-a10")) == (2, "nvidia-ampere-a10")
    assert counted(infer("Llama-3.1-70B-Instruct", T4, gpu_type="nvidia-hopper-h100")) == (4, "nvidia-hopper-h100")


@pytest.mark.parametrize("fields", [{"gpus": 0, "gpu_type": "nvidia-ampere-a10"}, {"memory": "16gb"}, {"gpus": 0}])
def test_what_can_not_be_is_refused_before_anything_is_worked_out(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestInvalidError, match=r"gpus: must be at least 1, not 0|'16gb' is not .* write 16Gi"):
        validate_request({**LEAST, **fields})


GIVEN: dict[str, list[Any]] = {
    "gpus": [None, 2, 4],
    "gpu_type": [None, "nvidia-ampere-a100", "nvidia-hopper-h100"],
    "tensor_parallel_size": [None, 2],
    "pipeline_parallel_size": [None, 2],
}


@pytest.mark.parametrize("values", list(itertools.product(*GIVEN.values())))
def test_what_is_given_is_kept_whatever_else_is_worked_out(values: tuple[Any, ...]) -> None:
    given = {name: value for name, value in zip(GIVEN, values, strict=True) if value is not None}
    if (given.get("gpus"), given.get("tensor_parallel_size"), given.get("pipeline_parallel_size")) == (2, 2, 2):
        assert "needs 4 GPUs, and there are 2 GPUs" in refusal(LLAMA, A10, A100, H100, **given)
        return
    request = a_request(LLAMA, **given)
    hardware = infer_gpus(request, Model(facts_of(LLAMA), "its config"), [A10, A100, H100])
    layout, completed = hardware.layout, completed_request(request, hardware)
    assert layout is not None
    assert hardware.gpu is not None
    assert layout.gpus == layout.tensor * layout.pipeline
    # Whatever was not given agrees with what was.
    worked_out = {
        "gpus": layout.gpus,
        "gpu_type": hardware.gpu.name,
        "tensor_parallel_size": layout.tensor,
        "pipeline_parallel_size": layout.pipeline,
    }
    assert {name: worked_out[name] for name in given} == given
    assert completed.gpus == layout.gpus
    assert (completed.model_cfg.tensor_parallel_size or 1) == layout.tensor
    assert (completed.model_cfg.pipeline_parallel_size or 1) == layout.pipeline
    validate_request(completed.given())


def test_no_gpu_is_idle_where_only_their_number_is_given() -> None:
    request = a_request(LLAMA, gpus=4, gpu_type="nvidia-hopper-h100")
    completed = completed_request(request, infer_gpus(request, Model(facts_of(LLAMA), ""), []))
    assert completed.given()["model_config"] == {"model": LLAMA, "tensor_parallel_size": 4}


@pytest.mark.parametrize(
    ("given", "of_model"),
    [
        ({"gpus": 2, "num_shards": 2}, {"num_shards": 2}),
        ({"gpus": 2, "num_shards": 1}, {"num_shards": 1, "pipeline_parallel_size": 2}),
        ({"gpus": 1}, {}),
        ({"gpus": 2, "tensor_parallel_size": None}, {"tensor_parallel_size": 2}),
    ],
)
def test_the_engine_is_told_only_what_it_was_not_told_before(given: dict[str, Any], of_model: dict[str, Any]) -> None:
    request = a_request(LLAMA, gpu_type="nvidia-hopper-h100", **given)
    completed = completed_request(request, infer_gpus(request, Model(facts_of(LLAMA), ""), []))
    assert completed.given()["model_config"] == {"model": LLAMA, **of_model}


def test_what_is_worked_out_does_not_make_another_job() -> None:
    request = a_request(LLAMA)
    completed = completed_request(request, infer_gpus(request, Model(facts_of(LLAMA), ""), [T4]))
    assert completed.model_cfg.tensor_parallel_size == 4
    prints = [fingerprint(each, input_identity="i", engine="vllm") for each in (request, completed)]
    assert prints[0] == prints[1]


def test_a_type_of_the_clusters_own_is_not_written_into_the_request() -> None:
    request = a_request(LLAMA)
    hardware = infer_gpus(request, Model(facts_of(LLAMA), ""), [Gpu("nvidia-l40s", 44 * GIB)])
    assert counted(hardware) == (1, "nvidia-l40s")
    validate_request(completed_request(request, hardware).given())


# What can't be


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    assert refusal(LLAMA, gpus=1, gpu_type="nvidia-ampere-a10") == (
        "gpus: the model does not fit: weights of 15.0 GiB (16 bit) and max_model_len 131,072, by its config. "
        "1 x nvidia-ampere-a10: it has 22.0 GiB, of which vLLM takes 20.2 GiB: weights 15.0 GiB, computing 2.8 GiB, "
        "2.5 GiB left for the KV cache, and one sequence of 131,072 tokens needs 16.0 GiB of KV cache; give "
        "model_config.max_model_len of at most 20528, or larger or more GPUs"
    )
    # And that advice is right.
    assert counted(infer(LLAMA, gpus=1, gpu_type="nvidia-ampere-a10", max_model_len=20528)) == (1, A10.name)


def test_each_type_is_named_once_with_the_most_of_it_that_was_tried() -> None:
    said = refusal("Llama-3.1-405B-Instruct", T4, A10, H100, max_model_len=8192)
    assert said.startswith("model_config.model: the model does not fit: weights of 756.0 GiB (16 bit)")
    tried = ("4 x nvidia-tesla-t4", "8 x nvidia-ampere-a10", "8 x nvidia-hopper-h100")
    assert all(said.count(f"{each} (tensor parallel {each[0]}): each GPU has ") == 1 for each in tried)
    assert said.endswith(
        "give larger or more GPUs, or a quantized model; with nodes_per_worker: 2 it fits 8 x nvidia-hopper-h100 on "
        "each of 2 nodes (tensor parallel 8, 2 pipeline stages)"
    )


def test_several_nodes_are_asked_for_and_never_inferred() -> None:
    hardware = infer("Llama-3.1-405B-Instruct", A10, H100, max_model_len=8192, nodes_per_worker=2)
    assert hardware.layout is not None
    assert (hardware.layout.nodes, hardware.layout.gpus, hardware.layout.tensor, hardware.layout.pipeline) == (
        2,
        8,
        8,
        2,
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"gpus": 3, "tensor_parallel_size": 2}, "gpus: "),
        ({"tensor_parallel_size": 5}, "5 x nvidia-hopper-h100: 32 attention heads can't be shared by 5 GPUs"),
        ({"tensor_parallel_size": 16}, "16 x nvidia-hopper-h100: a node has 8 of them at most"),
        ({"num_shards": 5}, "model_config.num_shards: the model does not fit"),
        ({"gpu_type": "nvidia-tesla-t4", "dtype": "bfloat16"}, "nvidia-tesla-t4: it has no bfloat16"),
        ({"gpu_type": "nvidia-hopper-h100-3g40gb", "gpus": 2}, "slices of a GPU can't share a model"),
    ],
)
def test_numbers_that_do_not_go_together_are_refused(fields: dict[str, Any], said: str) -> None:
    assert said in refusal(LLAMA, H100, **fields)


def test_what_is_given_whole_is_refused_only_if_it_surely_can_not_work() -> None:
    # What the engine needs to compute is an estimate, and rather too high.
    given = {"gpu_type": "nvidia-hopper-h100", "max_model_len": 16384}
    hardware = infer("Llama-3.1-70B-Instruct", gpus=2, **given)
    assert counted(hardware) == (2, "nvidia-hopper-h100")
    assert hardware.explanation[-1].endswith("the engine may not start: a lower max_model_len would help")
    assert counted(infer("Llama-3.1-70B-Instruct", num_shards=2, **given)) == (2, "nvidia-hopper-h100")
    assert counted(infer("Llama-3.1-70B-Instruct", **given)) == (4, "nvidia-hopper-h100")
    assert "the model does not fit" in refusal("Llama-3.1-70B-Instruct", gpus=1, **given)


def test_more_gpus_of_a_type_than_a_node_is_thought_to_have_are_the_users_word() -> None:
    fields = {"gpus": 8, "gpu_type": "nvidia-tesla-t4", "max_model_len": 8192}
    assert counted(infer(LLAMA, **fields)) == (8, "nvidia-tesla-t4")


# A model of which nothing is known


def test_all_that_is_needed_and_given_is_taken_unchecked_and_told() -> None:
    request = a_request("m", gpus=2, gpu_type="nvidia-ampere-a10")
    hardware = infer_gpus(request, UNKNOWN, [])
    assert counted(hardware) == (2, "nvidia-ampere-a10")
    assert hardware.host is None
    (line,) = hardware.explanation
    assert line.startswith(
        "2 x nvidia-ampere-a10 (tensor parallel 2): as given; whether the model fits was not checked"
    )
    assert line.endswith(f"({UNKNOWN.source})")
    assert completed_request(request, hardware).model_cfg.tensor_parallel_size == 2


@pytest.mark.parametrize(
    "given", [{"num_shards": 4}, {"tensor_parallel_size": 4}, {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}]
)
def test_the_number_of_gpus_follows_from_how_they_share_the_model(given: dict[str, int]) -> None:
    request = a_request("m", gpu_type="nvidia-hopper-h100", **given)
    assert counted(infer_gpus(request, UNKNOWN, [])) == (4, "nvidia-hopper-h100")


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        (
            {},
            "gpus: gpus and gpu_type can't be worked out, for the model's size is not known (the hub can't be reached)",
        ),
        ({"gpus": 2}, "gpu_type: gpu_type can't be worked out"),
        ({"gpu_type": "nvidia-ampere-a10"}, "gpus: gpus can't be worked out"),
        (
            {"gpus": 2, "gpu_type": "nvidia-ampere-a10", "num_shards": 3},
            "gpus: tensor_parallel_size is 3, and there are 2",
        ),
    ],
)
def test_what_is_missing_then_is_named(given: dict[str, Any], missing: str) -> None:
    with pytest.raises(RequestInvalidError) as raised:
        infer_gpus(a_request("m", **given), UNKNOWN, [A10])
    assert str(raised.value).startswith(missing)


# Cores, memory, disk


def test_the_host_has_a_core_for_each_rank_and_room_for_the_files_that_all_ranks_read() -> None:
    one = infer(LLAMA, H100, max_model_len=8192).host
    assert one is not None
    assert (one.cores, one.memory, one.storage) == (3, 8 * GIB, None)
    four = infer(LLAMA, H100, gpus=4).host
    assert four is not None
    # 4 GiB of the engine, 4 of each rank, and 15 of weights.
    assert (four.cores, four.memory) == (6, 35 * GIB)


def test_each_node_of_a_replica_reads_its_part() -> None:
    host = infer("Llama-3.1-405B-Instruct", H100, max_model_len=8192, nodes_per_worker=2).host
    assert host is not None
    assert host.cores == 10
    assert host.memory == pytest.approx((4 + 8 * 4 + 756 / 2) * GIB, abs=GIB)


def test_memory_to_swap_to_is_added_for_each_gpu() -> None:
    def memory(**fields: Any) -> int:
        request = a_request(LLAMA, gpus=4, **fields)
        host = infer_gpus(request, Model(facts_of(LLAMA), ""), [H100]).host
        assert host is not None
        return host.memory

    assert memory(swap_space=2.5) == memory() + 10 * GIB


def test_memory_to_swap_to_is_refused_where_there_are_no_gpus() -> None:
    with pytest.raises(RequestInvalidError, match=r"model_config.swap_space: is memory for each GPU.*leave it out"):
        infer_without_gpus(a_request(LLAMA, swap_space=2), UNKNOWN)


def test_weights_that_the_pods_disk_takes_are_asked_for_on_it() -> None:
    request = a_request(LLAMA, gpu_type="nvidia-hopper-h100")
    host = infer_gpus(request, Model(facts_of(LLAMA), ""), [], weights_on_disk=True).host
    assert host is not None
    assert host.storage == 17 * GIB


def test_an_engine_on_the_cpu_has_weights_and_cache_in_memory() -> None:
    def host_of(name: str, **fields: Any) -> tuple[int, int]:
        hardware = infer_without_gpus(a_request(name, **fields), Model(facts_of(name), "its config"))
        assert hardware.gpu is None
        assert hardware.host is not None
        return hardware.host.cores, hardware.host.memory // GIB

    assert host_of("Qwen2.5-0.5B-Instruct") == (1, 9)
    # 15 of weights, 16 of a sequence of 131,072 tokens, 4 of the rest.
    assert host_of(LLAMA) == (15, 35)
    assert host_of(LLAMA, max_model_len=8192, dtype="float32") == (16, 38)
    assert infer_without_gpus(a_request("m"), UNKNOWN).host is None


# What is told


def test_the_arithmetic_is_told() -> None:
    hardware = infer(LLAMA, T4, A10, max_model_len=8192, gpu_type="nvidia-ampere-a10")
    assert hardware.summary(a_request(LLAMA)) == (
        "2 x nvidia-ampere-a10 (tensor parallel 2), 4 cores, 27.0 GiB of memory and shared memory"
    )
    given = a_request(LLAMA).model_copy(update={"cpus": "8", "memory": "64Gi", "storage": 10**9})
    assert hardware.summary(given) == (
        "2 x nvidia-ampere-a10 (tensor parallel 2), 8 cores, 64Gi of memory, 1000000000 of disk"
    )
    assert "passed over" not in " ".join(infer(LLAMA, H100, A100, max_model_len=8192).explanation)
    assert " | ".join(hardware.explanation) == (
        "weights of 15.0 GiB (16 bit) and max_model_len 8,192, by its config | "
        "passed over: 1 x nvidia-ampere-a10: 2.5 GiB for the KV cache, 4.1 GiB are wanted | "
        "2 x nvidia-ampere-a10 (tensor parallel 2): each GPU has 22.0 GiB, of which vLLM takes 20.2 GiB: weights 7.5 "
        "GiB, computing 2.9 GiB, 9.8 GiB left for the KV cache | "
        "one sequence of max_model_len (8,192 tokens) needs 0.5 GiB of KV cache, a batch (32 sequences of 1,024 "
        "tokens, or that one) wants 2.0 GiB"
    )


def test_less_room_than_a_batch_wants_is_told_and_so_is_what_costs_more() -> None:
    less = infer(LLAMA, gpus=1, gpu_type="nvidia-ampere-a10", max_model_len=8192).explanation
    assert less[-1].endswith("wants 4.1 GiB; there is less, so fewer sequences run at once")
    priced = infer("Llama-3.1-70B-Instruct", replace(A100, price=4), replace(H100, price=6), max_model_len=8192)
    assert "passed over: 8 x nvidia-ampere-a100 (tensor parallel 8), which would fit, costs more" in priced.explanation


def test_more_tokens_than_the_model_has_are_warned_of() -> None:
    def last(**fields: Any) -> str:
        return infer(LLAMA, H100, **fields).explanation[-1]

    warning = "max_model_len 200,000 is more than the 131,072 of the model's config: vLLM will refuse it"
    assert last(max_model_len=200_000).startswith(warning)
    assert last(max_context_length=200_000).startswith(warning)
    assert "refuse" not in last(max_model_len=131_072)
    assert "refuse" not in last()
    longer = a_request(LLAMA, max_model_len=200_000)
    scaled = longer.model_cfg.model_copy(update={"rope_scaling": {"rope_type": "linear", "factor": 2}})
    hardware = infer_gpus(longer.model_copy(update={"model_cfg": scaled}), Model(facts_of(LLAMA), "its config"), [H100])
    assert "refuse" not in hardware.explanation[-1]


def test_a_rope_scaling_makes_room_for_the_longer_sequences() -> None:
    request = a_request(LLAMA, rope_scaling={"rope_type": "linear", "factor": 2})
    hardware = infer_gpus(request, Model(facts_of(LLAMA), "its config"), [H100])
    assert any("max_model_len 262,144" in line for line in hardware.explanation)


def test_more_pipeline_stages_than_a_node_has_gpus_are_said_to_be() -> None:
    said = refusal(LLAMA, A10, pipeline_parallel_size=16)
    assert "nvidia-ampere-a10: a node has 8 at most, too few for so many pipeline stages; give numbers that go" in said
