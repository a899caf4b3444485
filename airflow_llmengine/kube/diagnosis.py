"""From what Kubernetes says of a pod to what happened to it, in one sentence for people.

The order of the questions is what counts: what was done to the pod explains how its container ended, never the other
way round. Only the worker's own word that it is done, or that its request can't be run, goes before all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_llmengine.kube.disruption import disrupted, disrupted_by_events, failed_as_a_whole
from airflow_llmengine.kube.ended_container import NEVER_RAN, ended_container
from airflow_llmengine.kube.finding import Finding, Kind
from airflow_llmengine.kube.observed_pod import JSON, ObservedPod, state, to_json
from airflow_llmengine.kube.waiting_pod import held_up, not_mounted, not_placed
from airflow_llmengine.spec.exit_codes import ExitCode

__all__ = ["Diagnosis", "Kind", "diagnose"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What happened to a pod."""

    kind: Kind
    sentence: str
    """For people; names the pod, and quotes Kubernetes but nothing that ran in the pod."""
    started: bool
    """Whether the container has run, if only for a moment."""
    exit_code: int | None = None
    """How the container ended, if it has; also when it ended because of something that was done to the pod."""
    termination_message: str = ""
    """The container's last words. They may quote prompts: not for people as they are."""
    limit: str | None = None
    """The limit that was exceeded, as written; None: none was, or none is set."""


def diagnose(pod: Any, events: Sequence[Any] = (), *, container: str, last_seen: Any = None) -> Diagnosis:
    """Say what happened to a pod.

    Args:
        pod: ``V1Pod`` of either Python client or its JSON form; None: it is gone.
        events: Its events, ``CoreV1Event`` or their JSON form. They matter for pods that wait or are gone, and on
            versions before 1.26; without them the answer is coarser, and still right.
        container: The name of the container that the worker runs in.
        last_seen: For a pod that is gone: as it was before.
    """
    is_gone = pod is None
    known = last_seen if is_gone else pod
    observed = ObservedPod({} if known is None else to_json(known), [to_json(event) for event in events])
    phase, particulars = state(observed.container(container))
    ended = particulars if phase == "terminated" else {}
    # What could not be started at all is said to have ended, in 1970.
    ran = ended.get("reason") not in NEVER_RAN and (phase != "waiting" or observed.was_started(container))
    kind, sentence = _find(observed, is_gone, container, ended, ran)
    return Diagnosis(
        kind,
        sentence,
        started=ran,
        exit_code=None if ended.get("exitCode") is None or not ran else int(ended["exitCode"]),
        termination_message=str(ended.get("message") or "") if ran else "",
        limit=_limit(observed, kind, container),
    )


def _find(pod: ObservedPod, is_gone: bool, container: str, ended: JSON, ran: bool) -> Finding:
    called = f"The pod {pod.name}".rstrip()
    if ended.get("exitCode") in (ExitCode.DONE, ExitCode.BAD_REQUEST, ExitCode.TOO_MANY_FAILED_RECORDS):
        return ended_container(pod, called, container, ended)
    found = (
        failed_as_a_whole(pod, called)
        or disrupted(pod, called, ran)
        or (ended_container(pod, called, container, ended) if ended and not pod.is_being_deleted else None)
        or (disrupted_by_events(pod, called, ran) if pod.is_being_deleted or is_gone else None)
    )
    if found is not None:
        return found
    if is_gone:
        return "deleted", f"{called} is gone: it was deleted by somebody, or by something in the cluster."
    if pod.is_being_deleted:
        return "deleted", f"{called} was deleted by somebody, or by something in the cluster."
    found = held_up(pod, called) or not_placed(pod, called) or not_mounted(pod, called)
    if found is not None:
        return found
    if pod.phase == "Pending":
        return "pending", f"{called} has not started yet, and Kubernetes does not say why."
    return "running", f"{called} is running."


def _limit(pod: ObservedPod, kind: Kind, container: str) -> str | None:
    resource = {"out_of_memory": "memory", "out_of_storage": "ephemeral-storage"}.get(kind)
    return None if resource is None else pod.limit(container, resource)
