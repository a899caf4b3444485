"""Launching: which generation of which job a new attempt belongs to, or that there is nothing left to run.

Every launcher (operator, command line) goes through ``launch_job``, so that they all agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from airflow_llmengine import __version__
from airflow_llmengine.spec.identity import fingerprint, inline_identity
from airflow_llmengine.spec.job_state import PROTOCOL_VERSION, CurrentJob, JobDocument, JobHandle
from airflow_llmengine.spec.job_version import version_fault
from airflow_llmengine.spec.manifest import Manifest
from airflow_llmengine.spec.plan import max_runtime_sec
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.table import Table
from airflow_llmengine.storage.errors import StorageUnsupportedError
from airflow_llmengine.storage.filesystem import Location, Storage
from airflow_llmengine.storage.inputs import input_identity, list_input
from airflow_llmengine.storage.job_directory import JobDirectory
from airflow_llmengine.storage.output_folder import refuse_linked_folders
from airflow_llmengine.storage.urls import redact

IfDone = Literal["reuse", "regenerate"]


class LaunchRefusedError(Exception):
    """The job must not start as it is; the message says why and what to do. Trying again does not help."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What an attempt is told when it is launched."""

    handle: JobHandle
    deadline: float
    """Seconds since the epoch after which nothing of this series of attempts may run."""
    created: float
    """Seconds since the epoch at which the generation was first launched."""
    manifest: Manifest | None = None
    """Set when the job is done already: its answer stands, and nothing has to run."""
    resumed: bool = False
    """Whether earlier attempts of this generation left a job directory to go on from."""


def job_input_identity(storage: Storage, request: CreateBatchCompletionsV1Request) -> str:
    """Name the content of the job's input, wherever it is given.

    Raises:
        StorageError: The input does not exist or can't be read.
    """
    if request.content is not None:
        return inline_identity(request.content)
    if request.input_data_path is None:
        raise LaunchRefusedError("The request has neither content nor input_data_path: give exactly one of them.")
    return input_identity(storage, list_input(storage, request.input_data_path))


