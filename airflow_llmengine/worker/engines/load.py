"""From an engine's name to the engine. Packages register what there is to choose from as entry points."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, cast

from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.worker.engines.base import Engine, EngineFactory, TakesArguments

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


def with_engine_args(make: EngineFactory, engine_args: Mapping[str, Any]) -> EngineFactory:
    """Makes engines with further arguments.

    Args:
        make: Makes the engine.
        engine_args: What it is told, as ``parse_engine_args`` gives them.
    """

    def make_with_arguments(request: CreateBatchCompletionsV1Request) -> Engine:
        engine = make(request)
        if isinstance(engine, TakesArguments):
            engine.take_arguments(engine_args)
        elif engine_args:
            raise EngineUnavailableError(f"the engine {engine.name} takes no engine_args: leave them out")
        return engine

    return make_with_arguments


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
