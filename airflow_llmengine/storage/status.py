"""What storage says of a job: the one answer that operator, sensor, hook and command line all give."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal

from airflow_llmengine.spec.job_state import CancelRequest, CurrentJob, Heartbeat, InputEnd, JobDocument, JobHandle
from airflow_llmengine.spec.manifest import Manifest
from airflow_llmengine.storage.errors import StorageDocumentError
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.job_directory import JobDirectory

JobState = Literal["absent", "launched", "running", "stopped", "done"]

HEARTBEAT_TIMEOUT_SECONDS = 60.0
"""A replica that has been silent for so long is taken for dead."""


LONGEST_REASON = 200
"""Characters of a cancel's reason that are kept."""


class NoSuchJobError(Exception):
    """Nothing was ever launched at this path."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job as its files tell it."""

    state: JobState
    """``absent``: never launched. ``launched``: no worker has shown up. ``running``: a replica is alive. ``stopped``:
    none is, and the output does not stand. ``done``: a valid manifest stands."""
    handle: JobHandle | None = None
    manifest: Manifest | None = None
    job: JobDocument | None = None
    end: InputEnd | None = None
    chunks_committed: int = 0
    heartbeats: list[Heartbeat] = field(default_factory=list)
    cancelled: CancelRequest | None = None
    current: JobHandle | None = None
    """The job that may commit to the output now; another one than ``handle`` has taken the output over."""

    @property
    def alive(self) -> list[Heartbeat]:
        """Replicas that are at work."""
        return [beat for beat in self.heartbeats if is_alive(beat, time.time())]

    def lines(self) -> list[str]:
        """The status for a person, one fact a line."""
        # Whoever can write beside the output may have written what is told here; terminals obey control characters.
        return ["".join(c if c.isprintable() else "?" for c in line) for line in self._lines()]

    def _lines(self) -> list[str]:
        if self.manifest is not None:
            manifest = self.manifest
            failures = ", ".join(f"{count} {name}" for name, count in manifest.failures.items()) or "none"
            further = f", truncated by max_tokens: {manifest.truncated}" if manifest.truncated else ""
            further += f", skipped: {manifest.skipped}" if manifest.skipped else ""
            further += f", repeated: {manifest.repeated}" if manifest.repeated else ""
            further += f", cached: {manifest.cached}" if manifest.cached else ""
            lines = [
                f"done       {manifest.records} records, failed: {failures}{further}",
                f"output     {manifest.output_data_path} ({manifest.output_bytes} bytes)",
                f"tokens     {manifest.prompt_tokens} in, {manifest.completion_tokens} out",
                f"job        {manifest.fingerprint}, generation {manifest.generation}, of {manifest.owner}",
            ]
            if manifest.duplicate_custom_ids:
                lines.append(f"names      {manifest.duplicate_custom_ids} lines repeat the custom_id of an earlier one")
            return lines
        if self.handle is None:
            return ["absent     nothing was launched at this path"]
        chunks = "?" if self.end is None else str(self.end.chunks)
        lines = [
            f"{self.state:10} {self.chunks_committed}/{chunks} chunks committed",
            f"job        {self.handle.fingerprint}, generation {self.handle.generation}"
            + (f", of {self.job.owner}" if self.job else ""),
        ]
        if self.job is None and not self.heartbeats:
            lines = [
                "stopped    nothing of the job is left but its name: its output or its manifest was changed or deleted",
                lines[1],
            ]
        if self.job is not None:
            lines.append(f"deadline   {_when(self.job.deadline)}")
        if self.cancelled is not None:
            lines.append(f"cancelled  {_when(self.cancelled.requested)}: {self.cancelled.reason}")
        lines.extend(
            f"replica {beat.replica:<2} {beat.phase}, {beat.records_committed + beat.records_open} records, "
            f"{beat.records_failed} failed, "
            + (f"{beat.records_truncated} truncated by max_tokens, " if beat.records_truncated else "")
            + (f"{beat.records_skipped} skipped, " if beat.records_skipped else "")
            + (f"{beat.records_repeated} repeated, " if beat.records_repeated else "")
            + (f"{beat.records_cached} cached, " if beat.records_cached else "")
            + f"{beat.records_per_second:.1f} records/s, "
            f"{beat.tokens_per_second:.0f} tokens/s, heard of {max(0, round(time.time() - beat.updated))} s ago"
            for beat in self.heartbeats
        )
        return lines


