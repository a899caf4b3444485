"""A model that writes what it is told to, and code that prints what it is told to: the loop's both ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Any

from airflow_llmengine.spec.request import CreateBatchCompletionsV1RequestContent, ToolConfig
from airflow_llmengine.spec.results import CompletionOutput, TokenOutput
from airflow_llmengine.worker.engines.base import Answer
from airflow_llmengine.worker.engines.writing import Writer, Written
from airflow_llmengine.worker.records import PromptRecord, Record
from airflow_llmengine.worker.tools.code_evaluation import CodeEvaluator
from airflow_llmengine.worker.tools.code_runner import CodeOutput
from airflow_llmengine.worker.tools.interpreters import Interpreters


def block(code: str, then: str = "made up") -> str:
    """A block as a model writes it, with an output that it made up."""
    return f"```python\n{code}\n```\n{then}\n>>>\n"


def ran(code: str, printed: str) -> str:
    """The same block once it has run."""
    return f"```python\n{code}\n```\n{printed}\n>>>\n"


class ScriptedAuthor:
    """An engine that writes its script, a part in each go. Each character is a token."""

    name = "scripted"
    version = "1"
    capacity = 4
    model_identity = None

    def __init__(self, *script: str, context_length: int = 10**6) -> None:
        self.script = script
        self.context_length = context_length
        self.asked: list[tuple[str, int]] = []
        """What it was to go on from, and how much it was to write."""

    def writer(self) -> Writer:
        return self

    async def start(self) -> None:
        """Nothing: it has no model."""

    async def stop(self) -> None:
        """Nothing: there is nothing to end."""

    async def complete(self, record: Record) -> Answer:
        raise NotImplementedError

    async def write(
        self, record: Record, before: Sequence[int], *, completed: Sequence[int], stop: str, max_tokens: int
    ) -> Written:
        request = record.request
        assert isinstance(request, PromptRecord)
        before = list(before) or self.encode(request.prompt, after="")
        assert before[len(before) - len(completed) :] == list(completed)
        self.asked.append((self.decode(before), max_tokens))
        text = self.script[len(self.asked) - 1]
        stops = [one for one in (stop, *(request.content.stop_sequences or ())) if one in text]
        stopped = min(stops, key=lambda one: text.find(one) + len(one), default=None)
        if stopped is not None:
            text = text[: text.find(stopped) + len(stopped)]
        if len(text) > max_tokens:
            text, stopped = text[:max_tokens], None
        return Written(
            before=tuple(before),
            text=text.removesuffix(stopped or ""),
            ids=tuple(self.encode(text, after="")),
            tokens=tuple(TokenOutput(token=one, log_prob=-1.0) for one in text)
            if request.content.return_token_log_probs
            else None,
            stop=stopped,
        )

    def encode(self, text: str, *, after: str) -> list[int]:
        return [ord(one) for one in text]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, ids))


class ScriptedRunner:
    """Prints what it is told to, run after run, and notes what happened to it."""

    def __init__(self, *printed: str | BaseException) -> None:
        self.printed = list(printed)
        self.codes: list[str] = []
        self.timeouts: set[float] = set()
        self.forgotten = 0
        self.closed = 0

    async def run(self, code: str, timeout_seconds: float) -> CodeOutput:
        self.codes.append(code)
        self.timeouts.add(timeout_seconds)
        printed = self.printed.pop(0)
        if isinstance(printed, BaseException):
            raise printed
        return CodeOutput(printed, failed=False)

    async def forget(self) -> None:
        self.forgotten += 1

    async def close(self) -> None:
        self.closed += 1


def v1(prompt: str = "Q: ", index: int = 0, **fields: Any) -> Record:
    content = CreateBatchCompletionsV1RequestContent.model_validate(
        {"prompts": [], "max_new_tokens": 1000, "temperature": 0, **fields}
    )
    return Record(index, f"element {index}", PromptRecord(prompt, content))


def evaluator(runner: Any, most: int = 8, **tool: Any) -> CodeEvaluator:
    config = ToolConfig.model_validate({"name": "code_evaluator", **tool})
    return CodeEvaluator(config, Interpreters(most, make=runner if callable(runner) else lambda: runner))


def complete(
    author: ScriptedAuthor, runner: ScriptedRunner, *, tool: dict[str, Any] | None = None, **fields: Any
) -> CompletionOutput:
    """Have a record answered."""

    async def ask(question: Callable[[Any], Awaitable[Any]]) -> Any:
        return await question(author)

    answer = asyncio.run(evaluator(runner, **(tool or {})).complete(v1(**fields), ask, nullcontext))
    output = CompletionOutput.model_validate(answer.body)
    assert (answer.prompt_tokens, answer.completion_tokens) == (output.num_prompt_tokens, output.num_completion_tokens)
    return output
