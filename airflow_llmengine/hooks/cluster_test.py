"""What the button "Test" looks at in a cluster: whether Airflow may do there what a job needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_llmengine.exceptions import ConnectionUnusableError, LLMEngineError, PodQuotaError
from airflow_llmengine.hooks.cluster_client import cluster_client
from airflow_llmengine.hooks.pod_failure import rejected
from airflow_llmengine.hooks.pods import environment_values
from airflow_llmengine.hooks.worker_attempt import WORKER_MODULE

if TYPE_CHECKING:
    from kubernetes.client import ApiClient, AuthorizationV1Api, V1Pod

    from airflow_llmengine.hooks.connection_settings import ConnectionSettings

NEEDED = (
    ("create", "pods", ""),
    ("get", "pods", ""),
    ("list", "pods", ""),
    ("patch", "pods", ""),
    ("delete", "pods", ""),
    ("get", "pods", "log"),
)
"""Verb, resource and subresource of each right that the tasks and their triggers need."""

HELPFUL = ("list", "events", "")
"""Without it less can be said of a pod that does not start."""

CONTAINER = "base"
"""The worker's container: the pod operator's own name for it."""

CALL_TIMEOUT = (10.0, 30.0)
"""Seconds to connect, and to wait for an answer. A person waits."""


def test_cluster(settings: ConnectionSettings) -> str:
    """Ask the cluster what may be done in the pods' namespace, and whether it would take a worker's pod. None is made.

    Returns:
        What was found, without a full stop.

    Raises:
        ConnectionUnusableError: The cluster can't be reached, something may not be done there, or it refuses the pod.
    """
    from kubernetes.client import AuthorizationV1Api

    pod = _smallest_pod(settings)
    client, namespace = cluster_client(settings)
    pod.metadata.namespace = namespace
    with _answers(client):
        api = AuthorizationV1Api(client)
        needed = [*NEEDED, *_needed_beside_pods(settings)]
        denied = [_told(*right) for right in needed if not _is_allowed(api, namespace, *right)]
        blind = not _is_allowed(api, namespace, *HELPFUL)
    if denied:
        raise ConnectionUnusableError(
            f"In the namespace {namespace} Airflow may not {', '.join(denied)}: grant it to the service account of its "
            "workers and its triggerer."
        )
    _try_pod(client, pod)
    found = f"In the namespace {namespace} Airflow may make pods, follow and delete them"
    return f"{found}, but not list events, which tell why a pod does not start" if blind else found


def _needed_beside_pods(settings: ConnectionSettings) -> Iterator[tuple[str, str, str]]:
    if settings.pod_credentials == "connection":
        yield "create", "secrets", ""
    several_nodes = str(settings.request_defaults.get("nodes_per_worker") or 1) != "1"
    if several_nodes and settings.cluster.leader_address == "service":
        yield "create", "services", ""


def _smallest_pod(settings: ConnectionSettings) -> V1Pod:
    """A worker's pod as the connection makes it, for a job that asks for nothing."""
    from airflow_llmengine.kube.worker_pod import WorkerIdentity, WorkerStart, worker_pod
    from airflow_llmengine.spec.check import validate_request
    from airflow_llmengine.spec.validation import RequestInvalidError

    smallest = {"input_data_path": "in.jsonl", "output_data_path": "out.jsonl", "model_config": {"model": "model"}}
    pod = _from_template(settings.pod_template)
    try:
        pod = worker_pod(
            pod,
            container=CONTAINER,
            request=validate_request(settings.with_defaults(smallest)),
            cluster=settings.cluster,
            identity=WorkerIdentity(role="replica", annotations={}),
            start=WorkerStart(
                command=[settings.python or "python", "-m", WORKER_MODULE],
                arguments=["--version"],
                environment={**settings.worker_environment, "LLMENGINE_ENGINE": settings.engine},
                image=settings.image,
            ),
            deadline_seconds=60,
            grace_seconds=30,
        )
    except RequestInvalidError as error:
        raise ConnectionUnusableError("request_defaults: " + "; ".join(map(str, error.refusals))) from None
    if not next(container.image for container in pod.spec.containers if container.name == CONTAINER):
        raise ConnectionUnusableError("There is no worker image: fill in the field image.")
    return pod


def _from_template(template: dict[str, Any]) -> V1Pod:
    from kubernetes.client import V1Container, V1ObjectMeta, V1PodSpec

    from airflow_llmengine.hooks.pod_template import read_pod_template

    pod = read_pod_template(template)
    pod.api_version, pod.kind = "v1", "Pod"
    pod.metadata = pod.metadata or V1ObjectMeta()
    pod.metadata.name, pod.metadata.generate_name = None, "llmengine-test-"
    pod.spec = pod.spec or V1PodSpec(containers=[])
    pod.spec.containers = pod.spec.containers or [V1Container(name=CONTAINER)]
    if not any(container.name == CONTAINER for container in pod.spec.containers):
        # The pod operator lays its container over the first one.
        pod.spec.containers[0].name = CONTAINER
    return pod


def _try_pod(client: ApiClient, pod: V1Pod) -> None:
    """Have the cluster judge the pod as if it were to be made: by its namespace, service account and admission."""
    from kubernetes.client import CoreV1Api
    from kubernetes.client.exceptions import ApiException

    with _answers(client):
        try:
            CoreV1Api(client).create_namespaced_pod(
                pod.metadata.namespace, pod, dry_run="All", _request_timeout=CALL_TIMEOUT
            )
        except ApiException as error:
            if "does not support dry run" in str(error.body):
                # A webhook that can't be asked so.
                return
            failure: LLMEngineError = rejected(error, hidden=environment_values(pod))
        else:
            return
    if not isinstance(failure, PodQuotaError):
        raise ConnectionUnusableError(f"The cluster would not take a worker's pod. {failure}")


@contextmanager
def _answers(client: ApiClient) -> Iterator[None]:
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    server = client.configuration.host
    try:
        yield
    except ApiException as error:
        raise ConnectionUnusableError(
            f"The cluster at {server} answers {error.status} {error.reason}: correct the Kubernetes connection."
        ) from None
    except HTTPError as error:
        raise ConnectionUnusableError(
            f"The cluster at {server} can't be reached ({type(error).__name__}): correct the Kubernetes connection."
        ) from None


def _is_allowed(api: AuthorizationV1Api, namespace: str, verb: str, resource: str, subresource: str) -> bool:
    from kubernetes.client import (
        V1ResourceAttributes,
        V1SelfSubjectAccessReview,
        V1SelfSubjectAccessReviewSpec,
    )

    attributes = V1ResourceAttributes(
        namespace=namespace, verb=verb, resource=resource, subresource=subresource or None
    )
    review = V1SelfSubjectAccessReview(spec=V1SelfSubjectAccessReviewSpec(resource_attributes=attributes))
    answer = api.create_self_subject_access_review(review, _request_timeout=CALL_TIMEOUT)
    return bool(answer.status.allowed)


def _told(verb: str, resource: str, subresource: str) -> str:
    return f"{verb} {resource}/{subresource}" if subresource else f"{verb} {resource}"
