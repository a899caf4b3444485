"""What is said of structured answers that ``max_tokens`` cut: the same in a worker's log and in a task's."""

from __future__ import annotations

from airflow_llmengine.spec.manifest import Manifest


def truncation_warning(manifest: Manifest) -> str | None:
    """Say how many answers of a job's output were cut, and what to do; None if none was.

    They are no failures, and a job in which every answer was cut is done: the text that there is may be of use, and
    nothing but a larger limit gives more of it.
    """
    if not manifest.truncated:
        return None
    none_whole = "" if manifest.succeeded else "No record has a whole answer: "
    return (
        f"{none_whole}{manifest.truncated} of {manifest.tried} records asked for structured output, and max_tokens "
        "cut it off (finish_reason length). What there is of it is kept; they count as truncated, not as succeeded. "
        "Raise max_tokens of those records."
    )
