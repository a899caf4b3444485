"""One attempt of one replica, from the request to an exit code."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from airflow_llmengine.spec.error_rate import too_many_failures
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.identity import fingerprint
from airflow_llmengine.spec.job_state import PinnedInput
from airflow_llmengine.spec.manifest import Manifest
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.storage.errors import StorageError
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.job_directory import JobDirectory, JobScratch
from airflow_llmengine.storage.launch import IfDone, Launch, LaunchRefusedError, launch_job
from airflow_llmengine.storage.status import is_alive
from airflow_llmengine.worker.chunks import DEFAULT_CHUNK_RECORDS, DEFAULT_CHUNK_TOKENS
from airflow_llmengine.worker.collect import (
    JobIncompleteError,
    JobSupersededError,
    TooManyFailedRecordsError,
    collect,
)
from airflow_llmengine.worker.elements import ElementWriter
from airflow_llmengine.worker.engines.base import Engine, EngineDiedError, ModelNotFoundError
from airflow_llmengine.worker.engines.load import EngineUnavailableError, load_engine
from airflow_llmengine.worker.progress import Progress
from airflow_llmengine.worker.readers import InputReader, open_input
from airflow_llmengine.worker.readers.errors import InputChangedError, InputInvalidError
from airflow_llmengine.worker.replica import ModelChangedError, Replica, ReplicaSettings
from airflow_llmengine.worker.share import Share
from airflow_llmengine.worker.stopping import Stop, StopReason

logger = logging.getLogger(__name__)


class JobMismatchError(Exception):
    """The job that a launcher prepared is not the one that this worker finds; the message says how they differ."""


@dataclass(frozen=True, slots=True)
class AttemptOptions:
    """What the command line or a launcher says about one attempt."""

    owner: str
    series: str
    replica: int = 0
    replicas: int = 1
    launched: bool = False
    """A launcher has called ``launch_job``: join the job that it wrote down instead of launching one."""
    generation: int | None = None
    """The generation to join; None: whichever is current."""
    if_done: IfDone = "reuse"
    overwrite: bool = False
    max_error_rate: float | None = None
    chunk_records: int = DEFAULT_CHUNK_RECORDS
    chunk_tokens: int = DEFAULT_CHUNK_TOKENS


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """How an attempt ended."""

    exit_code: ExitCode
    message: str
    """One sentence for a person."""
    manifest: Manifest | None = None
    """Set when the job is done and its output stands."""


def run_attempt(
    storage: Storage, request: CreateBatchCompletionsV1Request, options: AttemptOptions, stop: Stop
) -> AttemptOutcome:
    """Run one replica of a job to its end; a single replica also puts the output together.

    Never raises for what can go wrong with a job: the outcome says it.
    """
    try:
        return _run(storage, request, options, stop)
    except (
        LaunchRefusedError,
        JobMismatchError,
        InputInvalidError,
        InputChangedError,
        ModelNotFoundError,
        ModelChangedError,
        EngineUnavailableError,
    ) as error:
        return AttemptOutcome(ExitCode.BAD_REQUEST, str(error))
    except StorageError as error:
        return AttemptOutcome(storage_exit_code(error), str(error))
    except EngineDiedError as error:
        return AttemptOutcome(ExitCode.ENGINE_DIED, str(error))


def storage_exit_code(error: StorageError) -> ExitCode:
    """What storage refuses or does not have, it will refuse and not have at the next attempt either."""
    return ExitCode.STORAGE_UNREACHABLE if error.retry_helps else ExitCode.BAD_REQUEST


def _run(
    storage: Storage, request: CreateBatchCompletionsV1Request, options: AttemptOptions, stop: Stop
) -> AttemptOutcome:
    engine = load_engine(request)
    reader = open_input(storage, request)
    launch = (
        join_job(
            storage, request, input_identity=reader.identity, engine=engine.name, generation=options.generation
        )
        if options.launched
        else launch_job(
            storage,
            request,
            owner=options.owner,
            series=options.series,
            if_done=options.if_done,
            overwrite=options.overwrite,
            engine=engine.name,
        )
    )
    if launch.manifest is not None:
        return given_back(launch.manifest, options)
    _end_at_deadline(stop, launch.deadline)
    directory = JobDirectory(storage, request.output_data_path)
    progress = Progress(replica=options.replica, replicas=options.replicas)
    scratch = directory.scratch(launch.handle)
    _warn_of_another(scratch, options.replica)
    exit_code = asyncio.run(_replica(request, options, stop, engine, reader, launch, directory, scratch, progress))
    if progress.done:
        logger.info("%s", progress.summary())
    if exit_code is not ExitCode.DONE:
        return AttemptOutcome(exit_code, stop.message)
    reader.check_unchanged()
    if options.replicas > 1:
        return AttemptOutcome(ExitCode.DONE, "this replica's share is done; the output is put together by collect")
    return collect_job(directory, launch, request, engine.name, options)


def _warn_of_another(scratch: JobScratch, replica: int) -> None:
    """Say so if another worker does the same share: its commits and this one's agree, but both are paid for."""
    for beat in scratch.read_heartbeats():
        if beat.replica != replica or not is_alive(beat, time.time()):
            continue
        if beat.host == socket.gethostname() and not Path(f"/proc/{beat.pid}").exists():
            continue
        logger.warning(
            "another worker (process %d on %s) was at work on this share %d s ago; if it still is, end one of the two: "
            "both generate the same records",
            beat.pid,
            beat.host,
            max(0, round(time.time() - beat.updated)),
        )


