"""What OpenLineage calls a place: the namespace and name by which other tools know the same dataset.

After "Naming" of its specification, https://openlineage.io/docs/spec/naming.
"""

from __future__ import annotations

import re

_GLOB = re.compile(r"[*?\[]")


def dataset_name(url: str) -> tuple[str, str] | None:
    """Namespace and name of the dataset at a URL or local path.

    A folder is named without its slash, and of a glob the folder that it looks into. An Azure container is told apart
    by its account where the URL names that, as ``abfss://container@account.dfs.core.windows.net`` does.

    Returns:
        Both; None where the URL names no place.
    """
    from airflow_llmengine.storage.errors import StorageUnsupportedError
    from airflow_llmengine.storage.urls import AZURE, LOCAL, parse_url, redact

    try:
        place = parse_url(_before_glob(redact(url)))
    except StorageUnsupportedError:
        return None
    if place.protocol == LOCAL:
        return "file", place.path
    bucket, _, key = place.path.partition("/")
    scheme = "abfss" if place.protocol == AZURE and "@" in bucket else place.protocol
    return f"{scheme}://{bucket}", key or "/"


def _before_glob(url: str) -> str:
    """The folder before the first part that is a pattern; the URL itself, if none is."""
    match = _GLOB.search(url)
    if match is None:
        return url
    folder, slash, _ = url[: match.start()].rpartition("/")
    return folder + slash or "."
