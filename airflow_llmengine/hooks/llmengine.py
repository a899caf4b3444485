"""The hook: jobs as Airflow sees them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_llmengine.exceptions import (
    ConnectionUnusableError,
    LaunchForbiddenError,
    LLMEngineError,
    RequestRefusedError,
    StorageFailedError,
    StorageRefusedError,
)

if TYPE_CHECKING:
    from airflow_llmengine.hooks.connection_settings import ConnectionSettings
    from airflow_llmengine.spec.job_state import HandedOverPod, JobHandle
    from airflow_llmengine.spec.manifest import Manifest
    from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
    from airflow_llmengine.spec.table import Table
    from airflow_llmengine.storage.filesystem import Storage
    from airflow_llmengine.storage.launch import IfDone, Launch
    from airflow_llmengine.storage.status import JobStatus


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a job is, all replicas together, by what each of them said last."""

    records_total: int | None
    """Records of the input; None until somebody has read it to its end."""
    records_done: int
    """Finished records, failed ones and those of earlier attempts included."""
    records_failed: int
    """Failed records of the latest attempts."""
    failures: dict[str, int] = field(default_factory=dict)
    """Failed records of the latest attempts by error type."""
    records_truncated: int = 0
    """Records of the latest attempts whose structured output was cut by ``max_tokens``; no failures."""
    records_skipped: int = 0
    """Rows of a table, of the latest attempts, of which there was nothing to ask; no failures."""
    records_repeated: int = 0
    """Records of the latest attempts that were answered by another record's answer."""
    records_cached: int = 0
    """Records of the latest attempts that were answered by an answer of an earlier run."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    records_per_second: float = 0.0
    """The speeds of those replicas that are alive, added up."""
    tokens_per_second: float = 0.0
    updated: float | None = None
    """Seconds since the epoch at which a replica was last heard of; None if none ever was."""


@contextlib.contextmanager
def storage_errors() -> Iterator[None]:
    """Raise what storage raises inside as this provider's own exception.

    Without its causes: Airflow logs those too, and what stores' libraries say may quote signed URLs and keys.
    """
    from airflow_llmengine.storage.errors import StorageError

    try:
        yield
    except StorageError as error:
        raise (StorageFailedError if error.retry_helps else StorageRefusedError)(str(error)) from None


class LLMEngineHook(BaseHook):
    """Launches, finds and cancels batch completion jobs, and reads what they did.

    Everything is read from and written to the job directory beside the output, so that it does not matter who
    launched the job, and where. The connection is read when it is first needed, not before.

    Args:
        llmengine_conn_id: Connection of type ``llmengine``.
    """

    conn_name_attr = "llmengine_conn_id"
    default_conn_name = "llmengine_default"
    conn_type = "llmengine"
    hook_name = "LLM Engine"

    def __init__(self, llmengine_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.llmengine_conn_id = llmengine_conn_id

    @cached_property
    def settings(self) -> ConnectionSettings:
        """What the connection says.

        Raises:
            ConnectionUnusableError: It is not defined, of another type, or holds what it can't.
        """
        try:
            connection = self.get_connection(self.llmengine_conn_id)
        except AirflowNotFoundException as error:
            raise self._undefined() from error
        return self._parse(connection.conn_type, connection.extra_dejson)

    async def aread_settings(self) -> None:
        """Read the connection as a trigger must: without blocking the event loop. The rest may then run in a thread.

        Raises:
            ConnectionUnusableError: As for ``settings``.
        """
        try:
            connection = await self.aget_connection(self.llmengine_conn_id)
        except AirflowNotFoundException as error:
            raise self._undefined() from error
        self.settings = self._parse(connection.conn_type, await connection.aextra_dejson())

    def _undefined(self) -> ConnectionUnusableError:
        return ConnectionUnusableError(
            f"The connection {self.llmengine_conn_id} is not defined: define it, of type {self.conn_type}, under "
            f"Connections, or as AIRFLOW_CONN_{self.llmengine_conn_id.upper()}="
            '\'{"conn_type": "llmengine", "extra": {"launcher": "local"}}\'.'
        )

    def _parse(self, conn_type: str | None, extra: Mapping[str, Any]) -> ConnectionSettings:
        from airflow_llmengine.hooks.connection_settings import ConnectionSettings

        if conn_type != self.conn_type:
            raise ConnectionUnusableError(
                f"The connection {self.llmengine_conn_id} is of type {conn_type}: name one of type {self.conn_type}."
            )
        return ConnectionSettings.parse(self.llmengine_conn_id, extra)

    @cached_property
    def storage_options(self) -> dict[str, dict[str, Any]]:
        """Options of fsspec by protocol, credentials included: never to be logged, rendered or put into an XCom."""
        from airflow_llmengine.hooks.storage_credentials import storage_options

        return storage_options(self.settings)

    def storage(self) -> Storage:
        """Where inputs, outputs and job directories are, with the storage connection's credentials."""
        return self._storage

    @cached_property
    def _storage(self) -> Storage:
        from airflow_llmengine.storage.failures import Caller
        from airflow_llmengine.storage.filesystem import Storage

        conn_id = self.settings.storage_conn_id
        credentials = "its machine's own credentials" if conn_id is None else f"the credentials of {conn_id}"
        return Storage(self.storage_options, caller=Caller("Airflow", credentials))

    def output_url(self, request: CreateBatchCompletionsV1Request) -> str:
        """The canonical URL of a request's output, by which its job handle names it.

        Raises:
            StorageFailedError: It is none that storage knows.
        """
        from airflow_llmengine.storage.job_directory import JobDirectory

        with storage_errors():
            return JobDirectory(self.storage(), request.output_data_path).output.url

    def get_conn(self) -> Storage:
        """The same as ``storage``: what a job's files are reached by is this hook's connection."""
        return self.storage()

    def validate(self, request: Mapping[str, Any], table: Table | None = None) -> CreateBatchCompletionsV1Request:
        """Lay a request over the connection's defaults, and check it.

        Args:
            request: The request.
            table: How rows become its records, if it has a table.

        Raises:
            RequestRefusedError: It breaks the contract; the message has a line for each fault.
        """
        from airflow_llmengine.spec.check import validate_request
        from airflow_llmengine.spec.validation import RequestInvalidError

        try:
            return validate_request(self.settings.with_defaults(request), table)
        except RequestInvalidError as error:
            raise RequestRefusedError(f"The request can't be run:\n{error}") from None

    def create(
        self,
        request: Mapping[str, Any] | CreateBatchCompletionsV1Request,
        *,
        owner: str,
        series: str,
        if_done: IfDone = "reuse",
        overwrite: bool = False,
        engine_args: Mapping[str, Any] | str | None = None,
        table: Table | Mapping[str, Any] | str | None = None,
        before_writing: Callable[[], None] | None = None,
        is_sibling: Callable[[str], bool] | None = None,
    ) -> Launch:
        """Validate a request and launch its job: decide what an attempt works on, and write it down for workers.

        Args:
            request: The request, or one that ``validate`` gave.
            owner: Who the output belongs to. Another owner's output is refused.
            series: Names the series of attempts; they share one ``max_runtime_sec``.
            if_done: What to do if the output of this very job stands already: give it back, or make it anew.
            overwrite: Take over an output that something else wrote.
            engine_args: Further arguments of the engine, as the operator takes them.
            table: How rows become records, and results columns, as the operator takes it.
            before_writing: Called once it is sure that something has to run, before anything is written down; what it
                raises ends the launch.
            is_sibling: Tells of a series of attempts whether it has an output beside this one's, though its owner is
                the same, as mapped tasks of one run do. What such a one made of something else is not replaced.

        Returns:
            The launch. If its ``manifest`` is set, the job is done and nothing has to run.

        Raises:
            RequestRefusedError, LaunchForbiddenError, StorageFailedError: See each.
        """
        from airflow_llmengine.storage.launch import LaunchRefusedError, launch_job

        rows = read_table(table)
        checked = self.validate(request, rows) if isinstance(request, Mapping) else request
        further = read_engine_args(engine_args)
        try:
            with storage_errors():
                return launch_job(
                    self.storage(),
                    checked,
                    owner=owner,
                    series=series,
                    if_done=if_done,
                    overwrite=overwrite,
                    engine=self.settings.engine,
                    engine_args=further,
                    table=rows,
                    before_writing=before_writing,
                    is_sibling=is_sibling,
                )
        except LaunchRefusedError as error:
            raise LaunchForbiddenError(str(error)) from error

    def get(self, job: JobHandle | Mapping[str, Any] | str) -> JobStatus:
        """A job's status.

        Args:
            job: A handle, the ``job`` of the operator's XCom, or an ``output_data_path``, which means whatever is
                current there.

        Raises:
            StorageFailedError: The job directory can't be read.
        """
        from airflow_llmengine.storage.status import job_status

        with storage_errors():
            return job_status(self.storage(), _handle(job))

    def glance(self, job: JobHandle | Mapping[str, Any] | str) -> JobStatus:
        """A job's status for whoever asks again and again: ``done`` is not checked against the output itself.

        Args:
            job: As for ``get``.

        Raises:
            StorageFailedError: The job directory can't be read.
        """
        from airflow_llmengine.storage.status import glance

        with storage_errors():
            return glance(self.storage(), _handle(job))

    def cancel(self, job: JobHandle | Mapping[str, Any] | str, reason: str = "by hand") -> JobHandle:
        """Tell every worker of a job to stop and save; they look every few seconds.

        Args:
            job: As for ``get``.
            reason: What the workers' log says of it.

        Raises:
            LLMEngineError: Nothing was launched there.
            StorageFailedError: The job directory can't be written.
        """
        from airflow_llmengine.storage.status import NoSuchJobError, cancel_job

        try:
            with storage_errors():
                return cancel_job(self.storage(), _handle(job), reason)
        except NoSuchJobError as error:
            raise LLMEngineError(str(error)) from error

    def hand_over(self, path: str, pod: HandedOverPod) -> None:
        """Leave a pod to whoever waits for the job.

        Args:
            path: The job's ``output_data_path``.
            pod: The pod.

        Raises:
            StorageFailedError: The job directory can't be written.
        """
        from airflow_llmengine.storage.job_directory import JobDirectory

        with storage_errors():
            JobDirectory(self.storage(), path).write_handed_over(pod)

    def read_handed_over(self, handle: JobHandle) -> HandedOverPod | None:
        """The pod of a job that was left to whoever waits for it; None if there is none of this generation.

        Raises:
            StorageFailedError: The job directory can't be read.
        """
        from airflow_llmengine.storage.job_directory import JobDirectory

        with storage_errors():
            pod = JobDirectory(self.storage(), handle.path).read_handed_over()
        if pod is None or (pod.fingerprint, pod.generation) != (handle.fingerprint, handle.generation):
            return None
        return pod

    def read_manifest(self, job: JobHandle | Mapping[str, Any] | str) -> Manifest | None:
        """The manifest of a job that succeeded; None if it did not, or another job's output stands there by now.

        Raises:
            StorageFailedError: The output or its manifest can't be read.
        """
        from airflow_llmengine.spec.job_state import JobHandle
        from airflow_llmengine.storage.job_directory import JobDirectory

        handle = _handle(job)
        path = handle.path if isinstance(handle, JobHandle) else handle
        with storage_errors():
            manifest = JobDirectory(self.storage(), path).valid_manifest()
        if manifest is None or (isinstance(handle, JobHandle) and manifest.handle != handle):
            return None
        return manifest

    def read_progress(self, job: JobHandle | Mapping[str, Any] | str) -> JobProgress:
        """How far a job is.

        Raises:
            StorageFailedError: The job directory can't be read.
        """
        return progress_of(self.get(job))

    def test_connection(self) -> tuple[bool, str]:
        """What the button "Test" does: the fields, the worker's interpreter, the engine, and the storage connection."""
        from airflow_llmengine.hooks.connection_test import test_settings

        try:
            return True, test_settings(self.settings)
        except LLMEngineError as error:
            return False, str(error)


