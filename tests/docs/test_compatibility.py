"""docs/compatibility.md says which versions are supported, and which CI runs."""

from __future__ import annotations

import os
import sys
from importlib import metadata

import pytest

from tests.docs.compatibility import CLUSTER, PAGE, in_words, page, python_of_ci, rows
from tests.kubernetes.cluster import Cluster


def test_the_page_is_made_of_the_bounds_and_of_what_ci_installs() -> None:
    made = page()
    if os.environ.get("WRITE_DOCS"):
        PAGE.write_text(made)
    assert made == PAGE.read_text(), "the page is made anew by `make docs`"


def test_what_is_locked_is_what_runs() -> None:
    running = {row.what.strip("`"): row.tested for row in rows() if row.tested[:1].isdigit() and row.what != "Python"}
    assert len(running) >= 8
    assert {name: metadata.version(name) for name in running} == running


@pytest.mark.skipif(not os.environ.get("CI"), reason="CI's Python is the one that counts")
def test_ci_runs_the_python_that_the_page_names() -> None:
    assert python_of_ci() == f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.mark.kubernetes
def test_the_cluster_is_the_one_that_the_page_names() -> None:
    cluster = Cluster(os.environ["KUBECONFIG"])
    try:
        from kubernetes import client

        found = client.VersionApi(cluster.api_client).get_code()
    finally:
        cluster.close()
    assert f"{found.major}.{found.minor}".rstrip("+") == CLUSTER


def test_bounds_in_words() -> None:
    assert in_words(">=3.3,<4") == "3.3 and newer, below 4"
    assert in_words("<0.34,>=0.32") == "0.32 and newer, below 0.34"
    assert in_words(">=9.39") == "9.39 and newer"
