"""One attempt of one replica, from the request to an exit code."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_llmengine.spec.cache_path import cache_path_refusals
from airflow_llmengine.spec.error_rate import too_many_failures
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.identity import fingerprint
from airflow_llmengine.spec.job_state import JobHandle, PinnedInput
from airflow_llmengine.spec.job_version import differs_from_launcher, version_fault
from airflow_llmengine.spec.kubernetes_syntax import parse_quantity
from airflow_llmengine.spec.manifest import Manifest
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.table import Table
from airflow_llmengine.spec.truncated_answers import truncation_warning
from airflow_llmengine.storage.errors import StorageError
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.job_directory import JobDirectory, JobScratch
from airflow_llmengine.storage.launch import IfDone, Launch, LaunchRefusedError, launch_job
from airflow_llmengine.worker.answers.keys import AnswerKeys
from airflow_llmengine.worker.answers.known_outcomes import KnownOutcomes
from airflow_llmengine.worker.answers.local_file import SHARE_OF_FREE, LocalFile
from airflow_llmengine.worker.answers.repeats import Repeats
from airflow_llmengine.worker.chunks import DEFAULT_CHUNK_RECORDS, DEFAULT_CHUNK_TOKENS, chunk_share
from airflow_llmengine.worker.claims import Claims
from airflow_llmengine.worker.collect import (
    JobIncompleteError,
    JobSupersededError,
    TooManyFailedRecordsError,
    collect,
)
from airflow_llmengine.worker.elements import ElementWriter
from airflow_llmengine.worker.engines.base import (
    Engine,
    EngineDiedError,
    EngineFactory,
    LoadsModel,
    ModelChangedError,
    ModelNotFoundError,
)
from airflow_llmengine.worker.engines.load import EngineUnavailableError, load_engine, with_engine_args
from airflow_llmengine.worker.engines.writing import WritesOn
from airflow_llmengine.worker.progress import Progress
from airflow_llmengine.worker.readers import InputReader, open_input
from airflow_llmengine.worker.readers.errors import InputChangedError, InputInvalidError
from airflow_llmengine.worker.replica import Replica, ReplicaSettings
from airflow_llmengine.worker.share import Share
from airflow_llmengine.worker.stopping import Stop
from airflow_llmengine.worker.timing import Deadline, Timing
from airflow_llmengine.worker.tools.code_evaluation import CodeEvaluator
from airflow_llmengine.worker.tools.code_runner import SandboxUnavailableError
from airflow_llmengine.worker.tools.interpreters import Interpreters
from airflow_llmengine.worker.tools.sandbox import require_sandbox
from airflow_llmengine.worker.weights.model_files import ModelFiles

if TYPE_CHECKING:
    from airflow_llmengine.worker.answer_cache.attempt_cache import AttemptCache
    from airflow_llmengine.worker.tables.table_output import TableOutput

logger = logging.getLogger(__name__)


class CacheUnavailableError(Exception):
    """The cache of answers can't be used so; the message says why, and what to do."""


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
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    table: Table | None = None
    """How rows become records, and results columns; None: the input is made of records."""
    cache_path: str | None = None
    """Where answers are kept for later runs; None: nowhere."""
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
    storage: Storage,
    request: CreateBatchCompletionsV1Request,
    options: AttemptOptions,
    stop: Stop,
    *,
    make_engine: EngineFactory | None = None,
    timing: Timing | None = None,
) -> AttemptOutcome:
    """Run one replica of a job to its end; a single replica also puts the output together.

    Never raises for what can go wrong with a job: the outcome says it.

    Args:
        storage: Where everything is, with credentials.
        request: A request that ``validate_request`` has passed.
        options: What this attempt is told.
        stop: Ends it early.
        make_engine: Makes the engine; by default the one that is installed and configured, with its further arguments.
        timing: Times of the job protocol and the clock; the defaults are meant for production.
    """
    make_engine = make_engine or with_engine_args(load_engine, options.engine_args)
    try:
        return _run(storage, request, options, stop, make_engine, timing or Timing())
    except (
        LaunchRefusedError,
        JobMismatchError,
        CacheUnavailableError,
        InputInvalidError,
        InputChangedError,
        ModelNotFoundError,
        ModelChangedError,
        EngineUnavailableError,
        SandboxUnavailableError,
    ) as error:
        return AttemptOutcome(ExitCode.BAD_REQUEST, str(error))
    except StorageError as error:
        return AttemptOutcome(storage_exit_code(error), str(error))
    except EngineDiedError as error:
        return AttemptOutcome(ExitCode.ENGINE_DIED, str(error))
    finally:
        stop.close()


def storage_exit_code(error: StorageError) -> ExitCode:
    """What storage refuses or does not have, it will refuse and not have at the next attempt either."""
    return ExitCode.STORAGE_UNREACHABLE if error.retry_helps else ExitCode.BAD_REQUEST


