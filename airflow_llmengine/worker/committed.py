"""The committed chunks of a job whose every record is finished, in the order of its input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from airflow_llmengine.spec.job_state import InputEnd
from airflow_llmengine.spec.output_schema import ColumnType
from airflow_llmengine.storage.errors import StorageDocumentError
from airflow_llmengine.storage.job_directory import JobScratch
from airflow_llmengine.worker.chunks import ChunkHeader, decode_results
from airflow_llmengine.worker.tables.results import RowResult, read_row


class CommittedChunks:
    """Reads them one by one, from the beginning each time it is iterated over.

    Args:
        scratch: Where they are.
        end: How many there are.
        rounds: By chunk, its newest round, where that is not 0.

    Iterating raises ``StorageDocumentError`` for one that is damaged.
    """

    def __init__(self, scratch: JobScratch, end: InputEnd, rounds: Mapping[int, int]) -> None:
        self._scratch = scratch
        self._end = end
        self._rounds = rounds

    def __iter__(self) -> Iterator[tuple[ChunkHeader, list[bytes]]]:
        """Each chunk's header, and the elements of its records."""
        first = 0
        for number in range(self._end.chunks):
            try:
                header, elements = decode_results(self._scratch.read_chunk(number, self._rounds.get(number, 0)))
            except ValueError as error:
                raise self._damaged(number, str(error)) from error
            if (header.chunk, header.first) != (number, first):
                raise StorageDocumentError(
                    f"{self._url(number)} holds something else (chunk {header.chunk} from record {header.first}); "
                    "delete it and run the job again"
                )
            first += header.records
            yield header, elements

    def rows(self, columns: Mapping[str, ColumnType] | None) -> Iterator[list[RowResult]]:
        """The results of each chunk's records, which are the rows of a table.

        Args:
            columns: Those that ``output_schema`` makes; None: there is no such schema.
        """
        for header, elements in self:
            yield self.rows_of(header, elements, columns)

    def rows_of(
        self, header: ChunkHeader, elements: Sequence[bytes], columns: Mapping[str, ColumnType] | None
    ) -> list[RowResult]:
        """The results of one chunk's records; see ``rows``."""
        truncated, skipped = frozenset(header.truncated), frozenset(header.skipped)
        try:
            return [
                read_row(element, columns, truncated=index in truncated, skipped=index in skipped)
                for index, element in enumerate(elements, header.first)
            ]
        except ValueError as error:
            raise self._damaged(header.chunk, "one of its lines is no answer to a row") from error

    def _damaged(self, number: int, fault: str) -> StorageDocumentError:
        return StorageDocumentError(f"{self._url(number)} is damaged ({fault}); delete it and run the job again")

    def _url(self, number: int) -> str:
        return self._scratch.chunk_url(number, self._rounds.get(number, 0))
