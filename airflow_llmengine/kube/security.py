"""A security context that vLLM can live with, and that the Pod Security Standard "restricted" accepts.

The worker runs as user 1000 without capabilities on a root file system that it can't write; its own folder is
``/tmp``. What a person gives for the pod or for the container replaces the part that it speaks of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kubernetes.client import models as k8s

WORKER_USER = 1000
"""User, group and group of volumes. No image needs to know it."""


def secure(pod: k8s.V1Pod, container: k8s.V1Container) -> None:
    """Give pod and container their security contexts where they have none.

    Who the worker is stands in the container's context, not in the pod's: other containers of the pod, which the user's
    template may have, stay who they are.
    """
    by_user = _says_something(pod.spec.security_context)
    if not by_user:
        # A large cache of weights is not gone through file by file once its owner is right.
        pod.spec.security_context = k8s.V1PodSecurityContext(
            fs_group=WORKER_USER, fs_group_change_policy="OnRootMismatch"
        )
    if not _says_something(container.security_context):
        container.security_context = k8s.V1SecurityContext(
            allow_privilege_escalation=False,
            capabilities=k8s.V1Capabilities(drop=["ALL"]),
            read_only_root_filesystem=True,
            **({} if by_user else _worker_user()),
        )


def group_of_volumes(pod: k8s.V1Pod) -> int | None:
    """The group that the pod's volumes get, if any."""
    context = pod.spec.security_context
    if isinstance(context, Mapping):
        return context.get("fsGroup")
    return context.fs_group if context else None


def _says_something(context: Any) -> bool:
    """The pod operator hands over an empty object where nothing was asked of it, and a template may hold one."""
    fields = context if isinstance(context, Mapping) else context.to_dict() if context else {}
    return any(value is not None for value in fields.values())


def _worker_user() -> dict[str, Any]:
    return {
        "run_as_non_root": True,
        "run_as_user": WORKER_USER,
        "run_as_group": WORKER_USER,
        "seccomp_profile": k8s.V1SeccompProfile(type="RuntimeDefault"),
    }
