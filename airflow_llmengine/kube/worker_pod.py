"""The pod of a worker, made from the pod that KubernetesPodOperator built.

The pod that comes in holds what a person asked of the pod operator, of a template or of a pod mutation hook. That
stands: this fills in only what is missing. The exceptions are what makes it this job's pod (``WorkerIdentity``), and
that its containers are never restarted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

from kubernetes.client import models as k8s

from airflow_llmengine.kube.cluster import ClusterSettings
from airflow_llmengine.kube.labels import WORKER_LABEL, common_labels, job_labels, label_refusals
from airflow_llmengine.kube.pod_parts import (
    add_environment,
    add_node_labels,
    add_secret_environment,
    add_tolerations,
    add_volume,
    find_container,
)
from airflow_llmengine.kube.security import secure
from airflow_llmengine.kube.volume_source import volume_from_source
from airflow_llmengine.kube.worker_resources import Role, WorkerResources, shared_memory_quantity, worker_resources
from airflow_llmengine.spec.hardware.inference import Hardware
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.validation import Refusal, RequestInvalidError

GRACE_MARGIN_SECONDS = 15
"""Between the end of the worker's own grace period and SIGKILL: time for the engine's processes to end."""

SCRATCH_PATH = "/tmp"  # noqa: S108
"""The one folder of the root file system that the worker may write to; also its home."""

_DO_NOT_DISRUPT = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""A node is not emptied under a worker only to save another node."""

_PROTOCOL_VARIABLES = "LLMENGINE_"


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """What runs in the container, letter by letter: a ``$`` here is one."""

    command: Sequence[str]
    """The program; where the pod has a command of its own, that one runs, with these arguments."""
    arguments: Sequence[str]
    environment: Mapping[str, str]
    """Plain variables: no secrets."""
    image: str | None = None
    """The image, where the pod names none."""


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """What makes it this job's pod."""

    role: Role
    annotations: Mapping[str, str]
    """From ``labels.identity_annotations``; they replace what the pod has under the same keys."""


def worker_pod(
    pod: k8s.V1Pod,
    *,
    container: str,
    request: CreateBatchCompletionsV1Request,
    cluster: ClusterSettings,
    identity: WorkerIdentity,
    start: WorkerStart,
    deadline_seconds: int,
    grace_seconds: int,
    hardware: Hardware | None = None,
) -> k8s.V1Pod:
    """Put a worker into a pod.

    Args:
        pod: The pod as the pod operator built it; it is not changed.
        container: Name of the worker's container. Other containers are left alone.
        request: The job.
        cluster: What the connection says of pods.
        identity: Whose pod it is.
        start: What runs in it.
        deadline_seconds: What is left of the job's time, at least 1. An earlier deadline of the pod stands.
        grace_seconds: How long the worker may take to save its work. The pod's own grace period stands, so whoever
            gives one must give the worker less.
        hardware: What was worked out for the model; None: what the request gives, and modest defaults.

    Returns:
        A new pod.

    Raises:
        RequestInvalidError: The job can't have such a pod: no node has its GPUs, or a label is taken.
        ValueError: The pod has no such container.
    """
    pod = deepcopy(pod)
    start = _escaped(start)
    pod.metadata = pod.metadata or k8s.V1ObjectMeta()
    worker = find_container(pod, container)
    _refuse_conflicts(pod, worker, request, start)
    resources = worker_resources(request, cluster, identity.role, hardware)
    _add_metadata(pod, request, cluster, identity)
    _add_start(worker, start)
    _add_resources(pod, worker, resources)
    _add_storage(pod, worker, resources, cluster, identity.role)
    _add_access(pod, worker, cluster, identity.role)
    _add_node_choice(pod, request, cluster, resources)
    _add_end(pod, worker, deadline_seconds, grace_seconds)
    secure(pod, worker)
    return pod


def _refuse_conflicts(
    pod: k8s.V1Pod, worker: k8s.V1Container, request: CreateBatchCompletionsV1Request, start: WorkerStart
) -> None:
    refusals = list(label_refusals(request, pod.metadata.labels))
    for variable in worker.env or []:
        name = variable.name
        # What the launcher tells its worker; any other variable of the user's wins.
        if name.startswith(_PROTOCOL_VARIABLES) and start.environment.get(name, variable.value) != variable.value:
            refusals.append(Refusal(f"env_vars.{name}", "is set by the launcher itself", "leave it out"))
    if refusals:
        raise RequestInvalidError(refusals)


def _add_metadata(
    pod: k8s.V1Pod, request: CreateBatchCompletionsV1Request, cluster: ClusterSettings, identity: WorkerIdentity
) -> None:
    labels = {**common_labels(cluster, component=identity.role), **job_labels(request)}
    pod.metadata.labels = {**labels, **(pod.metadata.labels or {}), WORKER_LABEL: "true"}
    kept = _DO_NOT_DISRUPT if identity.role == "replica" else {}
    pod.metadata.annotations = {**kept, **(pod.metadata.annotations or {}), **identity.annotations}


def _escaped(start: WorkerStart) -> WorkerStart:
    """The same where Kubernetes reads it: it puts variables in for ``$(NAME)``, and one dollar sign for two."""
    return WorkerStart(
        command=[_escape(word) for word in start.command],
        arguments=[_escape(word) for word in start.arguments],
        environment={name: _escape(value) for name, value in start.environment.items()},
        image=start.image,
    )


def _escape(text: str) -> str:
    return text.replace("$", "$$")


