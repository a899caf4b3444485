"""``cache_path``: where answers are kept for later runs. It is said beside the request, like ``engine_args``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from airflow_llmengine.spec.check_paths import is_within, lies_among, url_refusals
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.validation import Refusal

CACHE_PATH = "cache_path"

_READ_ONLY = re.compile(r"(https?|ftp|data)://", re.IGNORECASE)


def cache_path_refusals(cache_path: str, request: CreateBatchCompletionsV1Request | None = None) -> list[Refusal]:
    """What is wrong with a ``cache_path``, by itself and for a request."""
    refusals = url_refusals(CACHE_PATH, cache_path)
    if not refusals and _READ_ONLY.match(cache_path):
        refusals = [Refusal(CACHE_PATH, "can't be written to", "give a folder, or a prefix of an object store")]
    if not refusals and "://" in cache_path and "?" in cache_path:
        refusals = [Refusal(CACHE_PATH, "has a query, and names a folder", "put credentials into the connection")]
    if request is not None and not refusals:
        refusals = list(_overlaps(cache_path, request))
    if request is not None and request.tool_config is not None:
        reason = "has no effect with tool_config: what code writes into an answer may be another each time"
        refusals.append(Refusal(CACHE_PATH, reason, "leave one of the two out"))
    return refusals


def _overlaps(cache_path: str, request: CreateBatchCompletionsV1Request) -> Iterator[Refusal]:
    """A cache where the output goes ends the job after all is generated, and one among the input's files changes it."""
    source, target = request.input_data_path, request.output_data_path
    if is_within(cache_path, target):
        yield Refusal(CACHE_PATH, "is where output_data_path and what belongs to it go", "give a folder of its own")
    elif source is not None and lies_among(source, f"{cache_path.rstrip('/')}/v1-0/answers-0.parquet"):
        reason = "lies among the files of input_data_path, which would be read as input"
        yield Refusal(CACHE_PATH, reason, "give a folder of its own")
