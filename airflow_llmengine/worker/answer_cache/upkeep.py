"""Looking after a cache: what is in it, and making it smaller, while workers read it and add to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from airflow_llmengine.storage.errors import StorageError, StorageNotFoundError
from airflow_llmengine.storage.filesystem import FileEntry, Location, Storage
from airflow_llmengine.worker.answer_cache.answer_files import (
    GROUP_ANSWERS,
    GROUP_BYTES,
    AnswerFile,
    AnswerFileWriter,
    DamagedFileError,
    FileSummary,
    new_name,
    written_by_name,
)
from airflow_llmengine.worker.answer_cache.answer_origin import ABOUT, FOLDER_PREFIX, AboutOrigin

REQUESTS_AT_ONCE = 8

FULL_BYTES = 64 * 2**20
"""A file is not put together with others once it has so many bytes, ..."""

FULL_ANSWERS = 262_144
"""... or so many answers."""

LEFTOVER_SECONDS = 3600.0
"""What a writer has begun and not touched for so long is of one that was killed."""


@dataclass(slots=True)
class CachedFile:
    """A file of a cache; ``summary`` is None where it is damaged."""

    entry: FileEntry
    summary: FileSummary | None


@dataclass(slots=True)
class CachedOrigin:
    """What a cache has of one engine, model and settings."""

    folder: Location
    about: AboutOrigin | None
    """None where it can't be read."""
    files: list[CachedFile] = field(default_factory=list)

    @property
    def answers(self) -> int:
        """How many there are, those that stand twice counted twice."""
        return sum(file.summary.answers for file in self.files if file.summary is not None)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.entry.size for file in self.files)

    @property
    def oldest(self) -> float | None:
        """When the oldest answer was written, in seconds since the epoch."""
        return min((file.summary.oldest for file in self.files if file.summary is not None), default=None)

    @property
    def newest(self) -> float | None:
        """When the newest answer was written."""
        return max((file.summary.newest for file in self.files if file.summary is not None), default=None)


@dataclass(slots=True)
class Pruned:
    """What pruning has done, or would do."""

    answers: int = 0
    """Answers that went."""
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    damaged: int = 0
    """Files that were damaged, and went."""


def look_at_cache(storage: Storage, cache_path: str) -> list[CachedOrigin]:
    """What a cache holds, by origin. Of each file its end is read.

    Raises:
        StorageError: It can't be read.
    """
    folder = storage.location(cache_path)
    return [_origin(folder.child(name)) for name in folder.folders() if name.startswith(FOLDER_PREFIX)]


def _origin(folder: Location) -> CachedOrigin:
    found = CachedOrigin(folder, _about(folder))
    entries = [entry for entry in folder.list() if written_by_name(entry.name) is not None]
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="answer-files") as pool:
        found.files.extend(file for file in pool.map(lambda entry: _file(folder, entry), entries) if file is not None)
    return found


def _about(folder: Location) -> AboutOrigin | None:
    try:
        return AboutOrigin.model_validate_json(folder.child(ABOUT).read_start(2**16))
    except (StorageNotFoundError, ValidationError):
        return None


def _file(folder: Location, entry: FileEntry) -> CachedFile | None:
    try:
        return CachedFile(entry, AnswerFile(folder.child(entry.name), entry).summary())
    except StorageNotFoundError:
        # Another one is pruning.
        return None
    except DamagedFileError:
        return CachedFile(entry, None)


