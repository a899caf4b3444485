"""The small JSON documents of a job directory. Each says who writes it and when."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

PROTOCOL_VERSION = 1
"""Version of the job directory's layout and of these documents; ``job_version`` says who may go on with which.

It is raised when a version that does not know of a change would spoil a job. A new field that may be ignored is no such
change.
"""

OLDEST_PROTOCOL_VERSION = 1
"""The oldest version with which this one can still go on."""

RESULT_FORMAT_VERSION = 1
"""Version of what an output element looks like. A part of the fingerprint: formats never mix in one output."""


Moment = Annotated[float, Field(ge=0, lt=253_402_300_800)]
"""Seconds since the epoch, up to the year 9999: what a calendar can show."""

Fingerprint = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,100}$")]
"""A part of a folder's name, so it holds no slash."""

Generation = Annotated[int, Field(ge=1, le=10**9)]


class StateDocument(BaseModel):
    """A document of the job directory. Readers ignore what a later version may have added."""

    # Whoever can write beside the output can put one there, and what is in it may be anybody's text.
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, hide_input_in_errors=True)


class JobHandle(StateDocument):
    """Names one generation of one job, wherever it was launched."""

    path: str
    """The job's ``output_data_path``."""
    fingerprint: Fingerprint
    generation: Generation

    @property
    def scratch_name(self) -> str:
        """Name of the generation's folder in the job directory."""
        return f"{self.fingerprint}-{self.generation}"


class CurrentJob(StateDocument):
    """``current.json``: which generation may commit. Written by whoever launches; the newest launch wins."""

    fingerprint: Fingerprint
    generation: Generation
    owner: str
    """Who the output belongs to: ``dag_id/task_id`` of an Airflow task, or a name given on the command line."""
    series: str
    """The series of attempts that launched it: a retry has the same, a clear or a new run another."""


class JobDocument(StateDocument):
    """``job.json``: the launch. Written by whoever launches; a new series writes it anew, with a new deadline.

    A later version may add to it, and takes nothing away: an older worker must be able to read whose job it refuses.
    """

    protocol_version: int = PROTOCOL_VERSION
    plugin_version: str
    request: dict[str, Any]
    """The request as given, without ``content`` (it is private, and its hash is in the fingerprint)."""
    owner: str
    series: str
    created: Moment
    """Seconds since the epoch at which the generation was first launched; also ``created`` of V2 results."""
    launched: Moment
    """Seconds since the epoch at which this series was launched."""
    deadline: Moment
    """Seconds since the epoch after which nothing of this series may run."""


class PinnedInput(StateDocument):
    """``input.json``: what the first worker found. Later workers must find the same, or stop with an error."""

    input_identity: str
    input_format: str
    chunk_records: int
    """Most records of one chunk."""
    first_chunk_records: int = 16
    """Most records of the first chunks; they grow with the input, so that a short job too is cut finely enough."""
    chunk_share: int = 4096
    """A later chunk holds at most the so manieth part of the records before it; by how many replicas began."""
    chunk_tokens: int
    """Most tokens, read and asked for, of one chunk of more than one record."""


class PinnedModel(StateDocument):
    """``model.json``: what the first worker that needed an engine loaded.

    Apart from ``input.json`` because it is known only after the model is loaded, and a worker with nothing left to
    generate never loads one.
    """

    model_identity: str | None
    """The weights that were really loaded: a hub revision, or a digest of a local checkpoint; null if unknown."""
    engine: str
    engine_version: str


class InputEnd(StateDocument):
    """``end.json``: written by whoever reads the input to its end first."""

    records: NonNegativeInt
    chunks: NonNegativeInt


class CancelRequest(StateDocument):
    """``cancel.json``: every worker of the named generation stops and saves."""

    fingerprint: Fingerprint
    generation: Generation
    reason: str
    requested: Moment


