"""The cluster of the tests as if it were one of EKS: reached by tokens that are handed out, and can be revoked."""

from __future__ import annotations

import base64
from pathlib import Path

from kubernetes import client

from tests.airflow.eks_double import EksDouble
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.service_accounts import grant
from tests.storage.s3_server import S3Server
from tests.waiting import wait_until

LAUNCHER = "launcher"

RULES = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "get", "list", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
]
"""What the documentation says that Airflow needs."""


class EksOnCluster:
    """Tokens of a service account with the rights that Airflow needs in one namespace, and who hands them out.

    Args:
        cluster: The cluster.
        namespace: The namespace.
        aws: Moto's server.
        folder: A folder of its own.
    """

    def __init__(self, cluster: Cluster, namespace: str, aws: S3Server, folder: Path) -> None:
        configuration = cluster.api_client.configuration
        self.double = EksDouble(aws, folder, configuration.host, Path(configuration.ssl_ca_cert).read_bytes())
        self.tokens: list[str] = []
        """Those that were handed out."""
        self._cluster = cluster
        self._namespace = namespace
        cluster.new_service_account(namespace, LAUNCHER)
        grant(cluster, namespace, LAUNCHER, RULES)

    def hand_out(self, seconds: float) -> None:
        """Hand out a new token from now on, which says that it holds for so long; all others are refused already."""
        for name in [f"token-{number}" for number in range(len(self.tokens))]:
            self._revoke(name)
        secret_name = f"token-{len(self.tokens)}"
        secret = {
            "metadata": {
                "name": secret_name,
                "annotations": {"kubernetes.io/service-account.name": LAUNCHER},
            },
            "type": "kubernetes.io/service-account-token",
        }
        self._cluster.core.create_namespaced_secret(self._namespace, secret)
        found: dict[str, str] = {}

        def is_filled() -> bool:
            read = self._cluster.core.read_namespaced_secret(secret_name, self._namespace)
            found.update(read.data or {})
            return "token" in found

        wait_until(is_filled)
        self.tokens.append(base64.b64decode(found["token"]).decode())
        for token in self.tokens[:-1]:
            # The API server remembers for some seconds whom it took.
            wait_until(lambda token=token: not self._is_taken(token))  # type: ignore[misc]
        self.double.hand_out(self.tokens[-1], seconds)

    def _revoke(self, name: str) -> None:
        try:
            self._cluster.core.delete_namespaced_secret(name, self._namespace)
        except client.ApiException as error:
            if error.status != 404:
                raise

    def _is_taken(self, token: str) -> bool:
        ours = self._cluster.api_client.configuration
        configuration = client.Configuration(host=ours.host)
        configuration.ssl_ca_cert = ours.ssl_ca_cert
        with client.ApiClient(configuration, header_name="Authorization", header_value=f"Bearer {token}") as api:
            try:
                client.CoreV1Api(api).list_namespaced_pod(self._namespace)
            except client.ApiException as error:
                return bool(error.status != 401)
            return True
