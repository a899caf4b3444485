"""A checkpoint in a directory of this machine: whether it is one, and what names its content."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import BinaryIO

from airflow_llmengine.worker.engines.base import ModelNotFoundError
from airflow_llmengine.worker.weights.needed import CONFIG_FILES

WHOLE_FILE_BYTES = 32 * 2**20
"""Files up to this size go into a checkpoint's digest whole, larger ones by size, beginning and end."""

SAMPLE_BYTES = 2**20

DIGEST_PREFIX = "checkpoint-sample-sha256:"

DENSE_PREFIX = "checkpoint-samples-sha256:"

SAMPLE_EVERY_BYTES = 8 * 2**20

SHORT_SAMPLE_BYTES = 64 * 2**10
"""Of each place in a large file. A tensor that is no larger, such as a norm's, is read whole."""

SAMPLES_AT_ONCE = 8
"""Files may lie on a volume of the network."""

LONGEST_HEADER_BYTES = 100 * 2**20
"""Of a safetensors file, as its format says."""


def require_model(directory: Path, field: str) -> None:
    """Make sure that a directory holds a model.

    Args:
        directory: The directory.
        field: The field of the request that names it, for the message.

    Raises:
        ModelNotFoundError: It does not, or is not there, or may not be read.
    """
    with _readable():
        if not directory.is_dir():
            raise ModelNotFoundError(f"{field}: there is no directory {directory} where the worker runs")
        if not any((directory / name).is_file() for name in CONFIG_FILES):
            raise ModelNotFoundError(f"{field}: the directory {directory} holds no model: it has no {CONFIG_FILES[0]}")


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


def checkpoint_digest(directory: Path) -> str:
    """Name the content of a local checkpoint, cheaply: the same wherever the same files lie.

    It covers every file that is not hidden: small ones in full; of larger ones (the weights) the size, and their first
    and last MiB. Two checkpoints that differ only in the middle of a large file of equal size are not told apart.

    Raises:
        ModelNotFoundError: One of them may not be read.
    """
    with _readable():
        return DIGEST_PREFIX + _digest(directory)


def dense_digest(directory: Path) -> str:
    """Name the content of a local checkpoint more closely than ``checkpoint_digest``, for what outlives a job.

    A model that is trained on keeps the size, beginning and end of its files. So of large files, samples all along are
    read, and the beginning of each tensor: about a hundredth of the weights.

    Raises:
        ModelNotFoundError: One of them may not be read.
    """
    digest = hashlib.sha256()
    with _readable(), ThreadPoolExecutor(SAMPLES_AT_ONCE, thread_name_prefix="model-digest") as pool:
        digest.update(_digest(directory).encode())
        for path in _in_order(directory):
            size = path.stat().st_size
            if size <= WHOLE_FILE_BYTES:
                continue
            with path.open("rb") as file:
                places = {*range(0, size, SAMPLE_EVERY_BYTES), *_tensors(file, path, size)}
                read = partial(_sample, file.fileno())
                for sample in pool.map(read, sorted(places)):
                    digest.update(sample)
    return DENSE_PREFIX + digest.hexdigest()


def _sample(file: int, place: int) -> bytes:
    return os.pread(file, SHORT_SAMPLE_BYTES, place)


def _tensors(file: BinaryIO, path: Path, size: int) -> Iterator[int]:
    """Where the tensors of a safetensors file begin; its header tells."""
    if path.suffix != ".safetensors":
        return
    length = int.from_bytes(file.read(8), "little")
    if length > min(size, LONGEST_HEADER_BYTES):
        return
    try:
        header = json.loads(file.read(length))
        tensors = [tensor["data_offsets"][0] for name, tensor in header.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        # Its size, beginning, end and samples are what there is of it.
        return
    yield from (8 + length + start for start in tensors if isinstance(start, int) and 0 <= start < size)


def _in_order(directory: Path) -> list[Path]:
    return sorted(_files(directory), key=lambda path: path.relative_to(directory).as_posix())


def _digest(directory: Path) -> str:
    digest = hashlib.sha256()
    for path in _in_order(directory):
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
