"""What one replica has to do, chunk by chunk: its own share, then what nobody else does."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_llmengine.spec.job_state import InputEnd, PinnedInput
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.results import RecordError, RecordErrorType
from airflow_llmengine.storage.errors import StorageDocumentError
from airflow_llmengine.storage.job_directory import JobScratch
from airflow_llmengine.worker.chunks import (
    MAX_ROUNDS,
    Chunk,
    ChunkResults,
    Finished,
    cut,
    restore_chunk,
    restore_part,
)
from airflow_llmengine.worker.claims import Claims, HeldChunk
from airflow_llmengine.worker.elements import ElementWriter
from airflow_llmengine.worker.progress import Progress
from airflow_llmengine.worker.readers import InputReader
from airflow_llmengine.worker.readers.chats import begins_with_chats
from airflow_llmengine.worker.readers.passed_checks import PassedChecks
from airflow_llmengine.worker.readers.validate import is_batch_line, to_record
from airflow_llmengine.worker.records import RawRecord, Record
from airflow_llmengine.worker.schedule import is_own, outlook
from airflow_llmengine.worker.timing import Timing

if TYPE_CHECKING:
    from airflow_llmengine.worker.answer_cache.attempt_cache import AttemptCache
    from airflow_llmengine.worker.engines.base import Answer

logger = logging.getLogger(__name__)

DEATHS_UNTIL_ALONE = 2
"""A chunk over which so many attempts died goes through the engine record by record."""

HELD_PART = 16
"""Beside other replicas, at most the so manieth part of what is left of one's own share is claimed ahead of the engine:
whoever is done first helps the others, and can't help with what they have claimed."""


@dataclass(slots=True)
class ChunkWork:
    """A chunk that this attempt holds, with the records that still need the engine."""

    results: ChunkResults
    todo: list[Record]
    alone: bool = False
    """Whether its records go through the engine one by one, as one of them may bring it down."""
    doubtful: bool = False
    """Whether an attempt died over it: its records then keep their order, and few others are beside them, so that
    another death does not throw suspicion on many."""


