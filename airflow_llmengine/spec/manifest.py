"""The manifest: the one proof that a job succeeded."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, field_validator

from airflow_llmengine.spec.job_state import (
    PROTOCOL_VERSION,
    RESULT_FORMAT_VERSION,
    Fingerprint,
    Generation,
    JobHandle,
    Moment,
    StateDocument,
)


class OutputFile(BaseModel):
    """One file of an output that is a folder."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Its path below the folder."""
    records: NonNegativeInt
    bytes: NonNegativeInt
    sha256: str
    etag: str | None = None
    """The store's own tag of it; null on a file system."""

    @field_validator("name")
    @classmethod
    def _is_below(cls, name: str) -> str:
        # Whoever can write beside the output may have put the manifest there.
        if not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise ValueError("names no file below the folder")
        return name


class Manifest(StateDocument):
    """``<output_data_path>.manifest.json``: written last, after the output stands whole.

    It is valid while the output beside it still has the size and the checksum (or, on an object store, the etag) that
    it names; an output that somebody replaced or cut makes it invalid. Of a folder it is each file, and that there are
    no others.
    """

    protocol_version: int = PROTOCOL_VERSION
    result_format_version: int = RESULT_FORMAT_VERSION
    output_data_path: str
    fingerprint: Fingerprint
    generation: Generation
    owner: str
    output_format: Literal["json", "jsonl", "parquet", "csv", "tsv", "arrow"]
    output_bytes: NonNegativeInt
    """Of a folder: those of its files together."""
    output_sha256: str
    """Of a folder: the digest of its files' names and checksums."""
    output_etag: str | None = None
    """The store's own tag of the output object; null on a file system, and of a folder."""
    files: list[OutputFile] | None = None
    """Of an output that is a folder: its files, in the order of the records; null of an output that is a file."""
    records: NonNegativeInt
    """All of them: those that succeeded, were truncated, were skipped, or failed."""
    succeeded: NonNegativeInt
    truncated: NonNegativeInt = 0
    """Records whose structured output was cut by ``max_tokens``: the text that there is stands in the output."""
    skipped: NonNegativeInt = 0
    """Rows of a table of which there was nothing to ask (``on_null: skip``); not counted in shares of failed ones."""
    failed: NonNegativeInt
    failures: dict[str, NonNegativeInt] = Field(default_factory=dict)
    """Failed records by error type."""
    repeated: NonNegativeInt = 0
    """Records that were answered by another record's answer of the same attempt, as they ask the same."""
    cached: NonNegativeInt = 0
    """Records that were answered by an answer of an earlier run."""
    duplicate_custom_ids: NonNegativeInt = 0
    """Lines of an OpenAI batch file whose ``custom_id`` a line before them has; each is answered all the same."""
    prompt_tokens: NonNegativeInt
    completion_tokens: NonNegativeInt
    """Like ``prompt_tokens`` those of all answers, repeated and cached ones included."""
    model: str
    model_identity: str | None = None
    engine: str
    engine_version: str | None = None
    """Null when no record needed the engine, so that none was loaded."""
    created: Moment
    """Seconds since the epoch at which the generation was launched."""
    finished: Moment
    """Seconds since the epoch at which the output stood."""

    @property
    def tried(self) -> int:
        """The records that were not skipped: those of which shares are told."""
        return self.records - self.skipped

    @property
    def handle(self) -> JobHandle:
        """The job this output came from."""
        return JobHandle(path=self.output_data_path, fingerprint=self.fingerprint, generation=self.generation)
