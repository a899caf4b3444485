"""The cluster that ``KUBECONFIG`` names, as tests use it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from kubernetes import client, config

from tests.waiting import wait_until

GPU_RESOURCE = "nvidia.com/gpu"


class Cluster:
    """The API of a cluster, and what tests ask of it again and again.

    Args:
        kubeconfig: Path of the kubeconfig.
    """

    def __init__(self, kubeconfig: str) -> None:
        self.kubeconfig = kubeconfig
        self.api_client = config.new_client_from_config(config_file=kubeconfig)
        self.core = client.CoreV1Api(self.api_client)

    def close(self) -> None:
        self.api_client.close()

    @cached_property
    def node(self) -> Any:
        """The first node with a machine behind it; tests make some without."""
        return next(node for node in self.core.list_node().items if node.status.addresses)

    @property
    def node_address(self) -> str:
        """Where pods reach programs of the node, which is this machine."""
        address: str = next(each.address for each in self.node.status.addresses if each.type == "InternalIP")
        return address

    def new_namespace(self, prefix: str = "llmengine-test") -> str:
        """Make a namespace in which pods can be made at once."""
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        self.core.create_namespace({"metadata": {"name": name}})
        # Without it every pod is refused; a controller makes it a moment later.
        self.wait_for_service_account(name, "default")
        return name

    def new_service_account(self, namespace: str, name: str) -> None:
        """Make a service account with which pods can be made at once."""
        self.core.create_namespaced_service_account(namespace, {"metadata": {"name": name}})
        self.wait_for_service_account(namespace, name)

    def wait_for_service_account(self, namespace: str, name: str) -> None:
        """Wait until pods of the service account are taken: on old versions its token is made a moment later."""
        container = {"name": "base", "image": "none"}
        pod = {"metadata": {"name": "asked"}, "spec": {"serviceAccountName": name, "containers": [container]}}

        def is_taken() -> bool:
            try:
                self.core.create_namespaced_pod(namespace, pod, dry_run="All")
            except client.ApiException as error:
                if error.status in (403, 500):
                    return False
                raise
            return True

        wait_until(is_taken)

    def delete_namespace(self, name: str) -> None:
        """Have a namespace deleted, its pods killed; what is left of it goes while the next test runs."""
        self.core.delete_collection_namespaced_pod(name, grace_period_seconds=0)
        self.core.delete_namespace(name)

    @contextmanager
    def gpus(self, number: int) -> Iterator[None]:
        """Have the node advertise so many GPUs meanwhile. It is only a number for the scheduler."""
        before = (self.core.read_node_status(self.node.metadata.name).status.capacity or {}).get(GPU_RESOURCE)
        self._advertise(str(number))
        try:
            yield
        finally:
            self._advertise(before)

    def _advertise(self, number: str | None) -> None:
        resources = {GPU_RESOURCE: number}
        self.core.patch_node_status(
            self.node.metadata.name, {"status": {"capacity": resources, "allocatable": resources}}
        )

    def create_pod(self, namespace: str, pod: Any) -> Any:
        """Make a pod; gives it as the API server has it."""
        return self.core.create_namespaced_pod(namespace, pod)

    def pods(self, namespace: str) -> list[Any]:
        found: list[Any] = self.core.list_namespaced_pod(namespace).items
        return found

    def pod(self, namespace: str, name: str) -> Any:
        """The pod as it is now; None if it is gone."""
        try:
            return self.core.read_namespaced_pod(name, namespace)
        except client.ApiException as error:
            if error.status == 404:
                return None
            raise

    def delete_pod(self, namespace: str, name: str, *, grace_seconds: int | None = None) -> None:
        """Delete a pod: with its own grace, or another; 0 kills it."""
        self.core.delete_namespaced_pod(name, namespace, grace_period_seconds=grace_seconds)

    def events(self, namespace: str, name: str) -> dict[str, str]:
        """What was said of an object: the latest message of each reason."""
        found = self.core.list_namespaced_event(namespace, field_selector=f"involvedObject.name={name}").items
        return {event.reason: event.message for event in found}

    def log(self, namespace: str, name: str, container: str | None = None) -> str:
        """The log of a pod's container so far."""
        # Not preloaded: some releases of the client give the text of a bytes literal.
        arguments = {} if container is None else {"container": container}
        response = self.core.read_namespaced_pod_log(name, namespace, _preload_content=False, **arguments)
        text: str = response.data.decode()
        return text

    def wait_for_phase(self, namespace: str, name: str, *phases: str, seconds: float = 120) -> Any:
        """Wait until the pod is in one of these phases; gives the pod. Fails at once when it ended in another."""
        seen: list[Any] = []

        def reached() -> bool:
            pod = self.pod(namespace, name)
            seen[:] = [pod]
            phase = pod.status.phase
            assert phase in phases or phase not in ("Succeeded", "Failed"), f"it is {phase}"
            return phase in phases

        try:
            wait_until(reached, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.describe(namespace, name)}") from None
        return seen[0]

    def wait_for_end(self, namespace: str, name: str, seconds: float = 120) -> Any:
        """Wait until the pod has succeeded or failed; gives the pod."""
        return self.wait_for_phase(namespace, name, "Succeeded", "Failed", seconds=seconds)

    def wait_until_gone(self, namespace: str, name: str, seconds: float = 120) -> None:
        wait_until(lambda: self.pod(namespace, name) is None, seconds)

    def describe(self, namespace: str, name: str) -> str:
        """Status, events and log of a pod, for the message of a test that fails."""
        pod = self.pod(namespace, name)
        if pod is None:
            return f"{name} is gone"
        status = json.dumps(self.api_client.sanitize_for_serialization(pod.status), indent=1)
        try:
            log = self.log(namespace, name)
        except client.ApiException as error:
            log = f"no log: {error.reason}"
        return f"{status}\n{self.events(namespace, name)}\n{log[-6000:]}"


def terminated(pod: Any, container: str | None = None) -> Any:
    """The end of a pod's container (exit code, reason, message); None while it has not ended."""
    for status in (pod.status.container_statuses or []) if pod is not None else []:
        if container in (None, status.name):
            return status.state.terminated
    return None