class HandedOverPod(StateDocument):
    """``handed_over.json``: a pod that was left to a sensor. Written by the task that made it, as its last act.

    That task does not wait for it, so whoever waits for the job sees to the pod's end.
    """

    fingerprint: Fingerprint
    generation: Generation
    series: str
    """The series of attempts that made the pod. Once another has launched the job, this says nothing any more."""
    namespace: str = Field(pattern=r"^[a-z0-9-]{1,63}$")
    pod: str = Field(pattern=r"^[a-z0-9.-]{1,253}$")
    container: str = Field(pattern=r"^[a-z0-9-]{1,63}$")
    """The worker's container in it."""
    server: str = Field(pattern=r"^[!-~]{0,300}$")
    """Where the cluster's API is, as that task reached it: elsewhere, a pod that is not found may yet be at work."""
    start_by: Moment
    """Seconds since the epoch by which the pod must have started."""
    on_finish_action: str = Field(default="delete_succeeded_pod", pattern=r"^[a-z_]{1,50}$")
    """What becomes of the pod when it has ended, in the words of KubernetesPodOperator."""


class Claim(StateDocument):
    """``claims/<c>``: who works on chunk *c*. Created only if absent, and changed only by its holder.

    Once its holder has died or given the chunk back, the next one is ``<c>.1``, and so on: the newest counts.
    """

    replica: int
    attempt: str
    """The attempt that holds the chunk, as its heartbeat names it. While it lives, nobody else takes the chunk."""
    host: str
    pid: int
    pid_namespace: str | None = None
    claimed: Moment
    """Seconds since the epoch."""
    deaths: int = 0
    """How many attempts died while they held the chunk, before this claim."""
    given_back: bool = False
    """Whether its holder stopped early: the chunk is free, and nobody died over it."""
    alone: int | None = None
    """Index of the record that goes through the engine by itself, as one that may bring it down."""
    suspect: int | None = None
    """Index of the record that was alone in the engine when an earlier holder died. Twice, and it is at fault."""


ReplicaPhase = Literal["starting", "loading", "generating", "stopping", "done", "partial", "failed"]


class Heartbeat(StateDocument):
    """``replicas/<i>.json``: a replica's sign of life and its progress. Replaced every few seconds."""

    replica: int
    replicas: int
    attempt: str = ""
    """Names this attempt of the replica. The latest attempt owns the file; an earlier one that sees it stops."""
    phase: ReplicaPhase
    host: str
    pid: int
    pid_namespace: str | None = None
    """In which ``pid`` means this process: only who shares it can look whether the process is there."""
    started: Moment
    updated: Moment
    records_total: int | None = None
    """Records of the whole input, once somebody has read it to its end."""
    records_done: int = 0
    """Records this attempt has finished, failed ones included."""
    records_failed: int = 0
    failures: dict[str, int] = Field(default_factory=dict)
    """Failed records of this attempt by error type."""
    records_truncated: int = 0
    """Records of this attempt whose structured output was cut by ``max_tokens``: neither failed nor a success."""
    records_skipped: int = 0
    """Rows of this attempt of which there was nothing to ask: neither failed nor a success."""
    records_repeated: int = 0
    """Records of this attempt that were answered by another record's answer of it."""
    records_cached: int = 0
    """Records of this attempt that were answered by an answer of an earlier run."""
    records_committed: int = 0
    """Records of the chunks that this replica has committed, over all of its attempts: each record counts for one."""
    failures_committed: dict[str, int] = Field(default_factory=dict)
    """Failed ones among them by error type."""
    records_open: int = 0
    """Records that are finished, in chunks that are not committed yet."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    records_per_second: float = 0.0
    tokens_per_second: float = 0.0
    chunks_committed: list[tuple[int, int]] = Field(default_factory=list)
    """Chunks this attempt has committed, as closed ranges."""
    message: str | None = None
    stop_reason: str | None = None
    """Why it stops or stopped early: ``deadline``, ``cancelled``, ``terminated``, ``superseded``, and the like."""
