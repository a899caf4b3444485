"""Jobs whose workers are bare pods: launched and made as the operator does it, without Airflow."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kubernetes import watch

from airflow_llmengine.kube.cluster import ClusterSettings
from airflow_llmengine.kube.labels import identity_annotations
from airflow_llmengine.kube.storage_secret import storage_secret, with_storage_secret
from airflow_llmengine.kube.worker_pod import WorkerIdentity, WorkerStart, worker_pod
from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.launch import Launch, launch_job
from tests.kubernetes.cluster import Cluster, terminated
from tests.kubernetes.host_python import HostPython

CONTAINER = "base"
SERIES = "one"
OWNER = "dag/task"


class WorkerPods:
    """Makes the pods of one job, one after the other.

    Args:
        cluster: Where they run.
        namespace: And in which namespace.
        host_python: How they get their programs.
        request: The job.
        engine: Name of the engine.
        options: Storage options as the launcher has them.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        host_python: HostPython,
        request: Mapping[str, Any],
        *,
        engine: str = "echo",
        options: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self._host_python = host_python
        self._engine = engine
        self._request = validate_request(request)
        self._storage = Storage(options or {})

    def launch(self) -> Launch:
        return launch_job(self._storage, self._request, owner=OWNER, series=SERIES, engine=self._engine)

    def start(
        self,
        name: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        secret_options: Mapping[str, Mapping[str, Any]] | None = None,
        grace_seconds: int = 30,
        settings: ClusterSettings | None = None,
    ) -> Any:
        """Launch the job, or join it, and make a pod for it; gives the pod as the API server has it."""
        launch = self.launch()
        pod = worker_pod(
            self._host_python.pod(CONTAINER, name=name, namespace=self.namespace),
            container=CONTAINER,
            request=self._request,
            cluster=settings or ClusterSettings(accelerator="none"),
            identity=WorkerIdentity("replica", identity_annotations(launch.handle, series=SERIES, replica=0)),
            start=self._start(launch, arguments, environment or {}, grace_seconds),
            deadline_seconds=max(1, int(launch.deadline - time.time())),
            grace_seconds=grace_seconds,
        )
        if secret_options is None:
            return self.cluster.create_pod(self.namespace, pod)
        made = self.cluster.create_pod(self.namespace, with_storage_secret(pod, container=CONTAINER))
        self.cluster.core.create_namespaced_secret(self.namespace, storage_secret(made, secret_options))
        return made

    def _start(
        self, launch: Launch, arguments: Sequence[str], environment: Mapping[str, str], grace_seconds: int
    ) -> WorkerStart:
        return WorkerStart(
            command=[self._host_python.python, "-m", "airflow_llmengine.worker"],
            arguments=[
                *("run", "env:LLMENGINE_REQUEST", "--launched", f"--generation={launch.handle.generation}"),
                *(f"--owner={OWNER}", f"--series={SERIES}", f"--grace-seconds={grace_seconds}", "--log-format=json"),
                *arguments,
            ],
            environment={
                "LLMENGINE_ENGINE": self._engine,
                "LLMENGINE_REQUEST": json.dumps(self._request.given()),
                **environment,
            },
        )

    def wait_for_success(self, name: str, seconds: float = 120) -> Any:
        """Wait until the pod has succeeded; gives it."""
        return self.cluster.wait_for_phase(self.namespace, name, "Succeeded", seconds=seconds)

    def delete(self, name: str) -> Any:
        """Delete a pod whose container runs, and wait for its container's end; gives how it ended."""
        # Kubelets before 1.22 that have not told of a container yet, though it runs, never tell of its end either.
        before = self.cluster.wait_for_phase(self.namespace, name, "Running").metadata.resource_version
        self.cluster.delete_pod(self.namespace, name)
        return self.wait_for_container_end(name, since=before)

    def wait_for_container_end(self, name: str, *, since: str | None = None, seconds: int = 120) -> Any:
        """Wait until the pod's container has ended; gives how it ended.

        Args:
            name: The pod's name.
            since: A version of the pod from which on it is followed, since one that is deleted is gone a moment after
                its container's end.
            seconds: How long to wait.
        """
        follow = watch.Watch().stream(
            self.cluster.core.list_namespaced_pod,
            self.namespace,
            field_selector=f"metadata.name={name}",
            timeout_seconds=seconds,
            **({} if since is None else {"resource_version": since}),
        )
        for event in follow:
            end = terminated(event["object"], CONTAINER)
            if end is not None:
                return end
            assert event["type"] != "DELETED", f"{name} is gone, and nobody has told how its container ended"
        raise AssertionError(
            f"the container of {name} did not end in {seconds} s; {self.cluster.describe(self.namespace, name)}"
        )

    def kill(self, name: str) -> None:
        """Kill all processes of the pod's container, as the kernel does when a node's memory is at its end."""
        uid = self.cluster.pod(self.namespace, name).metadata.uid
        for process in processes_of(uid):
            os.kill(process, signal.SIGKILL)


def processes_of(pod_uid: str) -> dict[int, bytes]:
    """The processes of a pod's containers and their command lines. The node is this machine.

    Left out are the one that holds the pod's network, and those by which a container that is not there yet is made.
    """
    names = (pod_uid, pod_uid.replace("-", "_"))
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            group, command = (folder / "cgroup").read_text(), (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if any(name in group for name in names) and command.split(b"\0")[0] not in (b"", b"/pause", b"runc"):
            found[int(folder.name)] = command
    return found
