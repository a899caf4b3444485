"""Asks a cache for the records of many chunks at once, ahead of those who work on them.

What a cache reads for one answer is a whole row group. So records are looked up thousands at a time, and each group is
read once for all of them. Answers wait in a file for their chunk, records in memory: that of so many, and no more.
"""

from __future__ import annotations

import json
import logging
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import IO

from airflow_llmengine.spec.results import RecordError
from airflow_llmengine.storage.errors import StorageError
from airflow_llmengine.worker.answer_cache.answer_files import KeptAnswer
from airflow_llmengine.worker.answer_cache.answer_form import is_answer
from airflow_llmengine.worker.answer_cache.known_answers import KnownAnswers
from airflow_llmengine.worker.answers.keys import AnswerKeys, lasts
from airflow_llmengine.worker.chunks import Chunk
from airflow_llmengine.worker.engines.base import Answer
from airflow_llmengine.worker.records import RawRecord, Record

logger = logging.getLogger(__name__)

BLOCK_RECORDS = 16_384
"""Records that are looked up at once; they are in memory meanwhile, and as many more that are at work."""

BLOCK_BYTES = 32 * 2**20
"""Bytes of input that they take at most, but for a single chunk that takes more."""

IN_MEMORY_BYTES = 8 * 2**20
"""Answers of a block that need no file."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an answer is in its block's file."""

    start: int
    size: int
    prompt_tokens: int
    completion_tokens: int
    truncated: bool


@dataclass(slots=True, weakref_slot=True)
class _Block:
    chunks: list[Chunk] = field(default_factory=list)
    records: dict[int, Record | RecordError] = field(default_factory=dict)
    """By index, as they were validated."""
    places: dict[int, _Place] = field(default_factory=dict)
    bodies: IO[bytes] = field(default_factory=partial(tempfile.SpooledTemporaryFile, IN_MEMORY_BYTES))
    """Closed when nobody holds the block any more."""
    failed: BaseException | None = None
    """What ended the input after these chunks."""

    def __post_init__(self) -> None:
        weakref.finalize(self, self.bodies.close)


