"""What a connection of type ``llmengine`` says: where jobs run, and how storage is reached."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from airflow_llmengine.exceptions import ConnectionUnusableError
from airflow_llmengine.hooks.eks_access import EksCluster
from airflow_llmengine.hooks.plain_credentials import credential_variables, credentials_in
from airflow_llmengine.kube.cluster import ClusterSettings, parsed_json

NOT_BY_DEFAULT = ("input_data_path", "content", "output_data_path", "tool_config")
"""Fields of a request that say what one job is: a connection can't give them."""

NOT_BY_DEFAULT_IN_MODEL_CONFIG = ("model", "chat_template")

RESERVED_VARIABLES = (
    "LLMENGINE_ENGINE",
    "LLMENGINE_WORKER",
    "LLMENGINE_LAUNCHER",
    "LLMENGINE_REQUEST",
    "LLMENGINE_STORAGE_OPTIONS",
    "LLMENGINE_STORAGE_OPTIONS_FILE",
)
"""Environment variables of the worker that the launcher sets itself."""


JSONObject = Annotated[dict[str, Any], BeforeValidator(parsed_json)]


class ConnectionSettings(BaseModel):
    """The connection's fields. What is empty or null is not given."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    launcher: Literal["local", "kubernetes"] = "local"
    """Where the model runs: ``local``, in a process on the machine of the Airflow worker; ``kubernetes``, in a pod."""
    engine: str = Field(default="vllm", pattern=r"^[A-Za-z0-9_.-]+$")
    """Which engine answers; a name of the entry point group ``airflow_llmengine.engines``."""
    storage_conn_id: str | None = None
    """A connection of type aws for ``s3://``, google_cloud_platform for ``gs://`` or wasb for ``az://``; without it,
    what the machine has is used."""
    storage_options: Annotated[dict[str, dict[str, Any]], BeforeValidator(parsed_json)] = {}
    """fsspec options by protocol, laid over those of the storage connection. No credentials."""
    request_defaults: JSONObject = {}
    """Fields of a request that it does not give itself; ``model_config`` field by field."""
    image: str | None = None
    """The worker's container image. For the launcher ``kubernetes`` only, like all until ``cluster``."""
    namespace: str | None = None
    """The namespace of the worker's pods; by default that of the Kubernetes connection, or of Airflow's own pod."""
    kubernetes_conn_id: str | None = None
    """A Kubernetes connection; without it, that of the pod operator, or what Airflow's machine has."""
    eks: Annotated[EksCluster | None, BeforeValidator(parsed_json)] = None
    """An EKS cluster, reached by an AWS connection instead of a Kubernetes connection."""
    pod_credentials: Literal["pod", "connection"] = "pod"
    """How a pod reaches storage: ``pod``, by what it has itself, its service account or a Secret of the cluster;
    ``connection``, by the storage connection's credentials, in a Secret that is deleted with the pod."""
    pod_template: JSONObject = {}
    """A pod, as Kubernetes writes it, with what all of this cluster's workers have: volumes, sidecars, variables. Its
    container ``base`` is the worker's. A DAG that gives the pod operator a template of its own leaves this one out."""
    cluster: Annotated[ClusterSettings, BeforeValidator(parsed_json)] = ClusterSettings()
    """How pods are made in the cluster."""
    local_workers: int = Field(default=1, ge=1)
    """How many local workers may run at once on one machine."""
    python: str | None = None
    """The worker's Python interpreter; without it, the one that this process runs with, or ``python`` of the image."""
    worker_environment: Annotated[dict[str, str], BeforeValidator(parsed_json)] = {}
    """Environment variables for the worker. No secrets."""

    @classmethod
    def parse(cls, conn_id: str, extra: Mapping[str, Any]) -> ConnectionSettings:
        """Read a connection's extra.

        Args:
            conn_id: The connection, for messages.
            extra: Its extra as an object.

        Raises:
            ConnectionUnusableError: It holds what it can't; the message names every such field, and no value.
        """
        given = {name: value for name, value in extra.items() if value not in (None, "")}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            faults = "; ".join(_fault(line) for line in error.errors(include_url=False, include_input=False))
        raise ConnectionUnusableError(f"The connection {conn_id} can't be used: {faults}. Correct it there.")

    @field_validator("storage_options")
    @classmethod
    def _without_secrets(cls, options: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for path in credentials_in(options):
            raise ValueError(
                f"{path} looks like a credential, and would be shown: put it into a connection of type aws, "
                "google_cloud_platform or wasb and name that as storage_conn_id, or let the worker's machine or pod "
                "bring it"
            )
        return options

    @field_validator("request_defaults")
    @classmethod
    def _not_the_job_itself(cls, defaults: dict[str, Any]) -> dict[str, Any]:
        model_config = defaults.get("model_config", {})
        if not isinstance(model_config, Mapping):
            raise ValueError("model_config must be an object")
        names = [name for name in NOT_BY_DEFAULT if name in defaults]
        names += [f"model_config.{name}" for name in NOT_BY_DEFAULT_IN_MODEL_CONFIG if name in model_config]
        if names:
            raise ValueError(f"{', '.join(names)} can't be a default: give it in each request")
        return defaults

    @model_validator(mode="after")
    def _one_way_in(self) -> ConnectionSettings:
        if self.eks is not None and self.kubernetes_conn_id is not None:
            raise ValueError("eks and kubernetes_conn_id both say how the cluster is reached: leave one of the two out")
        return self

    @field_validator("pod_template")
    @classmethod
    def _is_a_pod(cls, template: dict[str, Any]) -> dict[str, Any]:
        unknown = sorted(template.keys() - {"apiVersion", "kind", "metadata", "spec"})
        if unknown or template.get("kind", "Pod") != "Pod":
            raise ValueError(
                f"{', '.join(unknown) or template['kind']} is not a part of a pod: write it as "
                '{"spec": {"volumes": [...], "containers": [{"name": "base", "volumeMounts": [...]}]}}'
            )
        return template

    @field_validator("worker_environment")
    @classmethod
    def _not_ours(cls, environment: dict[str, str]) -> dict[str, str]:
        for name in RESERVED_VARIABLES:
            if name in environment:
                raise ValueError(f"{name} is set by the launcher itself; for the engine, use the field engine")
        for name in credential_variables(environment):
            raise ValueError(
                f"{name} looks like a credential, or holds a URL with one, and would be shown: set it in the "
                "environment of the Airflow worker, from which a local worker inherits it, or for pods in the Secret "
                "that cluster.credentials_secret names"
            )
        return environment

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, given: Any) -> Any:
        for name in given if isinstance(given, Mapping) else ():
            if name not in cls.model_fields:
                near = get_close_matches(name, cls.model_fields, n=1)
                raise ValueError(f"{name} is not a field of it" + (f"; did you mean {near[0]}?" if near else ""))
        return given

    def with_defaults(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The request with this connection's defaults where it gives nothing itself."""
        merged = {**self.request_defaults, **request}
        model_config = request.get("model_config")
        if isinstance(model_config, Mapping) and "model_config" in self.request_defaults:
            merged["model_config"] = {**self.request_defaults["model_config"], **model_config}
        return merged


def _fault(line: Any) -> str:
    """One validation error as a clause, without the value."""
    what = str(line["msg"]).removeprefix("Value error, ")
    where = ".".join(str(step) for step in line["loc"])
    return f"{where}: {what}" if where else what
