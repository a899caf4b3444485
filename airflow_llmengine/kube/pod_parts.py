"""Adding to a pod what it lacks: each function leaves alone what is there already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kubernetes.client import models as k8s

from airflow_llmengine.kube.cluster import Toleration


def find_container(pod: k8s.V1Pod, name: str) -> k8s.V1Container:
    """The container of that name.

    Raises:
        ValueError: The pod has none.
    """
    for container in pod.spec.containers or []:
        if container.name == name:
            return container
    raise ValueError(f"The pod has no container {name}: give its template a container of that name.")


def add_environment(container: k8s.V1Container, variables: Iterable[k8s.V1EnvVar]) -> None:
    """Add variables whose names the container does not have."""
    present = {variable.name for variable in container.env or []}
    container.env = [*(container.env or []), *(each for each in variables if each.name not in present)]


def add_secret_environment(container: k8s.V1Container, secret: str) -> None:
    """Make each key of a Secret an environment variable."""
    sources = container.env_from or []
    if not any(source.secret_ref is not None and source.secret_ref.name == secret for source in sources):
        reference = k8s.V1EnvFromSource(secret_ref=k8s.V1SecretEnvSource(name=secret))
        container.env_from = [*sources, reference]


def add_volume(pod: k8s.V1Pod, container: k8s.V1Container, volume: k8s.V1Volume, path: str, **mount: Any) -> None:
    """Mount a volume at a path, unless the container has something mounted there."""
    mounts = container.volume_mounts or []
    if any(present.mount_path.rstrip("/") == path for present in mounts):
        return
    container.volume_mounts = [*mounts, k8s.V1VolumeMount(name=volume.name, mount_path=path, **mount)]
    if not any(present.name == volume.name for present in pod.spec.volumes or []):
        pod.spec.volumes = [*(pod.spec.volumes or []), volume]


def add_tolerations(pod: k8s.V1Pod, tolerations: Iterable[Toleration]) -> None:
    """Tolerate taints, each once."""
    present = list(pod.spec.tolerations or [])
    for toleration in tolerations:
        added = k8s.V1Toleration(**toleration.model_dump(exclude_none=True))
        if added not in present:
            present.append(added)
    pod.spec.tolerations = present or None


def add_node_labels(pod: k8s.V1Pod, labels: Mapping[str, tuple[str, ...]]) -> None:
    """Ask for nodes with these labels, unless the pod says something about the same label itself.

    A label with one value goes into the node selector, where people and autoscalers look first. One of several needs
    node affinity; a pod's own terms there are alternatives, so each of them gets it.
    """
    selector = dict(pod.spec.node_selector or {})
    spoken_of = selector.keys() | {
        expression.key for term in _terms(pod) for expression in term.match_expressions or []
    }
    for key, values in labels.items():
        if key in spoken_of:
            continue
        if len(values) == 1:
            selector[key] = values[0]
        else:
            _require(pod, k8s.V1NodeSelectorRequirement(key=key, operator="In", values=list(values)))
    pod.spec.node_selector = selector or None


def _terms(pod: k8s.V1Pod) -> list[k8s.V1NodeSelectorTerm]:
    affinity = pod.spec.affinity
    nodes = affinity.node_affinity if affinity else None
    required = nodes.required_during_scheduling_ignored_during_execution if nodes else None
    return required.node_selector_terms if required else []


def _require(pod: k8s.V1Pod, expression: k8s.V1NodeSelectorRequirement) -> None:
    terms = _terms(pod)
    if terms:
        for term in terms:
            term.match_expressions = [*(term.match_expressions or []), expression]
        return
    pod.spec.affinity = pod.spec.affinity or k8s.V1Affinity()
    pod.spec.affinity.node_affinity = pod.spec.affinity.node_affinity or k8s.V1NodeAffinity()
    pod.spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution = k8s.V1NodeSelector(
        node_selector_terms=[k8s.V1NodeSelectorTerm(match_expressions=[expression])]
    )
