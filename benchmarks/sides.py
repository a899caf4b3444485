"""The sides that are compared: vLLM's own ways to complete many records, and this worker.

Each keeps one engine for all of its runs. A run reads a workload's file, and is timed from the first record that the
engine is given to the last answer where the side keeps them in memory, and to the written output where it writes one:
that is what somebody waits for who uses it.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.request import CreateBatchCompletionsV1ModelConfig, CreateBatchCompletionsV1Request
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.attempt import AttemptOptions, run_attempt
from airflow_llmengine.worker.engines.base import (
    Answer,
    CachesPrefixes,
    Engine,
    EngineStep,
    PrefixCache,
    TakesArguments,
    TellsSteps,
)
from airflow_llmengine.worker.engines.load import load_engine
from airflow_llmengine.worker.records import Record
from airflow_llmengine.worker.stopping import Stop
from benchmarks.optimisations import switched_off
from benchmarks.workloads import MODEL_NAME, read_texts


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of one side."""

    seconds: float
    records: int
    """Of the input."""
    generated: int
    """Records for which the engine was asked."""
    prompt_tokens: int
    """Of the records that were generated."""
    cached_tokens: int
    """Those of them that the engine found in its prefix cache, as it says with each answer."""
    completion_tokens: int
    """Of all answers, repeated ones included."""
    steps: list[list[float]] = field(default_factory=list)
    """Of each step of the engine, if it tells: the seconds since the first record, and its sequences that ran in it,
    ended in it, and waited after it."""

    def to_json(self) -> dict[str, Any]:
        """For the pipe."""
        return asdict(self)


class Side(Protocol):
    """One way to complete a file of records."""

    def start(self, model: str, settings: Mapping[str, Any]) -> None:
        """Load the engine."""

    def run(self, source: Path, *, without: tuple[str, ...] = ()) -> Measured:
        """Complete a file, with an empty prefix cache.

        Args:
            source: A file that ``Workload.write`` wrote.
            without: Optimisations of the worker that are switched off.
        """

    def stop(self) -> None:
        """End the engine."""


