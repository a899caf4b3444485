"""A volume that a person wrote as Kubernetes writes it, as a model of the client."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from kubernetes.client import ApiClient, V1Volume

_EXAMPLE = '{"persistentVolumeClaim": {"claimName": "weights"}}'


@dataclass(frozen=True)
class _Answer:
    """What the client reads a model from."""

    data: str


def volume_from_source(name: str, source: str | Mapping[str, Any]) -> V1Volume:
    """Make a volume.

    Args:
        name: The volume's name in the pod.
        source: The name of a claim, or an object such as ``{"persistentVolumeClaim": {"claimName": "weights"}}``.
    """
    if isinstance(source, str):
        source = {"persistentVolumeClaim": {"claimName": source}}
    return ApiClient().deserialize(_Answer(json.dumps({"name": name, **source})), "V1Volume")


def volume_source_fault(source: Mapping[str, Any]) -> str | None:
    """Why an object is no volume source, or None: one kind, known to Kubernetes, with fields that it has."""
    kinds = sorted(set(V1Volume.attribute_map.values()) - {"name"})
    if len(source) != 1:
        return f"must be one volume source, for example {_EXAMPLE}, not {len(source)} of them"
    (kind,) = source
    if kind not in kinds:
        near = get_close_matches(kind, kinds, n=1)
        return f"Kubernetes has no volume source {kind!a}" + (
            f": did you mean {near[0]}?" if near else f": use {_EXAMPLE}"
        )
    if not isinstance(source[kind], Mapping):
        return f"{kind} must be an object, for example {_EXAMPLE}"
    try:
        read = ApiClient().sanitize_for_serialization(volume_from_source("cache", source))
    except (ValueError, TypeError, AttributeError) as error:
        # The client names the attribute that must not be null; it quotes no value.
        return f"{kind} is not complete: {error}"
    lost = next(_lost(source[kind], read[kind], kind), None)
    return f"{lost} is no field of it that Kubernetes reads: correct its name or its value" if lost else None


def _lost(given: Any, read: Any, path: str) -> Iterator[str]:
    """Paths of what was given and did not come back."""
    if isinstance(given, Mapping):
        for name, value in given.items():
            if value is None:
                continue
            if not isinstance(read, Mapping) or name not in read:
                yield f"{path}.{name}"
            else:
                yield from _lost(value, read[name], f"{path}.{name}")
    elif isinstance(given, list) and isinstance(read, list):
        for index, (item, again) in enumerate(zip(given, read, strict=False)):
            yield from _lost(item, again, f"{path}[{index}]")
