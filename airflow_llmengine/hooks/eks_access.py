"""How an EKS cluster is reached: by an AWS connection, and a token that holds for a quarter of an hour."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from airflow_llmengine.exceptions import ClusterUnavailableError, ConnectionUnusableError, LLMEngineError

if TYPE_CHECKING:
    from airflow.providers.amazon.aws.hooks.eks import EksHook
    from botocore.exceptions import BotoCoreError, ClientError

RENEW_SECONDS = 120.0
"""So long before a token expires it is made anew: clocks differ, and a request takes its time."""

PASSING_CODES = ("ExpiredToken", "ExpiredTokenException", "RequestTimeout", "Throttling", "ThrottlingException")
"""Errors of AWS' API that are not answered with a status of 500 or above, and pass."""

TOLD_CHARACTERS = 200
"""How much of a command's last line a message quotes."""

# The amazon provider changes an environment variable while it writes the configuration, and a triggerer has threads.
# Reentrant: Airflow's signal that ends a task may come while this is held, and the pod is then deleted in its handler.
_configuring = threading.RLock()


class EksCluster(BaseModel):
    """Which cluster, and who asks for it; in the names of the amazon provider's EksPodOperator."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    cluster_name: str = Field(min_length=1)
    """The cluster's name at AWS."""
    region: str | None = None
    """Its region; without it, that of the AWS connection, or of the machine."""
    aws_conn_id: str = "aws_default"
    """An AWS connection; empty: what the machine itself has, such as the role of its pod or its instance. So it is,
    too, where no connection ``aws_default`` is defined."""


class EksAccess:
    """The way into one cluster.

    It writes the amazon provider's own kubeconfig with its command that makes a token, runs that, and keeps the token
    only: the kubeconfig, and the file with AWS keys beside it, are there for as long as the command runs. The provider
    keeps both for as long as a task waits, and has the command run again for each request of a trigger.

    Threads may share it.

    Args:
        cluster: The cluster.
    """

    def __init__(self, cluster: EksCluster) -> None:
        self.cluster = cluster
        # Reentrant for the same reason as above.
        self._renewing = threading.RLock()
        self._kubeconfig: dict[str, Any] | None = None
        self._renew_at = 0.0

    def kubeconfig(self) -> dict[str, Any]:
        """A kubeconfig with a token that holds: never to be logged or kept. The same object until a new one is due.

        Blocks, for a second or two where a token has to be made.

        Raises:
            ConnectionUnusableError: The AWS connection, the region or the name is wrong, or something may not be done.
            ClusterUnavailableError: AWS does not answer.
        """
        with self._renewing:
            if self._kubeconfig is None or time.time() >= self._renew_at:
                self._kubeconfig, expires = self._made()
                self._renew_at = expires - RENEW_SECONDS
            return self._kubeconfig

    def forget(self, refused: dict[str, Any]) -> None:
        """Make the token anew when it is needed next, for the cluster has refused it.

        Args:
            refused: What ``kubeconfig`` gave; another one by now is left alone.
        """
        with self._renewing:
            if self._kubeconfig is refused:
                self._kubeconfig = None

    def _made(self) -> tuple[dict[str, Any], float]:
        """A kubeconfig with a new token, and when that expires in seconds since the epoch."""
        from airflow.providers.common.compat.sdk import AirflowException
        from botocore.exceptions import BotoCoreError, ClientError
        from kubernetes.config.config_exception import ConfigException

        hook = _eks_hook(self.cluster)
        try:
            kubeconfig, status = _run_token_command(hook, self.cluster)
        except ClientError as error:
            failure = self._refused(error)
        except BotoCoreError as error:
            failure = self._unanswered(error)
        except ConfigException as error:
            failure = self._unusable(f"the command that makes a token failed: {_last_line(error)}")
        except (AirflowException, RuntimeError, OSError, ValueError) as error:
            # What these say may quote the connection. A RuntimeError is the provider's word for no credentials at all.
            failure = self._unusable(f"there are no usable credentials ({type(error).__name__})")
        else:
            kubeconfig["users"][0]["user"] = {"token": status["token"]}
            return kubeconfig, _moment(status.get("expirationTimestamp"))
        # Outside: the exception's context would be logged, too.
        raise failure

    def _refused(self, error: ClientError) -> LLMEngineError:
        # Without the message, which may quote what was signed.
        code = str(error.response.get("Error", {}).get("Code", "an error"))
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        what = f"AWS answers {error.operation_name} with {code}"
        if status >= 500 or status == 429 or code in PASSING_CODES:
            return self._unavailable(what)
        return self._unusable(what)

    def _unanswered(self, error: BotoCoreError) -> LLMEngineError:
        from botocore.exceptions import ConnectionError as NoConnectionError
        from botocore.exceptions import CredentialRetrievalError, HTTPClientError, MetadataRetrievalError

        passing = (NoConnectionError, HTTPClientError, CredentialRetrievalError, MetadataRetrievalError)
        if isinstance(error, passing):
            return self._unavailable(f"AWS does not answer ({type(error).__name__})")
        return self._unusable(type(error).__name__)

    def _unusable(self, reason: str) -> LLMEngineError:
        return ConnectionUnusableError(
            f"The EKS cluster {self.cluster.cluster_name} can't be reached by the AWS connection "
            f"{self.cluster.aws_conn_id or '(none)'}: {reason}. Correct cluster_name, region or aws_conn_id, or what "
            "that identity may do."
        )

    def _unavailable(self, reason: str) -> LLMEngineError:
        return ClusterUnavailableError(
            f"The EKS cluster {self.cluster.cluster_name} can't be reached: {reason}. A retry goes on where the job "
            "stands."
        )


@cache
def shared_access(cluster: EksCluster) -> EksAccess:
    """The way into a cluster that all of a process share: a triggerer may watch a hundred pods of one cluster."""
    return EksAccess(cluster)


def _eks_hook(cluster: EksCluster) -> EksHook:
    try:
        from airflow.providers.amazon.aws.hooks.eks import EksHook
    except ImportError:
        raise ConnectionUnusableError(
            f"The EKS cluster {cluster.cluster_name} can't be reached without the package "
            "apache-airflow-providers-amazon: install it where Airflow's workers and its triggerer run."
        ) from None
    return EksHook(aws_conn_id=cluster.aws_conn_id, region_name=cluster.region)


def _run_token_command(hook: EksHook, cluster: EksCluster) -> tuple[dict[str, Any], dict[str, Any]]:
    """The amazon provider's kubeconfig, and what the command in it answers."""
    from pathlib import Path

    from kubernetes.config.exec_provider import ExecProvider
    from kubernetes.config.kube_config import ConfigNode
    from yaml import safe_load

    with ExitStack() as files:
        with _configuring:
            path, _credentials = files.enter_context(
                hook.generate_config_file_with_credentials(eks_cluster_name=cluster.cluster_name, pod_namespace=None)
            )
        kubeconfig = safe_load(Path(path).read_text(encoding="utf-8"))
        command = ConfigNode("exec", kubeconfig["users"][0]["user"]["exec"])
        return kubeconfig, ExecProvider(command, None).run()


def _moment(timestamp: str | None) -> float:
    """Seconds since the epoch of Kubernetes' own way to write a moment; without one, a token is for one use."""
    from datetime import datetime

    return 0.0 if timestamp is None else datetime.fromisoformat(timestamp).timestamp()


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1][:TOLD_CHARACTERS].rstrip(".")
