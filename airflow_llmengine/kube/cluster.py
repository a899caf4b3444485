"""What a connection says about pods: settings of the cluster that hold for every job.

This module needs no Kubernetes client as long as no ``cache_volume`` is given as an object, so that reading a
connection stays cheap.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, field_validator, model_validator
from pydantic.alias_generators import to_camel

from airflow_llmengine.spec.hardware.gpus import Gpu, GpuListing, gpus_of
from airflow_llmengine.spec.kubernetes_syntax import (
    label_key_fault,
    label_value_fault,
    subdomain_fault,
    suggested_label,
)
from airflow_llmengine.spec.request import GpuType

DEFAULT_SECRET_KEY = "token"  # noqa: S105
"""The key of ``hugging_face_secret`` where only the Secret is named."""

_SECRET_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}", re.ASCII)
_PLAIN_PATH = re.compile(r"(?:/[A-Za-z0-9._-]+)+", re.ASCII)
_WORKER_PATHS = ("/tmp", "/dev")  # noqa: S108


def parsed_json(value: Any) -> Any:
    """A form's text field holds JSON as text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} in line {error.lineno}, column {error.colno}") from None


def _parsed_object(value: Any) -> Any:
    """JSON where it looks like an object; another text stands for itself."""
    return parsed_json(value) if isinstance(value, str) and value.lstrip().startswith("{") else value


def _parsed_names(value: Any) -> Any:
    """JSON where it looks like a list; another text is names between commas."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return parsed_json(value)
    return [name.strip() for name in value.split(",")]


def _labels(values: Mapping[str, tuple[str, ...]]) -> None:
    for key, texts in values.items():
        fault = label_key_fault(key)
        if fault:
            raise ValueError(f"the key {key!a} {fault}: name a label that nodes of the cluster have")
        if not texts:
            raise ValueError(f"{key} has no value: give the value, or values, of the label")
        for text in texts:
            fault = label_value_fault(text)
            if fault:
                suggestion = suggested_label(text)
                remedy = f"write it for example as {suggestion}" if suggestion else "use a value that nodes have"
                raise ValueError(f"{key}: the value {text!a} {fault}: {remedy}")


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, given: Any) -> Any:
        known = {*cls.model_fields, *(field.alias or name for name, field in cls.model_fields.items())}
        for name in given if isinstance(given, Mapping) else ():
            if name not in known:
                near = get_close_matches(str(name), sorted(known), n=1)
                raise ValueError(f"{name} is not a field of it" + (f"; did you mean {near[0]}?" if near else ""))
        return given


class Toleration(_Settings):
    """A taint that pods may be placed on, in the fields of Kubernetes' own ``Toleration``."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True, validate_by_alias=True)

    key: str | None = None
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = None

    @model_validator(mode="after")
    def _as_kubernetes_would(self) -> Toleration:
        fault = label_key_fault(self.key) if self.key else None
        if fault:
            raise ValueError(f"the key {self.key!a} {fault}")
        if not self.key and self.operator != "Exists":
            raise ValueError("without a key the operator must be Exists, which tolerates every taint")
        if self.value and self.operator == "Exists":
            raise ValueError("has a value beside the operator Exists: leave one of the two out")
        fault = label_value_fault(self.value) if self.value else None
        if fault:
            raise ValueError(f"the value {self.value!a} {fault}")
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            raise ValueError("tolerationSeconds is for the effect NoExecute only")
        return self


Tolerations = Annotated[tuple[Toleration, ...], BeforeValidator(parsed_json)]


class GpuNodes(_Settings):
    """Where one type of GPU is found in a cluster that differs from the table of its platform.

    What is given replaces that part of the table; the rest of the table stands.
    """

    resource: str | None = None
    """The extended resource that a pod asks for, for example ``nvidia.com/gpu``."""
    node_selector: dict[str, str | tuple[str, ...]] | None = None
    """Labels of the nodes; where a label has several values here, a node must have one of them."""
    tolerations: tuple[Toleration, ...] | None = None

    @field_validator("resource")
    @classmethod
    def _resource_name(cls, resource: str | None) -> str | None:
        if resource is None:
            return None
        fault = label_key_fault(resource) if "/" in resource else "has no domain before a '/'"
        if fault:
            raise ValueError(f"{resource!a} {fault}: write it as the nodes show it, for example nvidia.com/gpu")
        return resource

    @field_validator("node_selector")
    @classmethod
    def _node_labels(cls, selector: dict[str, str | tuple[str, ...]] | None) -> Any:
        _labels({key: (value,) if isinstance(value, str) else value for key, value in (selector or {}).items()})
        return selector


