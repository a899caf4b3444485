"""The tests' own ways with a cluster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.kubernetes.cluster import GPU_RESOURCE, Cluster

pytestmark = pytest.mark.kubernetes


def test_the_node_advertises_gpus_for_a_while(
    cluster: Cluster, node_gpus: Callable[[int], AbstractContextManager[None]]
) -> None:
    def advertised() -> str | None:
        found: str | None = cluster.core.read_node_status(cluster.node.metadata.name).status.capacity.get(GPU_RESOURCE)
        return found

    before = advertised()
    with node_gpus(3):
        assert advertised() == "3"
    assert advertised() == before
