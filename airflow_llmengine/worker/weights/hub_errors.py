"""What a failure of the Hugging Face hub means, in one sentence, and whether to ask again."""

from __future__ import annotations

import errno
import os
import re

from airflow_llmengine.storage.errors import StorageDeniedError, StorageError
from airflow_llmengine.storage.failures import causes
from airflow_llmengine.worker.engines.base import ModelNotFoundError

_BUSY_STATUS = (408, 425, 429, 500, 502, 503, 504)
_HTTP_LIBRARIES = ("httpcore", "httpx", "httpx2", "requests", "urllib3")
"""Which of them the hub's client uses depends on its version."""
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
"""What the system answers to who may not write."""
_RESET = re.compile(r";\s*t\s*=\s*(\d+)")


def is_busy(error: BaseException) -> bool:
    """Whether the hub is there and can't answer just now: too many requests, or a fault of its own."""
    return _status(error) in _BUSY_STATUS


def is_unreachable(error: BaseException) -> bool:
    """Whether no answer came at all."""
    return _status(error) is None and any(
        type(cause).__module__.partition(".")[0] in _HTTP_LIBRARIES or isinstance(cause, ConnectionError | TimeoutError)
        for cause in causes(error)
    )


def seconds_asked_for(error: BaseException) -> float | None:
    """How long the hub asks to wait: by ``Retry-After``, or by when its window of requests begins anew."""
    for cause in causes(error):
        headers = getattr(getattr(cause, "response", None), "headers", None)
        if headers is None:
            continue
        after = str(headers.get("retry-after") or "").strip()
        if after.isdecimal():
            return float(after)
        reset = _RESET.search(str(headers.get("ratelimit") or ""))
        if reset:
            return float(reset[1])
    return None


def explain(error: Exception, *, named: str, revision: str | None) -> ModelNotFoundError | StorageError:
    """What to raise for a failure.

    Args:
        error: What the hub's client raised.
        named: The field and its value, such as ``model_config.model: 'org/name'``.
        revision: The revision that was asked for.
    """
    kinds = {kind.__name__ for cause in causes(error) for kind in type(cause).__mro__}
    if "HFValidationError" in kinds:
        return ModelNotFoundError(f"{named} is neither a directory nor an id of the Hugging Face hub")
    if "GatedRepoError" in kinds:
        return ModelNotFoundError(
            f"{named} is gated on the Hugging Face hub: accept its terms there, and set HF_TOKEN to a token of who has"
        )
    if "RevisionNotFoundError" in kinds:
        return ModelNotFoundError(f"{named} has no revision {revision!r} on the Hugging Face hub")
    if "RepositoryNotFoundError" in kinds:
        return ModelNotFoundError(
            f"{named} is not on the Hugging Face hub, or is private there and HF_TOKEN is not set or has no access"
        )
    status = _status(error)
    if status in (401, 403):
        return ModelNotFoundError(
            f"{named}: the Hugging Face hub refuses it ({status}): HF_TOKEN is not valid, or has no access"
        )
    if status is not None:
        return StorageError(f"{named} can't be fetched: the Hugging Face hub answered {status}; try again later.")
    if "OfflineModeIsEnabled" in kinds:
        return ModelNotFoundError(
            f"{named} is neither a directory nor in the local cache, and HF_HUB_OFFLINE forbids to ask the hub"
        )
    if is_unreachable(error) or "LocalEntryNotFoundError" in kinds:
        # A network that is down for a minute must not cost the job its retries.
        return StorageError(
            f"{named} is neither a directory nor in the local cache, and the Hugging Face hub can't be reached; try "
            "again later."
        )
    local = next((cause for cause in causes(error) if isinstance(cause, OSError) and cause.strerror), None)
    reason = type(error).__name__ if local is None else str(local.strerror).lower()
    sentence = f"{named} can't be fetched from the Hugging Face hub into HF_HOME: {reason}"
    if local is not None and local.errno in _DENIED:
        return StorageDeniedError(f"{sentence}; user {os.getuid()} must be able to write there.")
    return StorageError(f"{sentence}.")


def _status(error: BaseException) -> int | None:
    for cause in causes(error):
        status = getattr(getattr(cause, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
    return None