def _add_start(worker: k8s.V1Container, start: WorkerStart) -> None:
    worker.image = worker.image or start.image
    worker.command = worker.command or list(start.command)
    worker.args = worker.args or list(start.arguments)
    add_environment(worker, (k8s.V1EnvVar(name=name, value=value) for name, value in start.environment.items()))


def _add_resources(pod: k8s.V1Pod, worker: k8s.V1Container, resources: WorkerResources) -> None:
    if worker.resources is None:
        worker.resources = k8s.V1ResourceRequirements()
    own = worker.resources
    # Whoever speaks of a resource at all decides on both its request and its limit.
    decided = {*(own.requests or {}), *(own.limits or {})}
    gpus_decided = bool(own.claims) or any(_is_gpu(name, resources) for name in decided)
    if gpus_decided and resources.placement:
        decided.add(resources.placement.resource)
    own.requests = {**_without(resources.requests, decided), **(own.requests or {})}
    own.limits = {**_without(resources.limits, decided), **(own.limits or {})} or None
    if not resources.placement and not gpus_decided:
        # An image made for GPUs asks for all of them, which a node's runtime may grant to whoever asks.
        add_environment(worker, [k8s.V1EnvVar(name="NVIDIA_VISIBLE_DEVICES", value="void")])


def _is_gpu(name: str, resources: WorkerResources) -> bool:
    return name.startswith("nvidia.com/") or bool(resources.placement and name == resources.placement.resource)


def _without(quantities: Mapping[str, str], names: set[str]) -> dict[str, str]:
    return {name: quantity for name, quantity in quantities.items() if name not in names}


def _add_storage(
    pod: k8s.V1Pod, worker: k8s.V1Container, resources: WorkerResources, cluster: ClusterSettings, role: Role
) -> None:
    scratch = k8s.V1Volume(name="llmengine-tmp", empty_dir=k8s.V1EmptyDirVolumeSource())
    add_volume(pod, worker, scratch, SCRATCH_PATH)
    # A user without an entry in the image's /etc/passwd has no home and no name, and libraries ask for both.
    variables = {"HOME": SCRATCH_PATH, "USER": "llmengine"}
    if resources.ranks:
        limit = (worker.resources.limits or {}).get("memory")
        size = shared_memory_quantity(resources.ranks, None if limit is None else str(limit), resources.swap)
        memory = k8s.V1EmptyDirVolumeSource(medium="Memory", size_limit=size)
        add_volume(pod, worker, k8s.V1Volume(name="llmengine-shm", empty_dir=memory), "/dev/shm")  # noqa: S108
    if cluster.cache_volume is not None and role == "replica":
        add_volume(pod, worker, volume_from_source("llmengine-cache", cluster.cache_volume), cluster.cache_path)
        variables["HF_HOME"] = f"{cluster.cache_path}/huggingface"
        variables["VLLM_CACHE_ROOT"] = f"{cluster.cache_path}/vllm"
        variables["LLMENGINE_MODEL_CACHE"] = f"{cluster.cache_path}/checkpoints"
    add_environment(worker, (k8s.V1EnvVar(name=name, value=value) for name, value in variables.items()))


def _add_access(pod: k8s.V1Pod, worker: k8s.V1Container, cluster: ClusterSettings, role: Role) -> None:
    spec = pod.spec
    spec.service_account_name = spec.service_account_name or cluster.service_account_name
    if spec.automount_service_account_token is None and not spec.service_account_name:
        # The worker asks nothing of Kubernetes; a service account is named where a cloud's identity hangs on it.
        spec.automount_service_account_token = False
    if not spec.image_pull_secrets and cluster.image_pull_secrets:
        spec.image_pull_secrets = [k8s.V1LocalObjectReference(name=name) for name in cluster.image_pull_secrets]
    if cluster.credentials_secret:
        add_secret_environment(worker, cluster.credentials_secret)
    if cluster.hugging_face_key and role == "replica":
        name, key = cluster.hugging_face_key
        source = k8s.V1EnvVarSource(secret_key_ref=k8s.V1SecretKeySelector(name=name, key=key))
        add_environment(worker, [k8s.V1EnvVar(name="HF_TOKEN", value_from=source)])
    if spec.enable_service_links is None:
        # A Service called "vllm" would become a variable VLLM_PORT, which vLLM reads.
        spec.enable_service_links = False


def _add_node_choice(
    pod: k8s.V1Pod, request: CreateBatchCompletionsV1Request, cluster: ClusterSettings, resources: WorkerResources
) -> None:
    if resources.placement:
        add_node_labels(pod, resources.placement.node_labels)
        add_tolerations(pod, resources.placement.tolerations)
    add_node_labels(pod, {key: (value,) for key, value in cluster.node_selector.items()})
    add_tolerations(pod, cluster.tolerations)
    pod.spec.priority_class_name = pod.spec.priority_class_name or request.priority


def _add_end(pod: k8s.V1Pod, worker: k8s.V1Container, deadline_seconds: int, grace_seconds: int) -> None:
    spec = pod.spec
    # A restarted container would be a second attempt that nobody counts.
    spec.restart_policy = "Never"
    spec.active_deadline_seconds = min(max(1, deadline_seconds), spec.active_deadline_seconds or deadline_seconds)
    if spec.termination_grace_period_seconds is None:
        spec.termination_grace_period_seconds = grace_seconds + GRACE_MARGIN_SECONDS
    worker.termination_message_policy = worker.termination_message_policy or "FallbackToLogsOnError"