def given_back(manifest: Manifest, options: AttemptOptions) -> AttemptOutcome:
    """Answer from storage, under this attempt's ``max_error_rate``, which need not be that of the job's own run."""
    failure = too_many_failures(manifest.failures, manifest.records, options.max_error_rate)
    if failure is not None:
        return AttemptOutcome(
            ExitCode.TOO_MANY_FAILED_RECORDS,
            f"the output of this very job stands in {manifest.output_data_path}; {failure}",
        )
    return AttemptOutcome(
        ExitCode.DONE,
        "the output of this very job stands already and is given back; --if-done regenerate makes it anew",
        manifest,
    )


def collect_job(
    directory: JobDirectory,
    launch: Launch,
    request: CreateBatchCompletionsV1Request,
    engine: str,
    options: AttemptOptions,
) -> AttemptOutcome:
    """Put the output together, and say in the outcome why it can't be, if so."""
    try:
        manifest = collect(
            directory,
            launch.handle,
            request,
            owner=options.owner,
            created=launch.created,
            engine=engine,
            max_error_rate=options.max_error_rate,
        )
    except TooManyFailedRecordsError as error:
        return AttemptOutcome(ExitCode.TOO_MANY_FAILED_RECORDS, str(error))
    except (JobIncompleteError, JobSupersededError) as error:
        return AttemptOutcome(ExitCode.PARTIAL, str(error))
    return AttemptOutcome(
        ExitCode.DONE,
        f"{manifest.records} records, {manifest.failed} of them failed, are in {manifest.output_data_path}",
        manifest,
    )


def join_job(
    storage: Storage,
    request: CreateBatchCompletionsV1Request,
    *,
    input_identity: str,
    engine: str,
    generation: int | None = None,
) -> Launch:
    """Find the job that a launcher has written down, and make sure that it is this one.

    Args:
        storage: Where the job is.
        request: What this worker was given.
        input_identity: Names the input as it stands now.
        engine: Name of the engine that answers.
        generation: The one to join; by default whichever is current.

    Raises:
        JobMismatchError: It is another one, or there is none.
        StorageError: The job directory can't be read.
    """
    directory = JobDirectory(storage, request.output_data_path)
    expected = fingerprint(request, input_identity=input_identity, engine=engine)
    current = directory.read_current()
    if current is None:
        raise JobMismatchError(
            f"no job was launched for {request.output_data_path}: launch it first, or run without --launched"
        )
    if current.fingerprint != expected:
        raise JobMismatchError(
            f"the job launched for {request.output_data_path} is {current.fingerprint}, and the request given here "
            f"makes {expected}: its input was replaced since, or another job was launched for the same output; "
            "launch it again"
        )
    if generation is not None and current.generation != generation:
        raise JobMismatchError(
            f"generation {generation} of {request.output_data_path} is to be joined, and {current.generation} is the "
            "current one: another launch took over"
        )
    handle = next(
        (
            handle
            for handle in directory.scratches()
            if (handle.fingerprint, handle.generation) == (current.fingerprint, current.generation)
        ),
        None,
    )
    job = None if handle is None else directory.scratch(handle).read_job()
    if handle is None or job is None:
        manifest = directory.valid_manifest()
        if manifest is not None and manifest.fingerprint == expected:
            return Launch(manifest.handle, deadline=time.time(), created=manifest.created, manifest=manifest)
        raise JobMismatchError(f"the job directory of {request.output_data_path} has no job.json: launch it again")
    return Launch(handle=handle, deadline=job.deadline, created=job.created, resumed=True)


def _end_at_deadline(stop: Stop, deadline: float) -> None:
    """The last hand on the deadline inside this process; it works while the main thread is busy loading a model."""
    timer = threading.Timer(
        max(0.0, deadline - time.time()),
        stop.request,
        (StopReason.DEADLINE, "max_runtime_sec has run out; what was committed is kept"),
        {"seconds": 0.0},
    )
    timer.daemon = True
    timer.start()


async def _replica(
    request: CreateBatchCompletionsV1Request,
    options: AttemptOptions,
    stop: Stop,
    engine: Engine,
    reader: InputReader,
    launch: Launch,
    directory: JobDirectory,
    scratch: JobScratch,
    progress: Progress,
) -> ExitCode:
    wanted = PinnedInput(
        input_identity=reader.identity,
        input_format=reader.format,
        chunk_records=options.chunk_records,
        chunk_tokens=options.chunk_tokens,
    )
    pinned = scratch.pin_input(wanted)
    if pinned.input_identity != wanted.input_identity:
        raise InputChangedError("the input is not the one that this job began with: launch it again")
    elements = ElementWriter(launch.handle, launch.created)
    share = Share(request=request, reader=reader, scratch=scratch, pinned=pinned, elements=elements, progress=progress)
    replica = Replica(
        directory=directory,
        handle=launch.handle,
        share=share,
        engine=engine,
        elements=elements,
        progress=progress,
        stop=stop,
        settings=ReplicaSettings(deadline=launch.deadline, max_error_rate=options.max_error_rate),
    )
    exit_code = None
    try:
        exit_code = await replica.run()
        return exit_code
    finally:
        stop.finished()
        if exit_code is ExitCode.DONE:
            progress.phase = "done"
        else:
            progress.phase = "partial" if exit_code is ExitCode.PARTIAL else "failed"
        try:
            last = progress.heartbeat(stop.message or None, stop.reason)
            await asyncio.to_thread(scratch.write_heartbeat, last)
        except StorageError as error:
            logger.warning("no last heartbeat: %s", error)
