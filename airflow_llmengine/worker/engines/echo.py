"""The stand-in engine: it answers each record with the record's own prompt, and has no model.

It is there to try a pipeline before there is a GPU, and for tests of everything around an engine. An answer is a
function of its record alone. A token is a word: what stands between white space. Embeddings and scores are made of the
words' hashes: see ``echo_pooling``.

It is set by environment variables:

- ``LLMENGINE_ECHO_SECONDS_PER_RECORD``: how long one record takes (default 0);
- ``LLMENGINE_ECHO_CAPACITY``: how many records it works on at once (default 256);
- ``LLMENGINE_ECHO_LOAD_SECONDS``: how long ``start`` takes (default 0);
- ``LLMENGINE_ECHO_DIES_AFTER``: after how many answers the engine dies (default: never);
- ``LLMENGINE_ECHO_LOG``: a file to which it appends ``<index> <process id>`` for each record that it has generated, so
  that what several processes generated can be counted.

A prompt that starts with ``llmengine-echo:length`` is answered with the ``finish_reason`` ``length``, as one that
``max_tokens`` cut.

A prompt that starts with ``llmengine-echo:reject`` is rejected, one that starts with ``llmengine-echo:die`` ends the
engine, and one that starts with ``llmengine-echo:kill`` the whole process, as when a machine runs out of memory. What
is in work when the engine dies is not answered.

A record whose ``response_format`` is a JSON Schema is answered with some JSON of that schema: see ``echo_structure``.

With a ``tool_config`` the prompt is what a model would write: up to the first marker of a block's output, and after
each block that has run, up to the next one.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
from collections.abc import Mapping
from typing import Any

from airflow_llmengine import __version__
from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.pooling import PoolingFields
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.results import CompletionOutput, RecordErrorType, TokenOutput
from airflow_llmengine.spec.sampling import ResponseFormatJsonSchema
from airflow_llmengine.worker.engines.base import Answer, EngineDiedError, RecordRejectedError
from airflow_llmengine.worker.engines.echo_pooling import pooling_body, texts_of
from airflow_llmengine.worker.engines.echo_structure import structured_text
from airflow_llmengine.worker.engines.echo_writing import EchoWriter, pieces
from airflow_llmengine.worker.engines.spanning import NodePlace
from airflow_llmengine.worker.engines.truncation import is_truncated
from airflow_llmengine.worker.engines.writing import Writer
from airflow_llmengine.worker.records import PromptRecord, Record

LENGTH_MARKER = "llmengine-echo:length"
REJECT_MARKER = "llmengine-echo:reject"
DIE_MARKER = "llmengine-echo:die"
KILL_MARKER = "llmengine-echo:kill"


class EchoEngine:
    """Answers each record with its prompt. See the module for its settings."""

    name = "echo"
    version = __version__

    def __init__(self, request: CreateBatchCompletionsV1Request) -> None:
        self._model = request.model_cfg.served_model_name or request.model_cfg.model
        self._seconds_per_record = _number("LLMENGINE_ECHO_SECONDS_PER_RECORD", 0.0)
        self._load_seconds = _number("LLMENGINE_ECHO_LOAD_SECONDS", 0.0)
        self._capacity = int(_number("LLMENGINE_ECHO_CAPACITY", 256, least=1))
        self._dies_after = _number("LLMENGINE_ECHO_DIES_AFTER", math.inf)
        self._answers = 0
        self._log_path = os.environ.get("LLMENGINE_ECHO_LOG")
        self._log: int | None = None
        self._slots = asyncio.Semaphore(self._capacity)
        self._dead = False

    async def start(self) -> None:
        """Wait as long as it is set to, as if it loaded a model."""
        await asyncio.sleep(self._load_seconds)
        if self._log_path and self._log is None:
            # With O_APPEND the short lines of several processes never mix.
            self._log = os.open(self._log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def take_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Nothing: it has no arguments, as it has no model."""

    def place(self, place: NodePlace) -> None:
        """Nothing: where it stands makes no difference to it."""

    async def follow(self) -> None:
        """Stand for a part of an engine on another node: load, and be there."""
        await asyncio.sleep(self._load_seconds)
        await asyncio.Event().wait()

    @property
    def model_identity(self) -> str | None:
        """The same always: there are no weights."""
        return "echo"

    @property
    def capacity(self) -> int:
        """How many records it works on at once."""
        return self._capacity

    async def complete(self, record: Record) -> Answer:
        """Answer with the prompt."""
        await self._work(record, True)
        return self._answer(record, _prompts(record))

    def writer(self) -> Writer:
        """Writes the prompt in several goes."""
        return EchoWriter(self._work)

    async def _work(self, record: Record, is_first: bool) -> None:
        """What takes its time, and may fail, with each record."""
        self._require_life()
        prompts = _prompts(record)
        for prompt in prompts:
            if prompt == "":
                raise RecordRejectedError(RecordErrorType.EMPTY_PROMPT, "the prompt is empty")
            if prompt.startswith(REJECT_MARKER):
                raise RecordRejectedError(RecordErrorType.REJECTED_BY_ENGINE, f"the prompt starts with {REJECT_MARKER}")
            if prompt.startswith(DIE_MARKER):
                self._dead = True
                raise EngineDiedError(f"a prompt starts with {DIE_MARKER}")
            if prompt.startswith(KILL_MARKER):
                os.kill(os.getpid(), signal.SIGKILL)
                # The first process of a container is spared by its own signal.
                os._exit(128 + signal.SIGKILL)
        async with self._slots:
            await asyncio.sleep(self._seconds_per_record)
        self._require_life()
        self._answers += 1
        if self._log is not None and is_first:
            os.write(self._log, f"{record.index} {os.getpid()}\n".encode())

    def _require_life(self) -> None:
        if self._answers >= self._dies_after:
            self._dead = True
        if self._dead:
            raise EngineDiedError("the stand-in engine has died")

    async def stop(self) -> None:
        """Close the log."""
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def _answer(self, record: Record, prompts: list[str]) -> Answer:
        request = record.request
        words = sum(len(prompt.split()) for prompt in prompts)
        if isinstance(request, PromptRecord):
            output = CompletionOutput(
                text=prompts[0],
                num_prompt_tokens=words,
                num_completion_tokens=words,
                tokens=[TokenOutput(token=piece, log_prob=0.0) for piece in pieces(prompts[0])]
                if request.content.return_token_log_probs
                else None,
            )
            return Answer(output.model_dump(mode="json"), words, words)
        if isinstance(request, PoolingFields):
            return Answer(pooling_body(request, self._model, words), words, 0)
        copies = request.effective("n")
        texts = [_text(request, prompt) for prompt in prompts for _ in range(copies)]
        body: dict[str, Any] = {
            "id": "",
            "object": "text_completion" if isinstance(request, CompletionV2Request) else "chat.completion",
            "created": 0,
            "model": self._model,
            "choices": [_choice(request, index, text) for index, text in enumerate(texts)],
            "usage": {
                "prompt_tokens": words,
                "completion_tokens": words * copies,
                "total_tokens": words * (copies + 1),
            },
        }
        return Answer(body, words, words * copies, truncated=is_truncated(request, body["choices"]))


