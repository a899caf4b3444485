"""The Kubernetes provider's hooks for an EKS cluster: no request goes out with a token that has expired."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.hooks.kubernetes import AsyncKubernetesHook, KubernetesHook
from kubernetes.client import Configuration
from kubernetes.config import load_kube_config_from_dict

from airflow_llmengine.hooks.eks_access import EksAccess, shared_access

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

    from airflow_llmengine.hooks.eks_access import EksCluster


class EksKubernetesHook(KubernetesHook):
    """Makes a client that works for as long as it is kept. No Kubernetes connection is asked.

    Args:
        cluster: The cluster.
    """

    def __init__(self, cluster: EksCluster) -> None:
        # A configuration of its own: without one the client would change the default of the whole process.
        super().__init__(kubernetes_conn_id=None, client_configuration=Configuration())
        # Of its own, too: where a token is refused, the pod operator makes the hook anew.
        self._access = EksAccess(cluster)

    def get_conn(self) -> ApiClient:
        """The client.

        Raises:
            LLMEngineError: As of ``EksAccess.kubeconfig``, and so do the client's calls.
        """
        self.config_dict = self._access.kubeconfig()
        client: ApiClient = super().get_conn()
        client.configuration.refresh_api_key_hook = self._renew
        return client

    def get_namespace(self) -> str:
        """Where pods are made if neither the DAG nor the connection says so, as with EksPodOperator."""
        return self.DEFAULT_NAMESPACE

    def _renew(self, configuration: Configuration) -> None:
        """Called by the client before each request."""
        kubeconfig = self._access.kubeconfig()
        if kubeconfig is not self.config_dict:
            self.config_dict = kubeconfig
            load_kube_config_from_dict(kubeconfig, client_configuration=configuration)
            configuration.refresh_api_key_hook = self._renew


class AsyncEksKubernetesHook(AsyncKubernetesHook):
    """The same for a trigger; all of a triggerer that watch one cluster share a token.

    Args:
        cluster: The cluster.
    """

    def __init__(self, cluster: EksCluster) -> None:
        super().__init__(connection_extras={}, kubernetes_conn_id=None)
        self._access = shared_access(cluster)
        self._current: AsyncKubernetesHook | None = None

    @asynccontextmanager
    async def get_conn(self) -> AsyncIterator[Any]:
        """A client for the next request.

        Raises:
            LLMEngineError: As of ``EksAccess.kubeconfig``.
        """
        from kubernetes_asyncio.client import ApiException

        # A connection has to be read, and a command run.
        kubeconfig = await asyncio.to_thread(self._access.kubeconfig)
        current = self._current
        if current is None or current.config_dict is not kubeconfig:
            current = AsyncKubernetesHook(config_dict=kubeconfig, connection_extras={}, kubernetes_conn_id=None)
            self._current = current
        try:
            async with current.get_conn() as client:
                yield client
        except ApiException as error:
            if error.status == HTTPStatus.UNAUTHORIZED:
                self._access.forget(kubeconfig)
            raise
