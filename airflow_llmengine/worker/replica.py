"""One replica at work: keep the engine full, commit chunks as they finish, and stop in time with the work saved."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.job_state import JobHandle, PinnedModel
from airflow_llmengine.spec.results import RecordError, RecordErrorType, RecordFault
from airflow_llmengine.storage.errors import StorageError
from airflow_llmengine.storage.job_directory import JobDirectory
from airflow_llmengine.worker.answers.outcomes import Outcome, holds_for_others
from airflow_llmengine.worker.answers.repeats import Repeats
from airflow_llmengine.worker.chunks import ChunkResults, Finished
from airflow_llmengine.worker.elements import ElementWriter
from airflow_llmengine.worker.engine_keeper import ALONE, EngineKeeper
from airflow_llmengine.worker.engines.base import Answer, Engine, EngineDiedError, RecordRejectedError, RendersChats
from airflow_llmengine.worker.look_ahead import LookAhead
from airflow_llmengine.worker.open_chunks import OpenChunks
from airflow_llmengine.worker.progress import Progress
from airflow_llmengine.worker.readers.chats import RECORDS_THAT_TELL
from airflow_llmengine.worker.records import Record
from airflow_llmengine.worker.share import ChunkWork, Share
from airflow_llmengine.worker.stopping import Stop, StopReason
from airflow_llmengine.worker.timing import Deadline, Timing
from airflow_llmengine.worker.tools.code_evaluation import CodeEvaluator
from airflow_llmengine.worker.watch import Watch
from airflow_llmengine.worker.weights.model_files import require_same

if TYPE_CHECKING:
    from airflow_llmengine.worker.answer_cache.attempt_cache import AttemptCache

logger = logging.getLogger(__name__)

T = TypeVar("T")

_Admitted: TypeAlias = tuple[Record, ChunkWork, bytes | None]
"""A record that needs the engine, its chunk, and its key, if its answer is determined."""

FLUSH_SECONDS = 10.0
"""Time kept for writing parts before the process must be gone; at most a third of what is left."""

LATENCY_SAMPLES = 256
"""The slowest of so many latest records tells how long before the deadline admission ends: its time in the engine, for
a tool may take as long as it likes, and the engine would stand idle over it."""

NOTHING_TO_SAVE = (StopReason.SUPERSEDED, StopReason.FINISHED, StopReason.FILES_GONE)
"""Reasons to stop after which nobody will ask for what this attempt has done."""

AT_ONCE = (
    *NOTHING_TO_SAVE,
    StopReason.ENGINE_DIED,
    StopReason.NODE_GONE,
    StopReason.CANCELLED,
    StopReason.REPLACED,
)
"""Reasons to stop for which the records in flight are not waited for."""

BYTES_IN_FLIGHT = 256 * 1024 * 1024
"""Of records in the engine, as they stood in the input; a record that alone is more goes alone."""

COUNTING_PAUSE = 20.0
"""While the engine works, the input is counted with so many times longer pauses than it takes to count."""

PENDING_COMMITS = 8
"""Chunks that may wait for a slow storage before no more records are admitted, if their results take much memory."""

MOST_PENDING_COMMITS = 256
"""And if they take little. Many chunks end at the same time where records were sorted."""

OPEN_BYTES = 256 * 1024 * 1024
"""Of results that wait for the rest of their chunk: beyond that, chunks are finished in turn."""

RECORDS_AT_ONCE = 32
"""Records that may be finished in a row before others get their turn in the loop: a millisecond or two."""

RECORDS_OF_A_PLACE = 8
"""The same of each place in the engine, of which there may be hundreds."""


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """What a replica is told apart from the job itself."""

    deadline: Deadline
    max_error_rate: float | None
    """Failed records, as a share of all, above which the job has failed; None: only a job whose every record fails."""


class Replica:
    """Works through one share of one job. ``run`` is called once."""

    def __init__(
        self,
        *,
        directory: JobDirectory,
        handle: JobHandle,
        share: Share,
        make_engine: Callable[[], Engine],
        elements: ElementWriter,
        progress: Progress,
        stop: Stop,
        settings: ReplicaSettings,
        timing: Timing,
        repeats: Repeats[tuple[Record, ChunkWork]],
        evaluator: CodeEvaluator | None = None,
        cache: AttemptCache | None = None,
    ) -> None:
        self._scratch = directory.scratch(handle)
        self._share = share
        self._engine = EngineKeeper(make_engine, started=self._pin_model, died=self._save_before_restart)
        self._elements = elements
        self._progress = progress
        self._stop = stop
        self._settings = settings
        self._watch = Watch(
            directory=directory,
            handle=handle,
            progress=progress,
            stop=stop,
            max_error_rate=settings.max_error_rate,
            timing=timing,
        )
        self._open = OpenChunks(self._scratch, self._watch.is_current, timing.save_seconds)
        self._repeats = repeats
        self._evaluator = evaluator
        self._cache = cache
        self._in_flight: set[asyncio.Task[None]] = set()
        """Places in the engine: one record after another takes each, or it is idle."""
        self._idle: list[asyncio.Future[_Admitted | None]] = []
        """Of those that wait for a record: what to give it to."""
        self._draining = False
        """Whether places end that have no record."""
        self._window = 0
        """How many there are."""
        self._away = 0
        """Of the records in flight, those that ask nothing of the engine at the moment."""
        self._commits: set[asyncio.Task[None]] = set()
        self._defects: list[BaseException] = []
        self._bytes_in_flight = 0
        self._changed = asyncio.Event()
        """Whether there may be room for a record, a record for the room, or a reason to stop."""
        self._ahead = LookAhead(
            self._next_for_engine,
            helping=lambda: self._share.helping,
            may_hold=lambda: self._share.may_hold,
            changed=self._changed.set,
        )
        self._latencies: deque[float] = deque(maxlen=LATENCY_SAMPLES)
        self._ended = threading.Event()

    @property
    def stop(self) -> Stop:
        """The switch that ends it early."""
        return self._stop

    async def run(self) -> ExitCode:
        """Do what is left of the share.

        Returns:
            ``DONE``, or the exit code of the reason to stop, with the finished work saved.

        Raises:
            StorageError, InputChangedError, ModelChangedError, ModelNotFoundError, EngineDiedError: See each.
        """
        background: list[asyncio.Task[None]] = []
        try:
            await self._watch.take_over()
            if self._stop.reason is StopReason.FINISHED:
                return ExitCode.DONE
            background.append(asyncio.create_task(self._watch.run()))
            work = await self._next_for_engine()
            if not work and not self._stop.is_requested():
                logger.info("nothing is left to do for this replica; no engine is loaded")
                return ExitCode.DONE
            if work:
                self._ahead.add(work)
                background.append(asyncio.create_task(self._count_input()))
                if isinstance(self._engine.engine, RendersChats):
                    # A model that can't render them is refused at once.
                    self._engine.engine.require_chat_template(self._why_a_chat_template)
                # Claimed ahead, so that the engine need not wait for storage.
                self._ahead.look_far(self._engine.engine)
                self._ahead.begin()
                await self._start_engine()
                await self._ahead.arrange(self._engine.engine)
                self._stop.saving_starts(asyncio.get_running_loop())
                background.append(asyncio.create_task(self._watch_deadline()))
                started = time.monotonic()
                try:
                    if await self._generate():
                        return ExitCode.DONE
                finally:
                    self._progress.generating_seconds = time.monotonic() - started
            return ExitCode.DONE if self._stop.reason is None else self._stop.reason.exit_code
        finally:
            self._ended.set()
            self._share.close()
            await self._ahead.end()
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await self._engine.stop()
            self._repeats.close()
            await self._give_back()

    async def _give_back(self) -> None:
        try:
            # Where several records bring engines down, one attempt's restarts do not find them all: the next begins
            # with what is known, and goes through such a chunk record by record at last.
            died = self._stop.reason is StopReason.ENGINE_DIED
            await asyncio.to_thread(self._share.give_back, died=died)
        except StorageError as error:
            # The others find out by this replica's silence, or by its last heartbeat.
            logger.warning("some chunks could not be given back: %s", error)

    async def _next_for_engine(self, at_once: int = 1) -> list[ChunkWork]:
        """The next chunks that need an engine, some of ``at_once``; those that don't are committed on the way."""
        commits: set[asyncio.Task[None]] = set()
        try:
            while not self._stop.is_requested():
                works = await asyncio.to_thread(self._share.next, at_once)
                commits |= {asyncio.create_task(self._commit(work.results)) for work in works if not work.todo}
                needing = [work for work in works if work.todo]
                if needing or not works:
                    return needing
                if len(commits) >= PENDING_COMMITS:
                    done, commits = await asyncio.wait(commits, return_when=asyncio.FIRST_COMPLETED)
                    for commit in done:
                        commit.result()
            return []
        finally:
            await asyncio.gather(*commits)

    def _why_a_chat_template(self) -> str | None:
        if self._share.begins_with_chats():
            return f"the first {RECORDS_THAT_TELL} records are all chats"
        return None

    async def _start_engine(self) -> None:
        self._progress.phase = "loading"
        await self._watch.write_heartbeat("loading the model")
        started = time.monotonic()
        await self._engine.start()
        self._progress.loading_seconds = time.monotonic() - started
        engine = self._engine.engine
        logger.info("%s %s is ready after %.1f s", engine.name, engine.version, self._progress.loading_seconds)

    async def _pin_model(self, engine: Engine) -> None:
        """Make sure that an engine that was started has the weights that this job began with."""
        found = PinnedModel(model_identity=engine.model_identity, engine=engine.name, engine_version=engine.version)
        pinned = await asyncio.to_thread(self._scratch.pin_model, found)
        require_same(found.model_identity, pinned.model_identity)
        if pinned.engine_version != found.engine_version:
            logger.warning(
                "earlier attempts ran %s %s, this one runs %s",
                pinned.engine,
                pinned.engine_version,
                found.engine_version,
            )
        if self._cache is not None:
            await asyncio.to_thread(self._cache.engine_started, engine)

    async def _save_before_restart(self, message: str) -> None:
        """The engine died: keep what it had finished, should this process die over the next one."""
        try:
            await self._save_parts(rounds=False)
            await self._watch.write_heartbeat(f"the engine is started again: {message}")
        except StorageError as error:
            logger.warning("%s", error)

    async def _generate(self) -> bool:
        """Complete the share; True if nothing is left of it."""
        self._progress.phase = "generating"
        self._window = _window(self._engine.engine.capacity)
        stopped = asyncio.create_task(self._stop.wait())
        stopped.add_done_callback(lambda _stopped: self._changed.set())
        saving = asyncio.create_task(self._open.keep_saving())
        looked_again = False
        in_a_row = 0
        try:
            while not self._stop.is_requested():
                self._changed.clear()
                self._raise_defect()
                taken = self._ahead.take() if self._has_room() else None
                if taken is not None:
                    admitted = self._admit(*taken)
                    if admitted is not None:
                        self._send(admitted)
                        in_a_row = 0
                        continue
                    in_a_row += 1
                    if in_a_row % RECORDS_AT_ONCE == 0:
                        await asyncio.sleep(0)
                elif not self._ahead.ended or not self._has_room():
                    await self._changed.wait()
                elif looked_again and not self._ahead.found:
                    break
                else:
                    await self._drain()
                    # Others may have died while the last records were in work.
                    looked_again = True
                    self._ahead.begin()
            await self._drain()
            self._raise_defect()
            return self._share.exhausted and not self._open and not self._ahead.waiting
        finally:
            stopped.cancel()
            self._share.close()
            self._open.end_saving()
            await self._ahead.end()
            for task in self._in_flight:
                task.cancel()
            await asyncio.gather(*self._in_flight, *self._commits, saving, return_exceptions=True)
            await self._save_parts()

    def _has_room(self, leaving: int = 0) -> bool:
        """Whether another record may be admitted, once so many have left their place."""
        return (
            len(self._in_flight) - len(self._idle) - self._away - leaving < self._window
            and self._bytes_in_flight < BYTES_IN_FLIGHT
            and len(self._commits) < (PENDING_COMMITS if self._open.bytes > OPEN_BYTES else MOST_PENDING_COMMITS)
            and not self._repeats.full
        )

    def _admit(self, record: Record, work: ChunkWork) -> _Admitted | None:
        """Begin with a record; None if it needs no place in the engine, since another one asks the same."""
        # Not before: a chunk that is made again has had its time once it is opened.
        self._open.open(work.results)
        key = self._repeats.key(record)
        if key is not None:
            known = self._repeats.known(key)
            if known is not None:
                self._finish(record, work.results, known, repeated=True)
                return None
            if self._repeats.wait(key, (record, work)):
                self._bytes_in_flight += record.size
                return None
        self._bytes_in_flight += record.size
        return record, work, key

    def _send(self, admitted: _Admitted) -> None:
        """Give a record a place in the engine."""
        if self._idle:
            self._idle.pop().set_result(admitted)
            return
        task = asyncio.create_task(self._keep_busy(admitted))
        self._in_flight.add(task)
        task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        self._note_defect(task)

    def _note_defect(self, task: asyncio.Task[None]) -> None:
        """Have ``_generate`` raise what a task ended with: it is a defect, and the record would stay open unnoticed."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._defects.append(error)
        self._changed.set()

    def _raise_defect(self) -> None:
        if self._defects:
            raise self._defects[0]

    async def _keep_busy(self, admitted: _Admitted | None) -> None:
        """Complete a record, and then others in its place: a task for each takes its time."""
        in_a_row = 0
        while admitted is not None:
            try:
                await self._complete(*admitted)
            finally:
                self._bytes_in_flight -= admitted[0].size
            admitted = None
            while admitted is None:
                in_a_row += 1
                if in_a_row % RECORDS_OF_A_PLACE == 0:
                    # Nothing of this may have had to wait.
                    await asyncio.sleep(0)
                taken = self._ahead.take() if self._has_room(leaving=1) and not self._stop.is_requested() else None
                if taken is not None:
                    admitted = self._admit(*taken)
                    continue
                admitted = await self._wait_for_record()
                if admitted is None:
                    return
            if self._has_room():
                # For more than one, as this one was large, or others waited for it.
                self._changed.set()

    async def _wait_for_record(self) -> _Admitted | None:
        """Wait until a place that is idle is given a record; None: no more are to come."""
        self._changed.set()
        if self._draining:
            return None
        place: asyncio.Future[_Admitted | None] = asyncio.get_running_loop().create_future()
        self._idle.append(place)
        return await place

    async def _complete(self, record: Record, work: ChunkWork, key: bytes | None) -> None:
        outcome = await self._outcome(record, work)
        if outcome is None:
            return
        self._finish(record, work.results, outcome)
        if key is None:
            return
        for count, (other, waited) in enumerate(self._repeats.settle(key, outcome), 1):
            self._finish(other, waited.results, outcome, repeated=True)
            self._bytes_in_flight -= other.size
            if count % RECORDS_AT_ONCE == 0:
                await asyncio.sleep(0)
        if not holds_for_others(outcome) and not self._stop.is_requested():
            for following, shared in self._repeats.instead(key):
                self._send((*following, shared))

    async def _outcome(self, record: Record, work: ChunkWork) -> Outcome | None:
        """What the engine makes of a record; None if this attempt ends over it."""
        in_engine = 0.0

        async def ask(question: Callable[[Engine], Awaitable[T]]) -> T:
            nonlocal in_engine
            began = time.monotonic()
            try:
                return await self._ask(question, record, work)
            finally:
                in_engine += time.monotonic() - began

        started = time.monotonic()
        try:
            if self._evaluator is None:
                answer = await self._ask(lambda engine: engine.complete(record), record, work)
            else:
                answer = await self._evaluator.complete(record, ask, self._leave)
            if self._cache is not None:
                self._cache.keep(record, answer)
            outcome: Outcome = answer
        except RecordRejectedError as error:
            outcome = error.error_type, error.message
        except EngineDiedError as error:
            self._stop.request(StopReason.ENGINE_DIED, str(error))
            return None
        except StorageError as error:
            self._stop.request(_storage_reason(error), str(error))
            return None
        except Exception as error:  # noqa: BLE001 - whatever it is, it costs this record and not the job
            outcome = _told_defect(record, error)
        self._latencies.append(time.monotonic() - started if self._evaluator is None else in_engine)
        return outcome

    def _ask(self, question: Callable[[Engine], Awaitable[T]], record: Record, work: ChunkWork) -> Awaitable[T]:
        """Have an engine do something for a record."""

        async def note_alone() -> None:
            # If the process dies of it, what was finished until then, and who was found out, must be known.
            await self._open.save(work.results)
            await asyncio.to_thread(self._share.note_alone, work.results.number, record.index)

        return self._engine.ask(question, deaths=ALONE if work.alone else 0, before_alone=note_alone)

    def _finish(self, record: Record, results: ChunkResults, outcome: Outcome, *, repeated: bool = False) -> None:
        """Put a record's outcome in its place, and commit the chunk with its last one."""
        try:
            finished = self._element(record, results, outcome)
        except Exception as error:  # noqa: BLE001 - as above
            finished = self._element(record, results, _told_defect(record, error))
        if repeated and finished.error_type is None:
            finished.repeated = True
        self._open.finish(results, record.index, finished)
        if self._open.bytes > OPEN_BYTES:
            self._ahead.take_in_turn()
        self._progress.count(finished)
        self._watch.check_error_rate()
        if results.complete:
            commit = asyncio.create_task(self._commit_or_stop(results))
            self._commits.add(commit)
            commit.add_done_callback(self._committed)

    def _element(self, record: Record, results: ChunkResults, outcome: Outcome) -> Finished:
        if isinstance(outcome, Answer):
            return self._elements.answer(record, outcome)
        error_type, message = outcome
        failed = self._elements.error(
            RecordError(
                type=error_type,
                message=f"{record.location}: {message}",
                index=record.index,
                custom_id=record.custom_id,
            ),
            is_batch_line=record.is_batch_line,
        )
        # Twice found out is enough: it takes an engine each time.
        is_final = error_type is RecordErrorType.ENGINE_CRASH and results.round_number > 0
        return replace(failed, final=True) if is_final else failed

    @contextmanager
    def _leave(self) -> Iterator[None]:
        """Give a record's place in flight to another one, which may come although this one comes back later."""
        self._away += 1
        self._changed.set()
        try:
            yield
        finally:
            self._away -= 1

    def _committed(self, commit: asyncio.Task[None]) -> None:
        self._commits.discard(commit)
        self._note_defect(commit)

    async def _commit_or_stop(self, results: ChunkResults) -> None:
        try:
            await self._commit(results)
        except StorageError as error:
            self._stop.request(_storage_reason(error), str(error))

    async def _commit(self, results: ChunkResults) -> None:
        """Commit a whole chunk, unless the job is no longer this generation's."""

        def commit() -> bool | None:
            if not self._watch.read_is_current():
                return None
            return self._scratch.commit_chunk(
                results.number, results.encode(), round_number=results.round_number, transient=results.transient
            )

        first = await asyncio.to_thread(commit)
        if first is None:
            return
        self._progress.commit(results, first=first)
        self._share.committed(results)
        self._open.committed(results.number)

    async def _drain(self) -> None:
        """Wait for the records in flight: all of them, or as long as a stop leaves time."""
        self._draining = True
        while self._idle:
            self._idle.pop().set_result(None)
        while self._in_flight:
            if not self._stop.is_requested():
                stopped = asyncio.create_task(self._stop.wait())
                await asyncio.wait((*self._in_flight, stopped), return_when=asyncio.FIRST_COMPLETED)
                stopped.cancel()
                continue
            if self._stop.reasons.intersection(AT_ONCE):
                # Also one that came later: a node that was told to end is gone, and with it all that is in flight.
                patience = 0.0
            else:
                left = min(self._stop.seconds_left, self._settings.deadline.left)
                patience = max(0.0, left - min(FLUSH_SECONDS, left / 3))
            self._progress.phase = "stopping"
            _done, late = await asyncio.wait(self._in_flight, timeout=min(patience, 1.0))
            if late and patience <= 1.0:
                for task in late:
                    task.cancel()
                await asyncio.gather(*late, return_exceptions=True)
        if self._commits:
            await asyncio.wait(self._commits)
        self._draining = False

    async def _save_parts(self, *, rounds: bool = True) -> None:
        """Keep what is finished of the open chunks: as parts, or for one that is made again, as its next round."""
        if not self._open or self._stop.reason in NOTHING_TO_SAVE or not await self._watch.is_current():
            return
        if rounds:
            for results in self._open.results:
                if results.round_number:
                    # With the earlier results where there are no new ones: this round is not tried a second time.
                    await self._commit(results)
        await self._open.save_all(self._open.results)
        logger.info("saved what was finished of %d open chunks", len(self._open))

    async def _watch_deadline(self) -> None:
        """End admission early enough that the records in flight can finish before the deadline."""
        whole = self._settings.deadline.left
        while True:
            left = self._settings.deadline.left
            reserve = max(self._latencies, default=0.0) * 1.25 + min(FLUSH_SECONDS, left / 3)
            if left <= min(reserve, whole / 2):
                self._stop.request(
                    StopReason.DEADLINE,
                    "max_runtime_sec is about to run out; what is finished is kept",
                    seconds=max(0.0, left),
                )
                return
            await asyncio.sleep(min(1.0, max(0.05, left / 10)))

    async def _count_input(self) -> None:
        """Learn how long the input is while the model loads, for the progress line and ``max_error_rate``."""
        if self._progress.replica != 0 or self._share.end is not None:
            return

        def count() -> None:
            began = time.monotonic()
            for _chunk in self._share.count_input():
                pause = 0.0
                if self._progress.phase == "generating":
                    # The engine's own work in this process comes first, and so do the records that are fed to it.
                    pause = max(0.01, COUNTING_PAUSE * (time.monotonic() - began))
                # After a record that takes seconds to parse it is one of minutes: the end cuts it short.
                if self._ended.wait(pause):
                    return
                began = time.monotonic()

        await asyncio.to_thread(count)


def _told_defect(record: Record, error: Exception) -> RecordFault:
    """A defect of ours or of the engine. The text of an unknown exception may quote the prompt: its type is told."""
    name = type(error).__name__
    logger.warning("%s: %s while it was completed", record.location, name)
    logger.debug("record %d", record.index, exc_info=error)
    return (
        RecordErrorType.INTERNAL,
        f"the engine failed with it ({name}); the worker's log at level DEBUG tells where",
    )


def _window(capacity: int) -> int:
    """How many records are given to an engine that runs so many at once.

    What is too much waits inside the engine, which takes it in the very step in which others end, without asking this
    process. Where answers are all of one length, all end in the same step: so as many wait as run.
    """
    return 2 * capacity + 8


def _storage_reason(error: StorageError) -> StopReason:
    return StopReason.STORAGE_UNREACHABLE if error.retry_helps else StopReason.STORAGE_REFUSED
