"""What a pod waits for that has not started."""

from __future__ import annotations

import re

from airflow_llmengine.kube.finding import Finding, Kind, within
from airflow_llmengine.kube.image_pull import PULL_REASONS, is_hopeless
from airflow_llmengine.kube.observed_pod import ObservedPod, quoted, state


def held_up(pod: ObservedPod, called: str) -> Finding | None:
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
                f"The container {container} of {within(called)} can't be created: {quoted(_without_pod(message))}",
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
                f"The container {container} of {within(called)} can't be started: {quoted(message or reason)}",
            )
    return None


def _image(pod: ObservedPod, called: str, container: str, reason: str, message: str) -> Finding:
    image = pod.image(container)
    failed = [said for said in pod.events("Failed", "InspectFailed") if image and f'"{image}"' in said]
    # Before 1.32 a container that waits for the next try only says that it does.
    told = failed[0] if failed and (not message or message.startswith("Back-off")) else message
    kind: Kind = "image_unavailable" if is_hopeless(reason, told.replace(image, "")) else "image_pull_failing"
    return kind, f"The image {image} of {within(called)} can't be pulled: {quoted(_without_layers(told) or reason)}"


def not_placed(pod: ObservedPod, called: str) -> Finding | None:
    """No node takes it, or its queue does not let it be placed."""
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
    return "unschedulable", f"No node takes {within(called)}: {quoted(said)}"


_MISSING_CLAIM = re.compile(r'persistentvolumeclaim "[^"]*" not found')
_MISSING_OBJECT = re.compile(r'(secret|configmap) "[^"]*" not found|references non-existent (secret|config) key: \S+')


def not_mounted(pod: ObservedPod, called: str) -> Finding | None:
    """It has a node, which can't give it its volumes or its network."""
    if pod.phase != "Pending" or not pod.node:
        return None
    # Images are pulled when volumes and network are there: what went wrong with those before is over.
    if pod.events("Pulling", "Pulled", "BackOff"):
        return _slow_image(pod, called)
    for said in pod.events("FailedMount", "FailedAttachVolume"):
        if missing := _MISSING_OBJECT.search(said):
            return "misconfigured", f"A volume of {within(called)} can't be mounted: {quoted(missing.group())}"
        # It repeats, of all volumes, that they are waited for; the events before it say why.
        if not said.startswith("Unable to attach or mount volumes"):
            return "volume_not_mounted", f"A volume of {within(called)} can't be mounted: {quoted(said)}"
    for said in pod.events("FailedCreatePodSandBox"):
        return "not_started", f"{called} can't be started on its node: {quoted(said)}"
    return None


def _slow_image(pod: ObservedPod, called: str) -> Finding | None:
    for said in pod.events("Pulling", "Pulled", "BackOff")[:1]:
        if pulling := re.match(r'Pulling image "([^"]*)"', said):
            return "image_pull_failing", f"The image {pulling[1]} of {within(called)} is still being pulled."
    return None


def _without_pod(message: str) -> str:
    """Without the kubelet's own way to name a pod, which the sentence has named."""
    return re.sub(r' \(pod: "[^"]*", container: [^)]*\)', "", message)


def _without_layers(message: str) -> str:
    """What a runtime says of an image, without how it came here; the sentence has named the image."""
    for layer in (
        r'Back-off pulling image "[^"]*": \w+: ',
        r'Failed to pull image "[^"]*": ',
        r"rpc error: code = \w+ desc = ",
        r'failed to pull and unpack image "[^"]*": ',
    ):
        message = re.sub(f"^{layer}", "", message)
    return message
