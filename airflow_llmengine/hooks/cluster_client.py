"""How the cluster that a connection names is reached, where no pod operator is at hand."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from airflow_llmengine.exceptions import ConnectionUnusableError

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

    from airflow_llmengine.hooks.connection_settings import ConnectionSettings

# The Kubernetes client is configured by way of a default that all threads share, and a triggerer has many: between two
# of them a client could get the other one's cluster.
_configuring = threading.Lock()


def cluster_client(settings: ConnectionSettings) -> tuple[ApiClient, str]:
    """Make a client for the connection's cluster. Blocks: Airflow may have to be asked for the Kubernetes connection.

    Returns:
        The client, and the namespace of the worker's pods where no operator names another.

    Raises:
        ConnectionUnusableError: The connection is not defined, or can't be used as it is.
        ClusterUnavailableError: AWS does not answer; for a cluster of EKS, also from the client's calls.
    """
    if settings.eks is not None:
        from airflow_llmengine.hooks.eks_kubernetes import EksKubernetesHook

        eks = EksKubernetesHook(settings.eks)
        return eks.get_conn(), settings.namespace or eks.get_namespace()
    from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
    from airflow.sdk.exceptions import AirflowException
    from kubernetes.config.config_exception import ConfigException
    from yaml import YAMLError

    conn_id = settings.kubernetes_conn_id or KubernetesHook.default_conn_name
    try:
        with _configuring:
            hook = KubernetesHook(conn_id=conn_id)
            return hook.get_conn(), settings.namespace or hook.get_namespace() or KubernetesHook.DEFAULT_NAMESPACE
    except (AirflowException, ConfigException) as error:
        reason = str(error).rstrip(".")
    except (OSError, ValueError, TypeError, YAMLError) as error:
        # What these say may quote the configuration, which holds secrets.
        reason = f"its configuration can't be read ({type(error).__name__})"
    raise ConnectionUnusableError(f"The Kubernetes connection {conn_id} can't be used: {reason}. Correct it.")
