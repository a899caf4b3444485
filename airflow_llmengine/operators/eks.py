"""The operators and the group for a cluster of Amazon EKS that the DAG names, on the amazon provider's pod operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator

from airflow_llmengine.exceptions import RequestRefusedError
from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsMixin
from airflow_llmengine.operators.collect_replicas import LLMEngineCollectMixin
from airflow_llmengine.operators.run_replica import LLMEngineReplicaMixin
from airflow_llmengine.operators.task_group import LLMEngineBatchCompletionsTaskGroup

try:
    from airflow.providers.amazon.aws.operators.eks import EksPodOperator
except ImportError as error:
    raise ImportError(
        "airflow_llmengine.operators.eks needs the package apache-airflow-providers-amazon: install it, or use "
        "LLMEngineBatchCompletionsOperator."
    ) from error

if TYPE_CHECKING:
    from airflow.sdk import Context

OTHER_WAYS_IN = ("kubernetes_conn_id", "in_cluster", "config_file", "cluster_context")
"""Arguments of KubernetesPodOperator that say how another cluster is reached."""


class EksWorkerPodOperator(EksPodOperator):
    """EksPodOperator, to stand behind the mixins of this package: its cluster can be asked at any time.

    EksPodOperator itself can ask it within its ``execute`` only, for which it keeps a kubeconfig and a file with AWS
    keys for as long as the task waits. Here the client brings its token itself.

    Args:
        cluster_name: The cluster's name at AWS; by default that in the field ``eks`` of the connection. (templated)
        region: Its region; by default that of the connection's ``eks``, or of the AWS connection. (templated)
        aws_conn_id: AWS connection by which the cluster is found and a token made; by default that of the connection's
            ``eks``, or ``aws_default``. Empty: what Airflow's machine itself has. (templated)
        namespace: Where pods are made; by default that of the pod's template, of the connection, or ``default``, in
            this order. (templated)
        pod_name: The pod's name, as in EksPodOperator; the same as ``name``. (templated)
        name: The pod's name, as in KubernetesPodOperator.
        trigger_kwargs: As in KubernetesPodOperator.
        kwargs: What EksPodOperator takes, but for what says how another cluster is reached.

    Raises:
        RequestRefusedError: An argument says how another cluster is reached; when the DAG is parsed.
    """

    # In one order: the amazon provider's is another in each process.
    template_fields: Sequence[str] = tuple(sorted(EksPodOperator.template_fields))

    def __init__(
        self,
        *,
        cluster_name: str | None = None,
        region: str | None = None,
        aws_conn_id: str | None = None,
        namespace: str | None = None,
        pod_name: str | None = None,
        name: str | None = None,
        trigger_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        others = [argument for argument in OTHER_WAYS_IN if kwargs.pop(argument, None)]
        if others:
            raise RequestRefusedError(
                f"{', '.join(others)}: an EKS cluster is reached by cluster_name, region and aws_conn_id. Leave it "
                "out, or use LLMEngineBatchCompletionsOperator or its group."
            )
        super().__init__(
            cluster_name=cluster_name,  # type: ignore[arg-type]
            region=region,
            aws_conn_id=aws_conn_id,
            namespace=namespace,  # type: ignore[arg-type]
            pod_name=pod_name or name,
            kubernetes_conn_id=None,
            **kwargs,
        )
        # Instead of the parent's: the cluster's name, not rendered.
        self.trigger_kwargs = trigger_kwargs or {}

    @property
    def eks_arguments(self) -> dict[str, str]:
        """What the DAG says of the cluster, in the names of ``EksCluster``."""
        given = {"cluster_name": self.cluster_name, "region": self.region, "aws_conn_id": self.aws_conn_id}
        return {name: value for name, value in given.items() if value is not None}

    def execute(self, context: Context) -> Any:
        """Run the pod; without EksPodOperator's kubeconfig."""
        return KubernetesPodOperator.execute(self, context)

    def trigger_reentry(self, context: Context, event: dict[str, Any]) -> Any:
        """Go on when the trigger has fired; without EksPodOperator's kubeconfig."""
        return KubernetesPodOperator.trigger_reentry(self, context, event)

    def invoke_defer_method(self, last_log_time: Any = None, context: Context | None = None) -> None:
        """Defer; the mixins make the trigger one for EKS."""
        KubernetesPodOperator.invoke_defer_method(self, last_log_time, context)


class LLMEngineEksBatchCompletionsOperator(LLMEngineBatchCompletionsMixin, EksWorkerPodOperator):
    """Runs a batch completion job as one task, in an EKS cluster.

    See ``LLMEngineBatchCompletionsMixin`` and ``EksWorkerPodOperator`` for its arguments. With the launcher ``local``
    the same DAG runs on a laptop, and no cluster is asked.

    ``LLMEngineBatchCompletionsOperator`` reaches an EKS cluster, too, that the field ``eks`` of its connection names;
    this one is for a DAG that names it itself.
    """


class LLMEngineEksReplicaOperator(LLMEngineReplicaMixin, EksWorkerPodOperator):
    """Does one replica's share of a job in an EKS cluster; see ``LLMEngineReplicaMixin``."""


class LLMEngineEksCollectOperator(LLMEngineCollectMixin, EksWorkerPodOperator):
    """Puts together what the replicas of a job did, in an EKS cluster; see ``LLMEngineCollectMixin``."""


class LLMEngineEksBatchCompletionsTaskGroup(LLMEngineBatchCompletionsTaskGroup):
    """Runs a batch completion job as several replicas in an EKS cluster.

    See ``LLMEngineBatchCompletionsTaskGroup``, and for the cluster ``LLMEngineEksBatchCompletionsOperator``, whose
    arguments ``cluster_name``, ``region`` and ``aws_conn_id`` it takes.
    """

    replica_operator: ClassVar[type[LLMEngineReplicaMixin]] = LLMEngineEksReplicaOperator
    collect_operator: ClassVar[type[LLMEngineCollectMixin]] = LLMEngineEksCollectOperator
