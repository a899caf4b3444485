"""Scratch that a job left behind: failed for good, superseded, or written by a zombie."""

from __future__ import annotations

import time
from dataclasses import dataclass

from airflow_llmengine.spec.job_state import JobHandle
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.inputs import data_files
from airflow_llmengine.storage.job_directory import JobDirectory


@dataclass(frozen=True, slots=True)
class AbandonedScratch:
    """A generation's folder that nobody has touched for a while."""

    handle: JobHandle
    last_sign: float
    """Seconds since the epoch of its last launch or heartbeat; 0 if it shows neither."""


def abandoned_scratch(
    storage: Storage, output_data_path: str, *, older_than_seconds: float, now: float | None = None
) -> list[AbandonedScratch]:
    """Find the scratch folders of one output that have shown no sign of life for ``older_than_seconds``."""
    now = time.time() if now is None else now
    found = []
    directory = JobDirectory(storage, output_data_path)
    for handle in directory.scratches():
        scratch = directory.scratch(handle)
        job = scratch.read_job()
        signs = [beat.updated for beat in scratch.read_heartbeats()]
        if job is not None:
            signs.append(job.launched)
        last_sign = max(signs, default=0.0)
        if now - last_sign >= older_than_seconds:
            found.append(AbandonedScratch(handle, last_sign))
    return found


def delete_leftovers(storage: Storage, output_data_path: str, *, older_than_seconds: float) -> int:
    """Delete what killed writers of the output left beside it; gives how many.

    These are temporary files, and uploads that were never completed; of an output that is a folder, for each file.
    """
    output = JobDirectory(storage, output_data_path).output
    places = [output, *(storage.location(entry.url) for entry in data_files(output))]
    return sum(place.delete_leftovers(older_than_seconds) for place in places)


def delete_scratch(storage: Storage, handle: JobHandle) -> None:
    """Delete a generation's folder. What it had finished must be generated again if the job is ever run again."""
    JobDirectory(storage, handle.path).scratch(handle).delete()
