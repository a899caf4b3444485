"""From what Kubernetes says of a pod to what happened to it, in one sentence for people.

One end has many names: they differ between versions (a preempted pod carries a condition since 1.26, before there is
only an event), between who did it, and with the moment at which one looks. The order of the questions is what counts:
what was done to the pod explains how its container ended, never the other way round. The names are those of
https://kubernetes.io/docs/concepts/workloads/pods/disruptions/ and of what the kubelet writes.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from airflow_llmengine.kube.image_pull import PULL_REASONS, is_hopeless
from airflow_llmengine.kube.observed_pod import JSON, ObservedPod, quoted, state, to_json
from airflow_llmengine.spec.exit_codes import ExitCode

Kind = Literal[
    "pending",
    "queued",
    "unschedulable",
    "image_pull_failing",
    "image_unavailable",
    "misconfigured",
    "volume_not_mounted",
    "not_started",
    "running",
    "succeeded",
    "exited",
    "out_of_memory",
    "out_of_storage",
    "evicted",
    "preempted",
    "node_lost",
    "refused_by_node",
    "deadline_exceeded",
    "deleted",
]
"""What happened, or what it waits for.

``queued``: held back by a scheduling gate, as Kueue does. ``unschedulable``: no node takes it. ``image_pull_failing``:
its image may come yet; ``image_unavailable``: it will not. ``misconfigured``: it names something that does not exist,
or asks for what can't be run. ``volume_not_mounted`` and ``not_started``: a node takes it, and can't start it.
``pending``: nobody says why it has not started. ``exited``: the worker ended by itself, with ``exit_code``.
``out_of_storage``: evicted for using more ephemeral storage than its own limit. ``evicted``: for the sake of its node,
or by somebody who drains it. ``refused_by_node``: it was placed where it could not run. ``deadline_exceeded``: past
``activeDeadlineSeconds``. ``deleted``: it is gone, or going, by somebody's hand.
"""


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


Finding = tuple[Kind, str]


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
    kind, sentence = _find(observed, is_gone, container, ended)
    ran = kind != "misconfigured" and (phase in ("running", "terminated") or observed.was_started(container))
    return Diagnosis(
        kind,
        sentence,
        started=ran,
        exit_code=None if ended.get("exitCode") is None or not ran else int(ended["exitCode"]),
        termination_message=str(ended.get("message") or "") if ran else "",
        limit=_limit(observed, kind, container),
    )


def _find(pod: ObservedPod, is_gone: bool, container: str, ended: JSON) -> Finding:
    called = f"The pod {pod.name}".rstrip()
    # The worker's word on its request stands, whatever became of the pod afterwards.
    if ended.get("exitCode") in (ExitCode.DONE, ExitCode.BAD_REQUEST, ExitCode.TOO_MANY_FAILED_RECORDS):
        return _ended(pod, called, container, ended)
    found = (
        _failed_as_a_whole(pod, called)
        or _disrupted(pod, called)
        or (_ended(pod, called, container, ended) if ended and not pod.is_being_deleted else None)
        or (_disrupted_by_events(pod, called) if pod.is_being_deleted or is_gone else None)
    )
    if found is not None:
        return found
    if is_gone:
        return "deleted", f"{called} is gone: somebody, or something in the cluster, deleted it."
    if pod.is_being_deleted:
        return "deleted", f"{called} is being deleted by somebody, or by something in the cluster."
    found = _held_up(pod, called) or _not_placed(pod, called) or _not_mounted(pod, called)
    if found is not None:
        return found
    if pod.phase == "Pending":
        return "pending", f"{called} has not started yet, and Kubernetes does not say why."
    return "running", f"{called} is running."


# What was done to the pod

_OWN_STORAGE = re.compile(
    r"exceeds the total limit of containers|exceeded its local ephemeral storage limit|"
    r"usage of emptydir volume .* exceeds the limit",
    re.IGNORECASE,
)


def _failed_as_a_whole(pod: ObservedPod, called: str) -> Finding | None:
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
        return "node_lost", f"The node of {_lower(called)} does not answer any more: {said}"
    if reason in ("Terminated", "Shutdown", "NodeShutdown"):
        return "node_lost", f"{called} ended because its node shuts down: {said}"
    if reason.startswith("OutOf") or reason in (
        "UnexpectedAdmissionError",
        "NodeAffinity",
        "TopologyAffinityError",
        "PodOSSelectorNodeLabelDoesNotMatch",
        "PodOSNotSupported",
    ):
        return "refused_by_node", f"The node that {_lower(called)} was placed on refused it ({reason}): {said}"
    return None


_DISRUPTIONS: dict[str, tuple[Kind, str]] = {
    "PreemptionByScheduler": ("preempted", "{pod} was preempted: its place was given to a pod of a higher priority."),
    "EvictionByEvictionAPI": ("evicted", "{pod} was evicted, as happens when a node is drained or scaled away."),
    "DeletionByPodGC": ("node_lost", "The node of {the_pod} is gone, and the pod with it."),
    "TerminationByKubelet": ("evicted", "{pod} was ended by its node: {said}"),
}


def _disrupted(pod: ObservedPod, called: str) -> Finding | None:
    """By the conditions that name who ends a pod (``DisruptionTarget`` since Kubernetes 1.26), or by older signs."""
    disruption = pod.condition("DisruptionTarget")
    if disruption.get("status") == "True":
        reason = str(disruption.get("reason") or "")
        said = quoted(str(disruption.get("message") or reason))
        if "shutdown" in said.lower():
            return "node_lost", f"{called} ended because its node shuts down: {said}"
        if reason.endswith("TaintManager"):
            return "node_lost", _tainted(called, said)
        kind, sentence = _DISRUPTIONS.get(reason, ("evicted", "{pod} was ended for a disruption: {said}"))
        return kind, sentence.format(pod=called, the_pod=_lower(called), said=said)
    # Kueue ends the pods that it queues.
    queue = pod.condition("TerminationTarget")
    if queue.get("status") == "True":
        return "preempted", f"{called} was ended by its queue: {quoted(str(queue.get('message') or 'no reason given'))}"
    return None


def _disrupted_by_events(pod: ObservedPod, called: str) -> Finding | None:
    """Who ended a pod that carries no condition: it is gone, or the cluster is older than 1.26."""
    if pod.events("Preempted"):
        # The message names the other pod, which may be of another team.
        return "preempted", f"{called} was preempted: its place was given to a pod of a higher priority."
    for said in pod.events("Preempting"):
        return "preempted", f"{called} was preempted on its node: {quoted(said)}"
    for said in pod.events("TaintManagerEviction"):
        if not said.startswith("Cancelling"):
            return "node_lost", _tainted(called, quoted(said))
    for said in pod.events("Evicted"):
        if _OWN_STORAGE.search(said):
            return "out_of_storage", f"{called} used more ephemeral storage than it may: {quoted(said)}"
        return "evicted", f"{called} was evicted from its node: {quoted(said)}"
    for said in pod.events("ScaleDown", "EvictedByVPA", "EvictionByEvictionAPI", "Drain"):
        return "evicted", f"{called} was evicted from its node: {quoted(said)}"
    for said in pod.events("NodeControllerEviction", "NodeShutdown", "NodeNotReady"):
        return "node_lost", f"The node of {_lower(called)} was lost: {quoted(said)}"
    if pod.events("DeadlineExceeded"):
        return "deadline_exceeded", f"{called} ran longer than its activeDeadlineSeconds."
    if pod.condition("Ready").get("reason") == "NodeNotReady":
        return "node_lost", f"The node of {_lower(called)} does not answer any more."
    return None


def _tainted(called: str, said: str) -> str:
    return (
        f"The node of {_lower(called)} takes no pods any more, as when it is not reachable or is taken out of "
        f"service: {said}"
    )


# How the container ended by itself


def _ended(pod: ObservedPod, called: str, container: str, ended: JSON) -> Finding:
    code, reason = int(ended.get("exitCode") or 0), str(ended.get("reason") or "")
    # Where a process beside the worker was killed for memory, Kubernetes says so even when the worker ended well.
    if code == ExitCode.DONE:
        return "succeeded", f"{called} ended with exit code 0."
    if reason == "OOMKilled" and code not in _WORKERS_OWN_END:
        limit = pod.limit(container, "memory")
        if limit is None:
            return (
                "out_of_memory",
                f"The memory of the node ran out, and {_lower(called)}, which has no limit, was killed.",
            )
        return "out_of_memory", f"{called} needed more memory than its limit of {limit}, and was killed (OOMKilled)."
    if reason in ("StartError", "ContainerCannotRun", "RunContainerError"):
        return (
            "misconfigured",
            f"{called} could not run its command: {quoted(_innermost(str(ended.get('message') or '')))}",
        )
    if reason == "ContainerStatusUnknown":
        return "node_lost", f"Nobody knows how {_lower(called)} ended: its node lost sight of it."
    return "exited", f"{called} {_exit(code)}"


_WORKERS_OWN_END = frozenset({ExitCode.BAD_REQUEST, ExitCode.TOO_MANY_FAILED_RECORDS, ExitCode.PARTIAL})
"""Not with these: they tell of the request, or of work that was saved, whatever was killed beside the worker."""

_SHELLS_OWN = {
    126: "could not run its command: it may not be executed (exit code 126).",
    127: "could not run its command: there is no such program in the image (exit code 127).",
}


def _exit(code: int) -> str:
    if code in _SHELLS_OWN:
        return _SHELLS_OWN[code]
    if code in set(ExitCode):
        return f"ended with exit code {code} ({ExitCode(code).name.lower().replace('_', ' ')})."
    if code == 128 + signal.SIGKILL:
        return (
            "was killed (SIGKILL, exit code 137): somebody or something killed it, or its grace period ran out after "
            "it was told to end."
        )
    if code == 128 + signal.SIGTERM:
        return "was told to end (SIGTERM, exit code 143) before it could save anything."
    if 128 < code <= 128 + max(signal.valid_signals()):
        return f"was killed by {_signal(code - 128)} (exit code {code})."
    return f"ended with exit code {code}."


def _signal(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _innermost(message: str) -> str:
    """What a runtime means, without the layers it went through."""
    return message[message.find("exec: ") :].removesuffix(": unknown") if "exec: " in message else message


# What a pod waits for


def _held_up(pod: ObservedPod, called: str) -> Finding | None:
    """A container that can't be started, or one that had to run before the others and failed."""
    for status in pod.containers():
        phase, particulars = state(status)
        container = str(status.get("name"))
        reason, message = str(particulars.get("reason") or ""), str(particulars.get("message") or "")
        if phase == "terminated" and particulars.get("exitCode") and status.get("name") in pod.init_containers:
            return "not_started", (
                f"{called} was not started, for its init container {container} ended with exit code "
                f"{particulars['exitCode']}."
            )
        if phase != "waiting":
            continue
        if reason in PULL_REASONS:
            return _image(pod, called, container, reason, message)
        if reason == "CreateContainerConfigError":
            return (
                "misconfigured",
                f"The container {container} of {_lower(called)} can't be created: {quoted(_without_pod(message))}",
            )
        if reason in (
            "CreateContainerError",
            "RunContainerError",
            "PreCreateHookError",
            "PreStartHookError",
            "PostStartHookError",
        ):
            return (
                "not_started",
                f"The container {container} of {_lower(called)} can't be started: {quoted(message or reason)}",
            )
    return None


