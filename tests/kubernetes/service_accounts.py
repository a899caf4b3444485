"""Service accounts with few rights, and Airflow connections that use them."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from kubernetes import client

from tests.kubernetes.cluster import Cluster
from tests.waiting import wait_until


def kubernetes_connection(cluster: Cluster, namespace: str, service_account: str) -> str:
    """A connection of type kubernetes by a new service account, which has no rights yet."""
    made = cluster.core.create_namespaced_service_account(namespace, {"metadata": {"name": service_account}})
    secret: dict[str, Any] = {
        "metadata": {
            "name": f"{service_account}-key",
            "annotations": {"kubernetes.io/service-account.name": made.metadata.name},
        },
        "type": "kubernetes.io/service-account-token",
    }
    cluster.core.create_namespaced_secret(namespace, secret)
    found: dict[str, str] = {}

    def is_filled() -> bool:
        found.update(cluster.core.read_namespaced_secret(f"{service_account}-key", namespace).data or {})
        return "token" in found

    wait_until(is_filled)
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [
            {
                "name": "c",
                "cluster": {
                    "server": cluster.api_client.configuration.host,
                    "certificate-authority-data": found["ca.crt"],
                },
            }
        ],
        "users": [{"name": "u", "user": {"token": base64.b64decode(found["token"]).decode()}}],
    }
    return json.dumps({"conn_type": "kubernetes", "extra": {"kube_config": kubeconfig}})


def grant(cluster: Cluster, namespace: str, service_account: str, rules: Sequence[dict[str, Any]]) -> None:
    """Let a service account do something in its namespace, and nothing else.

    Args:
        cluster: The cluster.
        namespace: The namespace.
        service_account: Its name.
        rules: As RBAC has them: ``apiGroups``, ``resources``, ``verbs``.
    """
    rights = client.RbacAuthorizationV1Api(cluster.api_client)
    rights.create_namespaced_role(namespace, {"metadata": {"name": service_account}, "rules": list(rules)})
    binding = {
        "metadata": {"name": service_account},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": service_account},
        "subjects": [{"kind": "ServiceAccount", "name": service_account, "namespace": namespace}],
    }
    rights.create_namespaced_role_binding(namespace, binding)
