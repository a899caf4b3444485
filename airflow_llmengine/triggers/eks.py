"""EksPodOperator's trigger, with a token that holds whenever it is needed: while it waits, and when it is killed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.providers.cncf.kubernetes.triggers.pod import KubernetesPodTrigger

try:
    from airflow.providers.amazon.aws.triggers.eks import EksPodTrigger
except ImportError as error:
    raise ImportError(
        "airflow_llmengine.triggers.eks needs the package apache-airflow-providers-amazon: install it where Airflow's "
        "triggerer runs."
    ) from error

if TYPE_CHECKING:
    from airflow.triggers.base import TriggerEvent

    from airflow_llmengine.hooks.eks_access import EksCluster
    from airflow_llmengine.hooks.eks_kubernetes import AsyncEksKubernetesHook

WAY_IN = ("config_dict", "cluster_context", "in_cluster", "kubernetes_conn_id", "connection_extras")
"""Arguments of the parents that say how another cluster is reached; a kubeconfig is never kept in the database."""


class LLMEngineEksPodTrigger(EksPodTrigger):
    """Waits for a pod in an EKS cluster.

    EksPodTrigger writes its kubeconfig when it begins to wait, so that it has none, or that of a task which is over,
    where it is killed before or in another process; and it has a token made for each look at the pod. This one makes
    a token when it is needed and none is left that holds.
    """

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Where the class is, and its arguments, of which none is secret."""
        _path, arguments = super().serialize()
        arguments = {name: value for name, value in arguments.items() if name not in WAY_IN}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait for the pod; without the parent's kubeconfig."""
        async for event in KubernetesPodTrigger.run(self):
            yield event

    @cached_property
    def hook(self) -> AsyncEksKubernetesHook:
        """What asks the cluster."""
        from airflow_llmengine.hooks.eks_access import EksCluster
        from airflow_llmengine.hooks.eks_kubernetes import AsyncEksKubernetesHook

        return AsyncEksKubernetesHook(
            EksCluster(cluster_name=self.eks_cluster_name, region=self.region, aws_conn_id=self._aws_conn_id or "")
        )


def on_eks(trigger: KubernetesPodTrigger, cluster: EksCluster) -> LLMEngineEksPodTrigger:
    """A pod operator's trigger as one that waits in an EKS cluster.

    Args:
        trigger: What the pod operator would have deferred with.
        cluster: Where the pod is.
    """
    _path, arguments = trigger.serialize()
    arguments = {name: value for name, value in arguments.items() if name not in WAY_IN}
    # EksPodTrigger does not know of it.
    arguments.pop("log_events_on_startup", None)
    return LLMEngineEksPodTrigger(
        **arguments,
        eks_cluster_name=cluster.cluster_name,
        region=cluster.region,
        aws_conn_id=cluster.aws_conn_id,
    )
