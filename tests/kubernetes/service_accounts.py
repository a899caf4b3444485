"""Service accounts with few rights, and Airflow connections that use them."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from kubernetes import client

from tests.deploy.reference_setup import manifest
from tests.kubernetes.cluster import Cluster
from tests.waiting import wait_until


class ServiceAccount:
    """A new service account, which has no rights yet.

    Args:
        cluster: The cluster.
        namespace: Its namespace.
        name: Its name.
    """

    def __init__(self, cluster: Cluster, namespace: str, name: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.name = name
        cluster.core.create_namespaced_service_account(namespace, {"metadata": {"name": name}})
        secret: dict[str, Any] = {
            "metadata": {"name": f"{name}-key", "annotations": {"kubernetes.io/service-account.name": name}},
            "type": "kubernetes.io/service-account-token",
        }
        cluster.core.create_namespaced_secret(namespace, secret)
        found: dict[str, str] = {}

        def is_filled() -> bool:
            found.update(cluster.core.read_namespaced_secret(f"{name}-key", namespace).data or {})
            return "token" in found

        wait_until(is_filled)
        self.token = base64.b64decode(found["token"]).decode()
        self._authority = found["ca.crt"]

    @property
    def connection(self) -> str:
        """A connection of type kubernetes, as Airflow reads it from the environment."""
        server = self.cluster.api_client.configuration.host
        kubeconfig = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority-data": self._authority}}],
            "users": [{"name": "u", "user": {"token": self.token}}],
        }
        return json.dumps({"conn_type": "kubernetes", "extra": {"kube_config": kubeconfig}})

    def bind_reference_role(self, namespace: str) -> None:
        """Let it do in a namespace what the reference set-up lets Airflow do, and nothing else."""
        rules = manifest("Role", "llmengine-launcher")["rules"]
        grant(self.cluster, namespace, self.name, rules, account_namespace=self.namespace)


def kubernetes_connection(cluster: Cluster, namespace: str, service_account: str) -> str:
    """A connection of type kubernetes by a new service account, which has no rights yet."""
    return ServiceAccount(cluster, namespace, service_account).connection


def grant(
    cluster: Cluster,
    namespace: str,
    service_account: str,
    rules: Sequence[dict[str, Any]],
    account_namespace: str | None = None,
) -> None:
    """Let a service account do something in a namespace, and nothing else.

    Args:
        cluster: The cluster.
        namespace: Where.
        service_account: Its name.
        rules: As RBAC has them: ``apiGroups``, ``resources``, ``verbs``.
        account_namespace: The service account's own namespace, if that is another.
    """
    rights = client.RbacAuthorizationV1Api(cluster.api_client)
    rights.create_namespaced_role(namespace, {"metadata": {"name": service_account}, "rules": list(rules)})
    subject = {"kind": "ServiceAccount", "name": service_account, "namespace": account_namespace or namespace}
    binding = {
        "metadata": {"name": service_account},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": service_account},
        "subjects": [subject],
    }
    rights.create_namespaced_role_binding(namespace, binding)
