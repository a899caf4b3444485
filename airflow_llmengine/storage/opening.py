"""Which store a URL belongs to, and how it is opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_llmengine.storage.backend import Backend
from airflow_llmengine.storage.errors import StorageUnsupportedError
from airflow_llmengine.storage.local import LocalBackend
from airflow_llmengine.storage.retrying import RetryPolicy
from airflow_llmengine.storage.urls import LOCAL, MEMORY, S3, ParsedUrl, redact

_PACKAGES = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "az": ("adlfs", "azure")}
"""By protocol: the package that opens it, and the extra of this distribution that brings it."""
_OPTION_NAMES = {"s3": ("s3", "s3a"), "gs": ("gs", "gcs"), "az": ("az", "abfs", "abfss")}


def open_backend(parsed: ParsedUrl, options: Mapping[str, Mapping[str, Any]], retry: RetryPolicy) -> Backend:
    """The store of a URL; ``StorageUnsupportedError`` for an unknown scheme or a package that is not installed."""
    if parsed.protocol == LOCAL:
        return LocalBackend(retry)
    filesystem_class = _filesystem_class(parsed)
    given: dict[str, Any] = {}
    for name in _OPTION_NAMES.get(parsed.protocol, (parsed.protocol,)):
        given.update(options.get(name, {}))
    if parsed.protocol == MEMORY:
        from airflow_llmengine.storage.memory import MemoryBackend

        return MemoryBackend(filesystem_class(**given), retry)
    if parsed.protocol == S3:
        from airflow_llmengine.storage.s3 import S3Backend

        return S3Backend(filesystem_class, given, retry)
    from fsspec.core import url_to_fs  # it takes options that some stores have in their URLs, such as Azure's account

    from airflow_llmengine.storage.fsspec_store import FsspecBackend

    given |= {"use_listings_cache": False, "skip_instance_cache": True}
    filesystem, _ = url_to_fs(parsed.url, **given)
    return FsspecBackend(filesystem, parsed, retry)


def _filesystem_class(parsed: ParsedUrl) -> Any:
    import fsspec

    try:
        return fsspec.get_filesystem_class(parsed.protocol)
    except ValueError as error:
        raise StorageUnsupportedError(
            f"Nothing can open {redact(parsed.url)}: the scheme {parsed.protocol!r} is unknown; "
            f"use a local path, s3://, gs:// or az://."
        ) from error
    except ImportError as error:
        package, extra = _PACKAGES.get(parsed.protocol, ("", ""))
        remedy = (
            f"install the package {package}, or airflow-llmengine[{extra}]"
            if package
            else f"install the package that brings {parsed.protocol}:// to fsspec"
        )
        raise StorageUnsupportedError(f"Nothing can open {redact(parsed.url)} here: {remedy}.") from error