class ClusterSettings(_Settings):
    """How pods are made in one cluster. Everything has a default that fits a cluster with NVIDIA's device plugin."""

    accelerator: Literal["gpu", "none"] = "gpu"
    """``none``: pods ask for no GPU, whatever a request says, for an engine that runs on the CPU."""
    gpu_platform: Literal["gke", "eks", "nvidia"] = "nvidia"
    """Whose labels tell nodes' GPUs apart; ``nvidia`` is NVIDIA's GPU feature discovery, wherever it runs."""
    gpu_types: GpuListing = ()
    """The types of GPU that the cluster has, the cheapest first, for jobs that don't say which: names as text with
    commas between them, or objects with ``memory``, ``max_per_node`` and ``price``."""
    gpu_nodes: Annotated[dict[str, GpuNodes], BeforeValidator(parsed_json)] = {}
    """What differs from the platform's table, by the ``gpu_type`` of a request, or a type of ``gpu_types``."""
    service_account_name: str | None = None
    """The pods' service account, whose rights on storage the worker has."""
    credentials_secret: str | None = None
    """A Secret in the pods' namespace; each of its keys becomes an environment variable of the worker."""
    hugging_face_secret: str | None = None
    """A Secret with a token of the model hub: its name, or ``name/key``; without a key, ``token``."""
    image_pull_secrets: Annotated[tuple[str, ...], BeforeValidator(_parsed_names)] = ()
    """Secrets with which the worker's image is pulled: names, or text with commas between them."""
    queue: str | None = None
    """Kueue's LocalQueue in the pods' namespace, through which the pods are admitted."""
    leader_address: Literal["service", "pod_ip"] = "service"
    """How the nodes of a replica that spans several find the first: by a headless Service, or, in a cluster without
    DNS, by its pod's address, for which the task then waits before it makes the others."""
    cache_volume: Annotated[str | dict[str, Any] | None, BeforeValidator(_parsed_object)] = None
    """A volume for weights that outlives pods: the name of a claim, or a volume source as Kubernetes writes it."""
    cache_path: str = "/cache"
    """Where the cache volume is mounted."""
    node_selector: Annotated[dict[str, str], BeforeValidator(parsed_json)] = {}
    """Labels that the pods' nodes must have."""
    tolerations: Tolerations = ()
    """Taints that the pods tolerate, beside that of GPU nodes."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The kinds of GPU that the cluster has, the cheapest first; empty: it does not say."""
        return gpus_of(self.gpu_types)

    @model_validator(mode="after")
    def _group_is_whole(self) -> ClusterSettings:
        if self.queue and self.leader_address == "pod_ip":
            raise ValueError(
                "leader_address: pod_ip does not go with a queue: Kueue admits the pods of a replica together, and the "
                "first has no address before that; use service"
            )
        return self

    @property
    def hugging_face_key(self) -> tuple[str, str] | None:
        """Name of the Secret with the hub's token, and the key in it."""
        if self.hugging_face_secret is None:
            return None
        name, _, key = self.hugging_face_secret.partition("/")
        return name, key or DEFAULT_SECRET_KEY

    @model_validator(mode="after")
    def _gpus_are_found(self) -> ClusterSettings:
        gpus_of(self.gpu_types)
        types = [known.value for known in GpuType]
        listed = [each.type for each in self.gpu_types]
        for name in self.gpu_nodes:
            if name not in types and name not in listed:
                near = get_close_matches(name, [*types, *listed], n=1)
                hint = f"did you mean {near[0]}?" if near else f"it may be one of {', '.join(types)}, or of gpu_types"
                raise ValueError(f"gpu_nodes.{name}: is no type of GPU: {hint}")
        for name in listed:
            nodes = self.gpu_nodes.get(name)
            if name not in types and not (nodes and (nodes.node_selector or nodes.resource)):
                raise ValueError(
                    f"gpu_types: which nodes have {name} is not known: say it in gpu_nodes: "
                    f'{{"{name}": {{"node_selector": {{"<label>": "<value>"}}}}}}'
                )
        return self

    @field_validator("service_account_name", "credentials_secret")
    @classmethod
    def _object_name(cls, name: str | None) -> str | None:
        _require_name(name, "an object in the pods' namespace")
        return name

    @field_validator("image_pull_secrets")
    @classmethod
    def _secret_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            _require_name(name, "Secrets in the pods' namespace")
        return names

    @field_validator("hugging_face_secret")
    @classmethod
    def _secret_and_key(cls, text: str | None) -> str | None:
        if text is None:
            return None
        name, slash, key = text.partition("/")
        _require_name(name, "a Secret in the pods' namespace, as name or name/key")
        if slash and not _SECRET_KEY.fullmatch(key):
            raise ValueError(
                "the key after the '/' may hold only letters, digits, '-', '_' and '.': name a key of that Secret"
            )
        return text

    @field_validator("queue")
    @classmethod
    def _queue_name(cls, name: str | None) -> str | None:
        # It is a label's value as well.
        _require_name(name, "a LocalQueue of Kueue")
        fault = label_value_fault(name or "")
        if fault:
            raise ValueError(f"{name!a} {fault}: name a LocalQueue of Kueue")
        return name

    @field_validator("node_selector")
    @classmethod
    def _node_labels(cls, selector: dict[str, str]) -> dict[str, str]:
        _labels({key: (value,) for key, value in selector.items()})
        return selector

    @field_validator("cache_path")
    @classmethod
    def _mount_path(cls, path: str) -> str:
        parts = path.split("/")
        if not _PLAIN_PATH.fullmatch(path) or "." in parts or ".." in parts:
            raise ValueError("must be an absolute path of letters, digits, '-', '_' and '.', for example /cache")
        if path.startswith(tuple(f"{taken}/" for taken in _WORKER_PATHS)) or path in _WORKER_PATHS:
            raise ValueError(f"{path} is where the worker has volumes of its own: use another, for example /cache")
        return path

    @field_validator("cache_volume")
    @classmethod
    def _volume_source(cls, source: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
        if isinstance(source, str):
            _require_name(source, "a PersistentVolumeClaim in the pods' namespace, or give a volume source")
        elif source is not None:
            # Reads the model only where there is one to read: it imports the client.
            from airflow_llmengine.kube.volume_source import volume_source_fault

            fault = volume_source_fault(source)
            if fault:
                raise ValueError(fault)
        return source


def _require_name(name: str | None, what: str) -> None:
    fault = None if name is None else subdomain_fault(name)
    if fault:
        raise ValueError(f"{name!a} {fault}: name {what}")
