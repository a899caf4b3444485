"""A real cluster, the one that ``KUBECONFIG`` names; tests/conftest.py skips its tests where none is named."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from tests.kubernetes.cluster import Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster's API."""
    cluster = Cluster(os.environ["KUBECONFIG"])
    yield cluster
    cluster.close()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """Name of a namespace that no other test has; all in it is gone afterwards."""
    name = cluster.new_namespace()
    yield name
    cluster.delete_namespace(name)


@pytest.fixture
def node_gpus(cluster: Cluster) -> Callable[[int], AbstractContextManager[None]]:
    """Gives contexts in which the node advertises so many GPUs."""
    return cluster.gpus
