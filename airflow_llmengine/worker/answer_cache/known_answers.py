"""The answers that a cache had when a run began: looked up by key, many at once, in bounded memory."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from typing import Any, TypeVar

import numpy

from airflow_llmengine.storage.errors import StorageChangedError, StorageError, StorageNotFoundError
from airflow_llmengine.storage.filesystem import FileEntry, Location
from airflow_llmengine.worker.answer_cache.answer_files import (
    AnswerFile,
    DamagedFileError,
    Group,
    KeptAnswer,
    written_by_name,
)
from airflow_llmengine.worker.answer_cache.key_index import KeyIndex
from airflow_llmengine.worker.answers.keys import KEY_BYTES

logger = logging.getLogger(__name__)

T = TypeVar("T")
S = TypeVar("S")

REQUESTS_AT_ONCE = 8

READ_AHEAD = 8
"""Row groups that may have been read and wait to be looked into."""

KEPT_BYTES = 64 * 2**20
"""Of the row groups that were looked into last, which the next records may be in as well."""

KEPT_FILES = 64
"""Files whose end was read last, which tells where their groups are."""

FAILURES_UNTIL_GIVEN_UP = 3
"""So many files in a row that a store does not give, after having been asked again and again."""


class KnownAnswers:
    """Answers below one folder. Blocking, and safe for threads.

    A file that is gone (somebody pruned the cache), damaged, or not to be had now counts as one without answers: what
    was in it is generated again.

    Args:
        folder: Where the files are.
    """

    def __init__(self, folder: Location) -> None:
        self._folder = folder
        self._files: list[FileEntry] = []
        self._starts: list[numpy.ndarray[Any, numpy.dtype[numpy.uint64]]] = []
        """Of each file, the first row of each of its groups."""
        self._index = KeyIndex()
        self._groups: OrderedDict[tuple[int, int], Group] = OrderedDict()
        self._bytes_kept = 0
        self._open_files: OrderedDict[int, AnswerFile] = OrderedDict()
        self._unreadable: set[int] = set()
        self._failures = 0
        self._lock = threading.Lock()
        self._files_lock = threading.Lock()

    @property
    def answers(self) -> int:
        """How many there are, those that stand twice counted twice."""
        return self._index.answers

    def give_up(self) -> None:
        """Read nothing more: a call that is going on ends soon, as if nothing more were there."""
        self._failures = FAILURES_UNTIL_GIVEN_UP

    def load(self) -> None:
        """Learn which keys there are.

        Raises:
            StorageError: The folder can't be listed.
        """
        entries = [entry for entry in self._folder.list() if written_by_name(entry.name) is not None]
        with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="answer-keys") as pool:
            for entry, read in zip(entries, _in_order(pool, self._keys_of, entries), strict=True):
                if read is not None:
                    keys, starts = read
                    self._index.add(keys, len(self._files))
                    self._files.append(entry)
                    self._starts.append(starts)
        self._index.finish()

    def look_up(self, keys: Sequence[bytes | None], found: Callable[[int, KeptAnswer], None]) -> None:
        """Find answers.

        Args:
            keys: What is looked for; None is never found.
            found: Called for each that is there, in no order, with its position in ``keys``.
        """
        asked = [position for position, key in enumerate(keys) if key is not None]
        if not asked or not self.answers:
            return
        halves = numpy.frombuffer(b"".join(keys[position] or b"" for position in asked), numpy.uint64)
        with self._lock:
            hits = sorted(
                (int(file), *self._place(int(file), int(row)), asked[int(position)])
                for position, file, row in zip(
                    *self._index.find(halves.reshape(-1, KEY_BYTES // 8)[:, 0].copy()), strict=True
                )
            )
            by_group = [(place, list(found)) for place, found in groupby(hits, key=lambda hit: hit[:2])]
            with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="answers") as pool:
                groups = _in_order(pool, self._group, [place for place, _hits in by_group])
                for (_place, hits), group in zip(by_group, groups, strict=True):
                    for _file, _group, row, position in hits:
                        if group is not None and row < len(group) and group.key(row) == keys[position]:
                            found(position, group.answer(row))

    def _place(self, file: int, row: int) -> tuple[int, int]:
        """Of a file's row, its group and its row in that."""
        group = int(numpy.searchsorted(self._starts[file], row, side="right")) - 1
        return group, row - int(self._starts[file][group])

    def _keys_of(self, entry: FileEntry) -> tuple[Any, Any] | None:
        """All keys of a file, and where its groups begin; None if it can't be read."""

        def read() -> tuple[Any, Any]:
            file = AnswerFile(self._folder.child(entry.name), entry)
            return file.keys(), numpy.cumsum([0, *file.group_sizes])[:-1].astype(numpy.uint64)

        return self._tolerantly(entry, read)

    def _group(self, place: tuple[int, int]) -> Group | None:
        file, number = place
        with self._files_lock:
            group = self._groups.get(place)
            if group is not None:
                self._groups.move_to_end(place)
                return group
            if file in self._unreadable:
                return None
            opened = self._open_files.get(file)
        entry = self._files[file]
        opened = opened or self._tolerantly(entry, lambda: AnswerFile(self._folder.child(entry.name), entry))
        group = None if opened is None else self._tolerantly(entry, lambda: opened.group(number))
        with self._files_lock:
            if opened is None or group is None:
                self._unreadable.add(file)
                return None
            self._open_files[file] = opened
            self._open_files.move_to_end(file)
            while len(self._open_files) > KEPT_FILES:
                self._open_files.popitem(last=False)
            if place not in self._groups:
                self._groups[place] = group
                self._bytes_kept += group.bytes_held
            while self._bytes_kept > KEPT_BYTES and len(self._groups) > 1:
                self._bytes_kept -= self._groups.popitem(last=False)[1].bytes_held
        return group

    def _tolerantly(self, entry: FileEntry, read: Callable[[], T]) -> T | None:
        """What a file gives; None, and a word in the log, if it does not."""
        if self._failures >= FAILURES_UNTIL_GIVEN_UP:
            return None
        try:
            result = read()
        except (StorageNotFoundError, StorageChangedError):
            logger.info("%s of the cache of answers is gone: somebody has pruned it", entry.name)
            return None
        except DamagedFileError as error:
            logger.warning("%s of the cache of answers is damaged, and left out: %s", entry.name, error)
            return None
        except StorageError as error:
            self._failures += 1
            given_up = "; it is asked for nothing more" if self._failures >= FAILURES_UNTIL_GIVEN_UP else ""
            logger.warning("the cache of answers does without a file%s: %s", given_up, error)
            return None
        if self._failures < FAILURES_UNTIL_GIVEN_UP:
            self._failures = 0
        return result


def _in_order(pool: ThreadPoolExecutor, call: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
    """Results in the order of the items; only so many are worked on, or wait to be taken."""
    pending: deque[Future[T]] = deque()
    for item in items:
        pending.append(pool.submit(call, item))
        if len(pending) > READ_AHEAD:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()
