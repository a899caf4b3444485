"""What is done about a pod that an earlier attempt left."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from kubernetes.client import (
    V1ContainerState,
    V1ContainerStateRunning,
    V1ContainerStateTerminated,
    V1ContainerStatus,
    V1ManagedFieldsEntry,
    V1ObjectMeta,
    V1Pod,
    V1PodCondition,
    V1PodSpec,
    V1PodStatus,
)

from airflow_llmengine.kube.reattach import (
    ENDING_SLACK_SECONDS,
    Fate,
    fate_of,
    finished_at,
    gone_by,
    is_active,
    is_ending,
)

IDENTITY = {"airflow-llmengine/job": "abc-1", "airflow-llmengine/replica": "0"}
OTHER = IDENTITY | {"airflow-llmengine/job": "abc-2"}


def pod(phase: str, annotations: dict[str, str], **metadata: Any) -> V1Pod:
    return V1Pod(metadata=V1ObjectMeta(annotations=annotations, **metadata), status=V1PodStatus(phase=phase))


@pytest.mark.parametrize(
    ("left", "fate"),
    [
        (pod("Running", IDENTITY), "adopt"),
        (pod("Pending", IDENTITY), "adopt"),
        (pod("Running", IDENTITY | {"of": "a policy"}), "adopt"),
        (pod("Succeeded", IDENTITY), "finished"),
        (pod("Failed", IDENTITY), "ended"),
        (pod("Running", OTHER), "replace"),
        (pod("Running", {}), "replace"),
        (pod("Succeeded", OTHER), "ended"),
        (pod("Running", IDENTITY, deletion_timestamp=datetime.now(UTC)), "going"),
        (pod("Succeeded", IDENTITY, deletion_timestamp=datetime.now(UTC)), "going"),
        # A task has seen its end, and was cleared since: what it left undone is to be done.
        (pod("Succeeded", IDENTITY, labels={"already_checked": "True"}), "ended"),
    ],
)
def test_what_becomes_of_a_pod(left: V1Pod, fate: Fate) -> None:
    assert fate_of(left, IDENTITY) == fate


def test_nothing_is_taken_over_where_the_operator_is_told_not_to() -> None:
    assert fate_of(pod("Running", IDENTITY), IDENTITY, durable=False) == "replace"


@pytest.mark.parametrize(
    ("phase", "active"),
    [("Pending", True), ("Running", True), ("Unknown", True), (None, True), ("Succeeded", False), ("Failed", False)],
)
def test_a_pod_that_has_not_ended_is_active(phase: str | None, active: bool) -> None:
    assert is_active(V1Pod(metadata=V1ObjectMeta(), status=V1PodStatus(phase=phase))) is active


def test_a_pod_that_nobody_has_seen_yet_is_active_and_the_same() -> None:
    unseen = V1Pod(metadata=V1ObjectMeta(annotations=IDENTITY))
    assert is_active(unseen)
    assert fate_of(unseen, IDENTITY) == "adopt"


def test_when_a_pod_must_be_gone() -> None:
    """Kubernetes puts the end of the grace period down as the time of the deletion."""
    assert gone_by(pod("Running", {}), slack_seconds=5) is None
    assert gone_by(pod("Running", {}, deletion_timestamp=datetime.fromtimestamp(100, UTC)), slack_seconds=5) == 105


def container(ended: float | None) -> V1ContainerStatus:
    state = V1ContainerState(running=V1ContainerStateRunning())
    if ended is not None:
        finished = datetime.fromtimestamp(ended, UTC)
        state = V1ContainerState(terminated=V1ContainerStateTerminated(exit_code=0, finished_at=finished))
    return V1ContainerStatus(name="c", image="", image_id="", ready=False, restart_count=0, state=state)


@pytest.mark.parametrize(
    ("phase", "status", "seconds"),
    [
        ("Running", {"container_statuses": [container(100)]}, None),
        ("Succeeded", {"container_statuses": [container(100), container(300), container(200)]}, 300),
        # Evicted: what its containers did is not told any more; or it never ran.
        ("Failed", {"start_time": datetime.fromtimestamp(50, UTC)}, 50),
        ("Failed", {"container_statuses": [container(None)], "start_time": datetime.fromtimestamp(50, UTC)}, 50),
        ("Failed", {}, 10),
    ],
)
def test_when_a_pod_ended(phase: str, status: dict[str, Any], seconds: float | None) -> None:
    metadata = V1ObjectMeta(creation_timestamp=datetime.fromtimestamp(10, UTC))
    found = finished_at(V1Pod(metadata=metadata, status=V1PodStatus(phase=phase, **status)))
    assert (None if found is None else found.timestamp()) == seconds


def failed(*containers: V1ContainerStatus, told: float | None, by: str = "managed_fields") -> V1Pod:
    """A pod that has failed, with a grace of ten seconds; the API server was told so at a moment."""
    left = pod("Failed", IDENTITY)
    left.spec = V1PodSpec(containers=[], termination_grace_period_seconds=10)
    left.status.container_statuses = list(containers)
    if told is not None and by == "managed_fields":
        left.metadata.managed_fields = [V1ManagedFieldsEntry(), V1ManagedFieldsEntry(time=at(told))]
    elif told is not None:
        left.status.conditions = [V1PodCondition(type="Ready", status="False", last_transition_time=at(told))]
    return left


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


@pytest.mark.parametrize("by", ["managed_fields", "conditions"])
def test_a_failed_pod_has_not_ended_while_its_containers_have_their_grace(by: str) -> None:
    """Kubernetes 1.20 says so at its deadline, and ends the worker by then only."""
    left = failed(container(90), container(None), told=100, by=by)
    assert is_ending(left, now=110)
    assert is_active(left, now=110 + ENDING_SLACK_SECONDS)
    # Its node is gone.
    assert not is_active(left, now=111 + ENDING_SLACK_SECONDS)
    assert not is_active(failed(container(90), told=100, by=by), now=100)


def test_two_workers_are_not_at_work_at_once() -> None:
    now = datetime.now(UTC).timestamp()
    assert fate_of(failed(container(None), told=now), IDENTITY) == "going"
    assert finished_at(failed(container(None), told=now)) is None
    assert fate_of(failed(container(now), told=now), IDENTITY) == "ended"
    assert fate_of(failed(container(None), told=None), IDENTITY) == "ended"
