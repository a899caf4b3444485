"""What the Kubernetes client raises, as this provider's own exceptions. Loads nothing until something is raised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_llmengine.exceptions import ClusterUnavailableError, ConnectionUnusableError


@contextmanager
def cluster_errors() -> Iterator[None]:
    """Raise what the Kubernetes client raises inside as this provider's own exception.

    Without its causes: Airflow logs those too, and they quote whole objects.
    """
    from airflow.sdk.exceptions import AirflowNotFoundException
    from kubernetes.client.exceptions import ApiException
    from kubernetes.config.config_exception import ConfigException
    from urllib3.exceptions import HTTPError

    from airflow_llmengine.hooks.pod_failure import rejected

    try:
        yield
    except ApiException as error:
        raise rejected(error) from None
    except HTTPError as error:
        raise ClusterUnavailableError(
            f"The Kubernetes API can't be reached ({type(error).__name__}). A retry goes on where the job stands."
        ) from None
    except (ConfigException, AirflowNotFoundException) as error:
        reason = str(error).rstrip(".")
        raise ConnectionUnusableError(
            f"The Kubernetes connection can't be used: {reason}. Correct it, or name another as kubernetes_conn_id."
        ) from None


@contextmanager
def only_warned_of(log: Any, warning: str, *arguments: Any) -> Iterator[None]:
    """Warn of what goes wrong with the cluster inside, and go on: for what is done as well as can be.

    Args:
        log: The logger.
        warning: A sentence, whose last ``%s`` stands for what went wrong.
        arguments: For what else it leaves open.
    """
    from airflow.sdk.exceptions import AirflowException
    from kubernetes.client.exceptions import ApiException
    from kubernetes.config.config_exception import ConfigException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (AirflowException, ApiException, ConfigException, HTTPError, OSError) as error:
        # Its text may quote whole objects.
        log.warning(warning, *arguments, type(error).__name__)