def _text(request: CompletionV2Request | ChatCompletionV2Request, prompt: str) -> str:
    form = request.response_format
    if not isinstance(form, ResponseFormatJsonSchema) or prompt.startswith(LENGTH_MARKER):
        return prompt
    return structured_text(prompt, form.json_schema.schema_ or {})


def _choice(request: CompletionV2Request | ChatCompletionV2Request, index: int, text: str) -> dict[str, Any]:
    finish_reason = "length" if text.startswith(LENGTH_MARKER) else "stop"
    if isinstance(request, CompletionV2Request):
        return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}
    message = {"role": "assistant", "content": text, "refusal": None}
    return {"index": index, "message": message, "logprobs": None, "finish_reason": finish_reason}


def _prompts(record: Record) -> list[str]:
    """The record's prompts as texts: token ids as numbers with spaces between them, of a chat its last message."""
    request = record.request
    if isinstance(request, PromptRecord):
        return [request.prompt]
    if isinstance(request, ChatCompletionV2Request):
        content = request.messages[-1].get("content") if request.messages else None
        parts = content if isinstance(content, list) else [{"text": content or ""}]
        return ["".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))]
    if isinstance(request, PoolingFields):
        return texts_of(request)
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt]
    if prompt and isinstance(prompt[0], int):
        return [_ids(prompt)]
    return [one if isinstance(one, str) else _ids(one) for one in prompt or [""]]


def _ids(ids: Any) -> str:
    return " ".join(map(str, ids))


def _number(variable: str, default: float, *, least: float = 0.0) -> float:
    text = os.environ.get(variable)
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number < math.inf:
        raise ValueError(f"the environment variable {variable} is {text!r}: it must be a number, at least {least:g}")
    return number
