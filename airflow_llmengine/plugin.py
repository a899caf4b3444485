"""What Airflow loads of this package into each of its processes: it must import nothing heavy."""

from __future__ import annotations

from typing import Any

from airflow.sdk.plugins_manager import AirflowPlugin

from airflow_llmengine.run_slug import run_slug


class LLMEnginePlugin(AirflowPlugin):
    """Adds ``macros.llmengine`` to what templates know."""

    name = "llmengine"
    macros: list[Any] = [run_slug]  # noqa: RUF012 - as Airflow declares it
