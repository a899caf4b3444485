"""What Airflow lists of this provider. Read by every Airflow process at start: it must import nothing heavy."""

from __future__ import annotations

from typing import Any

INTEGRATION = "LLM Engine"


def get_provider_info() -> dict[str, Any]:
    """Describe the provider: its modules, its connection type with the form, and its configuration options."""
    return {
        "package-name": "airflow-llmengine",
        "name": INTEGRATION,
        "description": "Batch LLM completions with vLLM: a column of text through a model of your choice.",
        "integrations": [
            {
                "integration-name": INTEGRATION,
                "external-doc-url": "https://docs.vllm.ai/",
                "tags": ["software", "ai"],
            }
        ],
        "operators": [
            {
                "integration-name": INTEGRATION,
                "python-modules": [
                    "airflow_llmengine.operators.batch_completions",
                    "airflow_llmengine.operators.eks",
                    "airflow_llmengine.operators.task_group",
                ],
            }
        ],
        "task-decorators": [
            {
                "name": "llmengine_batch",
                "class-name": "airflow_llmengine.decorators.batch_completions.llmengine_batch_task",
            }
        ],
        "sensors": [
            {
                "integration-name": INTEGRATION,
                "python-modules": ["airflow_llmengine.sensors.batch_completions"],
            }
        ],
        "triggers": [
            {
                "integration-name": INTEGRATION,
                "python-modules": [
                    "airflow_llmengine.triggers.batch_completions",
                    "airflow_llmengine.triggers.eks",
                    "airflow_llmengine.triggers.worker_pod",
                ],
            }
        ],
        "hooks": [
            {
                "integration-name": INTEGRATION,
                "python-modules": ["airflow_llmengine.hooks.llmengine"],
            }
        ],
        "connection-types": [_connection_type()],
        "config": {"llmengine": _configuration()},
    }


