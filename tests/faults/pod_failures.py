"""The part of docs/failures.md that tells of pods: made of what API servers said, without one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace

from airflow_llmengine.exceptions import LLMEngineError
from airflow_llmengine.hooks.pod_failure import pod_failure, rejected
from airflow_llmengine.spec.job_state import JobHandle
from airflow_llmengine.storage.status import JobStatus
from tests.kube.states import BY_NAME, STATES
from tests.kube.test_rejection import ANSWERS

HANDLE = JobHandle(path="/data/output.json", fingerprint="abc", generation=1)

REFUSALS = {
    "quota": "A quota has no room for the pod now",
    "beyond_quota": "The pod asks for more than the whole quota",
    "not_permitted": "Airflow may not make pods there",
    "pod_security": "PodSecurity is against the pod",
    "webhook": "A webhook is against the pod",
    "request_above_limit": "A field is invalid",
    "priority_class_missing": "`priority` names no PriorityClass",
    "namespace_missing": "There is no such namespace",
    "service_account_missing": "There is no such service account",
    "unauthorized": "The connection's credentials are not accepted",
    "overloaded": "The API server can't serve for longer than it is tried again",
}
"""What happens, by the names of ``tests/kube/rejections.json``."""

HAS_TO_FIT = {
    "out_of_memory": "The worker needs more memory than its limit",
    "storage_limit_exceeded": "The pod needs more ephemeral storage than its limit",
}
"""What happens, by states that mean one thing before the first record and another after it."""

HEAD = """\
## Pods

With a connection of `launcher: kubernetes`. A worker that ends with an exit code of its own says the same as above.
What Kubernetes itself says is quoted; it differs between versions. Some of these were seen on a real cluster, the rest
is made of what other versions are known to say (`tests/kube/pod_states`).

### The API server does not take the pod

| What happens | Exception | Retry helps | What the task says |
|---|---|---|---|"""

ENDS = """
### The pod does not start, or ends

| What happens | Exception | Retry helps | What the task says |
|---|---|---|---|"""


def pods() -> str:
    """The part of the page."""
    refused = (
        row(what, rejected(SimpleNamespace(status=ANSWERS[name]["status"], body=json.dumps(ANSWERS[name]["body"]))))
        for name, what in REFUSALS.items()
    )
    return "\n".join([HEAD, *refused, ENDS, *ends(), ""])


def ends() -> Iterator[str]:
    for state in STATES:
        if state.what:
            yield row(state.what, told(state.name, chunks_committed=1))
    for name, what in HAS_TO_FIT.items():
        yield row(f"{what}, before it generated anything", told(name, chunks_committed=0))
        yield row(f"{what}, later", told(name, chunks_committed=1))


def told(name: str, *, chunks_committed: int) -> LLMEngineError:
    status = JobStatus("stopped", HANDLE, chunks_committed=chunks_committed)
    return pod_failure(BY_NAME[name].diagnosis(), handle=HANDLE, deadline=1000.0, status=status, now=0.0)


def row(what: str, error: LLMEngineError) -> str:
    helps = "yes" if error.retry_helps else "no"
    message = str(error).replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")
    return f"| {what} | `{type(error).__name__}` | {helps} | {message} |"