def _run(
    storage: Storage,
    request: CreateBatchCompletionsV1Request,
    options: AttemptOptions,
    stop: Stop,
    make_engine: EngineFactory,
    timing: Timing,
) -> AttemptOutcome:
    engine = _require_tool(make_engine(request), request).name
    reader = open_input(storage, request, options.table)
    table = table_output(reader, request, options.table)
    launch = (
        join_job(
            storage,
            request,
            input_identity=reader.identity,
            engine=engine,
            engine_args=options.engine_args,
            table=options.table,
            generation=options.generation,
        )
        if options.launched
        else launch_job(
            storage,
            request,
            owner=options.owner,
            series=options.series,
            if_done=options.if_done,
            overwrite=options.overwrite,
            engine=engine,
            engine_args=options.engine_args,
            table=options.table,
            now=timing.wall_clock(),
        )
    )
    if launch.manifest is not None:
        return given_back(launch.manifest, options)
    found = fingerprint(
        request,
        input_identity=reader.identity,
        engine=engine,
        engine_args=options.engine_args,
        table=options.table,
    )
    if found != launch.handle.fingerprint:
        raise InputChangedError("the input was changed while the job was launched: launch it again")
    directory = JobDirectory(storage, request.output_data_path)
    try:
        return _work(directory, launch, reader, table, request, options, stop, make_engine, timing)
    except StorageError:
        # Another attempt may have finished the job, and deleted what this one was about to read.
        manifest = directory.valid_manifest()
        if manifest is None or manifest.handle != launch.handle:
            raise
        with contextlib.suppress(StorageError):
            directory.scratch(launch.handle).delete()
        return given_back(manifest, options)


def _require_tool(engine: Engine, request: CreateBatchCompletionsV1Request) -> Engine:
    if request.tool_config is not None and not isinstance(engine, WritesOn):
        raise EngineUnavailableError(
            f"the engine {engine.name} can't write on after a tool: leave tool_config out, or use another engine"
        )
    return engine


def _work(
    directory: JobDirectory,
    launch: Launch,
    reader: InputReader,
    table: TableOutput | None,
    request: CreateBatchCompletionsV1Request,
    options: AttemptOptions,
    stop: Stop,
    make_engine: EngineFactory,
    timing: Timing,
) -> AttemptOutcome:
    if request.tool_config is not None:
        # Code that a model wrote is not run unless it is shut off; better told before hours of loading.
        require_sandbox()
    deadline = Deadline(launch.deadline, timing)
    # The last hand on the deadline inside this process; it works while the main thread is busy loading a model.
    stop.end_at_deadline(deadline.left, "max_runtime_sec has run out; what was committed is kept")
    progress = Progress(replica=options.replica, replicas=options.replicas, wall_clock=timing.wall_clock)
    scratch = directory.scratch(launch.handle)
    elements = ElementWriter(launch.handle, launch.created)
    files = ModelFiles(directory.output.storage, request, pinned=lambda: _pinned_model(scratch), say=progress.say_doing)
    pinned = _pin_input(scratch, reader, options)
    cache = _open_cache(directory.output.storage, request, options, make_engine, files, scratch)
    share = Share(
        request=request,
        reader=reader,
        scratch=scratch,
        pinned=pinned,
        elements=elements,
        progress=progress,
        claims=Claims(scratch, replica=options.replica, attempt=progress.attempt, timing=timing),
        timing=timing,
        cache=cache,
    )
    exit_code = asyncio.run(
        _attend(
            Replica(
                directory=directory,
                handle=launch.handle,
                share=share,
                make_engine=lambda: _engine(make_engine, request, files),
                elements=elements,
                progress=progress,
                stop=stop,
                settings=ReplicaSettings(deadline=deadline, max_error_rate=options.max_error_rate),
                timing=timing,
                repeats=_repeats(request),
                evaluator=None if request.tool_config is None else CodeEvaluator(request.tool_config, Interpreters()),
                cache=cache,
            ),
            _LastWords(share, scratch, progress, stop),
            cache,
        )
    )
    if progress.done:
        logger.info("%s", progress.summary())
    if exit_code is not ExitCode.DONE:
        return AttemptOutcome(exit_code, stop.message)
    reader.check_unchanged()
    if options.replicas > 1:
        return AttemptOutcome(ExitCode.DONE, "this replica's share is done; the output is put together by collect")
    return collect_job(directory, launch, request, make_engine(request).name, options, table)


def require_parquet() -> None:
    """Make sure that a cache of answers can be read here.

    Raises:
        CacheUnavailableError: Its packages are not installed.
    """
    for package in ("numpy", "pyarrow"):
        if importlib.util.find_spec(package) is None:
            raise CacheUnavailableError(
                f"a cache of answers needs the package {package}, which is not installed where the worker runs: "
                "install airflow-llmengine[parquet] there"
            )


