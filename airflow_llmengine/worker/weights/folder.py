"""The folder in which checkpoints of object stores are kept, and how one gets into it: once, however many ask."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

from airflow_llmengine.storage.errors import StorageDeniedError, StorageError
from airflow_llmengine.worker.weights.checkpoint import Checkpoint
from airflow_llmengine.worker.weights.fetch_progress import FetchProgress, Say, say_nothing, shown_bytes
from airflow_llmengine.worker.weights.file_fetch import FileFetch
from airflow_llmengine.worker.weights.lock import one_at_a_time

CACHE_VARIABLE = "LLMENGINE_MODEL_CACHE"
"""Environment variable with the folder; ``kube/worker_pod.py`` sets it where the cluster has a cache volume."""

PARALLEL_RANGES = 8
"""Requests at once. One alone gets a tenth of what a machine's network carries."""

MARKER = ".llmengine-checkpoint.json"
"""Written last: with it the folder holds the whole checkpoint."""

_SCRATCH = ".llmengine-fetch"
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


def model_cache() -> Path:
    """The folder: that in ``LLMENGINE_MODEL_CACHE``, else one in the user's cache."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "airflow-llmengine" / "checkpoints"


def fetch_checkpoint(checkpoint: Checkpoint, cache: Path, *, say: Say = say_nothing) -> Path:
    """Make sure that a checkpoint is in the cache; gives its folder. Blocks until it is.

    One worker fetches and the others wait. Where one was killed, the next goes on with what has arrived.

    Args:
        checkpoint: The checkpoint, listed just now.
        cache: The folder of all checkpoints.
        say: Is told how far it is.

    Raises:
        StorageError: It can't be read, was changed meanwhile, or can't be put here.
        ModelNotFoundError: One of its files is broken.
    """
    folder = cache / checkpoint.folder_name
    with _told_as_storage(folder):
        if not _is_whole(checkpoint, folder):
            # Hidden, so that who lists the cache sees checkpoints.
            with one_at_a_time(cache / f".{folder.name}.lock", f"the fetch of {checkpoint.location}"):
                if not _is_whole(checkpoint, folder):
                    _fetch(checkpoint, folder, say)
    with contextlib.suppress(OSError):
        # Tells, to who cleans up, when it was last used.
        os.utime(folder / MARKER)
    return folder


def _is_whole(checkpoint: Checkpoint, folder: Path) -> bool:
    try:
        marker = json.loads((folder / MARKER).read_bytes())
    except (FileNotFoundError, ValueError):
        return False
    if not isinstance(marker, dict) or marker.get("identity") != checkpoint.identity:
        return False
    # A file that somebody deleted is fetched again.
    return all(_has_size(folder / file.name, file.size) for file in checkpoint.files)


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def _fetch(checkpoint: Checkpoint, folder: Path, say: Say) -> None:
    scratch = folder / _SCRATCH
    scratch.mkdir(parents=True, exist_ok=True)
    progress = FetchProgress(str(checkpoint.location), checkpoint.size, say=say)
    fetches = []
    for file in checkpoint.files:
        fetch = FileFetch(file, folder / file.name, scratch, progress)
        if fetch.is_in_place:
            progress.add(file.size, found=True)
        else:
            fetches.append((file, fetch))
    _require_room(folder, sum(file.size - min(file.size, fetch.bytes_kept) for file, fetch in fetches))
    with progress.told():
        _fetch_files([fetch for _file, fetch in fetches])
        _write_marker(checkpoint, folder)
    shutil.rmtree(scratch, ignore_errors=True)


def _fetch_files(fetches: list[FileFetch]) -> None:
    for fetch in fetches:
        fetch.prepare()
    with ThreadPoolExecutor(PARALLEL_RANGES, thread_name_prefix="fetch") as pool:
        ranges = [pool.submit(fetch.fetch, index) for fetch in fetches for index in range(fetch.ranges)]
        done, _ = wait(ranges, return_when=FIRST_EXCEPTION)
        pool.shutdown(wait=True, cancel_futures=True)
        for one in done:
            one.result()


def _require_room(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if size > free:
        raise StorageError(
            f"The checkpoint needs {shown_bytes(size)} more in {folder}, where {shown_bytes(free)} are free: delete "
            f"old checkpoints there, or give a larger volume ({CACHE_VARIABLE} names the folder)."
        )


def _write_marker(checkpoint: Checkpoint, folder: Path) -> None:
    text = json.dumps(
        {
            "url": str(checkpoint.location),
            "identity": checkpoint.identity,
            "files": {file.name: file.size for file in checkpoint.files},
        },
        indent=1,
    )
    # A name that only this process gives: there may be no locks.
    new = folder / f"{MARKER}.{os.urandom(8).hex()}"
    with new.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(folder / MARKER)


@contextlib.contextmanager
def _told_as_storage(folder: Path) -> Iterator[None]:
    """Tell what the local file system refuses in one sentence; whether a retry helps is as for any storage."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else type(error).__name__
        sentence = (
            f"The checkpoint can't be put into {folder}: {reason}; {CACHE_VARIABLE} names the folder of checkpoints"
        )
        if error.errno in _DENIED:
            raise StorageDeniedError(f"{sentence}, and user {os.getuid()} must be able to write there.") from error
        raise StorageError(f"{sentence}.") from error