def read_engine_args(value: Any) -> dict[str, Any]:
    """Read ``engine_args`` as an argument.

    Raises:
        RequestRefusedError: What it holds can't be given; the message has a line for each fault.
    """
    from airflow_llmengine.spec.engine_args import parse_engine_args
    from airflow_llmengine.spec.validation import RequestInvalidError

    try:
        return parse_engine_args(value)
    except RequestInvalidError as error:
        raise RequestRefusedError(f"The engine can't be set up so:\n{error}") from None


def read_table(value: Any) -> Table | None:
    """Read ``table`` as an argument; None and an empty text are none. Whether a job can have it, ``validate`` says.

    Raises:
        RequestRefusedError: It breaks its schema; the message has a line for each fault.
    """
    from airflow_llmengine.spec.table import parse_table
    from airflow_llmengine.spec.validation import RequestInvalidError

    try:
        return parse_table(value)
    except RequestInvalidError as error:
        raise RequestRefusedError(f"The table can't be used so:\n{error}") from None


def _handle(job: JobHandle | Mapping[str, Any] | str) -> JobHandle | str:
    from airflow_llmengine.spec.job_state import JobHandle

    return JobHandle.model_validate(job) if isinstance(job, Mapping) else job


def progress_of(status: JobStatus) -> JobProgress:
    """How far a job is, by its status."""
    manifest = status.manifest
    if manifest is not None:
        return JobProgress(
            records_total=manifest.records,
            records_done=manifest.records,
            records_failed=manifest.failed,
            failures=dict(manifest.failures),
            records_truncated=manifest.truncated,
            records_skipped=manifest.skipped,
            records_repeated=manifest.repeated,
            records_cached=manifest.cached,
            prompt_tokens=manifest.prompt_tokens,
            completion_tokens=manifest.completion_tokens,
            updated=manifest.finished,
        )
    beats = status.heartbeats
    failures: dict[str, int] = {}
    for beat in beats:
        for name, count in beat.failures.items():
            failures[name] = failures.get(name, 0) + count
    return JobProgress(
        records_total=None if status.end is None else status.end.records,
        records_done=sum(beat.records_committed + beat.records_open for beat in beats),
        records_failed=sum(beat.records_failed for beat in beats),
        failures=failures,
        records_truncated=sum(beat.records_truncated for beat in beats),
        records_skipped=sum(beat.records_skipped for beat in beats),
        records_repeated=sum(beat.records_repeated for beat in beats),
        records_cached=sum(beat.records_cached for beat in beats),
        prompt_tokens=sum(beat.prompt_tokens for beat in beats),
        completion_tokens=sum(beat.completion_tokens for beat in beats),
        records_per_second=sum(beat.records_per_second for beat in status.alive),
        tokens_per_second=sum(beat.tokens_per_second for beat in status.alive),
        updated=max((min(beat.updated, time.time()) for beat in beats), default=None),
    )
