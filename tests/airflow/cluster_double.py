"""What stands for an API server where a real one can't be made to answer so: busy, out of reach, losing its answers."""

from __future__ import annotations

import copy
import json
from collections import defaultdict, deque
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from kubernetes.client import (
    V1ContainerState,
    V1ContainerStateRunning,
    V1ContainerStateTerminated,
    V1ContainerStatus,
    V1ManagedFieldsEntry,
    V1ObjectMeta,
    V1Pod,
    V1PodSpec,
    V1PodStatus,
)
from kubernetes.client.exceptions import ApiException

CONTAINER = "base"
NAMESPACE = "batch"
SERVER = "https://cluster.example"


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def a_pod(
    name: str = "worker",
    phase: str | None = "Running",
    *,
    uid: str | None = None,
    annotations: dict[str, str] | None = None,
    ended: float | None = None,
    exit_code: int = 0,
    deletion: float | None = None,
    told: float | None = None,
    **status: Any,
) -> V1Pod:
    """A pod as the API server shows it.

    Args:
        name: Its name.
        phase: None: it has no status yet.
        uid: Unlike any other's by default.
        annotations: Its annotations.
        ended: When its container ended, in seconds since the epoch; None: it has not.
        exit_code: How.
        deletion: When it must be gone.
        told: When the kubelet told something of it last; None: nobody has put that down.
        status: More of its status.
    """
    state = V1ContainerState(running=V1ContainerStateRunning())
    if ended is not None:
        terminated = V1ContainerStateTerminated(exit_code=exit_code, finished_at=moment(ended))
        state = V1ContainerState(terminated=terminated)
    container = V1ContainerStatus(
        name=CONTAINER, state=state, image="", image_id="", ready=False, restart_count=0, started=None
    )
    return V1Pod(
        metadata=V1ObjectMeta(
            name=name,
            namespace=NAMESPACE,
            uid=uid or f"uid-of-{name}",
            annotations=annotations,
            creation_timestamp=moment(0),
            deletion_timestamp=None if deletion is None else moment(deletion),
            managed_fields=None if told is None else [V1ManagedFieldsEntry(manager="kubelet", time=moment(told))],
        ),
        spec=V1PodSpec(containers=[], node_name="node-1", termination_grace_period_seconds=30),
        status=None
        if phase is None
        else V1PodStatus(phase=phase, container_statuses=[] if phase == "Pending" else [container], **status),
    )


def refusal(status: int, reason: str = "", **details: Any) -> ApiException:
    """What the client raises when the API server refuses."""
    error = ApiException(status=status, reason=reason)
    error.body = json.dumps({"kind": "Status", "code": status, "reason": reason, **details})
    return error


class ScriptedApi:
    """Stands for ``CoreV1Api`` in front of an API server that is not well.

    Args:
        pods: What there is.
    """

    def __init__(self, *pods: V1Pod) -> None:
        self.pods = {pod.metadata.name: pod for pod in pods}
        self.events: list[Any] = []
        self.log = b""
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.troubles: dict[str, deque[Exception]] = defaultdict(deque)
        """What is raised instead of the next answers, by the verb."""
        self.lost: dict[str, deque[Exception]] = defaultdict(deque)
        """The same, after it was done: the answer is lost on its way."""
        self.api_client = SimpleNamespace(configuration=SimpleNamespace(host=SERVER))

    def verbs(self) -> list[str]:
        return [verb for verb, _options in self.calls]

    def create_namespaced_pod(self, namespace: str, pod: V1Pod, **options: Any) -> V1Pod:
        def create() -> V1Pod:
            if pod.metadata.name in self.pods:
                raise refusal(409, "AlreadyExists", message=f'pods "{pod.metadata.name}" already exists')
            made = copy.deepcopy(pod)
            made.metadata.uid = made.metadata.uid or f"uid-of-{pod.metadata.name}"
            self.pods[pod.metadata.name] = made
            return made

        return self._answer("create", options, create)

    def create_namespaced_secret(self, namespace: str, secret: Any, **options: Any) -> Any:
        def create() -> Any:
            if secret.metadata.name in self.pods:
                raise refusal(409, "AlreadyExists", message=f'secrets "{secret.metadata.name}" already exists')
            self.pods[secret.metadata.name] = secret
            return secret

        return self._answer("create", options, create)

    def read_namespaced_pod(self, name: str, namespace: str, **options: Any) -> V1Pod:
        def read() -> V1Pod:
            if name not in self.pods:
                raise refusal(404, "NotFound")
            return self.pods[name]

        return self._answer("read", options, read)

    def list_namespaced_pod(self, namespace: str, **options: Any) -> Any:
        return self._answer("list", options, lambda: SimpleNamespace(items=list(self.pods.values())))

    def delete_namespaced_pod(self, name: str, namespace: str, *, body: Any, **options: Any) -> None:
        def delete() -> None:
            if name not in self.pods:
                raise refusal(404, "NotFound")
            if body.preconditions is not None and body.preconditions.uid != self.pods[name].metadata.uid:
                raise refusal(409, "Conflict")
            del self.pods[name]

        self._answer("delete", {**options, "grace": body.grace_period_seconds}, delete)

    def list_namespaced_event(self, namespace: str, **options: Any) -> Any:
        return self._answer("events", options, lambda: SimpleNamespace(items=self.events))

    def read_namespaced_pod_log(self, name: str, namespace: str, **options: Any) -> Any:
        return self._answer("log", options, lambda: SimpleNamespace(data=self.log))

    def _answer(self, verb: str, options: dict[str, Any], act: Any) -> Any:
        self.calls.append((verb, options))
        if self.troubles[verb]:
            raise self.troubles[verb].popleft()
        answer = act()
        if self.lost[verb]:
            raise self.lost[verb].popleft()
        return answer
