"""fsspec's options by protocol, where several sources give some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

StorageOptions = dict[str, dict[str, Any]]
"""fsspec's options by protocol: ``{"s3": {"endpoint_url": ..., "key": ...}}``. May hold credentials."""


def laid_over(below: Mapping[str, Mapping[str, Any]], above: Mapping[str, Mapping[str, Any]]) -> StorageOptions:
    """The options of both; where both give one, that of ``above``. Of objects, such as ``client_kwargs``, by member."""
    merged = {protocol: dict(values) for protocol, values in below.items()}
    for protocol, values in above.items():
        known = merged.setdefault(protocol, {})
        for name, value in values.items():
            standing = known.get(name)
            if isinstance(standing, Mapping) and isinstance(value, Mapping):
                known[name] = {**standing, **value}
            else:
                known[name] = value
    return merged
