"""Labels and annotations of a job's Kubernetes objects.

Labels are for people and policies: the contract's, and Kubernetes' recommended ones. What tells whether a pod is the
one that a task may take over is in annotations, because KubernetesPodOperator finds pods by labels that must never
vary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

from airflow_llmengine import __version__
from airflow_llmengine.kube.cluster import ClusterSettings
from airflow_llmengine.spec.job_state import PROTOCOL_VERSION, JobHandle
from airflow_llmengine.spec.kubernetes_syntax import suggested_label
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.validation import Refusal
from airflow_llmengine.spec.wire_faults import path_step

JOB_ANNOTATION = "airflow-llmengine/job"
"""Fingerprint and generation: what the pod works on."""
OUTPUT_ANNOTATION = "airflow-llmengine/output"
"""Hash of the job's ``output_data_path``."""
SERIES_ANNOTATION = "airflow-llmengine/series"
"""Hash of the series of attempts that launched the pod."""
REPLICA_ANNOTATION = "airflow-llmengine/replica"
"""Number of the replica, or ``collect``."""
PROTOCOL_ANNOTATION = "airflow-llmengine/protocol-version"
"""Version of the job directory that whoever made the pod writes."""

HANDED_OVER_ANNOTATION = "airflow-llmengine/handed-over"
"""``true`` on a pod that its task does not wait for: a sensor sees to its end. Other pods lack it."""

DEADLINE_ANNOTATION = "airflow-llmengine/deadline"
"""Seconds since the epoch after which the pod can't do anything any more. Not a part of what must match."""

COLLECT = "collect"
"""The value of ``REPLICA_ANNOTATION`` of the pod that puts the shares together."""

WORKER_LABEL = "airflow-llmengine/worker"
"""``true`` on every pod of this package, whatever a job or a template says of the recommended labels."""

WORKER_SELECTOR = f"{WORKER_LABEL}=true"
"""Selects all pods of this package."""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Kueue's LocalQueue."""

NODE_LABEL = "airflow-llmengine/node"
"""Of a replica that spans several nodes: which one a pod is, from 0. Other pods lack it."""

REPLICA_NODES_LABEL = "airflow-llmengine/replica-nodes"
"""The same on all pods of such a replica."""

GROUP_LABEL = "kueue.x-k8s.io/pod-group-name"
"""By it Kueue admits pods together."""

POD_OPERATOR_LABELS = frozenset({"kubernetes_pod_operator", "already_checked"})
"""What KubernetesPodOperator finds pods by, and no followers: the other keys tell people whose they are."""

_RESERVED = frozenset(
    {
        # KubernetesPodOperator's selector, and its notes on a pod.
        "already_checked",
        "airflow_kpo_in_cluster",
        "airflow_version",
        "dag_id",
        "kubernetes_pod_operator",
        "map_index",
        "parent_dag_id",
        "run_id",
        "task_id",
        "try_number",
        # Airflow's Kubernetes executor takes pods with these for its own workers.
        "airflow-worker",
        "kubernetes_executor",
        # The sensor, and what deletes old pods, select by it.
        WORKER_LABEL,
        # By these the nodes of a replica are found.
        NODE_LABEL,
        REPLICA_NODES_LABEL,
    }
)
"""Keys by which Airflow finds pods."""

_HASH_DIGITS = 40


def identity_annotations(
    handle: JobHandle, *, series: str, replica: int | None, handed_over: bool = False
) -> dict[str, str]:
    """What must match before a task takes a pod for its own.

    Args:
        handle: The job's generation.
        series: The series of attempts.
        replica: Which share the pod does; None: it puts the shares together.
        handed_over: Whether the task leaves the pod to a sensor.
    """
    return {
        JOB_ANNOTATION: handle.scratch_name,
        OUTPUT_ANNOTATION: _hash(handle.path),
        SERIES_ANNOTATION: _hash(series),
        REPLICA_ANNOTATION: COLLECT if replica is None else str(replica),
        PROTOCOL_ANNOTATION: str(PROTOCOL_VERSION),
        **({HANDED_OVER_ANNOTATION: "true"} if handed_over else {}),
    }


def handed_over_annotations(handle: JobHandle, *, series: str | None = None) -> dict[str, str]:
    """What a pod has that a sensor, which waits for this job, sees to.

    Args:
        handle: The job's generation.
        series: The series of attempts; None: any.
    """
    return {
        JOB_ANNOTATION: handle.scratch_name,
        OUTPUT_ANNOTATION: _hash(handle.path),
        HANDED_OVER_ANNOTATION: "true",
        **({} if series is None else {SERIES_ANNOTATION: _hash(series)}),
    }


def job_labels(request: CreateBatchCompletionsV1Request) -> dict[str, str]:
    """The contract's labels: the job's own over those of the model."""
    return {**request.model_cfg.labels, **request.labels}


def common_labels(cluster: ClusterSettings, *, component: str) -> dict[str, str]:
    """What this package says of its objects where nobody says otherwise.

    Args:
        cluster: Names Kueue's queue, if there is one.
        component: The object's part in the job, for example ``replica``.
    """
    labels = {
        "app.kubernetes.io/name": "airflow-llmengine",
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/managed-by": "airflow-llmengine",
        "app.kubernetes.io/version": suggested_label(__version__) or "unknown",
    }
    return labels | ({QUEUE_LABEL: cluster.queue} if cluster.queue else {})


def label_refusals(
    request: CreateBatchCompletionsV1Request, present: Mapping[str, str] | None = None
) -> Iterator[Refusal]:
    """Refuse labels that would keep Airflow from finding a pod again, of the job or of the pod.

    Args:
        request: The job, whose labels keep to Kubernetes' syntax already (``spec.check``).
        present: Labels that the pod has from elsewhere. They are a part of the pod operator's selector, so a label of
            the job can't replace one.
    """
    # From a template it could be replaced, but what the DAG gives is a part of the pod operator's selector.
    if present and present.get(WORKER_LABEL, "true") != "true":
        yield Refusal(
            "labels" + path_step(WORKER_LABEL), "is set by the launcher itself", "leave it out of the pod's labels"
        )
    for field, labels in (("model_config.labels", request.model_cfg.labels), ("labels", request.labels)):
        for key, value in labels.items():
            path = field + path_step(key)
            if key in _RESERVED:
                yield Refusal(path, "Airflow finds its pods by a label of this name", "use another key")
            elif field == "model_config.labels" and key in request.labels:
                continue
            elif present and present.get(key, value) != value:
                yield Refusal(
                    path, "the pod operator's own labels have another value for this key", "give one of the two"
                )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]