def _image(pod: ObservedPod, called: str, container: str, reason: str, message: str) -> Finding:
    image = pod.image(container)
    failed = [said for said in pod.events("Failed", "InspectFailed") if image and f'"{image}"' in said]
    # Before 1.32 a container that waits for the next try only says that it does.
    told = failed[0] if failed and (not message or message.startswith("Back-off")) else message
    kind: Kind = "image_unavailable" if is_hopeless(reason, told) else "image_pull_failing"
    return kind, f"The image {image} of {_lower(called)} can't be pulled: {quoted(_without_layers(told) or reason)}"


def _not_placed(pod: ObservedPod, called: str) -> Finding | None:
    scheduled = pod.condition("PodScheduled")
    if scheduled.get("status") != "False":
        return None
    reason = str(scheduled.get("reason") or "")
    if reason == "SchedulingGated":
        gates = ", ".join(str(gate.get("name")) for gate in pod.spec.get("schedulingGates") or ())
        return "queued", f"{called} waits for admission by its queue ({gates or 'a scheduling gate'})."
    said = str(scheduled.get("message") or reason)
    if missing := _MISSING_CLAIM.search(said):
        return "misconfigured", f"{called} can't be placed: {quoted(missing.group())}"
    return "unschedulable", f"No node takes {_lower(called)}: {quoted(said)}"