def launch_job(
    storage: Storage,
    request: CreateBatchCompletionsV1Request,
    *,
    owner: str,
    series: str,
    if_done: IfDone = "reuse",
    overwrite: bool = False,
    engine: str = "vllm",
    engine_args: Mapping[str, Any] | None = None,
    table: Table | None = None,
    now: float | None = None,
    before_writing: Callable[[], None] | None = None,
    is_sibling: Callable[[str], bool] | None = None,
) -> Launch:
    """Decide what an attempt works on, and write it down for its workers.

    Args:
        storage: Where input and output are, with credentials.
        request: A request that ``validate_request`` has passed.
        owner: Who the output belongs to: ``dag_id/task_id`` of an Airflow task. Another owner's output is refused.
        series: Names the series of attempts. Attempts of one series share one deadline.
        if_done: What to do when the job's valid output exists: answer from it, or generate it anew, once per series.
        overwrite: Take over an output that something else wrote.
        engine: Name of the engine that will answer; a part of the fingerprint.
        engine_args: Its further arguments, as ``parse_engine_args`` gives them; a part of the fingerprint likewise.
        table: How rows become records, and results columns, if the job has a table; a part of the fingerprint likewise.
        now: Seconds since the epoch, for tests; the clock's time by default.
        before_writing: Called once it is sure that something has to run, before anything is written down; what it
            raises ends the launch.
        is_sibling: Tells of a series of attempts whether it has an output beside this one's, though its owner is the
            same, as mapped tasks of one run do. What such a one made of something else is not replaced.

    Raises:
        LaunchRefusedError: See the message.
        StorageError: Input or job directory can't be read or written.
    """
    now = time.time() if now is None else now
    _refuse_output_over_input(storage, request)
    identity = job_input_identity(storage, request)
    job_fingerprint = fingerprint(request, input_identity=identity, engine=engine, engine_args=engine_args, table=table)
    directory = JobDirectory(storage, request.output_data_path)
    _refuse_what_is_in_the_way(directory)
    manifest = directory.valid_manifest()
    current = directory.read_current()
    same_series = current is not None and current.series == series and current.fingerprint == job_fingerprint

    # Of one name may be an object and, as stores have no folders, what looks like one.
    same_kind = manifest is not None and (manifest.files is not None) == directory.is_folder
    if manifest is not None and manifest.fingerprint == job_fingerprint and same_kind:
        finished_by_this_series = same_series and current is not None and current.generation == manifest.generation
        if if_done == "reuse" or finished_by_this_series:
            _delete_leftover_scratch(directory, manifest)
            return Launch(
                handle=manifest.handle,
                deadline=now + max_runtime_sec(request),
                created=manifest.created,
                manifest=manifest,
            )

    if not overwrite:
        _refuse_foreign_output(directory, manifest, current, owner)
        if is_sibling is not None and current is not None and current.fingerprint != job_fingerprint:
            _refuse_output_of_sibling(directory, current, is_sibling)

    if before_writing is not None:
        before_writing()
    generation, resumed = _generation(directory, manifest, current, job_fingerprint, same_series, if_done)
    handle = JobHandle(path=directory.output.url, fingerprint=job_fingerprint, generation=generation)
    (directory.manifest if directory.is_folder else directory.output).require_commits()
    scratch = directory.scratch(handle)
    job = scratch.read_job()
    if job is not None and (fault := version_fault(job)) is not None:
        raise LaunchRefusedError(f"{directory.root}: {fault}.")
    if job is not None and job.series == series:
        cancelled = directory.read_cancel()
        if cancelled is not None and (cancelled.fingerprint, cancelled.generation) == (job_fingerprint, generation):
            raise LaunchRefusedError(
                f"The job was cancelled ({cancelled.reason}); what it had finished is kept. "
                "Clear the task, or start a new run (on the command line: another --series), to go on."
            )
        if now >= job.deadline:
            raise LaunchRefusedError(
                f"max_runtime_sec ({max_runtime_sec(request)} s) of this series of attempts is used up; what was "
                "finished is kept. Clear the task, or start a new run (on the command line: another --series), to go "
                "on with a new budget."
            )
        deadline, created = job.deadline, job.created
    else:
        deadline = now + max_runtime_sec(request)
        created = now if job is None else job.created
        scratch.write_job(
            JobDocument(
                protocol_version=PROTOCOL_VERSION,
                plugin_version=__version__,
                request=shown(request),
                owner=owner,
                series=series,
                created=created,
                launched=now,
                deadline=deadline,
            )
        )
        directory.clear_cancel()
    directory.write_current(CurrentJob(fingerprint=job_fingerprint, generation=generation, owner=owner, series=series))
    return Launch(handle=handle, deadline=deadline, created=created, resumed=resumed)


def _delete_leftover_scratch(directory: JobDirectory, manifest: Manifest) -> None:
    """Finish what a worker that died between its last two steps has left."""
    scratch = directory.scratch(manifest.handle)
    if scratch.read_job() is not None:
        scratch.delete()


def shown(request: CreateBatchCompletionsV1Request) -> dict[str, Any]:
    """The request as it may be kept: without the user's text, and without a signed URL's signature."""
    shown = {name: value for name, value in request.given().items() if name != "content"}
    for name in ("input_data_path", "output_data_path"):
        if isinstance(shown.get(name), str):
            shown[name] = redact(shown[name])
    return shown


def _refuse_output_over_input(storage: Storage, request: CreateBatchCompletionsV1Request) -> None:
    if request.input_data_path is None:
        return
    output = storage.location(request.output_data_path)
    clashes = _is_below if request.output_data_path.endswith("/") else _is_same
    if any(clashes(storage.location(entry.url), output) for entry in list_input(storage, request.input_data_path)):
        raise LaunchRefusedError(
            f"output_data_path {output} is also read as input: give the output a place of its own."
        )


def _is_same(one: Location, other: Location) -> bool:
    """Whether two places are one file, also by way of links."""
    if one.url == other.url:
        return True
    if not (one.is_local and other.is_local):
        return False
    try:
        return Path(one.url).samefile(other.url)
    except OSError:
        return False


