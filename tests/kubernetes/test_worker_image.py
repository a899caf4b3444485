"""The image that the tests with pods run, where one is given."""

from __future__ import annotations

import hashlib
import inspect
import json
from pathlib import Path

import pytest

import airflow_llmengine
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.host_python import IMAGE, WORKER_IMAGE

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.skipif(
        not WORKER_IMAGE,
        reason="pods run this machine's Python: name an image that the cluster has in LLMENGINE_TEST_IMAGE",
    ),
]


def hashes(package: Path) -> dict[str, str]:
    return {
        str(path.relative_to(package)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(package.rglob("*.py"))
    }


LOOK = f"""
import hashlib, importlib.util, json, os, sys
from pathlib import Path

{inspect.getsource(hashes)}
import airflow_llmengine, adlfs, gcsfs, s3fs, vllm

absent = [name for name in ("airflow", "kubernetes") if importlib.util.find_spec(name) is None]
print(json.dumps([os.getuid(), absent, hashes(Path(airflow_llmengine.__file__).parent)]))
"""


def test_the_image_holds_this_checkouts_package_and_no_airflow(cluster: Cluster, namespace: str) -> None:
    """An image that was built before a change of the package would be tested in its stead."""
    container = {"name": "base", "image": IMAGE, "imagePullPolicy": "Never", "command": ["python", "-c", LOOK]}
    pod = {"metadata": {"name": "look"}, "spec": {"restartPolicy": "Never", "containers": [container]}}
    cluster.create_pod(namespace, pod)
    cluster.wait_for_phase(namespace, "look", "Succeeded")
    user, absent, found = json.loads(cluster.log(namespace, "look").splitlines()[-1])
    assert user == 1000
    assert absent == ["airflow", "kubernetes"]
    changed = {name for name, _ in found.items() ^ hashes(Path(airflow_llmengine.__file__).parent).items()}
    assert not changed, f"{IMAGE} was made before these changed: build it anew"
