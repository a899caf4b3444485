"""What to do about a pod that an earlier attempt left, before a new one is made."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

from kubernetes.client import V1Pod

from airflow_llmengine.kube.labels import DEADLINE_ANNOTATION

CHECKED_LABEL = "already_checked"
"""By it KubernetesPodOperator marks a pod that a task has seen the end of, and keeps."""

ENDING_SLACK_SECONDS = 120.0
"""So long after its grace a pod that has failed is taken for one whose containers run; later nobody is there to tell
that they have ended."""

MISSED_SECONDS = 60.0
"""So long after its deadline a pod that has not started is left to the task that made it."""

Fate = Literal["adopt", "finished", "ended", "going", "replace"]
"""``adopt``: it does exactly what is to be done; ``finished``: it has done it while nobody watched; ``ended``: it has
ended otherwise, or a task has seen its end; ``going``: it is being deleted, or has failed and its containers still
run; ``replace``: it is at work on something else, and must go first."""


def fate_of(pod: V1Pod, identity: Mapping[str, str], *, durable: bool = True) -> Fate:
    """Judge a pod that carries the labels of this task instance.

    Only one with the very same identity is taken over: the same job, generation, replica and series of attempts. A name
    proves nothing, and a pod that is being deleted is never taken over: its work is being saved, and it ends soon.

    Args:
        pod: As the API server shows it.
        identity: Annotations that the pod of this attempt would have.
        durable: Whether pods are taken over at all.
    """
    if pod.metadata.deletion_timestamp is not None:
        return "going"
    annotations = pod.metadata.annotations or {}
    same = durable and all(annotations.get(name) == value for name, value in identity.items())
    phase = None if pod.status is None else pod.status.phase
    if phase in ("Succeeded", "Failed"):
        if is_ending(pod):
            return "going"
        seen = (pod.metadata.labels or {}).get(CHECKED_LABEL) == "True"
        return "finished" if same and phase == "Succeeded" and not seen else "ended"
    return "adopt" if same else "replace"


def is_active(pod: V1Pod, now: float | None = None) -> bool:
    """Whether a pod has not ended: it holds resources, or waits for them.

    Args:
        pod: As the API server shows it.
        now: Seconds since the epoch; the clock's time by default.
    """
    return pod.status is None or pod.status.phase not in ("Succeeded", "Failed") or is_ending(pod, now)


def is_ending(pod: V1Pod, now: float | None = None) -> bool:
    """Whether a pod has failed, and its containers still run: they have their grace.

    Some versions of the kubelet, 1.20 for one, say ``Failed`` as soon as they begin to end a pod, for example at its
    ``activeDeadlineSeconds``. Such a pod must not be deleted: the API server forgets a failed pod at once, whatever of
    it still runs. It is not taken for one that ends for ever, since the node may be gone.

    Args:
        pod: As the API server shows it.
        now: Seconds since the epoch; the clock's time by default.
    """
    if pod.status is None or pod.status.phase != "Failed" or not _has_running_container(pod):
        return False
    told = _last_told(pod)
    grace = (pod.spec and pod.spec.termination_grace_period_seconds) or 0
    return told is not None and (time.time() if now is None else now) <= told + grace + ENDING_SLACK_SECONDS


def has_missed_its_start(pod: V1Pod, now: float) -> bool:
    """Whether a pod still waits to start, and its deadline has passed: Kubernetes counts from the start on only.

    Args:
        pod: As the API server shows it.
        now: Seconds since the epoch.
    """
    if pod.status is None or pod.status.phase != "Pending" or pod.metadata.deletion_timestamp is not None:
        return False
    try:
        deadline = float((pod.metadata.annotations or {})[DEADLINE_ANNOTATION])
    except (KeyError, ValueError):
        return False
    return now > deadline + MISSED_SECONDS


def _has_running_container(pod: V1Pod) -> bool:
    statuses = (*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ()))
    return any(status.state is not None and status.state.running is not None for status in statuses)


def _last_told(pod: V1Pod) -> float | None:
    """Seconds since the epoch at which the API server was last told something of a pod; None if that is not known."""
    moments = [
        *(entry.time for entry in pod.metadata.managed_fields or ()),
        *(condition.last_transition_time for condition in pod.status.conditions or ()),
    ]
    return max((moment.timestamp() for moment in moments if moment is not None), default=None)


def gone_by(pod: V1Pod, *, slack_seconds: float) -> float | None:
    """Seconds since the epoch at which a pod that is being deleted must be gone; None if it is not being deleted.

    Kubernetes sets the deletion's time to the end of the grace period. A pod on a node that is gone never vanishes.
    """
    until: datetime | None = pod.metadata.deletion_timestamp
    return None if until is None else until.timestamp() + slack_seconds


def finished_at(pod: V1Pod) -> datetime | None:
    """When the last container of a pod ended; None if one still runs, or it never ran."""
    if is_active(pod):
        return None
    ends = [
        status.state.terminated.finished_at
        for status in pod.status.container_statuses or ()
        if status.state is not None and status.state.terminated is not None and status.state.terminated.finished_at
    ]
    return max(ends, default=pod.status.start_time or pod.metadata.creation_timestamp or datetime.now(UTC))
