"""A replica's share of the input: which chunks are its own, and what is left to do in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_llmengine.spec.job_state import InputEnd, PinnedInput
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.results import RecordError
from airflow_llmengine.storage.errors import StorageDocumentError
from airflow_llmengine.storage.job_directory import JobScratch
from airflow_llmengine.worker.chunks import Chunk, ChunkResults, Finished, cut, restore_part
from airflow_llmengine.worker.elements import ElementWriter
from airflow_llmengine.worker.progress import Progress
from airflow_llmengine.worker.readers import InputReader
from airflow_llmengine.worker.readers.validate import is_batch_line, to_record
from airflow_llmengine.worker.records import Record


@dataclass(slots=True)
class ChunkWork:
    """A chunk that is not committed yet, with the records that still need the engine."""

    results: ChunkResults
    todo: list[Record]


class Share:
    """The chunks of one replica, in order; blocking, for a thread of its own.

    Chunk *c* belongs to replica *c mod N*. A chunk that is committed already is passed over, whoever committed it, so
    that another N finds all that was done before.
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
    ) -> None:
        self._request = request
        self._reader = reader
        self._scratch = scratch
        self._pinned = pinned
        self._elements = elements
        self._progress = progress
        self._committed = scratch.committed_chunks()
        self._interrupted = scratch.part_chunks()
        self._chunks = self._cut()
        self.exhausted = False
        """Whether ``next`` has come to the end."""
        self.end: InputEnd | None = scratch.read_end()
        """How long the input is; None until somebody has read it to its end."""

    def is_done(self) -> bool:
        """Whether it is known, without reading the input, that nothing is left to do."""
        return self.end is not None and all(
            number in self._committed
            for number in range(self._progress.replica, self.end.chunks, self._progress.replicas)
        )

    def next(self) -> ChunkWork | None:
        """The next chunk with something left to do or to commit; None after the last."""
        for chunk in self._chunks:
            if chunk.number % self._progress.replicas != self._progress.replica:
                continue
            if chunk.number in self._committed:
                self._progress.already += len(chunk.records)
                continue
            return self._work(chunk)
        self.exhausted = True
        return None

    def count_input(self) -> Iterator[None]:
        """Read the whole input once, only to learn its length; yields now and then, so that a caller can stop it."""
        records = chunks = 0
        for chunk in self._cut():
            records += len(chunk.records)
            chunks += 1
            yield
        self._set_end(records, chunks)

    def _cut(self) -> Iterator[Chunk]:
        records = chunks = 0
        for chunk in cut(
            self._reader.records(),
            max_records=self._pinned.chunk_records,
            max_tokens=self._pinned.chunk_tokens,
            content=self._reader.content,
        ):
            records += len(chunk.records)
            chunks += 1
            yield chunk
        self._set_end(records, chunks)

    def _set_end(self, records: int, chunks: int) -> None:
        if self.end is None:
            self.end = InputEnd(records=records, chunks=chunks)
            self._scratch.write_end(self.end)
        self._progress.total = self.end.records

    def _work(self, chunk: Chunk) -> ChunkWork:
        restored = self._restored(chunk.number)
        results = ChunkResults(
            number=chunk.number,
            first=chunk.records[0].index,
            size=len(chunk.records),
            finished=restored,
            restored=frozenset(restored),
        )
        self._progress.already += len(restored)
        todo = []
        for raw in chunk.records:
            if raw.index in restored:
                continue
            record = to_record(raw, self._request, self._reader.content)
            if isinstance(record, RecordError):
                # An unreadable line can't be told from others, unless its custom_id could be read.
                as_batch_line = record.custom_id is not None or is_batch_line(raw.value)
                failed = self._elements.error(record, is_batch_line=as_batch_line)
                results.finished[raw.index] = failed
                self._progress.count(failed)
            else:
                todo.append(record)
        return ChunkWork(results=results, todo=todo)

    def _restored(self, number: int) -> dict[int, Finished]:
        if number not in self._interrupted:
            return {}
        finished: dict[int, Finished] = {}
        for data in self._scratch.read_parts(number):
            try:
                finished.update(restore_part(data))
            except ValueError as error:
                raise StorageDocumentError(
                    f"a part of {self._scratch.chunk_url(number)} is damaged ({error}); delete its parts and run the "
                    "job again"
                ) from error
        return finished
