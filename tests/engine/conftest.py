"""One real engine for all tests of this folder: it takes long to start."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_llmengine.worker.elements import in_place
from airflow_llmengine.worker.engines.base import Answer, EngineStep
from airflow_llmengine.worker.engines.vllm import VLLMEngine
from airflow_llmengine.worker.records import Record
from tests.engine.records import job


class RunningEngine:
    """A started engine, and the loop in which it lives."""

    def __init__(self, engine: VLLMEngine, runner: asyncio.Runner, steps: list[EngineStep] | None = None) -> None:
        self.engine = engine
        self.runner = runner
        self.steps = [] if steps is None else steps
        """What the engine has told of its steps, if it was to tell."""

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(coroutine)

    def answer(self, record: Record) -> Answer:
        """Answer a record, as the output has it but for what only the job knows."""
        answer: Answer = self.run(self.engine.complete(record))
        return replace(answer, body=in_place(answer.body, record))

    def answers(self, *records: Record) -> list[Answer]:
        """Answer several records at once, as the worker does."""

        async def all_of_them() -> list[Answer]:
            return await asyncio.gather(*(self.engine.complete(record) for record in records))

        answers: list[Answer] = self.run(all_of_them())
        return answers

    def unfinished(self) -> int:
        """Sequences that vLLM still works on."""
        serving = self.engine._serving
        assert serving is not None
        return int(serving.client.get_num_unfinished_requests())


def engine_processes() -> list[psutil.Process]:
    """The processes of vLLM below this one."""
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if any("VLLM" in part or "spawn_main" in part for part in process.cmdline())
    ]


@pytest.fixture(scope="session")
def running(quickstart_model: Path) -> Iterator[RunningEngine]:
    """The engine that all tests share."""
    before = set(engine_processes())
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        engine = VLLMEngine(job(quickstart_model, tool_call_parser="hermes", enable_auto_tool_choice=True))
        engine.take_arguments({"trust_request_chat_template": True})
        steps: list[EngineStep] = []
        engine.tell_steps(steps.append)
        try:
            runner.run(engine.start())
            yield RunningEngine(engine, runner, steps)
        finally:
            runner.run(engine.stop())
    assert set(engine_processes()) <= before


@pytest.fixture(autouse=True)
def collect_garbage(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let vLLM's forgotten sockets warn inside the test that left them, where a warning is no error."""
    yield
    if request.node.get_closest_marker("engine"):
        gc.collect()
