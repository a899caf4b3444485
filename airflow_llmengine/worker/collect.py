"""The end of a job: committed chunks become the output, and the manifest says that it stands."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_llmengine.spec.error_rate import too_many_failures
from airflow_llmengine.spec.job_state import InputEnd, JobHandle, PinnedModel
from airflow_llmengine.spec.manifest import Manifest
from airflow_llmengine.spec.output_schema import ColumnType
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.storage.errors import StorageDocumentError, StorageError
from airflow_llmengine.storage.job_directory import ChunkFiles, JobDirectory, JobScratch
from airflow_llmengine.storage.status import is_alive
from airflow_llmengine.worker.chunks import MAX_ROUNDS, MAY_BE_OVER, ChunkHeader, lasting
from airflow_llmengine.worker.committed import CommittedChunks
from airflow_llmengine.worker.custom_ids import CustomIds
from airflow_llmengine.worker.elements import error_of
from airflow_llmengine.worker.progress import ranges
from airflow_llmengine.worker.put_output import lines_or_array, put_records, put_table

if TYPE_CHECKING:
    from airflow_llmengine.worker.tables.table_output import TableOutput

logger = logging.getLogger(__name__)

ASK_FOR_CHUNKS = 1000
"""How many chunks that a listing does not show are asked for one by one."""


class JobIncompleteError(Exception):
    """Chunks are missing; the message says which."""


class JobSupersededError(Exception):
    """Another launch took over the output; this generation must not write it."""


class TooManyFailedRecordsError(Exception):
    """Every record failed, or more than ``max_error_rate`` allows; no output is written."""

    def __init__(self, message: str, *, retry_helps: bool) -> None:
        super().__init__(message)
        self.retry_helps = retry_helps
        """Whether the next attempt makes enough of them again."""


@dataclass(slots=True)
class _Totals:
    records: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    truncated: int = 0
    skipped: int = 0
    repeated: int = 0
    cached: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    example: str | None = None
    """Message of a failed record, of the type that is commonest."""

    @property
    def tried(self) -> int:
        """The records that were not skipped."""
        return self.records - self.skipped

    def add(self, header: ChunkHeader) -> None:
        self.records += header.records
        self.prompt_tokens += header.prompt_tokens
        self.completion_tokens += header.completion_tokens
        self.truncated += len(header.truncated)
        self.skipped += len(header.skipped)
        self.repeated += len(header.repeated)
        self.cached += len(header.cached)
        self.failures.update(header.failures)


def collect(
    directory: JobDirectory,
    handle: JobHandle,
    request: CreateBatchCompletionsV1Request,
    *,
    owner: str,
    created: float,
    engine: str,
    max_error_rate: float | None,
    table: TableOutput | None = None,
) -> Manifest:
    """Put the output together from the committed chunks, and prove it by the manifest.

    Safe to run twice at once: both write the same bytes, and who comes late finds the manifest.

    Args:
        directory: The output's place, and what is beside it.
        handle: The job.
        request: What was asked for.
        owner: Who the output belongs to.
        created: Seconds since the epoch at which the generation was launched.
        engine: Name of the engine that answered.
        max_error_rate: The greatest share of failed records, from 0 to 1; None: a job fails only when every record did.
        table: Writes the output of a job whose records are the rows of a table; None of any other.

    Raises:
        InputChangedError: The table that is the input is another one by now.
        JobIncompleteError: Not every chunk is committed.
        JobSupersededError: This generation is not the current one.
        TooManyFailedRecordsError: The job has failed; its chunks are kept.
        StorageError: See the message.
    """
    scratch = directory.scratch(handle)
    try:
        return _collect(directory, scratch, handle, request, owner, created, engine, max_error_rate, table)
    except (StorageError, JobIncompleteError):
        # Somebody else may have collected the same generation, and deleted the chunks, in the meantime.
        manifest = directory.valid_manifest()
        if manifest is not None and manifest.handle == handle:
            # What this attempt has put there since nobody will ask for.
            scratch.delete()
            return manifest
        raise


def _collect(
    directory: JobDirectory,
    scratch: JobScratch,
    handle: JobHandle,
    request: CreateBatchCompletionsV1Request,
    owner: str,
    created: float,
    engine: str,
    max_error_rate: float | None,
    table: TableOutput | None,
) -> Manifest:
    files = scratch.chunk_files()
    rounds = files.rounds
    end = _require_all_chunks(scratch, rounds)
    _require_current(directory, handle)
    chunks = CommittedChunks(scratch, end, rounds)
    columns = None if table is None else table.schema_columns
    totals = _count(chunks, end, columns)
    _require_enough_success(totals, max_error_rate, rounds_left=_rounds_left(files))
    model = scratch.read_model()
    custom_ids = CustomIds()

    def still_ours() -> None:
        _require_current(directory, handle)
        _require_not_collected(directory, handle)

    if table is None:
        written = put_records(directory, chunks, custom_ids, before=still_ours)
    else:
        written = put_table(directory, scratch, chunks.rows(columns), table, before=still_ours)
    manifest = Manifest(
        output_data_path=handle.path,
        fingerprint=handle.fingerprint,
        generation=handle.generation,
        owner=owner,
        output_format=lines_or_array(directory) if table is None else table.format,
        output_bytes=written.bytes,
        output_sha256=written.sha256,
        output_etag=written.etag,
        files=written.files,
        records=totals.records,
        succeeded=totals.tried - totals.failures.total() - totals.truncated,
        truncated=totals.truncated,
        skipped=totals.skipped,
        failed=totals.failures.total(),
        failures=dict(totals.failures),
        repeated=totals.repeated,
        cached=totals.cached,
        duplicate_custom_ids=_tell_duplicates(custom_ids),
        prompt_tokens=totals.prompt_tokens,
        completion_tokens=totals.completion_tokens,
        model=request.model_cfg.served_model_name or request.model_cfg.model,
        model_identity=None if model is None else model.model_identity,
        engine=engine,
        engine_version=_engine_version(model),
        created=created,
        finished=time.time(),
    )
    directory.write_manifest(manifest)
    scratch.delete()
    _tidy(directory, handle)
    return manifest


def _tell_duplicates(custom_ids: CustomIds) -> int:
    """Warn of lines of one name, which are all answered; returns their number."""
    repeated = custom_ids.repeated
    if repeated:
        pairs = ", ".join(f"{first} and {second}" for first, second in custom_ids.pairs())
        logger.warning(
            "%d lines have a custom_id that a line before them has, for example records %s (from 0); each is "
            "answered, and the end of its id tells which record it is",
            repeated,
            pairs,
        )
    return repeated


def _tidy(directory: JobDirectory, handle: JobHandle) -> None:
    """Delete what earlier generations of the same job left, and tell of what other jobs did."""
    others = []
    for left in directory.scratches():
        if left.fingerprint == handle.fingerprint and left.generation < handle.generation:
            directory.scratch(left).delete()
        elif left != handle:
            others.append(left.scratch_name)
    if others:
        logger.info(
            "beside the output stands what other jobs had finished for the same path (%s): llmengine-batch clean %s "
            "deletes it",
            ", ".join(others),
            handle.path,
        )


def _engine_version(model: PinnedModel | None) -> str | None:
    return None if model is None else model.engine_version


def _require_current(directory: JobDirectory, handle: JobHandle) -> None:
    current = directory.read_current()
    if current is None or (current.fingerprint, current.generation) != (handle.fingerprint, handle.generation):
        raise JobSupersededError(
            f"generation {handle.generation} of this job is no longer the current one of {handle.path}: another "
            "launch took over; its output was left alone"
        )


def _require_not_collected(directory: JobDirectory, handle: JobHandle) -> None:
    """Leave an output alone that somebody else has finished meanwhile: its chunks are about to go."""
    standing = directory.read_manifest()
    if standing is not None and standing.handle == handle and directory.valid_manifest() is not None:
        raise JobIncompleteError("another collect has put the output in its place just now")


def _require_all_chunks(scratch: JobScratch, rounds: Mapping[int, int]) -> InputEnd:
    end = scratch.read_end()
    if end is None:
        raise JobIncompleteError("no worker has read the input to its end yet; run the job again to go on")
    unlisted = set(range(end.chunks)) - rounds.keys()
    # A listing may be late, so the last few are asked for one by one.
    if len(unlisted) <= ASK_FOR_CHUNKS:
        unlisted = {chunk for chunk in unlisted if not scratch.has_chunk(chunk)}
    missing = list(ranges(unlisted))
    if missing:
        named = ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in missing[:5])
        more = "" if len(missing) <= 5 else f" and {len(missing) - 5} more ranges"
        count = sum(last - first + 1 for first, last in missing)
        raise JobIncompleteError(f"{count} of {end.chunks} chunks are not done ({named}{more}); {_remedy(scratch)}")
    return end


def _remedy(scratch: JobScratch) -> str:
    """What to do about chunks that are missing."""
    alive = [str(beat.replica) for beat in scratch.read_heartbeats() if is_alive(beat, time.time())]
    if alive:
        return f"wait for replicas that are at work ({', '.join(alive[:8])}{', ...' if len(alive) > 8 else ''})"
    return "run the job again to go on from there"


def _count(chunks: CommittedChunks, end: InputEnd, columns: Mapping[str, ColumnType] | None) -> _Totals:
    """Count what the chunks hold; of answers that must be values of columns, those that are none are failures, too."""
    totals = _Totals()
    examples: dict[str, str] = {}
    for header, elements in chunks:
        totals.add(header)
        if columns is not None:
            for row in chunks.rows_of(header, elements, columns):
                if row.unfit is not None:
                    totals.failures[RecordErrorType.INVALID_OUTPUT.value] += 1
                    examples.setdefault(RecordErrorType.INVALID_OUTPUT.value, row.unfit)
        if header.failures.keys() - examples.keys():
            for element in elements:
                error = error_of(element)
                if error is not None:
                    examples.setdefault(error.type.value, error.message)
    if totals.records != end.records:
        raise StorageDocumentError(
            f"the chunks hold {totals.records} records, and the input had {end.records}; "
            "make it anew with if_done='regenerate' (--if-done regenerate)"
        )
    for name, _count in totals.failures.most_common(1):
        totals.example = examples.get(name)
    return totals


def _require_enough_success(totals: _Totals, max_error_rate: float | None, *, rounds_left: bool) -> None:
    failure = too_many_failures(totals.failures, totals.tried, max_error_rate)
    if failure is None:
        return
    retry_helps = rounds_left and too_many_failures(lasting(totals.failures), totals.tried, max_error_rate) is None
    said = f"{failure}; for example: {totals.example}"
    raise TooManyFailedRecordsError(f"{said}; {MAY_BE_OVER}" if retry_helps else said, retry_helps=retry_helps)


def _rounds_left(files: ChunkFiles) -> bool:
    """Whether there are chunks that the next attempt makes again for their transient errors."""
    return any(files.rounds[chunk] < MAX_ROUNDS for chunk in files.transient)
