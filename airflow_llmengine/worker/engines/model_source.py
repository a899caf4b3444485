"""Where a job's model comes from, found out before anything is loaded; and what names the weights of a local one."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from airflow_llmengine.spec.request import CreateBatchCompletionsV1ModelConfig, CreateBatchCompletionsV1Request
from airflow_llmengine.worker.engines.base import ModelNotFoundError

HUB_TIMEOUT_SECONDS = 10.0
"""How long the hub may take to say whether it has a model."""

CONFIG_FILES = ("config.json", "params.json")
"""Of these a checkpoint has at least one; the second is Mistral's own format."""

WHOLE_FILE_BYTES = 32 * 2**20
"""Files up to this size go into a checkpoint's digest whole, larger ones by size, beginning and end."""

SAMPLE_BYTES = 2**20

DIGEST_PREFIX = "checkpoint-sample-sha256:"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What the engine loads."""

    name: str
    """The local directory, or the id on the Hugging Face hub."""
    directory: Path | None
    """The local directory; None for a model of the hub."""


def find_model(request: CreateBatchCompletionsV1Request) -> ModelSource:
    """Find the model of a job. Quick, and without the engine: at most one small question to the hub.

    ``checkpoint_path`` must be a directory here. ``model`` alone may be a directory too; otherwise it is an id on the
    Hugging Face hub, and must be in the local cache or on a hub that can be reached.

    Raises:
        ModelNotFoundError: There is no such model.
    """
    model = request.model_cfg
    if model.checkpoint_path is not None:
        return _local(Path(model.checkpoint_path), "model_config.checkpoint_path")
    directory = Path(model.model)
    if directory.is_dir() or directory.is_absolute() or model.model.startswith("."):
        return _local(directory, "model_config.model")
    _ask_hub(model)
    return ModelSource(model.model, None)


def _local(directory: Path, field: str) -> ModelSource:
    with _readable():
        if not directory.is_dir():
            raise ModelNotFoundError(f"{field}: there is no directory {directory} where the worker runs")
        if not any((directory / name).is_file() for name in CONFIG_FILES):
            raise ModelNotFoundError(f"{field}: the directory {directory} holds no model: it has no {CONFIG_FILES[0]}")
    return ModelSource(str(directory), directory)


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Tell a checkpoint that may not be read as what it is: in a pod the worker is not the user who wrote it."""
    try:
        yield
    except PermissionError as error:
        raise ModelNotFoundError(
            f"the model's file {error.filename} may not be read by user {os.getuid()}, as whom the worker runs: let "
            "all users read it, or run the worker as its owner"
        ) from error


def _ask_hub(model: CreateBatchCompletionsV1ModelConfig) -> None:
    # It comes with the engine, and no other part of the worker needs it.
    from huggingface_hub import model_info, try_to_load_from_cache
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    named = f"model_config.model: {model.model!r}"
    try:
        cached = (try_to_load_from_cache(model.model, name, revision=model.revision) for name in CONFIG_FILES)
        if any(isinstance(path, str) for path in cached):
            return
        model_info(model.model, revision=model.revision, timeout=HUB_TIMEOUT_SECONDS)
    except HFValidationError as error:
        raise ModelNotFoundError(f"{named} is neither a directory nor an id of the Hugging Face hub") from error
    except GatedRepoError as error:
        raise ModelNotFoundError(
            f"{named} is gated on the Hugging Face hub: accept its terms there, and set HF_TOKEN"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelNotFoundError(f"{named} has no revision {model.revision!r} on the Hugging Face hub") from error
    except RepositoryNotFoundError as error:
        raise ModelNotFoundError(
            f"{named} is not on the Hugging Face hub, or is private there and HF_TOKEN is not set or has no access"
        ) from error
    except HfHubHTTPError:
        # The hub is there and can't answer just now: too many requests, or a fault of its own. Loading will tell.
        return
    except Exception as error:
        # Not narrower: which HTTP library raises depends on the version of huggingface_hub.
        raise ModelNotFoundError(
            f"{named} is neither a directory nor in the local cache, and the Hugging Face hub can't be reached"
        ) from error


def checkpoint_digest(directory: Path) -> str:
    """Name the content of a local checkpoint, cheaply: the same wherever the same files lie.

    It covers every file that is not hidden: small ones in full; of larger ones (the weights) the size, and their first
    and last MiB. Two checkpoints that differ only in the middle of a large file of equal size are not told apart.

    Raises:
        ModelNotFoundError: One of them may not be read.
    """
    with _readable():
        return DIGEST_PREFIX + _digest(directory)


def _digest(directory: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(_files(directory), key=lambda path: path.relative_to(directory).as_posix()):
        size = path.stat().st_size
        digest.update(f"{path.relative_to(directory).as_posix()}\0{size}\0".encode())
        with path.open("rb") as file:
            if size <= WHOLE_FILE_BYTES:
                digest.update(file.read())
            else:
                digest.update(file.read(SAMPLE_BYTES))
                file.seek(size - SAMPLE_BYTES)
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def _files(directory: Path) -> Iterator[Path]:
    for path in directory.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _files(path)
        elif path.is_file():
            yield path
