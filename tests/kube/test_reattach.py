"""What is done about a pod that an earlier attempt left."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from kubernetes.client import V1ObjectMeta, V1Pod, V1PodStatus

from airflow_llmengine.kube.reattach import Fate, fate_of

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
