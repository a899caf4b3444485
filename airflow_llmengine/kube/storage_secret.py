"""Storage options with credentials, as a short-lived Secret that a pod owns.

The Secret is made after the pod, whose uid it names as its owner: when the pod is deleted the cluster deletes the
Secret. Until it is there the kubelet waits to start the container.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from kubernetes.client import models as k8s

from airflow_llmengine.kube.pod_parts import add_environment, add_volume, find_container
from airflow_llmengine.kube.security import group_of_volumes

OPTIONS_VARIABLE = "LLMENGINE_STORAGE_OPTIONS_FILE"
"""Tells the worker which file has storage options, by protocol."""

SECRET_PATH = "/var/run/secrets/airflow-llmengine"  # noqa: S105
OPTIONS_FILE = "storage-options.json"

_READ_BY_GROUP = 0o440
_READ_BY_ALL = 0o444
_LONGEST_NAME = 253
_VOLUME = "llmengine-storage-options"


def with_storage_secret(pod: k8s.V1Pod, *, container: str, attempt: str = "storage") -> k8s.V1Pod:
    """Mount the Secret that ``storage_secret`` will make into a pod that is still to be created.

    Args:
        pod: A pod with a name, from ``worker_pod``; it is not changed.
        container: Name of the worker's container.
        attempt: Ends the Secret's name, and no other attempt has it: their pods may have the same name, and the cluster
            deletes a Secret some time after its pod.

    Returns:
        A new pod.
    """
    pod = deepcopy(pod)
    worker = find_container(pod, container)
    # The file belongs to root and to the volumes' group. Without such a group a worker that is not root would be
    # locked out; the file is in the worker's container only.
    mode = _READ_BY_ALL if group_of_volumes(pod) is None else _READ_BY_GROUP
    source = k8s.V1SecretVolumeSource(secret_name=_secret_name(pod.metadata.name, attempt), default_mode=mode)
    volume = k8s.V1Volume(name=_VOLUME, secret=source)
    add_volume(pod, worker, volume, SECRET_PATH, read_only=True)
    add_environment(worker, [k8s.V1EnvVar(name=OPTIONS_VARIABLE, value=f"{SECRET_PATH}/{OPTIONS_FILE}")])
    return pod


def storage_secret(pod: k8s.V1Pod, options: Mapping[str, Mapping[str, Any]]) -> k8s.V1Secret:
    """Make the Secret of a pod.

    Args:
        pod: The pod as the cluster has it, with its uid, from ``with_storage_secret``.
        options: Storage options by protocol, with credentials.
    """
    metadata = pod.metadata
    owner = k8s.V1OwnerReference(api_version="v1", kind="Pod", name=metadata.name, uid=metadata.uid)
    return k8s.V1Secret(
        api_version="v1",
        kind="Secret",
        type="Opaque",
        immutable=True,
        metadata=k8s.V1ObjectMeta(
            name=secret_name(pod),
            namespace=metadata.namespace,
            labels=dict(metadata.labels or {}),
            owner_references=[owner],
        ),
        string_data={OPTIONS_FILE: json.dumps({name: dict(values) for name, values in options.items()})},
    )


def secret_name(pod: k8s.V1Pod) -> str | None:
    """Name of the Secret that a pod waits for; None: it has none of this package's."""
    named = (volume.secret.secret_name for volume in pod.spec.volumes or () if volume.name == _VOLUME)
    return next(named, None)


def _secret_name(pod_name: str, attempt: str) -> str:
    suffix = f"-{attempt}"
    return pod_name[: _LONGEST_NAME - len(suffix)].rstrip("-.") + suffix