def _open_cache(
    storage: Storage,
    request: CreateBatchCompletionsV1Request,
    options: AttemptOptions,
    make_engine: EngineFactory,
    files: ModelFiles,
    scratch: JobScratch,
) -> AttemptCache | None:
    if options.cache_path is None:
        return None
    refusals = cache_path_refusals(options.cache_path, request)
    if refusals:
        raise CacheUnavailableError("; ".join(map(str, refusals)))
    require_parquet()
    from airflow_llmengine.worker.answer_cache.attempt_cache import open_cache

    return open_cache(
        storage,
        options.cache_path,
        request,
        engine=make_engine(request),
        engine_args=options.engine_args,
        files=files,
        scratch=scratch,
    )


def _engine(make_engine: EngineFactory, request: CreateBatchCompletionsV1Request, files: ModelFiles) -> Engine:
    engine = make_engine(request)
    if isinstance(engine, LoadsModel):
        engine.load_from(files.find)
    return engine


def _repeats(request: CreateBatchCompletionsV1Request) -> Repeats[Any]:
    """What lets records that ask the same have one answer; it takes a part of the disk that the worker may use."""
    storage = None if request.storage is None else parse_quantity(str(request.storage))
    file = LocalFile(None if storage is None else int(storage) // SHARE_OF_FREE)
    return Repeats(AnswerKeys(uses_tool=request.tool_config is not None), KnownOutcomes(file))


def _pinned_model(scratch: JobScratch) -> str | None:
    pinned = scratch.read_model()
    return None if pinned is None else pinned.model_identity


def _pin_input(scratch: JobScratch, reader: InputReader, options: AttemptOptions) -> PinnedInput:
    wanted = PinnedInput(
        input_identity=reader.identity,
        input_format=reader.format,
        chunk_records=options.chunk_records,
        chunk_share=chunk_share(options.replicas),
        chunk_tokens=options.chunk_tokens,
    )
    pinned = scratch.pin_input(wanted)
    if pinned.input_identity != wanted.input_identity:
        raise InputChangedError("the input is not the one that this job began with: launch it again")
    return pinned


def given_back(manifest: Manifest, options: AttemptOptions) -> AttemptOutcome:
    """Answer from storage, under this attempt's ``max_error_rate``, which need not be that of the job's own run."""
    failure = too_many_failures(manifest.failures, manifest.tried, options.max_error_rate)
    if failure is not None:
        return AttemptOutcome(
            ExitCode.TOO_MANY_FAILED_RECORDS,
            f"the output of this very job stands in {manifest.output_data_path}; {failure}",
        )
    _warn_of_truncated(manifest)
    return AttemptOutcome(
        ExitCode.DONE,
        "the output of this very job stands already and is given back; --if-done regenerate makes it anew",
        manifest,
    )


def _warn_of_truncated(manifest: Manifest) -> None:
    warning = truncation_warning(manifest)
    if warning is not None:
        logger.warning("%s", warning)


def table_output(
    reader: InputReader, request: CreateBatchCompletionsV1Request, table: Table | None
) -> TableOutput | None:
    """What writes the output of a job with a table; None of one without.

    Raises:
        InputInvalidError: Of this input there can be no such output.
    """
    if table is None:
        return None
    from airflow_llmengine.worker.tables.table_input import TableInput
    from airflow_llmengine.worker.tables.table_output import TableOutput

    if not isinstance(reader, TableInput):
        raise TypeError("the input of a job with a table is a table")
    return TableOutput(table, reader, request.output_data_path)


def collect_job(
    directory: JobDirectory,
    launch: Launch,
    request: CreateBatchCompletionsV1Request,
    engine: str,
    options: AttemptOptions,
    table: TableOutput | None = None,
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
            table=table,
        )
    except TooManyFailedRecordsError as error:
        return AttemptOutcome(ExitCode.PARTIAL if error.retry_helps else ExitCode.TOO_MANY_FAILED_RECORDS, str(error))
    except (JobIncompleteError, JobSupersededError) as error:
        return AttemptOutcome(ExitCode.PARTIAL, str(error))
    _warn_of_truncated(manifest)
    further = f" and {manifest.truncated} truncated" if manifest.truncated else ""
    further += f" and {manifest.skipped} skipped" if manifest.skipped else ""
    return AttemptOutcome(
        ExitCode.DONE,
        f"{manifest.records} records, {manifest.failed} of them failed{further}, are in {manifest.output_data_path}",
        manifest,
    )


def join_job(
    storage: Storage,
    request: CreateBatchCompletionsV1Request,
    *,
    input_identity: str,
    engine: str,
    engine_args: Mapping[str, Any] | None = None,
    table: Table | None = None,
    generation: int | None = None,
) -> Launch:
    """Find the job that a launcher has written down, and make sure that it is this one.

    Args:
        storage: Where the job is.
        request: What this worker was given.
        input_identity: Names the input as it stands now.
        engine: Name of the engine that answers.
        engine_args: Its further arguments.
        table: How rows become records, and results columns, if it has a table.
        generation: The one to join; by default whichever is current.

    Raises:
        JobMismatchError: It is another one, or there is none.
        StorageError: The job directory can't be read.
    """
    directory = JobDirectory(storage, request.output_data_path)
    expected = fingerprint(request, input_identity=input_identity, engine=engine, engine_args=engine_args, table=table)
    current = directory.read_current()
    if current is None:
        raise JobMismatchError(f"no job was launched for {request.output_data_path}: launch it first")
    # Asked directly, and not by a listing, which may be late.
    handle = JobHandle(path=directory.output.url, fingerprint=current.fingerprint, generation=current.generation)
    job = directory.scratch(handle).read_job()
    if job is not None and (fault := version_fault(job)) is not None:
        raise JobMismatchError(fault)
    if current.fingerprint != expected:
        other_version = None if job is None else differs_from_launcher(job)
        raise JobMismatchError(
            f"the job launched for {request.output_data_path} is {current.fingerprint}, and the request given here "
            f"makes {expected}: "
            + (
                other_version
                or "its input was replaced since, its engine_args or its table are others, or another job was launched "
                "for the same output; launch it again"
            )
        )
    if generation is not None and generation > current.generation:
        raise JobMismatchError(
            f"generation {generation} of {request.output_data_path} was never launched; {current.generation} is the "
            "current one"
        )
    if generation is not None and current.generation != generation:
        raise JobMismatchError(
            f"generation {generation} of {request.output_data_path} is to be joined, and {current.generation} is the "
            "current one: another launch took over"
        )
    if job is None:
        manifest = directory.valid_manifest()
        if manifest is not None and manifest.fingerprint == expected:
            return Launch(manifest.handle, deadline=time.time(), created=manifest.created, manifest=manifest)
        raise JobMismatchError(f"the job directory of {request.output_data_path} has no job.json: launch it again")
    return Launch(handle=handle, deadline=job.deadline, created=job.created, resumed=True)


def explain_by_version(storage: Storage, request: bytes) -> None:
    """Find out whether a request of a launched job is refused here because another version wrote it.

    Raises:
        JobMismatchError: It was launched by another version than this one.
    """
    try:
        path = json.loads(request)["output_data_path"]
        directory = JobDirectory(storage, path)
        current = directory.read_current()
        handle = current and JobHandle(path=path, fingerprint=current.fingerprint, generation=current.generation)
        job = handle and directory.scratch(handle).read_job()
    except (ValueError, TypeError, KeyError, AttributeError, StorageError):
        # The refusal of the request is what there is to tell.
        return
    fault = job and (version_fault(job) or differs_from_launcher(job))
    if fault:
        raise JobMismatchError(fault)


class _LastWords:
    """What an attempt leaves behind at its end, however it ends: chunks given back, and a heartbeat that says so."""

    def __init__(self, share: Share, scratch: JobScratch, progress: Progress, stop: Stop) -> None:
        self._share = share
        self._scratch = scratch
        self._progress = progress
        self._stop = stop

    def __call__(self) -> None:
        """Say them when the process is ended before there was anything to save."""
        self._share.close()
        try:
            self._share.give_back()
            self.say(None)
        except StorageError as error:
            logger.warning("no last heartbeat: %s", error)

    def say(self, exit_code: ExitCode | None) -> None:
        """Write the last heartbeat, unless a later attempt has the replica by now, or the job's scratch is gone."""
        standing = self._scratch.read_heartbeat(self._progress.replica)
        if standing is None or standing.attempt != self._progress.attempt:
            return
        partial = exit_code is ExitCode.PARTIAL or (exit_code is None and self._stop.is_requested())
        self._progress.phase = "done" if exit_code is ExitCode.DONE else "partial" if partial else "failed"
        self._scratch.write_heartbeat(self._progress.heartbeat(self._stop.message or None, self._stop.reason))


async def _attend(replica: Replica, last_words: _LastWords, cache: AttemptCache | None) -> ExitCode:
    stop = replica.stop
    stop.say_last(last_words)
    exit_code = None
    try:
        exit_code = await replica.run()
        return exit_code
    finally:
        if cache is not None:
            # All that the job needs is saved. If there is no more time, the process is ended over it.
            await asyncio.to_thread(cache.close)
        stop.finished()
        try:
            await asyncio.to_thread(last_words.say, exit_code)
        except StorageError as error:
            logger.warning("no last heartbeat: %s", error)