_MISSING_CLAIM = re.compile(r'persistentvolumeclaim "[^"]*" not found')
_MISSING_OBJECT = re.compile(r'(secret|configmap) "[^"]*" not found|references non-existent (secret|config) key: \S+')


def _not_mounted(pod: ObservedPod, called: str) -> Finding | None:
    if pod.phase != "Pending" or not pod.node:
        return None
    for said in pod.events("FailedMount", "FailedAttachVolume"):
        if missing := _MISSING_OBJECT.search(said):
            return "misconfigured", f"A volume of {_lower(called)} can't be mounted: {quoted(missing.group())}"
        # It repeats, of all volumes, that they are waited for; the events before it say why.
        if not said.startswith("Unable to attach or mount volumes"):
            return "volume_not_mounted", f"A volume of {_lower(called)} can't be mounted: {quoted(said)}"
    for said in pod.events("FailedCreatePodSandBox"):
        return "not_started", f"{called} can't be started on its node: {quoted(said)}"
    return None


# The rest of a diagnosis


def _limit(pod: ObservedPod, kind: Kind, container: str) -> str | None:
    resource = {"out_of_memory": "memory", "out_of_storage": "ephemeral-storage"}.get(kind)
    return None if resource is None else pod.limit(container, resource)


def _without_pod(message: str) -> str:
    """Without the kubelet's own way to name a pod, which the sentence has named."""
    return re.sub(r' \(pod: "[^"]*", container: [^)]*\)', "", message)


def _without_layers(message: str) -> str:
    """What a runtime says of an image, without how it came here; the sentence has named the image."""
    message = message.removeprefix("Error: ")
    for layer in (
        r'Failed to pull image "[^"]*": ',
        r"rpc error: code = \w+ desc = ",
        r'failed to pull and unpack image "[^"]*": ',
    ):
        message = re.sub(f"^{layer}", "", message)
    return message


def _lower(called: str) -> str:
    return called[0].lower() + called[1:]