def _is_below(one: Location, folder: Location) -> bool:
    """Whether a file is in a folder, also by way of links."""
    if one.url.startswith(folder.url_below):
        return True
    return one.is_local and folder.is_local and Path(one.url).resolve().is_relative_to(Path(folder.url).resolve())


def _refuse_what_is_in_the_way(directory: JobDirectory) -> None:
    """Refuse a device, a pipe or a link where the output shall stand, a folder for a file, and a file for a folder.

    Putting the output there would replace it.
    """
    if not directory.output.is_local:
        return
    path = Path(directory.output.url)
    if path.is_symlink():
        kind = "folder" if directory.is_folder else "file"
        raise LaunchRefusedError(f"output_data_path {path} is a link: name the {kind} to which it leads.")
    if path.is_dir() and not directory.is_folder:
        raise LaunchRefusedError(f"output_data_path {path} is a folder: name the file in it.")
    if path.is_file() and directory.is_folder:
        raise LaunchRefusedError(f"output_data_path {path}/ is a file: name a folder, or leave the slash out.")
    if directory.is_folder:
        try:
            refuse_linked_folders(directory.output)
        except StorageUnsupportedError as error:
            raise LaunchRefusedError(str(error)) from None
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise LaunchRefusedError(f"output_data_path {path} is a device or a pipe: name a file.")
    # Whoever put a link there would have this user write, and delete, where it leads to.
    if Path(directory.root.url).is_symlink():
        raise LaunchRefusedError(f"The job directory {directory.root} is a link: delete it, or give another output.")


def _refuse_foreign_output(
    directory: JobDirectory, manifest: Manifest | None, current: CurrentJob | None, owner: str
) -> None:
    """Refuse to replace what this owner's jobs did not write."""
    url = directory.output.url
    how = "give another output_data_path, or overwrite=True (--overwrite on the command line) to replace it"
    if manifest is None and directory.output_exists():
        # Between the old manifest's deletion and the new one's writing an output stands alone; its scratch is the
        # witness that it is ours. Without one, something else wrote it, or changed it after it was finished.
        unfinished = current is not None and any(
            (handle.fingerprint, handle.generation) == (current.fingerprint, current.generation)
            for handle in directory.scratches()
        )
        if not unfinished and current is not None:
            raise LaunchRefusedError(
                f"{url} was changed, or lost its manifest, since a job of {current.owner} wrote it: {how}."
            )
        if not unfinished:
            raise LaunchRefusedError(f"{url} exists, and no job of this plugin wrote it: {how}.")
    holder = current.owner if current is not None else manifest.owner if manifest is not None else owner
    if holder != owner:
        raise LaunchRefusedError(f"{url} belongs to {holder}, not to {owner}: {how}.")


def _refuse_output_of_sibling(directory: JobDirectory, current: CurrentJob, is_sibling: Callable[[str], bool]) -> None:
    """Refuse to let the last of several tasks be the only one whose output is left."""
    if is_sibling(current.series):
        raise LaunchRefusedError(
            f"{directory.output.url} is the output of another mapped task of this run, too, and one would replace the "
            "other's: give each its own output_data_path, for example with {{ ti.map_index }} in it, or overwrite=True."
        )


def _generation(
    directory: JobDirectory,
    manifest: Manifest | None,
    current: CurrentJob | None,
    job_fingerprint: str,
    same_series: bool,
    if_done: IfDone,
) -> tuple[int, bool]:
    """The generation to work on, and whether its job directory stands already."""
    known = directory.scratches()
    if current is not None:
        newest = JobHandle(path=directory.output.url, fingerprint=current.fingerprint, generation=current.generation)
        # A listing may be late, and what was finished would be paid for again.
        if newest not in known and directory.scratch(newest).read_job() is not None:
            known.append(newest)
    if if_done == "reuse":
        resumable = [handle.generation for handle in known if handle.fingerprint == job_fingerprint]
        if resumable:
            return max(resumable), True
    elif same_series and current is not None:
        return current.generation, any(
            (handle.fingerprint, handle.generation) == (job_fingerprint, current.generation) for handle in known
        )
    used = [handle.generation for handle in known]
    if current is not None:
        used.append(current.generation)
    if manifest is not None:
        used.append(manifest.generation)
    return max(used, default=0) + 1, False
