"""Which store a URL belongs to, and how it is opened."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from airflow_llmengine.storage.backend import Backend
from airflow_llmengine.storage.errors import StorageUnsupportedError
from airflow_llmengine.storage.local import LocalBackend
from airflow_llmengine.storage.retrying import RetryPolicy
from airflow_llmengine.storage.urls import AZURE, GCS, LOCAL, MEMORY, S3, ParsedUrl, redact

_PACKAGES = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gcs"), "az": ("adlfs", "azure")}
"""By protocol: the package that opens it, and the extra of this distribution that brings it."""
_OPTION_NAMES = {"s3": ("s3", "s3a"), "gs": ("gs", "gcs"), "az": ("az", "abfs", "abfss")}
_AZURE_ACCOUNT = ("account_name", "connection_string")
_LOUD_LOGGERS = {"gs": ("gcsfs", logging.CRITICAL), "az": ("azure", logging.WARNING)}
"""What the libraries would log by themselves: each refusal with its traceback, and each request with its headers."""


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
    from airflow_llmengine.storage.fsspec_store import FsspecBackend

    if parsed.protocol in _LOUD_LOGGERS:
        name, level = _LOUD_LOGGERS[parsed.protocol]
        if logging.getLogger(name).level == logging.NOTSET:
            logging.getLogger(name).setLevel(level)
    given |= {"use_listings_cache": False, "skip_instance_cache": True}
    return FsspecBackend(_filesystem(parsed, filesystem_class, given), parsed, retry)


def _filesystem(parsed: ParsedUrl, filesystem_class: Any, options: dict[str, Any]) -> Any:
    from fsspec.core import url_to_fs

    if parsed.protocol == GCS:
        # Neither what gcsfs reads out of a URL (a name that ends in # and digits is a name here), nor its other class:
        # that asks for each bucket's kind by gRPC, which no process may use that forks, and in a zonal bucket it shows
        # a file that is still being written.
        from gcsfs.core import GCSFileSystem

        plain = filesystem_class is GCSFileSystem or not issubclass(filesystem_class, GCSFileSystem)
        return (filesystem_class if plain else GCSFileSystem)(**options)
    if parsed.protocol == AZURE:
        named = {**filesystem_class._get_kwargs_from_urls(parsed.url), **options}  # noqa: SLF001 - fsspec's own way
        variables = (f"AZURE_STORAGE_{name.upper()}" for name in _AZURE_ACCOUNT)
        if not any(named.get(name) for name in _AZURE_ACCOUNT) and not any(os.environ.get(name) for name in variables):
            raise StorageUnsupportedError(
                f"{redact(parsed.url)} names no storage account: write "
                "abfs://container@account.dfs.core.windows.net/..., or set account_name in the storage options of az, "
                "or AZURE_STORAGE_ACCOUNT_NAME."
            )
    # It takes options that some stores have in their URLs, such as Azure's account.
    filesystem, _ = url_to_fs(parsed.url, **options)
    return filesystem


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