def _connection_type() -> dict[str, Any]:
    return {
        "connection-type": "llmengine",
        "hook-name": INTEGRATION,
        "hook-class-name": "airflow_llmengine.hooks.llmengine.LLMEngineHook",
        "ui-field-behaviour": {
            "hidden-fields": ["host", "schema", "login", "password", "port", "extra"],
            "placeholders": {
                "storage_conn_id": "aws_default",
                "kubernetes_conn_id": "kubernetes_default",
                "eks": '{"cluster_name": "training", "region": "eu-west-1", "aws_conn_id": "aws_default"}',
                "cluster": '{"gpu_platform": "gke", "service_account_name": "llm-worker", "queue": "batch"}',
                "storage_options": '{"s3": {"endpoint_url": "http://minio:9000"}}',
                "request_defaults": '{"max_runtime_sec": 14400, "model_config": {"dtype": "bfloat16"}}',
                "worker_environment": '{"HF_HOME": "/mnt/models"}',
            },
        },
        "conn-fields": {
            "launcher": {
                "label": "Launcher",
                "description": (
                    "Where the model runs. local: in a process on the machine of the Airflow worker. "
                    "kubernetes: in a pod of its own."
                ),
                "schema": {"type": "string", "enum": ["local", "kubernetes"], "default": "local"},
            },
            "engine": {
                "label": "Engine",
                "description": (
                    "What answers: vllm, or echo, a stand-in that gives each prompt back, for trying out a pipeline "
                    "without a model."
                ),
                "schema": {"type": "string", "default": "vllm"},
            },
            "storage_conn_id": {
                "label": "Storage connection id",
                "description": (
                    "An AWS connection, whose credentials, region and endpoint are used for s3:// paths. Empty: what "
                    "the machine itself has."
                ),
                "schema": {"type": ["string", "null"]},
            },
            "storage_options": {
                "label": "Storage options (JSON)",
                "description": (
                    "fsspec options by protocol, laid over those of the storage connection. No credentials: they "
                    "belong into the storage connection."
                ),
                "schema": {"type": ["string", "null"], "format": "json"},
            },
            "request_defaults": {
                "label": "Request defaults (JSON)",
                "description": (
                    "Fields of a request that it does not give itself; model_config field by field. Not the model, "
                    "the input, the output or the tools."
                ),
                "schema": {"type": ["string", "null"], "format": "json"},
            },
            "image": {
                "label": "Worker image",
                "description": (
                    "Launcher kubernetes: the worker's container image. The launcher local ignores it, like all "
                    "fields that follow until local workers."
                ),
                "schema": {"type": ["string", "null"]},
            },
            "namespace": {
                "label": "Namespace",
                "description": (
                    "The namespace of the pods. Empty: that of the Kubernetes connection, or of Airflow's own pod."
                ),
                "schema": {"type": ["string", "null"]},
            },
            "kubernetes_conn_id": {
                "label": "Kubernetes connection id",
                "description": "How the cluster is reached. Empty: kubernetes_default, or what the machine has.",
                "schema": {"type": ["string", "null"]},
            },
            "eks": {
                "label": "EKS cluster (JSON)",
                "description": (
                    "An EKS cluster, reached by an AWS connection instead of a Kubernetes connection: cluster_name, "
                    "region, aws_conn_id."
                ),
                "schema": {"type": ["string", "null"], "format": "json"},
            },
            "pod_credentials": {
                "label": "Pod credentials",
                "description": (
                    "How a pod reaches storage. pod: by its service account, or by the Secret that cluster names. "
                    "connection: by the storage connection's credentials, in a Secret that is deleted with the pod."
                ),
                "schema": {"type": "string", "enum": ["pod", "connection"], "default": "pod"},
            },
            "pod_template": {
                "label": "Pod template (JSON)",
                "description": (
                    "A pod with what all workers of the cluster have: volumes, sidecars, variables. Its container base "
                    "is the worker's. No secrets."
                ),
                "schema": {"type": ["string", "null"], "format": "json"},
            },
            "cluster": {
                "label": "Cluster (JSON)",
                "description": (
                    "How pods are made: accelerator, gpu_platform, gpu_types, gpu_nodes, service_account_name, "
                    "credentials_secret, hugging_face_secret, image_pull_secrets, queue, cache_volume, cache_path, "
                    "node_selector, tolerations."
                ),
                "schema": {"type": ["string", "null"], "format": "json"},
            },
            "local_workers": {
                "label": "Local workers",
                "description": (
                    "Launcher local: how many worker processes may run at once on one machine. A task waits for its "
                    "turn. Each loads a model of its own."
                ),
                "schema": {"type": ["integer", "null"], "default": 1, "minimum": 1},
            },
            "python": {
                "label": "Worker's Python",
                "description": (
                    "Path of the Python interpreter that has this package and the engine installed, on the machine "
                    "or in the image. Empty: the one that Airflow runs with, or the image's python."
                ),
                "schema": {"type": ["string", "null"]},
            },
            "worker_environment": {
                "label": "Worker environment (JSON)",
                "description": "Environment variables that the worker gets beside those of the task. No secrets.",
                "schema": {"type": ["string", "null"], "format": "json"},
            },
        },
    }


def _configuration() -> dict[str, Any]:
    return {
        "description": "Options of the provider airflow-llmengine.",
        "options": {
            "grace_seconds": {
                "description": (
                    "How many seconds a local worker has to save its work when its task is killed or times out; "
                    "then its processes are killed. The operator's termination_grace_period goes before it."
                ),
                "version_added": "0.1.0",
                "type": "integer",
                "example": None,
                "default": "30",
            },
            "max_inline_content_bytes": {
                "description": (
                    "The operator's content goes along with the request up to this size in bytes, as JSON; above it, "
                    "it is put beside the output on storage, and the worker reads it from there."
                ),
                "version_added": "0.1.0",
                "type": "integer",
                "example": None,
                "default": "65536",
            },
            "finished_pod_ttl_seconds": {
                "description": (
                    "How many seconds a worker's pod that has ended is kept, for people to look at, where it is not "
                    "deleted at once (the operator's on_finish_action). The next task that makes a pod in the same "
                    "namespace deletes those that are older."
                ),
                "version_added": "0.1.0",
                "type": "integer",
                "example": None,
                "default": "86400",
            },
            "runtime_directory": {
                "description": (
                    "Directory of the lock files by which local workers on one machine take turns. Empty: a directory "
                    "of the user's own under the system's temporary directory. All Airflow workers that share a "
                    "machine's GPU must name the same one."
                ),
                "version_added": "0.1.0",
                "type": "string",
                "example": "/run/airflow-llmengine",
                "default": "",
            },
        },
    }