class Consultation:
    """What a cache knows of the records of one job. Blocking; ``ahead`` and what follows it are for one thread.

    Args:
        known: The cache.
        validate: From a raw record to the record, or its error. Called in another thread, too.
        before_first: Called before the first answer is given, once; it may raise.
    """

    def __init__(
        self,
        known: KnownAnswers,
        validate: Callable[[RawRecord], Record | RecordError],
        *,
        before_first: Callable[[], None] = lambda: None,
    ) -> None:
        self._known = known
        self._validate = validate
        self._keys = AnswerKeys()
        self._before_first = before_first
        self._loading = threading.Lock()
        self._loaded = False
        self._blocks: dict[int, _Block] = {}
        """By the number of each chunk that is still to be worked on."""
        self._given = False
        self._told_of_none = False
        self._closed = False

    def close(self) -> None:
        """End a look-up that is going on in another thread, so that the process need not wait for it."""
        self._closed = True
        self._known.give_up()

    def ahead(self, chunks: Iterator[Chunk], *, is_done: Callable[[int], bool]) -> Iterator[Chunk]:
        """Give chunks on as they come, and look the next ones up meanwhile. ``forget`` each that is done with.

        Args:
            chunks: The chunks to work on. Iterated in another thread.
            is_done: Whether a chunk, by its number, is not looked up. Called there, too.
        """
        if not self._has_answers():
            yield from chunks
            return
        pool = ThreadPoolExecutor(1, thread_name_prefix="consult")
        try:
            following: Future[_Block] | None = pool.submit(self._next_block, chunks, is_done)
            while following is not None:
                block = following.result()
                following = (
                    pool.submit(self._next_block, chunks, is_done) if block.chunks and block.failed is None else None
                )
                for chunk in block.chunks:
                    self._blocks[chunk.number] = block
                yield from block.chunks
                if block.failed is not None:
                    raise block.failed
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def forget(self, chunk: int) -> None:
        """A chunk that ``ahead`` gave was worked on, or is left to others."""
        self._blocks.pop(chunk, None)

    def records_of(
        self, chunk: Chunk, finished: Container[int]
    ) -> Iterator[tuple[RawRecord, Record | RecordError, Answer | None]]:
        """The records of a chunk, validated, each with its answer if there is one.

        Args:
            chunk: One that ``ahead`` gave, or any other: that is looked up by itself.
            finished: Indices of records that are left out.
        """
        block = self._blocks.pop(chunk.number, None)
        if block is None:
            block = _Block([chunk])
            if self._has_answers():
                self._look_up(block, [chunk])
        for raw in chunk.records:
            if raw.index in finished:
                continue
            record = block.records.pop(raw.index, None) or self._validate(raw)
            place = block.places.pop(raw.index, None)
            if isinstance(record, Record) and place is not None:
                yield raw, record, self._answer(block, record, place)
            else:
                yield raw, record, None

    def _has_answers(self) -> bool:
        with self._loading:
            if not self._loaded:
                self._loaded = True
                started = time.monotonic()
                try:
                    self._known.load()
                except Exception as error:  # noqa: BLE001 - the job does not need the cache
                    reason = error if isinstance(error, StorageError) else type(error).__name__
                    logger.warning("the cache of answers can't be read, and is done without: %s", reason)
                else:
                    logger.info(
                        "the cache has %d answers of this model and these settings (looked at in %.1f s)",
                        self._known.answers,
                        time.monotonic() - started,
                    )
        return self._known.answers > 0

    def _next_block(self, chunks: Iterator[Chunk], is_done: Callable[[int], bool]) -> _Block:
        block = _Block()
        records = size = 0
        try:
            for chunk in chunks:
                block.chunks.append(chunk)
                records += len(chunk.records)
                size += sum(record.size for record in chunk.records)
                if records >= BLOCK_RECORDS or size >= BLOCK_BYTES or self._closed:
                    break
        except Exception as error:  # noqa: BLE001 - it is raised in its place, after the chunks before it
            block.failed = error
        self._look_up(block, [chunk for chunk in block.chunks if not is_done(chunk.number)])
        return block

    def _look_up(self, block: _Block, chunks: Iterable[Chunk]) -> None:
        indices, keys = [], []
        for raw in chain.from_iterable(chunk.records for chunk in chunks if not self._closed):
            record = block.records[raw.index] = self._validate(raw)
            if isinstance(record, Record):
                indices.append(raw.index)
                keys.append(self._keys.of(record) if lasts(record) else None)

        def found(position: int, answer: KeptAnswer) -> None:
            start = block.bodies.tell()
            block.bodies.write(answer.body)
            block.places[indices[position]] = _Place(
                start, len(answer.body), answer.prompt_tokens, answer.completion_tokens, answer.truncated
            )

        try:
            self._known.look_up(keys, found)
        except Exception as error:  # noqa: BLE001 - what is not found is generated
            logger.warning("the cache of answers was not looked into to the end: %s", type(error).__name__)

    def _answer(self, block: _Block, record: Record, place: _Place) -> Answer | None:
        block.bodies.seek(place.start)
        try:
            body = json.loads(block.bodies.read(place.size))
        except (ValueError, RecursionError):
            body = None
        if not is_answer(body, record.request) or place.prompt_tokens < 0 or place.completion_tokens < 0:
            if not self._told_of_none:
                self._told_of_none = True
                logger.warning(
                    "%s: the cache has what is no answer to it, so it is generated, as are others of which this is "
                    "not told",
                    record.location,
                )
            return None
        if not self._given:
            self._before_first()
            self._given = True
        return Answer(body, place.prompt_tokens, place.completion_tokens, place.truncated)
