"""The harness's own engine: it echoes each record's prompt, writes down what it was asked, and fails as planned."""

from __future__ import annotations

import asyncio
import time

from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.results import CompletionOutput
from airflow_llmengine.worker.engines.base import Answer, EngineDiedError
from airflow_llmengine.worker.records import PromptRecord, Record
from tests.faults.plan import EngineFaultKind, Plan
from tests.faults.world import Generation, Process

SLOW_SECONDS = 0.4


class FaultyEngine:
    """One engine of one attempt.

    Args:
        plan: The run's.
        process: The attempt's.
        calm: Whether it is spared all but what records do to it.
    """

    name = "faulty"
    version = "1"

    def __init__(self, plan: Plan, process: Process, *, calm: bool = False) -> None:
        self._plan = plan
        self._process = process
        self._faults: dict[int, EngineFaultKind] = {fault.record: fault.kind for fault in plan.engine}
        self._slots = asyncio.Semaphore(plan.capacity)
        self._dies_after = None if calm else plan.engine_dies_after
        self._dead = False
        self._answers = 0

    async def start(self) -> None:
        await self._process.require_life_async()

    @property
    def model_identity(self) -> str | None:
        return "faulty"

    @property
    def capacity(self) -> int:
        return self._plan.capacity

    async def complete(self, record: Record) -> Answer:
        async with self._slots:
            await self._live()
            began = time.monotonic()
            kind = self._faults.get(record.index)
            await asyncio.sleep(SLOW_SECONDS if kind == "slow" else self._plan.seconds_per_record)
            await self._live()
            if kind not in (None, "slow") and self._process.world.misbehaves(record.index):
                self._process.world.fire(str(kind))
                self._process.world.generated(Generation(began, self._process.name, record.index, answered=False))
                if kind == "kills process":
                    self._process.kill()
                    await self._live()
                if kind == "internal":
                    raise RuntimeError("a passing fault of the engine")
                self._die()
                await self._live()
            answer = await self.answer(record)
            await self._live()
            self._answers += 1
            self._process.world.generated(Generation(began, self._process.name, record.index, answered=True))
            self._process.answered()
            await self._process.require_life_async()
            if self._dies_after is not None and self._answers >= self._dies_after:
                self._process.world.fire("engine dies")
                self._die()
            return answer

    def _die(self) -> None:
        self._dead = True
        self._process.world.kills += 1

    async def _live(self) -> None:
        await self._process.require_life_async()
        if self._dead:
            raise EngineDiedError("the engine of the fault harness has died")

    async def stop(self) -> None:
        self._dead = True

    async def answer(self, record: Record) -> Answer:
        """What the record gets if nothing goes wrong with it."""
        request = record.request
        if isinstance(request, PromptRecord):
            output = CompletionOutput(text=request.prompt, num_prompt_tokens=1, num_completion_tokens=1)
            return Answer(output.model_dump(mode="json"), 1, 1)
        assert isinstance(request, CompletionV2Request)
        body = {
            "id": "",
            "object": "text_completion",
            "created": 0,
            "model": "stand-in",
            "choices": [{"index": 0, "text": request.prompt, "logprobs": None, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
        return Answer(body, 1, 1)
