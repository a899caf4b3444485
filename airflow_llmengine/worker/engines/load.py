"""From an engine's name to the engine. Packages register what there is to choose from as entry points."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from typing import cast

from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.worker.engines.base import Engine, EngineFactory

ENTRY_POINT_GROUP = "airflow_llmengine.engines"
"""Where a package registers an engine under its name: an ``EngineFactory``."""

ENGINE_VARIABLE = "LLMENGINE_ENGINE"
"""Environment variable with the name of the engine to use."""

DEFAULT_ENGINE = "vllm"


class EngineUnavailableError(Exception):
    """The engine can't be had here: unknown, not installed, or not able to do what the request asks of it.

    Trying again without a change does not help. The message is one sentence.
    """


def engine_name(name: str | None = None) -> str:
    """The name of the engine that answers: ``name``, else that in ``LLMENGINE_ENGINE``, else ``vllm``."""
    return name or os.environ.get(ENGINE_VARIABLE) or DEFAULT_ENGINE


def load_engine(request: CreateBatchCompletionsV1Request, name: str | None = None) -> Engine:
    """Make the engine for a job; its model is loaded later, by ``start``.

    Args:
        request: The job.
        name: Name of the engine; by default that in ``LLMENGINE_ENGINE``, else ``vllm``.

    Raises:
        EngineUnavailableError: There is no such engine, or it can't work here.
    """
    name = engine_name(name)
    registered = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if not registered:
        raise EngineUnavailableError(
            "no engine is registered: install the package airflow-llmengine, instead of running a copy of its files"
        )
    if name not in registered:
        raise EngineUnavailableError(
            f"there is no engine {name!r} ({ENGINE_VARIABLE}); installed are {', '.join(sorted(registered))}"
        )
    try:
        factory = cast(EngineFactory, registered[name].load())
        return factory(request)
    except (ImportError, ValueError) as error:
        # An engine tells in one sentence which package it misses, or which setting it can't read.
        raise EngineUnavailableError(str(error)) from error
