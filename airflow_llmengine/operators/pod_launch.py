"""From an attempt and a connection to what its pod is given."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from airflow_llmengine.exceptions import RequestRefusedError
from airflow_llmengine.hooks.pods import create_secret
from airflow_llmengine.hooks.worker_attempt import WORKER_MODULE
from airflow_llmengine.spec.replica_nodes import NODE_TOKEN_VARIABLE, nodes_of

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api, V1Pod

    from airflow_llmengine.exceptions import LLMEngineError
    from airflow_llmengine.hooks.connection_settings import ConnectionSettings
    from airflow_llmengine.hooks.llmengine import LLMEngineHook
    from airflow_llmengine.hooks.worker_attempt import WorkerAttempt
    from airflow_llmengine.kube.diagnosis import Diagnosis
    from airflow_llmengine.spec.hardware.inference import Hardware
    from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
    from airflow_llmengine.storage.status import JobStatus

REQUEST_VARIABLE = "LLMENGINE_REQUEST"
STORAGE_OPTIONS_VARIABLE = "LLMENGINE_STORAGE_OPTIONS"

INLINE_REQUEST_BYTES = 32_768
"""A larger request is staged on storage: etcd keeps every pod, and takes a megabyte and a half at most."""


@dataclass(frozen=True, slots=True, repr=False)
class PodLaunch:
    """What the pod of one attempt is given. Has no repr: it may hold credentials."""

    attempt: WorkerAttempt
    request: CreateBatchCompletionsV1Request
    settings: ConnectionSettings
    source: str
    """Where the worker finds the request."""
    environment: Mapping[str, str]
    credentials: Mapping[str, Mapping[str, Any]]
    """Options of fsspec by protocol, with credentials; empty where the pod has credentials of its own."""
    identity: Mapping[str, str]
    grace_seconds: int
    hardware: Hardware | None = None
    """What was worked out for the model."""
    nodes_within: int = 3600
    """Seconds that the nodes of a replica may take to find each other."""
    nodes_token: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    """What they share, and nobody else knows."""
    secret_suffix: str = field(default_factory=lambda: f"storage-{secrets.token_hex(4)}")
    """Ends the name of this attempt's Secret."""

    @property
    def nodes(self) -> int:
        """Pods of the replica."""
        return 1 if self.attempt.replica is None else nodes_of(self.request)

    @classmethod
    def of(
        cls,
        hook: LLMEngineHook,
        attempt: WorkerAttempt,
        request: CreateBatchCompletionsV1Request,
        *,
        grace_seconds: int,
        handed_over: bool = False,
        hardware: Hardware | None = None,
        nodes_within: int = 3600,
    ) -> Self:
        """Gather it; a large request is put on storage.

        Args:
            hook: The connection.
            attempt: What the worker is told.
            request: The request, without ``content``.
            grace_seconds: How long the worker may take to save its work, where the pod does not say how long it has.
            handed_over: Whether the pod is left to a sensor.
            hardware: What was worked out for the model, if anything was.
            nodes_within: Seconds that the nodes of a replica may take to find each other.

        Raises:
            StorageFailedError: The request can't be put on storage.
        """
        from airflow_llmengine.hooks.storage_credentials import public_options
        from airflow_llmengine.kube.labels import identity_annotations
        from airflow_llmengine.operators.staging import encode_request, has_signature, staged_request

        settings = hook.settings
        encoded = encode_request(request)
        environment = {**settings.worker_environment, "LLMENGINE_ENGINE": settings.engine}
        if len(encoded) > INLINE_REQUEST_BYTES or has_signature(request):
            source = staged_request(hook.storage(), attempt.handle, encoded)
        else:
            source = f"env:{REQUEST_VARIABLE}"
            environment[REQUEST_VARIABLE] = encoded.decode()
        options = hook.storage_options
        secret = settings.pod_credentials == "connection"
        # Where there is a Secret, it holds all of them: a connection's own settings, such as proxies, may be private.
        public = {} if secret else public_options(options)
        if public:
            environment[STORAGE_OPTIONS_VARIABLE] = json.dumps(public)
        return cls(
            attempt=attempt,
            request=request,
            settings=settings,
            source=source,
            environment=environment,
            credentials=options if secret else {},
            identity=identity_annotations(
                attempt.handle, series=attempt.series, replica=attempt.replica, handed_over=handed_over
            ),
            grace_seconds=grace_seconds,
            hardware=hardware,
            nodes_within=nodes_within,
        )

    def complete(self, pod: V1Pod, *, container: str) -> V1Pod:
        """Put the worker into the pod that the pod operator built.

        Raises:
            RequestRefusedError: The cluster has no such GPU, or a label is taken.
        """
        from airflow_llmengine.kube.labels import DEADLINE_ANNOTATION
        from airflow_llmengine.kube.replica_nodes import with_followers
        from airflow_llmengine.kube.storage_secret import with_storage_secret
        from airflow_llmengine.kube.worker_pod import WorkerIdentity, WorkerStart, worker_pod
        from airflow_llmengine.spec.validation import RequestInvalidError

        arguments = self.attempt.arguments(self.source, grace_seconds=self._worker_grace(pod))
        environment = dict(self.environment)
        if self.nodes > 1:
            arguments.append(f"--nodes-within={self.nodes_within}")
            environment[NODE_TOKEN_VARIABLE] = self.nodes_token
        try:
            complete = worker_pod(
                pod,
                container=container,
                request=self.request,
                cluster=self.settings.cluster,
                identity=WorkerIdentity(
                    role="collect" if self.attempt.replica is None else "replica",
                    annotations={**self.identity, DEADLINE_ANNOTATION: str(math.ceil(self.attempt.deadline))},
                ),
                start=WorkerStart(
                    command=[self.settings.python or "python", "-m", WORKER_MODULE],
                    arguments=arguments,
                    environment=environment,
                    image=self.settings.image,
                ),
                deadline_seconds=max(1, math.ceil(self.attempt.deadline - time.time())),
                grace_seconds=self.grace_seconds,
                hardware=self.hardware,
            )
        except RequestInvalidError as error:
            raise RequestRefusedError(f"The request can't be run:\n{error}") from None
        if self.nodes > 1:
            complete = with_followers(complete, nodes=self.nodes, cluster=self.settings.cluster)
        if not self.credentials:
            return complete
        return with_storage_secret(complete, container=container, attempt=self.secret_suffix)

    def followers(self, pod: V1Pod, leader: V1Pod, *, address: str, container: str) -> list[V1Pod]:
        """The other pods of the replica.

        Args:
            pod: The leader as it was asked for, from ``complete``.
            leader: The leader as the cluster has it.
            address: The leader's name or address.
            container: Name of the worker's container.
        """
        from airflow_llmengine.kube.replica_nodes import follower_pod

        grace_seconds = self._worker_grace(pod)
        return [
            follower_pod(
                pod,
                leader,
                node,
                container=container,
                arguments=[
                    *self.attempt.follower_arguments(
                        self.source, node=node, leader=address, grace_seconds=grace_seconds
                    ),
                    f"--nodes-within={self.nodes_within}",
                ],
            )
            for node in range(1, self.nodes)
        ]

    def _worker_grace(self, pod: V1Pod) -> int:
        """Seconds for the worker: less than the pod has, whose processes must end after it."""
        from airflow_llmengine.kube.worker_pod import GRACE_MARGIN_SECONDS

        given = pod.spec.termination_grace_period_seconds
        return self.grace_seconds if given is None else max(given - GRACE_MARGIN_SECONDS, given // 2, 1)

    def add_secret(self, client: CoreV1Api, pod: V1Pod) -> None:
        """Make the Secret that the pod waits for, if the connection says so. It is deleted with the pod.

        Raises:
            LLMEngineError: It can't be made.
        """
        from airflow_llmengine.kube.storage_secret import secret_name, storage_secret

        # One that was taken over may have been made when the connection said otherwise.
        if self.credentials and secret_name(pod) is not None:
            create_secret(client, storage_secret(pod, self.credentials))


class PodEnd:
    """How a worker's pod ended; a ``WorkerEnd``."""

    def __init__(self, diagnosis: Diagnosis | None) -> None:
        self._diagnosis = diagnosis

    @classmethod
    def succeeded(cls) -> Self:
        """The end of a pod that has succeeded, and is gone."""
        return cls(None)

    @property
    def done(self) -> bool:
        """Whether the worker said that nothing is left to do for it."""
        return self._diagnosis is None or self._diagnosis.kind == "succeeded"

    @property
    def said(self) -> str:
        """The worker's last word on why it failed; may be empty."""
        from airflow_llmengine.hooks.pod_failure import last_error

        return "" if self._diagnosis is None else last_error(self._diagnosis)

    def failure(
        self, attempt: WorkerAttempt, status: JobStatus, *, series: str | None, launched_by: str
    ) -> LLMEngineError:
        """The exception for a pod that ended without a result."""
        from airflow_llmengine.hooks.pod_failure import pod_failure

        return pod_failure(
            self._diagnosis,
            handle=attempt.handle,
            deadline=attempt.deadline,
            status=status,
            series=series,
            launched_by=launched_by,
        )