class Share:
    """The chunks that this attempt works on, in order. Blocking, but for the few attributes; safe for threads.

    ``next`` claims a chunk before it gives it. A chunk that is committed already is passed over, whoever committed it,
    so that another number of replicas finds all that was done before.
    """

    def __init__(
        self,
        *,
        request: CreateBatchCompletionsV1Request,
        reader: InputReader,
        scratch: JobScratch,
        pinned: PinnedInput,
        elements: ElementWriter,
        progress: Progress,
        claims: Claims,
        timing: Timing,
        cache: AttemptCache | None = None,
    ) -> None:
        self._request = request
        self._reader = reader
        self._scratch = scratch
        self._pinned = pinned
        self._elements = elements
        self._progress = progress
        self._claims = claims
        self._timing = timing
        self._closed = threading.Event()
        self._turn = threading.Lock()
        self._passed = PassedChecks()
        self._consultation = None if cache is None else cache.consultation(self._validated)
        self._work = self._all_work()
        self.helping = False
        """Whether its own share is done: then a chunk is better claimed late, as somebody else may have time for it."""
        self._at_once = 1
        self._read = 0
        """Records that this attempt has gone through for its own share."""
        self._end_looked_for = time.monotonic()
        self.exhausted = False
        """Whether ``next`` has come to the end, with nothing left for this replica when it looked."""
        self.end: InputEnd | None = scratch.read_end()
        """How long the input is; None until somebody has read it to its end."""
        if self.end is not None:
            progress.total = self.end.records

    def next(self, at_once: int = 1) -> list[ChunkWork]:
        """The next chunks with something left to do or to commit; none if there is none now, and after ``close``.

        Asked again after it gave none, it looks again: who held the rest then may have died since.

        Args:
            at_once: How many to claim together at most. Where others are helped it is one, whatever is asked for.
        """
        with self._turn:
            if self._closed.is_set():
                return []
            if self.exhausted:
                self.exhausted = False
                self._work = self._help_others()
            self._at_once = at_once
            return next(self._work, [])

    @property
    def may_hold(self) -> int | None:
        """How many records may be claimed ahead of the engine, so that replicas end together; None: any number."""
        if self._progress.replicas == 1:
            return None
        left = 0 if self.end is None else self.end.records - self._read
        return max(0, left) // self._progress.replicas // HELD_PART

    def committed(self, results: ChunkResults) -> None:
        """A chunk that ``next`` gave is committed."""
        self._claims.committed(results.number, results.round_number)

    def note_alone(self, chunk: int, record: int) -> None:
        """Write down that a record is about to go through the engine by itself."""
        self._claims.note_alone(chunk, record)

    def begins_with_chats(self) -> bool:
        """Whether the input's beginning tells that it is one of chats; the same whichever replica asks."""
        return self._reader.content is None and begins_with_chats(self._reader.records())

    def close(self) -> None:
        """Claim nothing more, and end a ``next`` that waits."""
        self._closed.set()
        if self._consultation is not None:
            self._consultation.close()

    def give_back(self, *, died: bool = False) -> None:
        """After ``close``: give back what was claimed and is not committed, and say whether the engine died over it."""
        with self._turn:
            self._claims.give_back(died=died)

    def count_input(self) -> Iterator[None]:
        """Read the whole input once, only to learn its length; yields now and then, so that a caller can stop it."""
        records = chunks = 0
        for chunk in self._chunks():
            records += len(chunk.records)
            chunks += 1
            yield
        self._set_end(records, chunks)

    def _all_work(self) -> Iterator[list[ChunkWork]]:
        self._claims.refresh()
        # What this attempt finds; what is committed from now on is left to a later one.
        again = set(self._claims.files.transient)
        own = {chunk for chunk in again if self._is_own(chunk)}
        yield from self._own_work(own)
        self.helping = True
        if again - own:
            yield from self._rounds(again - own)
        yield from self._help_others()

    def _help_others(self) -> Iterator[list[ChunkWork]]:
        while not self._closed.is_set():
            self._claims.refresh()
            end = self._known_end()
            left = [chunk for chunk in range(end.chunks) if not self._is_settled(chunk)]
            found = outlook(
                self._claims.states(left),
                chunks=end.chunks,
                replica=self._progress.replica,
                replicas=self._progress.replicas,
            )
            if found.decision == "done":
                self.exhausted = True
                return
            if found.decision == "wait":
                self._closed.wait(self._timing.wait_seconds)
            else:
                yield from self._help(found.free)

    def _own_work(self, again: Collection[int]) -> Iterator[list[ChunkWork]]:
        """Go through the input once, and do what of it is this replica's own."""
        if self.end is not None and not again:
            own = range(self._progress.replica, self.end.chunks, self._progress.replicas)
            if all(self._is_settled(chunk) for chunk in own):
                return
        pending: list[Chunk] = []
        chunks = self._own_chunks()
        if self._consultation is not None:
            chunks = self._consultation.ahead(chunks, is_done=lambda chunk: chunk in self._claims.files.rounds)
        for chunk in chunks:
            self._read = chunk.records[-1].index + 1
            self._look_for_end()
            if chunk.number in self._claims.files.rounds:
                self._progress.already += len(chunk.records)
                if chunk.number in again:
                    yield from self._round(chunk)
                self._forget([chunk])
            else:
                pending.append(chunk)
            if len(pending) >= self._at_once:
                yield from self._claimed(pending)
                self._forget(pending)
                pending = []
            if self._closed.is_set():
                return
        yield from self._claimed(pending)

    def _forget(self, chunks: Sequence[Chunk]) -> None:
        """What was looked up of chunks that others hold need not be kept."""
        if self._consultation is not None:
            for chunk in chunks:
                self._consultation.forget(chunk.number)

    def _own_chunks(self) -> Iterator[Chunk]:
        """This replica's chunks of the whole input; at its end it is known how long that is."""
        records = chunks = 0
        for chunk in self._chunks():
            records += len(chunk.records)
            chunks += 1
            if self._is_own(chunk.number):
                yield chunk
        self._set_end(records, chunks)

    def _rounds(self, again: Collection[int]) -> Iterator[list[ChunkWork]]:
        """Make other replicas' chunks again for their transient errors, where nobody else does."""
        last = max(again)
        for chunk in self._chunks():
            if self._closed.is_set() or chunk.number > last:
                return
            if chunk.number in again:
                yield from self._round(chunk)

    def _help(self, free: Sequence[int]) -> Iterator[list[ChunkWork]]:
        """Read the input again for chunks that nobody works on."""
        first, wanted = free[0], set(free)
        for part in ({chunk for chunk in wanted if chunk >= first}, {chunk for chunk in wanted if chunk < first}):
            last = max(part, default=-1)
            for chunk in self._chunks():
                if self._closed.is_set() or chunk.number > last:
                    break
                if chunk.number in part:
                    self._claims.refresh(if_older_than=self._timing.look_seconds)
                    yield from self._claimed([chunk])

    def _claimed(self, chunks: Sequence[Chunk]) -> Iterator[list[ChunkWork]]:
        if not chunks:
            return
        by_number = {chunk.number: chunk for chunk in chunks}
        held = self._claims.take_all(list(by_number))
        if held:
            yield [self._chunk_work(by_number[one.chunk], one) for one in held]

    def _is_own(self, chunk: int) -> bool:
        return is_own(chunk, self._progress.replica, self._progress.replicas)

    def _is_settled(self, chunk: int) -> bool:
        return chunk in self._claims.files.rounds or self._claims.holds(chunk)

    def _chunks(self) -> Iterator[Chunk]:
        return cut(self._reader.records(), pinned=self._pinned, content=self._reader.content)

    def _known_end(self) -> InputEnd:
        end = self.end or self._scratch.read_end()
        if end is None:
            raise StorageDocumentError(f"{self._scratch} has no end.json though its input was read to the end")
        self.end = end
        return end

    def _look_for_end(self) -> None:
        """Learn from the job's scratch how long the input is, should another replica have found out."""
        if self.end is None and self._progress.replicas > 1:
            now = time.monotonic()
            if now - self._end_looked_for >= self._timing.look_seconds:
                self._end_looked_for = now
                self.end = self._scratch.read_end()
                self._progress.total = None if self.end is None else self.end.records

    def _set_end(self, records: int, chunks: int) -> None:
        if self.end is None:
            self.end = self._scratch.write_end(InputEnd(records=records, chunks=chunks))
        self._progress.total = self.end.records

    def _chunk_work(self, chunk: Chunk, held: HeldChunk) -> ChunkWork:
        # Looked for with the chunk in hand: an earlier holder may have saved them since the last listing.
        parts = [] if held.fresh else self._scratch.read_parts(chunk.number)
        restored = self._restored(chunk, parts)
        results = self._results(chunk, restored, 0)
        results.parts = len(parts)
        results.saved.update(restored)
        self._progress.restore(restored.values())
        todo = self._todo(chunk, results)
        if held.at_fault is not None:
            todo = self._without(todo, held.at_fault, results)
        # First, so that it is tried again before anything else can end this attempt.
        todo.sort(key=lambda record: record.index != held.suspect)
        return ChunkWork(results, todo, alone=held.deaths >= DEATHS_UNTIL_ALONE, doubtful=held.deaths > 0)

    def _results(self, chunk: Chunk, finished: dict[int, Finished], round_number: int) -> ChunkResults:
        return ChunkResults(
            number=chunk.number,
            first=chunk.records[0].index,
            size=len(chunk.records),
            finished=dict(finished),
            round_number=round_number,
        )

    def _todo(self, chunk: Chunk, results: ChunkResults) -> list[Record]:
        """The records that the engine must answer; errors of those that can't be records, and known answers, stand."""
        todo = []
        self._skip(chunk, results)
        for raw, record, answer in self._records(chunk, results.finished):
            if isinstance(record, RecordError):
                self._fail(results, record, is_line=_looks_like_batch_line(raw, record))
            elif answer is None or not self._give(results, record, answer):
                todo.append(record)
        return todo

    def _skip(self, chunk: Chunk, results: ChunkResults) -> None:
        """Finish the rows of which there is nothing to ask."""
        for raw in chunk.records:
            if raw.skipped and raw.index not in results.finished:
                skipped = self._elements.skipped()
                results.finished[raw.index] = skipped
                self._progress.count(skipped)

    def _records(
        self, chunk: Chunk, finished: Container[int]
    ) -> Iterator[tuple[RawRecord, Record | RecordError, Answer | None]]:
        """The records that are not finished, with the answers that are known."""
        if self._consultation is not None:
            yield from self._consultation.records_of(chunk, finished)
            return
        for raw in chunk.records:
            if raw.index not in finished:
                yield raw, self._validated(raw), None

    def _validated(self, raw: RawRecord) -> Record | RecordError:
        return to_record(raw, self._request, self._reader.content, self._passed)

    def _give(self, results: ChunkResults, record: Record, answer: Answer) -> bool:
        """Answer a record from the cache; False where what is there is no answer."""
        try:
            given = replace(self._elements.answer(record, answer), cached=True)
        except Exception:  # noqa: BLE001 - whoever wrote it was none of ours
            logger.warning("%s: the cache has what is no answer to it, so it is generated", record.location)
            return False
        results.finished[record.index] = given
        self._progress.count(given)
        return True

    def _without(self, todo: list[Record], at_fault: int, results: ChunkResults) -> list[Record]:
        """Leave out the record that was alone in the engine when two attempts died."""
        for record in todo:
            if record.index == at_fault:
                error = RecordError(
                    type=RecordErrorType.ENGINE_CRASH,
                    message=f"{record.location}: the worker died twice while the engine worked on this record alone, "
                    f"after it had died {DEATHS_UNTIL_ALONE} times while this record or one near it was in work",
                    index=record.index,
                    custom_id=record.custom_id,
                )
                # Trying it again would cost a whole attempt, and perhaps the last one.
                self._fail(results, error, is_line=record.is_batch_line, final=True)
        return [record for record in todo if record.index != at_fault]

    def _fail(self, results: ChunkResults, error: RecordError, *, is_line: bool, final: bool = False) -> None:
        failed = replace(self._elements.error(error, is_batch_line=is_line), final=final)
        results.finished[error.index] = failed
        self._progress.count(failed)

    def _round(self, chunk: Chunk) -> Iterator[list[ChunkWork]]:
        """Make a committed chunk again for its transient errors, if this attempt is the first to try this round."""
        before = self._claims.files.rounds[chunk.number]
        if before >= MAX_ROUNDS or not self._claims.take_round(chunk.number, before + 1):
            return
        try:
            standing = restore_chunk(self._scratch.read_chunk(chunk.number, before))
        except ValueError as error:
            raise StorageDocumentError(
                f"{self._scratch.chunk_url(chunk.number, before)} is damaged ({error}); delete it and run the job again"
            ) from error
        kept = {index: result for index, result in standing.items() if not result.may_be_over}
        results = self._results(chunk, kept, before + 1)
        results.standing = standing
        self._progress.replaces(results)
        crashed = {index for index, result in standing.items() if result.error_type == RecordErrorType.ENGINE_CRASH}
        todo = self._todo(chunk, results)
        self._progress.already -= len(todo)
        logger.info(
            "trying %d records of chunk %d again, which had failed for a reason that may be over",
            len(todo),
            chunk.number,
        )
        yield [ChunkWork(results, todo, alone=bool(crashed), doubtful=bool(crashed))]

    def _restored(self, chunk: Chunk, parts: Sequence[bytes]) -> dict[int, Finished]:
        finished: dict[int, Finished] = {}
        own = {record.index for record in chunk.records}
        for data in parts:
            try:
                part = restore_part(data)
                if not own.issuperset(part):
                    raise ValueError("it names records of other chunks")
            except ValueError as error:
                raise StorageDocumentError(
                    f"a part of {self._scratch.chunk_url(chunk.number)} is damaged ({error}); delete its parts and run "
                    "the job again"
                ) from error
            # The first that was saved counts, as with chunks. Other errors that may be over are not worth keeping, but
            # it took three engines to find a record that brings them down.
            for index, result in part.items():
                if not result.may_be_over or result.error_type == RecordErrorType.ENGINE_CRASH:
                    finished.setdefault(index, result)
        return finished


def _looks_like_batch_line(raw: RawRecord, error: RecordError) -> bool:
    # An unreadable line can't be told from others, unless its custom_id could be read.
    return error.custom_id is not None or is_batch_line(raw.value)
