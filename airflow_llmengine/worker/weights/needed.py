"""Which files of a checkpoint an engine needs. Published ones often hold the same weights in several formats."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

CONFIG_FILES = ("config.json", "params.json")
"""Of these a checkpoint has at least one; the second is Mistral's own format."""

_SAFETENSORS = ".safetensors"
_OTHER_WEIGHTS = (".bin", ".gguf", ".pt", ".pth")
_OTHER_PROGRAMS = (".h5", ".mlmodel", ".msgpack", ".onnx", ".onnx_data", ".ot", ".tflite")
_FOLDERS = frozenset({"coreml", "metal", "onnx", "openvino", "original"})
_OF_TRAINING = re.compile(r"(optimizer|scheduler|training_args|rng_state(_\d+)?)\.(bin|pt|pth)")
_READS_SAFETENSORS = (None, "", "auto", "hf", "safetensors", "fastsafetensors", "mistral", "runai_streamer")
"""Of ``load_format``, the values for which vLLM reads safetensors where there are some."""
_MISTRALS_OWN = re.compile(r"consolidated[^/]*\.safetensors")
_AT_THE_TOP = re.compile(r"[^/]*\.safetensors")
_OF_A_LAYER = re.compile(r"(\d+_[^/]+)/pytorch_model\.bin")
"""Weights of a layer that a Sentence Transformers model has after the transformer; vLLM leaves out a layer without."""
_READS_MISTRALS_OWN = (None, "", "auto", "mistral")
"""Those for which vLLM (0.32) reads Mistral's own files, where there are some, and no others."""


def needed_files(names: Iterable[str], load_format: str | None = None) -> list[str]:
    """Choose the files that an engine needs, in order.

    Left out are hidden files, folders of other programs' formats, what a training left behind, and, where there are
    safetensors and nothing else is asked for, the same weights in other formats: of Mistral's repositories, which hold
    all weights twice, those that vLLM does not read.

    Args:
        names: Paths relative to the checkpoint, with slashes.
        load_format: That of ``model_config``.
    """
    found = sorted(name for name in names if not _is_never_needed(name))
    if load_format in _READS_SAFETENSORS and any(name.endswith(_SAFETENSORS) for name in found):
        found = [name for name in found if not name.endswith(_OTHER_WEIGHTS) or _is_of_a_layer(name, found)]
    if load_format in _READS_MISTRALS_OWN and any(map(_MISTRALS_OWN.fullmatch, found)):
        return [name for name in found if _MISTRALS_OWN.fullmatch(name) or not _AT_THE_TOP.fullmatch(name)]
    return found


def _is_of_a_layer(name: str, names: Collection[str]) -> bool:
    layer = _OF_A_LAYER.fullmatch(name)
    return layer is not None and f"{layer[1]}/model{_SAFETENSORS}" not in names


def without_weights(names: Iterable[str]) -> list[str]:
    """Choose what a tokenizer needs: all but weights."""
    return [name for name in needed_files(names) if not name.endswith((_SAFETENSORS, *_OTHER_WEIGHTS))]


def _is_never_needed(name: str) -> bool:
    *folders, last = name.split("/")
    return (
        any(part.startswith(".") for part in (*folders, last))
        or (bool(folders) and folders[0] in _FOLDERS)
        or last.endswith(_OTHER_PROGRAMS)
        or _OF_TRAINING.fullmatch(last) is not None
    )
