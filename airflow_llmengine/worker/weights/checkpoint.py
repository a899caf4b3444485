"""A checkpoint on an object store, as its listing shows it: which files, and what names their content."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_llmengine.storage.errors import StorageUnsupportedError
from airflow_llmengine.storage.filesystem import Location, Storage
from airflow_llmengine.worker.engines.base import ModelNotFoundError
from airflow_llmengine.worker.weights.needed import CONFIG_FILES, needed_files

logger = logging.getLogger(__name__)

IDENTITY_PREFIX = "checkpoint-etags-sha256:"

LONGEST_NAME_BYTES = 255
"""Of a part of a path, on Linux' file systems."""

_FIELD = "model_config.checkpoint_path"
_UNFIT_FOR_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One file of a checkpoint."""

    name: str
    """Path relative to the checkpoint, with slashes; none of its parts leads out of it."""
    size: int
    """Bytes."""
    identity: str
    """What changes when the content does: see ``FileEntry.identity``."""
    location: Location


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The files that an engine needs, as they were when they were listed."""

    location: Location
    files: tuple[CheckpointFile, ...]
    """By name."""

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(file.size for file in self.files)

    @property
    def identity(self) -> str:
        """Names the content without reading it: by the names, sizes and etags of the files.

        The same for every worker that lists the same objects. It can't be compared with the digest of a local
        checkpoint, which is of content.
        """
        return IDENTITY_PREFIX + self._digest("")

    @property
    def folder_name(self) -> str:
        """What its folder in a cache is called: a changed checkpoint, and one from elsewhere, is another folder."""
        readable = _UNFIT_FOR_A_NAME.sub("-", self.location.name).strip("-.")[:60] or "checkpoint"
        return f"{readable}-{self._digest(self.location.url)[:24]}"

    def _digest(self, start: str) -> str:
        digest = hashlib.sha256(f"{start}\0".encode())
        for file in self.files:
            digest.update(f"{file.name}\0{file.size}\0{file.identity}\0".encode())
        return digest.hexdigest()


def list_checkpoint(storage: Storage, url: str, load_format: str | None = None) -> Checkpoint:
    """List what an engine needs of the checkpoint below ``url``.

    Args:
        storage: Where it is, with credentials.
        url: A prefix of an object store.
        load_format: That of ``model_config``.

    Raises:
        ModelNotFoundError: There is nothing, or no model, or a name that leads out of the folder.
        StorageError: The store can't be listed, or does not tell when a file has changed.
    """
    location = storage.location(url)
    below = location.url_below
    entries = {entry.url.removeprefix(below): entry for entry in location.walk()}
    if not entries:
        raise ModelNotFoundError(f"{_FIELD}: there is nothing below {location}: check its spelling")
    for name in entries:
        _require_safe_name(name, location)
    names = needed_files(entries, load_format)
    logger.debug("left out of %s: %s", location, ", ".join(sorted(entries.keys() - set(names))) or "nothing")
    if not any(name in entries for name in CONFIG_FILES):
        raise ModelNotFoundError(f"{_FIELD}: there is no model below {location}: it has no {CONFIG_FILES[0]}")
    _require_room_for_each(names, location)
    files = []
    for name in names:
        entry = entries[name]
        if entry.identity is None:
            raise StorageUnsupportedError(
                f"The store of {location} does not tell when a file has changed, so a checkpoint can't be kept from "
                "there; put it on s3://, gs:// or az://, or into a directory where the worker runs."
            )
        files.append(CheckpointFile(name, entry.size, entry.identity, location.child(name)))
    return Checkpoint(location, tuple(files))


def _require_safe_name(name: str, location: Location) -> None:
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or not name.isprintable():
        raise ModelNotFoundError(
            f"{_FIELD}: below {location} is an object whose name can't be that of a file ({name!r}): delete it there, "
            "or copy the checkpoint elsewhere without it"
        )


def _require_room_for_each(names: Sequence[str], location: Location) -> None:
    """An object store may have a file ``a`` beside ``a/b``, and longer names than a file system."""
    files = set(names)
    for name in names:
        folder = name
        while folder := folder.rpartition("/")[0]:
            if folder in files:
                raise ModelNotFoundError(
                    f"{_FIELD}: below {location} is an object {folder!r} beside {name!r}, which no file system can "
                    "hold: delete one of them there"
                )
        if any(len(part.encode()) > LONGEST_NAME_BYTES for part in name.split("/")):
            raise ModelNotFoundError(
                f"{_FIELD}: below {location} is an object whose name is too long for a file ({name[:80]!r}...): "
                "give it a shorter one there"
            )