def prune(
    storage: Storage,
    cache_path: str,
    *,
    now: float,
    older_than_seconds: float | None = None,
    max_bytes: int | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Delete old answers, then the oldest files beyond a size, and put small files together.

    Workers may be at work on it: a new file stands before the ones that it replaces are deleted, and who finds a file
    gone generates what was in it.

    Args:
        storage: Where the cache is.
        cache_path: The cache.
        now: Seconds since the epoch.
        older_than_seconds: Answers that were written longer ago go.
        max_bytes: So much may be left, of all origins together.
        dry_run: Only count, by whole files: what a file that is kept has of old answers is not counted.

    Raises:
        StorageError: It can't be read or written. What was done until then is done.
    """
    origins = look_at_cache(storage, cache_path)
    cutoff = 0.0 if older_than_seconds is None else now - older_than_seconds
    pruned = Pruned()
    for origin in origins:
        pruned.files_before += len(origin.files)
        pruned.bytes_before += origin.stored_bytes
    answers_before = sum(origin.answers for origin in origins)
    gone = _too_old(origins, cutoff)
    gone |= _beyond(origins, gone, max_bytes)
    for origin in origins:
        pruned.damaged += sum(file.summary is None for file in origin.files)
        left = [file for file in origin.files if file.entry.url not in gone]
        if not dry_run:
            for file in origin.files:
                if file.entry.url in gone:
                    origin.folder.child(file.entry.name).delete()
            left = _compact(origin.folder, left, cutoff)
            if not left and (origin.files or origin.about is not None):
                # Else the folder may be of something else.
                origin.folder.child(ABOUT).delete()
            origin.folder.child(ABOUT).delete_leftovers(LEFTOVER_SECONDS)
        origin.files = left
        pruned.files_after += len(left)
        pruned.bytes_after += origin.stored_bytes
    pruned.answers = answers_before - sum(origin.answers for origin in origins)
    return pruned


def _too_old(origins: Iterable[CachedOrigin], cutoff: float) -> set[str]:
    return {
        file.entry.url
        for origin in origins
        for file in origin.files
        if file.summary is None or file.summary.newest < cutoff
    }


def _beyond(origins: Iterable[CachedOrigin], gone: set[str], max_bytes: int | None) -> set[str]:
    """The files that don't fit into ``max_bytes``, the oldest ones."""
    if max_bytes is None:
        return set()
    left = [
        (file.summary.newest, file.entry)
        for origin in origins
        for file in origin.files
        if file.summary is not None and file.entry.url not in gone
    ]
    left.sort(key=lambda dated: dated[0], reverse=True)
    beyond, size = set(), 0
    for _newest, entry in left:
        size += entry.size
        if size > max_bytes:
            beyond.add(entry.url)
    return beyond


def _compact(folder: Location, files: list[CachedFile], cutoff: float) -> list[CachedFile]:
    """Put small files together, and leave out what is too old; gives the files that there are then."""
    kept: list[CachedFile] = []
    for together in _put_together(files, cutoff):
        if len(together) == 1 and not _has_old(together[0], cutoff):
            kept += together
            continue
        content, answers, newest = _merged(folder, together, cutoff)
        if answers:
            new = folder.child(new_name(newest))
            new.create(content)
            entry = new.info()
            if entry is None:
                raise StorageError(f"{new} is gone just after it was written: somebody else prunes this cache.")
            kept.append(CachedFile(entry, AnswerFile(new, entry).summary()))
        for file in together:
            folder.child(file.entry.name).delete()
    return kept


def _put_together(files: Iterable[CachedFile], cutoff: float) -> Iterator[list[CachedFile]]:
    """Files that become one, in the order in which they were written; a large one stays by itself."""
    together: list[CachedFile] = []
    size = answers = 0
    for file in sorted(files, key=lambda file: file.entry.name):
        count = 0 if file.summary is None else file.summary.answers
        if together and (size + file.entry.size > FULL_BYTES or answers + count > FULL_ANSWERS):
            yield together
            together, size, answers = [], 0, 0
        together.append(file)
        size += file.entry.size
        answers += count
    if together:
        yield together


def _has_old(file: CachedFile, cutoff: float) -> bool:
    return file.summary is not None and file.summary.oldest < cutoff


def _merged(folder: Location, files: Iterable[CachedFile], cutoff: float) -> tuple[bytes, int, float]:
    """The content of a file with their answers, each key once; how many there are; and when the newest was written."""
    import pyarrow

    writer = AnswerFileWriter()
    waiting: list[Any] = []
    newest = 0.0
    for table in _fresh_tables(folder, files, cutoff):
        newest = max(newest, pyarrow.compute.max(table["written"]).value / 1000)
        waiting.append(table)
        if sum(one.num_rows for one in waiting) >= GROUP_ANSWERS or sum(one.nbytes for one in waiting) >= GROUP_BYTES:
            writer.add_table(pyarrow.concat_tables(waiting).combine_chunks())
            waiting = []
    if waiting:
        writer.add_table(pyarrow.concat_tables(waiting).combine_chunks())
    return writer.close(), writer.answers, newest


def _fresh_tables(folder: Location, files: Iterable[CachedFile], cutoff: float) -> Iterator[Any]:
    import pyarrow

    seen: set[bytes] = set()
    for table in _tables(folder, files):
        fresh = []
        written = table["written"].cast(pyarrow.int64()).to_pylist()
        for key, moment in zip(table["key"].to_pylist(), written, strict=True):
            fresh.append(moment / 1000 >= cutoff and key not in seen)
            seen.add(key)
        left = table.filter(pyarrow.array(fresh, pyarrow.bool_()))
        if left.num_rows:
            yield left


def _tables(folder: Location, files: Iterable[CachedFile]) -> Iterator[Any]:
    """The row groups that can be read: of a damaged file, and of one that is gone by now, no more than that is kept."""
    for cached in files:
        with contextlib.suppress(DamagedFileError, StorageNotFoundError):
            file = AnswerFile(folder.child(cached.entry.name), cached.entry)
            for number in range(len(file.group_sizes)):
                yield file.table(number)
