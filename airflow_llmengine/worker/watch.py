"""What an attempt looks at while it works, and what it shows: heartbeats, cancel, supersession, others' failures."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter

from airflow_llmengine.spec.error_rate import exceeds_error_rate
from airflow_llmengine.spec.job_state import JobHandle
from airflow_llmengine.storage.errors import StorageError
from airflow_llmengine.storage.job_directory import JobDirectory
from airflow_llmengine.worker.chunks import MAY_BE_OVER, lasting
from airflow_llmengine.worker.progress import Progress
from airflow_llmengine.worker.stopping import Stop, StopReason
from airflow_llmengine.worker.timing import Timing

logger = logging.getLogger(__name__)

PROGRESS_LINE_SECONDS = 15.0
"""How often a progress line is logged."""


class Watch:
    """One attempt's eye on its job. What it finds ends the attempt through ``stop``.

    Args:
        directory: The job's files.
        handle: The job.
        progress: What this attempt has done.
        stop: Ends it early.
        max_error_rate: Failed records, as a share of all, above which the job has failed; None: no limit.
        timing: Times of the job protocol.
    """

    def __init__(
        self,
        *,
        directory: JobDirectory,
        handle: JobHandle,
        progress: Progress,
        stop: Stop,
        max_error_rate: float | None,
        timing: Timing,
    ) -> None:
        self._directory = directory
        self._handle = handle
        self._scratch = directory.scratch(handle)
        self._progress = progress
        self._stop = stop
        self._max_error_rate = max_error_rate
        self._timing = timing

    async def take_over(self) -> None:
        """Begin this attempt: from the first heartbeat on, an earlier attempt of the same replica stops."""
        earlier = await asyncio.to_thread(self._scratch.read_heartbeat, self._progress.replica)
        if earlier is not None:
            self._progress.go_on_from(earlier)
        await self.write_heartbeat()
        # An earlier attempt may have come to its end since this one was launched.
        await self._look_for_end()

    async def run(self) -> None:
        """Heartbeats, progress lines, and a look for cancel, supersession and the other replicas' failures."""
        last_line = last_look = time.monotonic()
        while True:
            await asyncio.sleep(self._timing.heartbeat_seconds)
            try:
                await self._beat()
                await self._look_for_cancel()
                await self.is_current()
                if time.monotonic() - last_look >= self._timing.look_seconds:
                    last_look = time.monotonic()
                    await self._look_for_failures()
            except StorageError as error:
                # A heartbeat is not worth the job: the next commit decides whether storage is really gone.
                logger.warning("%s", error)
            if time.monotonic() - last_line >= PROGRESS_LINE_SECONDS:
                last_line = time.monotonic()
                if self._progress.phase == "generating":
                    logger.info("%s", self._progress.line())

    async def _beat(self) -> None:
        """Show that this attempt is at work; but where a later one of the same replica is, stop."""
        standing = await asyncio.to_thread(self._scratch.read_heartbeat, self._progress.replica)
        if standing is None:
            await self._look_for_end()
        elif standing.attempt != self._progress.attempt:
            self._stop.request(
                StopReason.REPLACED,
                f"a later attempt of replica {standing.replica} has begun (process {standing.pid} on {standing.host}); "
                "what is finished is kept for it",
            )
            return
        await self.write_heartbeat()

    async def write_heartbeat(self, message: str | None = None) -> None:
        """Show that this attempt is at work, unless a later one is, or the job is done."""
        if self._stop.reason not in (StopReason.REPLACED, StopReason.FINISHED):
            await asyncio.to_thread(self._scratch.write_heartbeat, self._progress.heartbeat(message))

    async def _look_for_end(self) -> None:
        """Stop if the job is done, by another attempt: nothing of it is left to work on."""
        manifest = await asyncio.to_thread(self._directory.read_manifest)
        if manifest is not None and manifest.handle == self._handle:
            self._stop.request(StopReason.FINISHED, "the job was finished by another attempt")

    async def _look_for_cancel(self) -> None:
        cancelled = await asyncio.to_thread(self._directory.read_cancel)
        if cancelled is not None and (cancelled.fingerprint, cancelled.generation) == (
            self._handle.fingerprint,
            self._handle.generation,
        ):
            self._stop.request(
                StopReason.CANCELLED, f"the job was cancelled ({cancelled.reason}); what is finished is kept"
            )

    async def _look_for_failures(self) -> None:
        """Add up what the other replicas have failed, for ``max_error_rate``."""
        if self._max_error_rate is None or self._progress.replicas == 1:
            return
        beats = await asyncio.to_thread(self._scratch.read_heartbeats)
        elsewhere: Counter[str] = Counter()
        for beat in beats:
            if beat.replica != self._progress.replica:
                elsewhere.update(beat.failures_committed)
        self._progress.failures_elsewhere = elsewhere
        self.check_error_rate()

    def read_is_current(self) -> bool:
        """Whether this generation may still commit; stops if not. Blocking."""
        current = self._directory.read_current()
        if current is None:
            self._stop.request(
                StopReason.FILES_GONE,
                f"the files of the job of {self._handle.path} are gone (its current.json is not there): somebody "
                "deleted them while it ran; run it again",
            )
        elif (current.fingerprint, current.generation) != (self._handle.fingerprint, self._handle.generation):
            self._stop.request(
                StopReason.SUPERSEDED,
                f"generation {self._handle.generation} of this job is no longer the current one of "
                f"{self._handle.path}: another launch took over",
            )
        else:
            return True
        return False

    async def is_current(self) -> bool:
        """The same, without blocking."""
        return await asyncio.to_thread(self.read_is_current)

    def check_error_rate(self) -> None:
        """Stop once more records have failed than ``max_error_rate`` allows."""
        rate, total = self._max_error_rate, self._progress.total
        if rate is None or total is None:
            return
        failed = self._progress.failed_in_all
        if not exceeds_error_rate(failed, total, rate):
            return
        said = f"{failed} of {total} records have failed, more than max_error_rate {rate:g} allows"
        if exceeds_error_rate(lasting(self._progress.failures_in_all).total(), total, rate):
            self._stop.request(StopReason.TOO_MANY_FAILED_RECORDS, said)
        else:
            self._stop.request(StopReason.FAILING, f"{said}; {MAY_BE_OVER}")
