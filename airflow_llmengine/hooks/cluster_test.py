"""What the button "Test" looks at in a cluster: whether Airflow may do there what a job needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_llmengine.exceptions import ConnectionUnusableError

if TYPE_CHECKING:
    from kubernetes.client import AuthorizationV1Api

    from airflow_llmengine.hooks.connection_settings import ConnectionSettings

NEEDED = (
    ("create", "pods", ""),
    ("get", "pods", ""),
    ("list", "pods", ""),
    ("delete", "pods", ""),
    ("get", "pods", "log"),
    ("list", "events", ""),
)
"""Verb, resource and subresource of each right that the tasks and their triggers need."""


def test_cluster(settings: ConnectionSettings) -> str:
    """Ask the cluster what may be done in the pods' namespace; nothing is made.

    Returns:
        What was found, without a full stop.

    Raises:
        ConnectionUnusableError: The cluster can't be reached, or something may not be done there.
    """
    from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
    from airflow.sdk.exceptions import AirflowException
    from kubernetes.client import AuthorizationV1Api
    from kubernetes.client.exceptions import ApiException
    from kubernetes.config.config_exception import ConfigException
    from urllib3.exceptions import HTTPError

    if not settings.image:
        raise ConnectionUnusableError("There is no worker image: fill in the field image.")
    hook = KubernetesHook(conn_id=settings.kubernetes_conn_id or KubernetesHook.default_conn_name)
    try:
        namespace = settings.namespace or hook.get_namespace() or "default"
        api = AuthorizationV1Api(hook.get_conn())
        needed = [*NEEDED, *([("create", "secrets", "")] if settings.pod_credentials == "connection" else [])]
        denied = [_told(*right) for right in needed if not _is_allowed(api, namespace, *right)]
    except ApiException as error:
        raise ConnectionUnusableError(f"The cluster answers {error.status} {error.reason}.") from None
    except (AirflowException, ConfigException, HTTPError) as error:
        raise ConnectionUnusableError(
            f"The cluster can't be reached ({type(error).__name__}): correct the Kubernetes connection."
        ) from None
    if denied:
        raise ConnectionUnusableError(
            f"In the namespace {namespace} Airflow may not {', '.join(denied)}: grant it to the service account of its "
            "workers and its triggerer."
        )
    return f"In the namespace {namespace} Airflow may make pods, follow and delete them"


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
    answer = api.create_self_subject_access_review(review, _request_timeout=(10.0, 30.0))
    return bool(answer.status.allowed)


def _told(verb: str, resource: str, subresource: str) -> str:
    return f"{verb} {resource}/{subresource}" if subresource else f"{verb} {resource}"
