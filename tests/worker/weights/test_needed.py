"""Which files of a checkpoint are fetched."""

from __future__ import annotations

import pytest

from airflow_llmengine.worker.weights.needed import needed_files, without_weights

SMALL = ["config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja", "modeling_own.py"]


@pytest.mark.parametrize(
    "left_out",
    [
        "pytorch_model.bin",
        "consolidated.00.pth",
        "model-Q8_0.gguf",
        "original/consolidated.00.pth",
        "original/params.json",
        "onnx/model.onnx",
        "model.onnx_data",
        "tf_model.h5",
        "flax_model.msgpack",
        "optimizer.pt",
        "rng_state_0.pth",
        "training_args.bin",
        ".gitattributes",
        ".cache/huggingface/download/model.lock",
    ],
)
def test_what_an_engine_does_not_read_is_left_out(left_out: str) -> None:
    wanted = sorted([*SMALL, "model.safetensors", "1_Pooling/config.json"])
    assert needed_files([*wanted, left_out]) == wanted


def test_mistrals_own_files_stay() -> None:
    names = ["consolidated.safetensors", "params.json", "tekken.json"]
    assert needed_files(names) == names


def test_of_weights_that_are_there_twice_those_are_needed_that_vllm_reads() -> None:
    """As in mistralai/Mistral-7B-Instruct-v0.3."""
    names = ["config.json", "consolidated.safetensors", "model-1.safetensors", "params.json", "vision/own.safetensors"]
    once = [name for name in names if name != "model-1.safetensors"]
    assert needed_files(names) == needed_files(names, "auto") == needed_files(names, "mistral") == once
    assert needed_files(names, "safetensors") == names
    assert needed_files([*names[2:], "other/consolidated.safetensors"], "auto")[0] == "model-1.safetensors"


def test_other_weights_are_needed_where_there_are_no_safetensors() -> None:
    names = ["config.json", "pytorch_model-1.bin", "pytorch_model.bin.index.json"]
    assert needed_files([*names, "training_args.bin"]) == names


def test_a_layer_of_sentence_transformers_is_fetched_once_in_whatever_format_it_is() -> None:
    names = ["1_Pooling/config.json", "2_Dense/config.json", "2_Dense/pytorch_model.bin", "model.safetensors"]
    assert needed_files([*names, "pytorch_model.bin"]) == names
    assert "2_Dense/pytorch_model.bin" not in needed_files([*names, "2_Dense/model.safetensors"])
    assert "other/pytorch_model.bin" not in needed_files([*names, "other/pytorch_model.bin"])


def test_other_weights_are_needed_where_they_are_asked_for() -> None:
    names = ["config.json", "model.safetensors", "pytorch_model.bin"]
    assert needed_files(names, "pt") == names
    assert needed_files(names, "safetensors") == names[:2]


def test_a_tokenizer_needs_no_weights() -> None:
    assert without_weights([*SMALL, "model.safetensors", "pytorch_model.bin"]) == sorted(SMALL)
