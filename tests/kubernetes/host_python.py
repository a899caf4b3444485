"""Where the pods of tests have their programs from. This module alone decides it.

With ``LLMENGINE_TEST_IMAGE``, the name of an image that the cluster has already, made by the steps of
``docker/worker-cpu.Dockerfile``: from that image, whose package is the one that it was built with. Without, from this
machine: its Python, packages and checkout, so that no image has to be built for a test. The image is an empty shell
then, and what a program needs is mounted from the node, which is this machine, at its own path and read-only.

The folders that pods and tests share are mounted either way, and are writable.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes.client import models as k8s

ROOT = Path(__file__).resolve().parents[2]
"""The checkout."""

WORKER_IMAGE = os.environ.get("LLMENGINE_TEST_IMAGE")
"""The worker's image, if one is given."""

IMAGE = WORKER_IMAGE or "local/host-python:1"
"""Otherwise an empty root file system with the folders, links and ``/etc`` of this machine, loaded beforehand, too."""

MODEST = {"cpu": "50m", "memory": "64Mi"}
"""What a pod asks for: several fit on a node of two cores. No limits."""

ENVIRONMENT = {
    # Wherever the package is installed: the checkout itself is what is tested.
    **({} if WORKER_IMAGE else {"PYTHONPATH": str(ROOT)}),
    # Pods reach nothing but this machine and the API; who asks would wait.
    "AWS_EC2_METADATA_DISABLED": "true",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True)
class HostPython:
    """How a pod gets the worker's Python: this machine's, or that of the image which is given.

    Args:
        shared: Folders that pods may write to.
        read: More folders that they may read.
    """

    shared: tuple[Path, ...] = ()
    read: tuple[Path, ...] = ()

    @property
    def python(self) -> str:
        """The interpreter, for a connection's field ``python``."""
        return "python" if WORKER_IMAGE else sys.executable

    @property
    def volumes(self) -> list[k8s.V1Volume]:
        return [
            k8s.V1Volume(name=f"host-{number}", host_path=k8s.V1HostPathVolumeSource(path=str(folder.resolve())))
            for number, (folder, _read_only) in enumerate(self._folders())
        ]

    @property
    def volume_mounts(self) -> list[k8s.V1VolumeMount]:
        return [
            k8s.V1VolumeMount(name=f"host-{number}", mount_path=str(folder), read_only=read_only)
            for number, (folder, read_only) in enumerate(self._folders())
        ]

    @property
    def resources(self) -> k8s.V1ResourceRequirements:
        return k8s.V1ResourceRequirements(requests=MODEST)

    def operator_arguments(self) -> dict[str, Any]:
        """As arguments of a pod operator."""
        return {
            "image": IMAGE,
            "image_pull_policy": "Never",
            "volumes": self.volumes,
            "volume_mounts": self.volume_mounts,
            "env_vars": dict(ENVIRONMENT),
            "container_resources": self.resources,
        }

    def pod(self, container: str = "base", **metadata: Any) -> k8s.V1Pod:
        """As a pod that lacks only what it runs."""
        environment = [k8s.V1EnvVar(name=name, value=value) for name, value in ENVIRONMENT.items()]
        return k8s.V1Pod(
            api_version="v1",
            kind="Pod",
            metadata=k8s.V1ObjectMeta(**metadata),
            spec=k8s.V1PodSpec(
                containers=[
                    k8s.V1Container(
                        name=container,
                        image=IMAGE,
                        image_pull_policy="Never",
                        env=environment,
                        resources=self.resources,
                        volume_mounts=self.volume_mounts,
                    )
                ],
                volumes=self.volumes,
            ),
        )

    def pod_template(self, container: str = "base") -> dict[str, Any]:
        """As a pod operator's ``pod_template_dict``."""
        from kubernetes.client import ApiClient

        with ApiClient() as client:
            template: dict[str, Any] = client.sanitize_for_serialization(self.pod(container))
        return template

    def _folders(self) -> list[tuple[Path, bool]]:
        """What is mounted, and whether read-only; the outermost of folders within one another."""
        programs = [] if WORKER_IMAGE else [Path("/usr"), Path(sys.base_prefix), Path(sys.prefix), ROOT]
        read_only = _outermost([*programs, *self.read])
        return [*((folder, True) for folder in read_only), *((folder, False) for folder in self.shared)]


def _outermost(folders: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for folder in sorted(set(folders)):
        if not any(folder.is_relative_to(outer) for outer in found):
            found.append(folder)
    return found
