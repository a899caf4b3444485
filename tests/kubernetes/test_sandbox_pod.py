"""Model-written code in a pod as the operator makes it: as user 1000, without capabilities, with RuntimeDefault."""

from __future__ import annotations

import json

import pytest
from kubernetes.client import models as k8s

from airflow_llmengine.kube.security import secure
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.host_python import ROOT, HostPython
from tests.worker.tools.attempts import ATTEMPTS

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

TESTS = ROOT / "tests"


def hardened(host_python: HostPython, namespace: str, *command: str) -> k8s.V1Pod:
    """A pod that may do as little as a worker's, and runs a command."""
    pod = host_python.pod(name="sandbox", namespace=namespace)
    (container,) = pod.spec.containers
    container.command = list(command)
    container.env = [each for each in container.env if each.name != "PYTHONPATH"]
    container.env.append(k8s.V1EnvVar(name="PYTHONPATH", value=str(ROOT)))
    container.volume_mounts = [*container.volume_mounts, k8s.V1VolumeMount(name="tmp", mount_path="/tmp")]
    pod.spec.volumes = [*pod.spec.volumes, k8s.V1Volume(name="tmp", empty_dir=k8s.V1EmptyDirVolumeSource())]
    pod.spec.restart_policy = "Never"
    secure(pod, container)
    return pod


def test_nothing_gets_out_in_a_hardened_pod(cluster: Cluster, namespace: str) -> None:
    host_python = HostPython(read=(TESTS,))
    program = "tests.kubernetes.attempts_in_a_pod"
    cluster.create_pod(namespace, hardened(host_python, namespace, host_python.python, "-m", program))
    cluster.wait_for_phase(namespace, "sandbox", "Succeeded", seconds=300)
    last = cluster.log(namespace, "sandbox").splitlines()[-1]
    assert json.loads(last) == {"attempts": len(ATTEMPTS), "wrong": {}}