class Offline:
    """``LLM.generate`` and ``LLM.chat``: vLLM's class for Python programs. Input and output are lists in memory.

    Args:
        chats: Whether the input is of chats.
    """

    def __init__(self, *, chats: bool) -> None:
        self._chats = chats
        self._llm: Any = None

    def start(self, model: str, settings: Mapping[str, Any]) -> None:
        """See ``Side``."""
        from vllm import LLM

        self._llm = LLM(model=model, disable_log_stats=True, **settings)

    def run(self, source: Path, *, without: tuple[str, ...] = ()) -> Measured:
        """See ``Side``."""
        from vllm import SamplingParams

        if without:
            raise ValueError("only the worker has optimisations to switch off")
        records = read_texts(source)
        texts = [text for text, _ in records]
        sampling = [SamplingParams(temperature=0.0, max_tokens=most, ignore_eos=True) for _, most in records]
        self._llm.reset_prefix_cache()
        complete = self._llm.chat if self._chats else self._llm.generate
        started = time.perf_counter()
        outputs = complete(texts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - started
        return Measured(
            seconds=seconds,
            records=len(records),
            generated=len(outputs),
            prompt_tokens=sum(len(output.prompt_token_ids) for output in outputs),
            cached_tokens=sum(output.num_cached_tokens or 0 for output in outputs),
            completion_tokens=sum(len(output.outputs[0].token_ids) for output in outputs),
        )

    def stop(self) -> None:
        """See ``Side``."""
        if self._llm is not None:
            self._llm.llm_engine.engine_core.shutdown()


class RunBatch:
    """``vllm run-batch``: vLLM's own function behind that command, on an engine and with handlers that are kept."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._client: Any = None
        self._arguments: Any = None
        self._opened: Any = None
        self._registry: Any = None

    def start(self, model: str, settings: Mapping[str, Any]) -> None:
        """See ``Side``."""
        from vllm.entrypoints.launchers import run_batch
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        words = ["-i", os.devnull, "-o", os.devnull, "--model", model, "--served-model-name", MODEL_NAME]
        for name, value in settings.items():
            option = name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{option}" if value else f"--no-{option}")
            else:
                words += [f"--{option}", json.dumps(value) if isinstance(value, dict) else str(value)]
        # Both are off on the other sides too; the second is how an answer says what was found in the prefix cache.
        words += ["--disable-log-stats", "--enable-prompt-tokens-details"]
        self._arguments = run_batch.make_arg_parser(FlexibleArgumentParser()).parse_args(words)
        self._runner.run(self._start())

    async def _start(self) -> None:
        from vllm.entrypoints.launchers import run_batch
        from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client
        from vllm.usage.usage_lib import UsageContext

        self._opened = build_async_engine_client(self._arguments, usage_context=UsageContext.OPENAI_BATCH_RUNNER)
        self._client = await self._opened.__aenter__()
        self._registry = await run_batch.build_endpoint_registry(self._client, self._arguments)

    def run(self, source: Path, *, without: tuple[str, ...] = ()) -> Measured:
        """See ``Side``."""
        if without:
            raise ValueError("only the worker has optimisations to switch off")
        output = source.with_suffix(".run-batch-output")
        self._arguments.input_file, self._arguments.output_file = str(source), str(output)
        seconds = self._runner.run(self._timed())
        bodies = [json.loads(line)["response"]["body"] for line in output.read_text().splitlines()]
        usages = [body["usage"] for body in bodies]
        return Measured(
            seconds=seconds,
            records=len(usages),
            generated=len(usages),
            prompt_tokens=sum(usage["prompt_tokens"] for usage in usages),
            cached_tokens=sum(map(_cached_tokens, usages)),
            completion_tokens=sum(usage["completion_tokens"] for usage in usages),
        )

    async def _timed(self) -> float:
        from vllm.entrypoints.launchers import run_batch

        async def registry(**_: Any) -> Any:
            return self._registry

        await self._client.reset_prefix_cache()
        # Its handlers are made once for a process, like the engine.
        with mock.patch.object(run_batch, "build_endpoint_registry", registry):
            started = time.perf_counter()
            await run_batch.run_batch(self._client, self._arguments)
            return time.perf_counter() - started

    def stop(self) -> None:
        """See ``Side``."""
        if self._opened is not None:
            self._runner.run(self._opened.__aexit__(None, None, None))
        self._runner.close()


class Worker:
    """This worker: whole attempts, with reading, validation, commits and the output's file.

    Args:
        tells_steps: Whether the engine counts its steps, which costs it something.
    """

    def __init__(self, *, tells_steps: bool = False) -> None:
        self._steps: list[tuple[float, EngineStep]] = []
        self._tells_steps = tells_steps
        # One loop for all attempts, as the engine lives in it.
        self._runner = asyncio.Runner()
        self._engine: KeptEngine | None = None
        self._model = ""
        self._settings: Mapping[str, Any] = {}
        self._runs = 0

    def start(self, model: str, settings: Mapping[str, Any]) -> None:
        """See ``Side``."""
        self._model = model
        known = CreateBatchCompletionsV1ModelConfig.model_fields
        self._settings = {name: value for name, value in settings.items() if name in known}
        further = {name: value for name, value in settings.items() if name not in known}
        request = self._request(Path("input.jsonl"), Path("output.jsonl"))
        engine = load_engine(request)
        if isinstance(engine, TakesArguments):
            engine.take_arguments({**further, "enable_prompt_tokens_details": True})
        if self._tells_steps and isinstance(engine, TellsSteps):
            engine.tell_steps(lambda step: self._steps.append((time.perf_counter(), step)))
        self._engine = KeptEngine(engine)
        self._runner.run(engine.start())

    def run(self, source: Path, *, without: tuple[str, ...] = ()) -> Measured:
        """See ``Side``."""
        engine = self._engine
        assert engine is not None
        self._runs += 1
        # Never twice the same, also in a folder that was kept: the output of an earlier job would be given back.
        output = source.with_name(f"{source.stem}.{os.getpid()}-{self._runs}.worker-output.jsonl")
        request = self._request(source, output)
        self._runner.run(engine.begin())
        self._steps.clear()
        with ExitStack() as stack:
            stack.enter_context(mock.patch("asyncio.run", self._runner.run))
            stack.enter_context(switched_off(without))
            outcome = run_attempt(
                Storage(),
                request,
                AttemptOptions(owner="benchmark", series=str(self._runs)),
                Stop(),
                make_engine=lambda _request: engine,
            )
        ended = time.perf_counter()
        if outcome.exit_code is not ExitCode.DONE or outcome.manifest is None or outcome.manifest.failed:
            raise RuntimeError(f"the worker did not complete every record: {outcome.message}")
        if not engine.generated:
            raise RuntimeError(f"the worker generated nothing: {outcome.message}")
        return Measured(
            seconds=ended - engine.first_at,
            records=outcome.manifest.records,
            generated=engine.generated,
            prompt_tokens=engine.prompt_tokens,
            cached_tokens=engine.cached_tokens,
            completion_tokens=outcome.manifest.completion_tokens,
            steps=[
                [at - engine.first_at, step.running + step.finished, step.finished, step.waiting]
                for at, step in self._steps
            ],
        )

    def stop(self) -> None:
        """See ``Side``."""
        if self._engine is not None:
            self._runner.run(self._engine.end())
        self._runner.close()

    def _request(self, source: Path, output: Path) -> CreateBatchCompletionsV1Request:
        config = {"model": MODEL_NAME, "checkpoint_path": self._model, **self._settings}
        return validate_request(
            {"input_data_path": str(source), "output_data_path": str(output), "model_config": config}
        )


class KeptEngine:
    """The worker's engine, started before the attempts and not stopped by them; it counts what is generated."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.name = engine.name
        self.version = engine.version
        self.first_at = 0.0
        self.generated = self.prompt_tokens = self.cached_tokens = 0

    async def begin(self) -> None:
        """Be ready for a run: nothing counted, an empty prefix cache."""
        self.first_at = 0.0
        self.generated = self.prompt_tokens = self.cached_tokens = 0
        serving = getattr(self._engine, "_serving", None)
        if serving is not None:
            await serving.client.reset_prefix_cache()

    async def end(self) -> None:
        """End it after all."""
        await self._engine.stop()

    async def start(self) -> None:
        """Nothing: it runs."""

    async def stop(self) -> None:
        """Nothing: the next attempt needs it too."""

    @property
    def model_identity(self) -> str | None:
        """The engine's."""
        return self._engine.model_identity

    @property
    def capacity(self) -> int:
        """The engine's."""
        return self._engine.capacity

    def prefix_cache(self) -> PrefixCache | None:
        """The engine's."""
        return self._engine.prefix_cache() if isinstance(self._engine, CachesPrefixes) else None

    async def complete(self, record: Record) -> Answer:
        """Answer by the engine."""
        self.first_at = self.first_at or time.perf_counter()
        answer = await self._engine.complete(record)
        self.generated += 1
        self.prompt_tokens += answer.prompt_tokens
        self.cached_tokens += _cached_tokens(answer.body.get("usage", {}))
        return answer


def _cached_tokens(usage: Mapping[str, Any]) -> int:
    return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)


SIDES: Mapping[str, Callable[[], Side]] = {
    "generate": lambda: Offline(chats=False),
    "chat": lambda: Offline(chats=True),
    "run-batch": RunBatch,
    "worker": Worker,
    "worker-with-steps": lambda: Worker(tells_steps=True),
}
"""By the name that a process is told."""
