"""How the worker's container ended by itself."""

from __future__ import annotations

import signal

from airflow_llmengine.kube.finding import Finding, within
from airflow_llmengine.kube.observed_pod import JSON, ObservedPod, quoted
from airflow_llmengine.spec.exit_codes import ExitCode

_WORKERS_OWN_END = frozenset({ExitCode.BAD_REQUEST, ExitCode.TOO_MANY_FAILED_RECORDS, ExitCode.PARTIAL})
"""Not with these: they tell of the request, or of work that was saved, whatever was killed beside the worker."""

NEVER_RAN = frozenset({"StartError", "ContainerCannotRun"})
"""With these a container is said to have ended whose command could not be run."""

_SHELLS_OWN = {
    126: "could not run its command: it may not be executed (exit code 126).",
    127: "could not run its command: there is no such program in the image (exit code 127).",
}


def ended_container(pod: ObservedPod, called: str, container: str, ended: JSON) -> Finding:
    """By the container's exit code and what the kubelet says of it."""
    code, reason = int(ended.get("exitCode") or 0), str(ended.get("reason") or "")
    # Where a process beside the worker was killed for memory, Kubernetes says so even when the worker ended well.
    if code == ExitCode.DONE:
        return "succeeded", f"{called} ended with exit code 0."
    if reason == "OOMKilled" and code not in _WORKERS_OWN_END:
        limit = pod.limit(container, "memory")
        if limit is None:
            return (
                "out_of_memory",
                f"The memory of the node ran out, and {within(called)}, which has no limit, was killed.",
            )
        return "out_of_memory", f"{called} needed more memory than its limit of {limit}, and was killed (OOMKilled)."
    if reason in NEVER_RAN:
        return (
            "misconfigured",
            f"{called} could not run its command: {quoted(_innermost(str(ended.get('message') or '')))}",
        )
    if reason == "ContainerStatusUnknown":
        return "node_lost", f"Nobody knows how {within(called)} ended: its node lost sight of it."
    return "exited", f"{called} {_exit(code)}"


def _exit(code: int) -> str:
    if code in _SHELLS_OWN:
        return _SHELLS_OWN[code]
    if code in set(ExitCode):
        return f"ended with exit code {code} ({ExitCode(code).name.lower().replace('_', ' ')})."
    if code == 128 + signal.SIGKILL:
        return (
            "was killed (SIGKILL, exit code 137): by somebody, for memory that ran out, or because its grace period "
            "was over."
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
