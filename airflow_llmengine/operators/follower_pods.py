"""The further pods of a replica that spans several nodes: made with its first pod, and ended with it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from airflow_llmengine.exceptions import PodUnschedulableError
from airflow_llmengine.hooks.cluster_errors import only_warned_of
from airflow_llmengine.operators.task_pods import TaskPodsMixin, name_of

if TYPE_CHECKING:
    from kubernetes.client import V1Pod

    from airflow_llmengine.kube.diagnosis import Diagnosis
    from airflow_llmengine.operators.pod_launch import PodLaunch

ADDRESS_POLL_SECONDS = 2.0


class FollowerPodsMixin(TaskPodsMixin):
    """A task's dealings with the followers of its pod. For a pod without any, nothing is done."""

    def _make_followers(self, launch: PodLaunch, asked: V1Pod, leader: V1Pod) -> None:
        """Make the followers of a leader that was just made.

        Args:
            launch: What they are given.
            asked: The leader as it was asked for.
            leader: The leader as the cluster has it.

        Raises:
            LLMEngineError: They can't be made, or Airflow ended the task.
        """
        from airflow_llmengine.hooks.replica_nodes import earlier_followers
        from airflow_llmengine.kube.replica_nodes import nodes_of_pod

        if nodes_of_pod(asked) == 1:
            return
        # The next ones have their names.
        earlier = earlier_followers(self.client, leader)
        for pod in earlier:
            self._delete(pod)
        self._await_gone(earlier)
        address = self._address_of(launch, leader)
        if address is None:
            return
        for pod in launch.followers(asked, leader, address=address, container=self.base_container_name):
            self._create(pod)
        self.log.info(
            "The pod %s has %d more for the other nodes of its replica.", name_of(leader), nodes_of_pod(asked) - 1
        )

    def _lacks_followers(self, leader: V1Pod) -> bool:
        """Whether a pod of an earlier attempt is of no use any more: some of its followers are not there."""
        from airflow_llmengine.hooks.replica_nodes import missing_followers

        missing = missing_followers(self.client, leader)
        if missing:
            self.log.info("The pod %s has no followers %s any more.", name_of(leader), ", ".join(map(str, missing)))
        return bool(missing)

    def _end_followers(self, leader: V1Pod) -> None:
        """Delete what is left of the followers of a leader that has ended, and is kept. Never fails the task."""
        from airflow_llmengine.hooks.replica_nodes import end_followers

        warning = "The followers of the pod %s could not be ended (%s): delete them by hand."
        with only_warned_of(self.log, warning, name_of(leader)):
            end_followers(self.client, leader)

    def _diagnose(self, found: V1Pod | None, known: V1Pod | None) -> Diagnosis:
        from airflow_llmengine.hooks.replica_nodes import with_nodes

        diagnosis = super()._diagnose(found, known)
        return with_nodes(self.client, found or known, diagnosis, container=self.base_container_name)

    def _address_of(self, launch: PodLaunch, leader: V1Pod) -> str | None:
        """What followers reach the leader by; None: it has ended already."""
        from airflow_llmengine.hooks.pods import create_service
        from airflow_llmengine.kube.replica_nodes import leader_service

        if launch.settings.cluster.leader_address == "service":
            service = leader_service(leader)
            create_service(self.client, service)
            return str(service.metadata.name)
        self.log.info("Waiting for the address of the pod %s, for its followers.", name_of(leader))
        until = time.time() + self.schedule_timeout_seconds
        while True:
            self._end_if_killed()
            found = self._look(leader)
            if found is None or found.metadata.deletion_timestamp is not None:
                return None
            address: str | None = found.status.pod_ip
            if address or found.status.phase in ("Succeeded", "Failed"):
                return address
            if time.time() >= until:
                raise PodUnschedulableError(
                    f"{self._diagnose(found, leader).sentence} The other nodes of its replica wait for its address. "
                    "Nothing is lost, and a retry goes on where the job stands."
                )
            self._pause(ADDRESS_POLL_SECONDS)
