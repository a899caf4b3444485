"""Manifests of jobs as the ring reads them, in which only the counts matter."""

from __future__ import annotations

from airflow_llmengine.spec.job_state import JobHandle
from airflow_llmengine.spec.manifest import Manifest


def manifest_of(
    handle: JobHandle,
    output_format: str,
    *,
    succeeded: int,
    truncated: int = 0,
    skipped: int = 0,
    failures: dict[str, int] | None = None,
) -> Manifest:
    """The manifest of a job whose records ended so."""
    failed = sum((failures or {}).values())
    return Manifest(
        output_data_path=handle.path,
        fingerprint=handle.fingerprint,
        generation=handle.generation,
        owner="dag/task",
        output_format=output_format,
        output_bytes=3,
        output_sha256="0",
        records=succeeded + truncated + skipped + failed,
        succeeded=succeeded,
        truncated=truncated,
        skipped=skipped,
        failed=failed,
        failures=failures or {},
        prompt_tokens=1,
        completion_tokens=1,
        model="m",
        engine="echo",
        created=1,
        finished=2,
    )
