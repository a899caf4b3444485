"""Calls of the Kubernetes API, with patience for a server that is busy or away for a moment.

What can't be done is one sentence: the client's own exceptions quote whole objects.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_llmengine.exceptions import LLMEngineError
from airflow_llmengine.hooks.local_worker import parse_log_line
from airflow_llmengine.hooks.pod_failure import rejected

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api, V1Pod, V1Secret, V1Service

CALL_TIMEOUT = (10.0, 60.0)
"""Seconds to connect, and to wait for an answer."""

LOG_TAIL_LINES = 500
"""How much of a worker's log is shown when its pod has ended and nobody followed it."""

FOUND = 409
GONE = 404


def patiently(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, tried again while the API server is busy or can't be reached, as the pod operator does."""
    from airflow.providers.cncf.kubernetes.kubernetes_helper_functions import generic_api_retry

    call = partial(call, _request_timeout=CALL_TIMEOUT)
    retried: Callable[..., Any] = generic_api_retry(call)  # type: ignore[no-untyped-call]
    return retried


def create_pod(client: CoreV1Api, pod: V1Pod) -> V1Pod:
    """Make a pod; if this very pod is there already, an answer was lost.

    Raises:
        LLMEngineError: The API server refused it; ``PodQuotaError`` if a quota is used up.
    """
    from kubernetes.client.exceptions import ApiException

    def create(**options: Any) -> Any:
        try:
            return client.create_namespaced_pod(pod.metadata.namespace, pod, **options)
        except ApiException as error:
            if not _exists_already(error):
                raise
            taken = error
        found = client.read_namespaced_pod(pod.metadata.name, pod.metadata.namespace, **options)
        # Whoever gives pods names of their own may have given this one to another.
        return found if _is_same(found, pod) else taken

    try:
        made = patiently(create)()
    except ApiException as error:
        made = error
    if not isinstance(made, ApiException):
        return made
    # Outside: the exception's context would be logged, too.
    raise rejected(made, hidden=environment_values(pod))


def environment_values(pod: V1Pod) -> list[str]:
    """The values of the variables of a pod, which no message may quote."""
    containers = [*pod.spec.containers, *(pod.spec.init_containers or ())]
    return [variable.value for container in containers for variable in container.env or () if variable.value]


def create_secret(client: CoreV1Api, secret: V1Secret) -> None:
    """Make a Secret, unless it is there already.

    Raises:
        LLMEngineError: The API server refused it.
    """
    _create_beside(client.create_namespaced_secret, secret)


def create_service(client: CoreV1Api, service: V1Service) -> None:
    """Make a Service, unless it is there already.

    Raises:
        LLMEngineError: The API server refused it.
    """
    _create_beside(client.create_namespaced_service, service)


def _create_beside(call: Callable[..., Any], made: V1Secret | V1Service) -> None:
    from kubernetes.client.exceptions import ApiException

    def create(**options: Any) -> None:
        try:
            call(made.metadata.namespace, made, **options)
        except ApiException as error:
            if not _exists_already(error):
                raise

    failure = None
    try:
        patiently(create)()
    except ApiException as error:
        failure = rejected(error)
    if failure is not None:
        raise failure


def delete_pod(client: CoreV1Api, pod: V1Pod, *, grace_seconds: int | None = None) -> None:
    """Have a pod end; one that is gone is fine, and so is one that ends by itself.

    Args:
        client: The API.
        pod: The pod, as it was seen last. Another one that has its name by now is left alone.
        grace_seconds: How long it may take; None: as the pod itself says.
    """
    from kubernetes.client import V1DeleteOptions, V1Preconditions
    from kubernetes.client.exceptions import ApiException

    from airflow_llmengine.kube.reattach import is_ending

    if is_ending(pod):
        # It would be out of sight at once, while its containers still run.
        return
    options = V1DeleteOptions(grace_period_seconds=grace_seconds)
    if pod.metadata.uid is not None:
        options.preconditions = V1Preconditions(uid=pod.metadata.uid)

    def delete(**call_options: Any) -> None:
        try:
            client.delete_namespaced_pod(pod.metadata.name, pod.metadata.namespace, body=options, **call_options)
        except ApiException as error:
            if error.status not in (GONE, FOUND):
                raise

    patiently(delete)()


def read_pod(client: CoreV1Api, name: str, namespace: str) -> V1Pod | None:
    """A pod as it is now; None if it is gone."""
    from kubernetes.client.exceptions import ApiException

    try:
        return patiently(client.read_namespaced_pod)(name, namespace)
    except ApiException as error:
        if error.status == GONE:
            return None
        raise


def events_of(client: CoreV1Api, pod: V1Pod) -> list[Any]:
    """What the cluster says of a pod, the oldest first; empty where that can't be read: they only explain."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    selector = f"involvedObject.name={pod.metadata.name}"
    if pod.metadata.uid is not None:
        selector += f",involvedObject.uid={pod.metadata.uid}"
    try:
        found = patiently(client.list_namespaced_event)(pod.metadata.namespace, field_selector=selector).items
    except (ApiException, HTTPError, LLMEngineError):
        # The last: there is no token for the cluster.
        return []
    return sorted(found, key=_moment)


def delete_expired(client: CoreV1Api, namespace: str, *, ttl_seconds: float, now: datetime | None = None) -> list[str]:
    """Delete this package's pods that have ended long ago, or wait to start past their deadline, whoever made them.

    Kubernetes has a time to live for Jobs, not for pods, and a pod's ``activeDeadlineSeconds`` count from its start on.

    Args:
        client: The API.
        namespace: Where to look.
        ttl_seconds: How long a pod is kept after its end.
        now: For tests; the clock's time by default.

    Returns:
        The names of the pods that were deleted.
    """
    from airflow_llmengine.kube.labels import WORKER_SELECTOR
    from airflow_llmengine.kube.reattach import finished_at, has_missed_its_start

    now = now or datetime.now(UTC)
    before = now - timedelta(seconds=ttl_seconds)
    deleted = []
    for pod in patiently(client.list_namespaced_pod)(namespace, label_selector=WORKER_SELECTOR).items:
        ended = finished_at(pod)
        if (ended is not None and ended < before) or has_missed_its_start(pod, now.timestamp()):
            delete_pod(client, pod)
            deleted.append(str(pod.metadata.name))
    return deleted


def log_tail(
    client: CoreV1Api,
    pod: V1Pod,
    *,
    container: str,
    log: Callable[[int, str], None],
    formatter: Callable[[str, str], str] | None = None,
    since: datetime | None = None,
) -> None:
    """Pass on the end of a container's log, or what came since a moment.

    A line that is not the worker's own comes from a library and may quote a prompt: it is for DEBUG.
    """
    options = {} if since is None else {"since_seconds": max(1, math.ceil((datetime.now(UTC) - since).total_seconds()))}
    response = patiently(client.read_namespaced_pod_log)(
        pod.metadata.name,
        pod.metadata.namespace,
        container=container,
        tail_lines=LOG_TAIL_LINES,
        **options,
        # With it the client gives the text of a bytes literal.
        _preload_content=False,
    )
    lines = response.data.decode("utf-8", "backslashreplace").splitlines()[-LOG_TAIL_LINES:]
    if len(lines) == LOG_TAIL_LINES:
        log(logging.INFO, f"The last {LOG_TAIL_LINES} lines of the worker's log:")
    for line in lines:
        level, text = parse_log_line(line)
        log(level, text if formatter is None else formatter(container, text))


def _moment(event: Any) -> datetime:
    moment: datetime | None = event.last_timestamp or event.event_time or event.metadata.creation_timestamp
    return moment or datetime.min.replace(tzinfo=UTC)


def _exists_already(error: Any) -> bool:
    """Whether a name is taken; other conflicts pass."""
    return error.status == FOUND and "AlreadyExists" in str(error.body)


def _is_same(found: V1Pod, pod: V1Pod) -> bool:
    """Whether a pod has all labels and annotations of another, among them those that tell its job and its task."""
    return all(
        (getattr(found.metadata, field) or {}).items() >= (getattr(pod.metadata, field) or {}).items()
        for field in ("labels", "annotations")
    )
