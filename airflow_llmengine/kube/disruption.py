"""What was done to a pod by its node, the scheduler, a controller or a person.

A disruption has many names: they differ between versions (a preempted pod carries a condition since 1.26, before there
is only an event), between who did it, and with the moment at which one looks. The names are those of
https://kubernetes.io/docs/concepts/workloads/pods/disruptions/ and of what the kubelet and the controllers write.
"""

from __future__ import annotations

import re

from airflow_llmengine.kube.finding import Finding, Kind, within
from airflow_llmengine.kube.observed_pod import ObservedPod, quoted

_OWN_STORAGE = re.compile(
    r"exceeds the total limit of containers|exceeded its local ephemeral storage limit|"
    r"usage of emptydir volume .* exceeds the limit",
    re.IGNORECASE,
)


def failed_as_a_whole(pod: ObservedPod, called: str) -> Finding | None:
    """By the reason that the kubelet, or a controller, gave for the end of the pod as a whole."""
    reason, said = pod.reason, quoted(pod.message)
    if reason == "DeadlineExceeded":
        return "deadline_exceeded", f"{called} ran longer than its activeDeadlineSeconds."
    if reason == "Evicted":
        if _OWN_STORAGE.search(pod.message):
            return "out_of_storage", f"{called} used more ephemeral storage than it may: {said}"
        return "evicted", f"{called} was evicted from its node: {said}"
    if reason == "Preempting":
        return "preempted", f"{called} was preempted on its node: {said}"
    if reason == "NodeLost":
        return "node_lost", f"The node of {within(called)} does not answer any more: {said}"
    if reason in ("Terminated", "Shutdown", "NodeShutdown"):
        return "node_lost", f"{called} ended because its node shuts down: {said}"
    if reason.startswith("OutOf") or reason in (
        "UnexpectedAdmissionError",
        "NodeAffinity",
        "TopologyAffinityError",
        "PodOSSelectorNodeLabelDoesNotMatch",
        "PodOSNotSupported",
    ):
        return "refused_by_node", f"The node that {within(called)} was placed on refused it ({reason}): {said}"
    return None


_DISRUPTIONS: dict[str, tuple[Kind, str]] = {
    "EvictionByEvictionAPI": ("evicted", "{pod} was evicted, as happens when a node is drained or scaled away."),
    "DeletionByPodGC": ("node_lost", "The node of {the_pod} is gone, and the pod with it."),
    "TerminationByKubelet": ("evicted", "{pod} was ended by its node: {said}"),
}


def disrupted(pod: ObservedPod, called: str, ran: bool) -> Finding | None:
    """By the conditions that name who ends a pod (``DisruptionTarget`` since Kubernetes 1.26), or by older signs."""
    disruption = pod.condition("DisruptionTarget")
    if disruption.get("status") == "True":
        reason = str(disruption.get("reason") or "")
        said = quoted(str(disruption.get("message") or reason))
        if "shutdown" in said.lower():
            return "node_lost", f"{called} ended because its node shuts down: {said}"
        if reason == "PreemptionByScheduler":
            return "preempted", _preempted(called, ran)
        if reason.endswith("TaintManager"):
            return "node_lost", _tainted(called, said)
        kind, sentence = _DISRUPTIONS.get(reason, ("evicted", "{pod} was ended for a disruption: {said}"))
        return kind, sentence.format(pod=called, the_pod=within(called), said=said)
    # Kueue ends the pods that it queues.
    queue = pod.condition("TerminationTarget")
    if queue.get("status") == "True":
        return "preempted", f"{called} was ended by its queue: {quoted(str(queue.get('message') or 'no reason given'))}"
    return None


def disrupted_by_events(pod: ObservedPod, called: str, ran: bool) -> Finding | None:
    """Who ended a pod that carries no condition: it is gone, or the cluster is older than 1.26."""
    if pod.events("Preempted"):
        # The message names the other pod, which may be of another team.
        return "preempted", _preempted(called, ran)
    for said in pod.events("Preempting"):
        return "preempted", f"{called} was preempted on its node: {quoted(said)}"
    for said in pod.events("TaintManagerEviction")[:1]:
        if not said.startswith("Cancelling"):
            return "node_lost", _tainted(called, quoted(said))
    for said in pod.events("Evicted"):
        if _OWN_STORAGE.search(said):
            return "out_of_storage", f"{called} used more ephemeral storage than it may: {quoted(said)}"
        return "evicted", f"{called} was evicted from its node: {quoted(said)}"
    for said in pod.events("ScaleDown", "EvictedByVPA"):
        return "evicted", f"{called} was evicted from its node: {quoted(said)}"
    for said in pod.events("NodeControllerEviction", "NodeNotReady"):
        return "node_lost", f"The node of {within(called)} was lost: {quoted(said)}"
    if pod.events("DeadlineExceeded"):
        return "deadline_exceeded", f"{called} ran longer than its activeDeadlineSeconds."
    if pod.condition("Ready").get("reason") == "NodeNotReady":
        return "node_lost", f"The node of {within(called)} does not answer any more."
    return None


def _preempted(called: str, ran: bool) -> str:
    when = "" if ran else " before it started"
    return f"{called} was preempted{when}: its place was given to a pod of a higher priority."


def _tainted(called: str, said: str) -> str:
    return (
        f"The node of {within(called)} takes no pods any more, as when it is not reachable or is taken out of "
        f"service: {said}"
    )