def job_status(storage: Storage, job: JobHandle | str) -> JobStatus:
    """Read a job's status.

    Args:
        storage: Where it is.
        job: A handle, or an ``output_data_path``, which means whatever is current there.

    Raises:
        StorageError: The job directory can't be read.
    """
    directory = JobDirectory(storage, job if isinstance(job, str) else job.path)
    current = directory.read_current()
    manifest = directory.valid_manifest()
    handle = _handle(directory, job, current, manifest)
    if handle is None:
        return JobStatus(state="absent")
    if manifest is not None and manifest.handle == handle:
        return JobStatus(state="done", handle=handle, manifest=manifest)
    return _unfinished(directory, handle, current, chunks_committed=len(directory.scratch(handle).committed_chunks()))


def glance(storage: Storage, job: JobHandle | str) -> JobStatus:
    """A job's status as cheaply as it can be had, for whoever asks again and again.

    Of a manifest it is not found out whether the output beside it is still the one that it tells of, which may take
    reading the output: ``done`` means that the manifest of this very job stands. Committed chunks are not counted.

    Args:
        storage: Where the job is.
        job: As for ``job_status``.

    Raises:
        StorageError: The job directory can't be read.
    """
    directory = JobDirectory(storage, job if isinstance(job, str) else job.path)
    current = directory.read_current()
    try:
        manifest = directory.read_manifest()
    except StorageDocumentError:
        # As good as none: it is no proof, and the job puts its own in its place.
        manifest = None
    handle = _handle(directory, job, current, manifest)
    if handle is None:
        return JobStatus(state="absent")
    if manifest is not None and manifest.handle == handle:
        return JobStatus(state="done", handle=handle, manifest=manifest)
    return _unfinished(directory, handle, current, chunks_committed=0)


def cancel_job(storage: Storage, job: JobHandle | str, reason: str) -> JobHandle:
    """Tell every worker of a job to stop and save; they look every few seconds.

    Raises:
        NoSuchJobError: Nothing was launched there.
        StorageError: The job directory can't be written.
    """
    directory = JobDirectory(storage, job if isinstance(job, str) else job.path)
    handle = _handle(directory, job, directory.read_current(), None)
    if handle is None:
        raise NoSuchJobError(f"no job was launched for {directory.output.url}")
    directory.write_cancel(
        CancelRequest(
            fingerprint=handle.fingerprint,
            generation=handle.generation,
            reason=_one_line(reason),
            requested=time.time(),
        )
    )
    return handle


def _unfinished(
    directory: JobDirectory, handle: JobHandle, current: CurrentJob | None, *, chunks_committed: int
) -> JobStatus:
    scratch = directory.scratch(handle)
    heartbeats = scratch.read_heartbeats()
    alive = any(is_alive(beat, time.time()) for beat in heartbeats)
    cancelled = directory.read_cancel()
    if cancelled is not None and (cancelled.fingerprint, cancelled.generation) != (
        handle.fingerprint,
        handle.generation,
    ):
        cancelled = None
    return JobStatus(
        state="running" if alive else "stopped" if heartbeats else "launched",
        handle=handle,
        job=scratch.read_job(),
        end=scratch.read_end(),
        chunks_committed=chunks_committed,
        heartbeats=heartbeats,
        cancelled=cancelled,
        current=None if current is None else _handle(directory, handle.path, current, None),
    )


def _handle(
    directory: JobDirectory, job: JobHandle | str, current: CurrentJob | None, manifest: Manifest | None
) -> JobHandle | None:
    if isinstance(job, JobHandle):
        return job
    if current is not None:
        return JobHandle(path=directory.output.url, fingerprint=current.fingerprint, generation=current.generation)
    return None if manifest is None else manifest.handle


def _one_line(reason: str) -> str:
    """It is told in logs and exceptions, and may come from anybody."""
    printable = "".join(character if character.isprintable() else " " for character in reason)
    return " ".join(printable.split())[:LONGEST_REASON] or "no reason given"


def is_alive(beat: Heartbeat, now: float) -> bool:
    """Whether a replica was at work when it was last heard of, and that was not long ago."""
    return beat.phase not in ("done", "partial", "failed") and now - beat.updated < HEARTBEAT_TIMEOUT_SECONDS


def _when(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))
