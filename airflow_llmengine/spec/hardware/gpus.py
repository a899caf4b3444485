"""The kinds of GPU that a worker may get: what each holds and can do, and how a connection lists those of a cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from airflow_llmengine.spec.kubernetes_syntax import parse_quantity
from airflow_llmengine.spec.request import GpuType

GIB = 2**30

GPUS_PER_NODE = 8
"""The largest nodes of the clouds have this many, and vLLM's tensor parallelism wants all of them on one node."""

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A kind of GPU."""

    name: str
    """As ``gpu_type`` of a request, or a name that only the cluster knows."""
    memory: int
    """Bytes that CUDA reports, which are fewer than the vendor's gigabytes: the driver keeps some for itself."""
    per_node: int = GPUS_PER_NODE
    """Most of them on one node."""
    capability: float | None = None
    """CUDA's compute capability; None: not known, and taken to be enough."""
    is_slice: bool = False
    """A part of a GPU (MIG). NCCL does not join slices, so a worker has one."""
    price: float | None = None
    """Of one for an hour, in whatever unit; only the relation of prices to each other counts."""


KNOWN: Mapping[GpuType, Gpu] = {
    GpuType.NVIDIA_TESLA_T4: Gpu("nvidia-tesla-t4", int(14.5 * GIB), per_node=4, capability=7.5),
    GpuType.NVIDIA_AMPERE_A10: Gpu("nvidia-ampere-a10", int(22.0 * GIB), capability=8.6),
    GpuType.NVIDIA_AMPERE_A100: Gpu("nvidia-ampere-a100", int(39.3 * GIB), capability=8.0),
    GpuType.NVIDIA_AMPERE_A100E: Gpu("nvidia-ampere-a100e", int(79.1 * GIB), capability=8.0),
    GpuType.NVIDIA_HOPPER_H100: Gpu("nvidia-hopper-h100", int(79.1 * GIB), capability=9.0),
    GpuType.NVIDIA_HOPPER_H100_1G20GB: Gpu(
        "nvidia-hopper-h100-1g20gb", int(19.5 * GIB), per_node=1, capability=9.0, is_slice=True
    ),
    GpuType.NVIDIA_HOPPER_H100_3G40GB: Gpu(
        "nvidia-hopper-h100-3g40gb", int(39.2 * GIB), per_node=1, capability=9.0, is_slice=True
    ),
}
"""The contract's types. Memory is what CUDA reports of such a card, rounded down; an A10 is taken to be EC2's A10G,
which has a little less than the A10. Nodes with more than four T4 are rare (of EC2's only the bare-metal one)."""


def _as_object(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


class ListedGpu(BaseModel):
    """A kind of GPU that a cluster has: the name of a known type, or an object."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    type: str
    """A ``gpu_type`` of requests; or another name, such as ``nvidia-l40s``, that ``gpu_nodes`` says how to find."""
    memory: int | None = None
    """Bytes, or a Kubernetes quantity such as ``44Gi``: what ``nvidia-smi`` shows. Required for an unknown type."""
    max_per_node: int | None = Field(default=None, ge=1, le=1024)
    """Most of them on one node; for an unknown type 8."""
    price: float | None = Field(default=None, gt=0)
    """Of one for an hour, in any unit. Where all types have one, the least sum is taken; else the order counts."""

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, given: Any) -> Any:
        for name in given if isinstance(given, Mapping) else ():
            if name not in cls.model_fields:
                near = get_close_matches(str(name), cls.model_fields, n=1)
                raise ValueError(f"{name} is not a field of it" + (f"; did you mean {near[0]}?" if near else ""))
        return given

    @field_validator("memory", mode="before")
    @classmethod
    def _quantity(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        amount = parse_quantity(value)
        if amount is None:
            raise ValueError(f"{value[:64]!a} is not a Kubernetes quantity: write for example 44Gi")
        return int(amount)

    @model_validator(mode="after")
    def _enough_is_known(self) -> ListedGpu:
        if not _NAME.fullmatch(self.type):
            raise ValueError("the type must be lower-case letters, digits, '-' and '.': name a gpu_type of requests")
        if self.memory is not None and self.memory < GIB:
            raise ValueError(f"{self.type}: memory is less than 1Gi: give the unit, for example 44Gi")
        if self.memory is None and self.known is None:
            near = get_close_matches(self.type, [known.value for known in GpuType], n=1, cutoff=0.8)
            hint = f"did you mean {near[0]}?" if near else "give its memory, for example 44Gi"
            raise ValueError(f"{self.type} is no type that is known: {hint}")
        return self

    @property
    def known(self) -> Gpu | None:
        """What is known of the type."""
        return next((gpu for known, gpu in KNOWN.items() if known.value == self.type), None)

    @property
    def gpu(self) -> Gpu:
        """The kind of GPU, with what the cluster says of it over what is known."""
        known = self.known or Gpu(self.type, 0)
        return Gpu(
            name=self.type,
            memory=self.memory or known.memory,
            per_node=1 if known.is_slice else self.max_per_node or known.per_node,
            capability=known.capability,
            is_slice=known.is_slice,
            price=self.price,
        )


def _listing(value: Any) -> Any:
    """JSON where it looks like a list or an object; another text is names between commas."""
    if not isinstance(value, str):
        return value
    if value.lstrip()[:1] not in ("[", "{"):
        return [name.strip() for name in value.split(",") if name.strip()]
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} in line {error.lineno}, column {error.colno}") from None


def _each_once(listed: tuple[ListedGpu, ...]) -> tuple[ListedGpu, ...]:
    names = [each.type for each in listed]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is listed twice: name each type once")
    return listed


GpuListing = Annotated[
    tuple[Annotated[ListedGpu, BeforeValidator(_as_object)], ...],
    BeforeValidator(_listing),
]
"""The GPU types of a cluster, the cheapest first: JSON, or names between commas."""


def gpus_of(listed: Sequence[ListedGpu]) -> tuple[Gpu, ...]:
    """The kinds of GPU that a cluster lists, in its order.

    Raises:
        ValueError: A type is listed twice.
    """
    return tuple(each.gpu for each in _each_once(tuple(listed)))


def gpu_of(gpu_type: GpuType, listed: Sequence[Gpu]) -> Gpu:
    """A type as the cluster lists it, or else as it is known."""
    return next((gpu for gpu in listed if gpu.name == gpu_type), KNOWN[gpu_type])
