"""Everything that the API server tells of a namespace's pods, from beginning to end."""

from __future__ import annotations

import json
import threading
from typing import Any, Self

from kubernetes.client.exceptions import ApiException
from kubernetes.watch import Watch

from tests.kubernetes.cluster import Cluster

READ_SECONDS = 1
EXPIRED = 410


class PodWatch:
    """Follows the pods of a namespace while it is entered, by the API's own watch: it misses no change.

    Args:
        cluster: The cluster.
        namespace: Name of a namespace without pods.
    """

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._at_work: set[str] = set()
        self.seen: list[dict[str, Any]] = []
        """Each state of each pod, as JSON, in order."""
        self.most_at_work = 0
        """How many pods ran their container at once, at most."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def names(self) -> set[str]:
        """All pods that there ever were."""
        return {pod["metadata"]["name"] for pod in self.seen}

    def last(self, name: str) -> dict[str, Any]:
        """The last state of a pod."""
        return next(pod for pod in reversed(self.seen) if pod["metadata"]["name"] == name)

    def text(self) -> str:
        """All of it, to be searched."""
        return json.dumps(self.seen)

    def _follow(self) -> None:
        watch = Watch()
        version = "0"
        while not self._stop.is_set():
            try:
                for event in watch.stream(
                    self._cluster.core.list_namespaced_pod,
                    self._namespace,
                    resource_version=version,
                    timeout_seconds=READ_SECONDS,
                ):
                    self._take(event["type"], event["raw_object"])
            except ApiException as error:
                # Nothing happened here for so long that the server has forgotten that moment.
                if error.status != EXPIRED:
                    raise
                version = self._cluster.core.list_namespaced_pod(self._namespace).metadata.resource_version
            else:
                version = watch.resource_version or version

    def _take(self, what: str, pod: dict[str, Any]) -> None:
        self.seen.append(pod)
        name = pod["metadata"]["name"]
        running = any("running" in status["state"] for status in pod["status"].get("containerStatuses", []))
        if running and what != "DELETED":
            self._at_work.add(name)
        else:
            self._at_work.discard(name)
        self.most_at_work = max(self.most_at_work, len(self._at_work))
