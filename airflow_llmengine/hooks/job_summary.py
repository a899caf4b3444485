"""What a task hands on of a job that succeeded: the same whichever task waited for it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow_llmengine.exceptions import TooManyFailedRecordsError

if TYPE_CHECKING:
    from airflow_llmengine.spec.job_state import JobHandle
    from airflow_llmengine.spec.manifest import Manifest

logger = logging.getLogger(__name__)


def summary(manifest: Manifest) -> dict[str, Any]:
    """What the next tasks get: where the output is and what is in it, never the data."""
    from airflow_llmengine.storage.layout import MANIFEST_SUFFIX

    return {
        "output_data_path": manifest.output_data_path,
        "manifest_path": f"{manifest.output_data_path}{MANIFEST_SUFFIX}",
        "records": manifest.records,
        "succeeded": manifest.succeeded,
        "truncated": manifest.truncated,
        "skipped": manifest.skipped,
        "failed": manifest.failed,
        "failures": dict(manifest.failures),
        "repeated": manifest.repeated,
        "cached": manifest.cached,
        "prompt_tokens": manifest.prompt_tokens,
        "completion_tokens": manifest.completion_tokens,
        "model": manifest.model,
        "job": manifest.handle.model_dump(mode="json"),
    }


def launched_summary(handle: JobHandle) -> dict[str, Any]:
    """What the next tasks get of a job that was only launched: for a sensor, which waits for it."""
    from airflow_llmengine.storage.layout import MANIFEST_SUFFIX

    return {
        "output_data_path": handle.path,
        "manifest_path": f"{handle.path}{MANIFEST_SUFFIX}",
        "job": handle.model_dump(mode="json"),
    }


def accepted_summary(manifest: Manifest, max_error_rate: float | None) -> dict[str, Any]:
    """The summary, unless more records failed than the task bears; a warning in the log tells of truncated ones.

    Asked again of an output that stands: whoever made it may have been told to bear more.

    Args:
        manifest: The job's valid manifest.
        max_error_rate: The greatest share of failed records, from 0 to 1; None: a job fails only when every record did.

    Raises:
        TooManyFailedRecordsError: More records failed than that.
    """
    from airflow_llmengine.spec.error_rate import too_many_failures
    from airflow_llmengine.spec.truncated_answers import truncation_warning

    failure = too_many_failures(manifest.failures, manifest.tried, max_error_rate)
    if failure is not None:
        raise TooManyFailedRecordsError(
            f"Too many records failed: {failure}. The output stands in {manifest.output_data_path}. Raise "
            "max_error_rate, or correct the input, and clear the task."
        )
    warning = truncation_warning(manifest)
    if warning is not None:
        logger.warning("%s The output stands in %s.", warning, manifest.output_data_path)
    return summary(manifest)
