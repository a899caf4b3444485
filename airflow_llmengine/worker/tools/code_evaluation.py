"""The loop of ``code_evaluator``: the model writes, its code runs, and it writes on after what the code printed.

Only a block that the model has followed by the marker is run, for only there is what follows it meant as its output.
Whatever else ends a completion ends it as it would without the tool: the model's own end, a stop sequence of the
record's, the number of tokens, or a marker without a block since the last one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from airflow_llmengine.spec.code_block_form import MARKER
from airflow_llmengine.spec.request import CreateBatchCompletionsV1RequestContent, ToolConfig
from airflow_llmengine.spec.results import CompletionOutput, RecordErrorType, TokenOutput
from airflow_llmengine.worker.engines.base import Answer, Engine, RecordRejectedError
from airflow_llmengine.worker.engines.writing import Writer, Written, writer_of
from airflow_llmengine.worker.records import PromptRecord, Record
from airflow_llmengine.worker.tools.code_blocks import last_block, shown_output
from airflow_llmengine.worker.tools.code_runner import SandboxUnavailableError
from airflow_llmengine.worker.tools.interpreters import Interpreter, Interpreters
from airflow_llmengine.worker.tools.token_boundaries import text_before, tokens_before

AFTER_CHARACTERS = 16
"""So many characters before an inserted text are enough to see how it is cut into tokens there."""


@dataclass(frozen=True, slots=True)
class _Completion:
    """A completion as far as it stands."""

    text: str = ""
    ids: tuple[int, ...] = ()
    tokens: tuple[TokenOutput, ...] = ()
    """Of the same length as ``ids`` where log probabilities are asked for, else empty."""
    prompt: tuple[int, ...] = ()
    """Ids of the prompt's tokens, once something was generated."""


@dataclass(frozen=True, slots=True)
class _Pause:
    """The model waits for what a block of code prints."""

    completion: _Completion
    """What is whole tokens of it, up to the closing fence."""
    rest: str
    """What else belongs to it: the characters of a token that also held some that are replaced."""
    code: str


_Found = _Completion | _Pause


class Ask(Protocol):
    """Has an engine do something. When it dies of it, the next one may be asked the same again."""

    def __call__(self, question: Callable[[Engine], Awaitable[_Found]], /) -> Awaitable[_Found]:
        """Ask, and give the answer back."""
        ...


class CodeEvaluator:
    """Answers V1 records with completions in which the code has really run.

    Args:
        tool: The job's ``tool_config``.
        interpreters: Where interpreters come from.
    """

    def __init__(self, tool: ToolConfig, interpreters: Interpreters) -> None:
        self._max_iterations = int(tool.effective("max_iterations"))
        self._timeout_seconds = float(tool.effective("execution_timeout_seconds"))
        self._keeps_names = bool(tool.effective("should_retry_on_error"))
        self._interpreters = interpreters

    async def complete(self, record: Record, ask: Ask, away: Callable[[], AbstractContextManager[None]]) -> Answer:
        """Answer one record.

        Args:
            record: A V1 record.
            ask: Asks an engine. Nothing that counts is kept there between two questions, so that each question may be
                answered by another one.
            away: Entered while code runs, when the record asks nothing of the engine.

        Raises:
            RecordRejectedError: A fault of the record, or its code can't be run here just now.
            EngineDiedError: As ``ask`` raises it.
        """
        if not isinstance(record.request, PromptRecord):
            raise RecordRejectedError(RecordErrorType.UNSUPPORTED, "tool_config is for V1 records: leave it out")
        author = _Author(record, record.request.content)
        interpreter = self._interpreters.take()
        iterations = 0
        try:
            found = await ask(author.begin)
            while isinstance(found, _Pause):
                iterations += 1
                insertion = found.rest + shown_output(await self._run(interpreter, found.code, away))
                may_run = iterations < self._max_iterations
                found = await ask(partial(author.go_on, found.completion, insertion, may_run=may_run))
        finally:
            await interpreter.close()
        return author.answer(found)

    async def _run(self, interpreter: Interpreter, code: str, away: Callable[[], AbstractContextManager[None]]) -> str:
        await interpreter.enter()
        try:
            with away():
                output = await interpreter.run(code, self._timeout_seconds)
        except SandboxUnavailableError as error:
            raise RecordRejectedError(
                RecordErrorType.INTERNAL, f"the code in its completion can't be run just now: {error}"
            ) from error
        if not self._keeps_names:
            await interpreter.leave()
        return output.text


class _Author:
    """Makes one record's completion longer, each time from what is given to it."""

    def __init__(self, record: Record, content: CreateBatchCompletionsV1RequestContent) -> None:
        self._record = record
        self._content = content
        self._skip_special_tokens = bool(content.effective("skip_special_tokens"))
        self._with_tokens = bool(content.return_token_log_probs)

    async def begin(self, engine: Engine) -> _Found:
        """Let the model write until it waits for its code, or has ended."""
        return await self._write(writer_of(engine), _Completion(), may_run=True)

    async def go_on(self, completion: _Completion, insertion: str, engine: Engine, *, may_run: bool) -> _Found:
        """Put a text in, as much of it as there is room for, and let the model write on after it."""
        writer = writer_of(engine)
        ids = writer.encode(insertion, after=completion.text[-AFTER_CHARACTERS:])
        room = self._room(writer, completion)
        inserted, decode = ids[:room], partial(writer.decode, skip_special_tokens=False)
        tokens = [TokenOutput(token=decode([one]), log_prob=None) for one in inserted] if self._with_tokens else []
        longer = _Completion(
            text=completion.text + text_before(decode, ids, len(inserted), insertion),
            ids=(*completion.ids, *inserted),
            tokens=(*completion.tokens, *tokens),
            prompt=completion.prompt,
        )
        return await self._write(writer, longer, may_run=may_run) if len(ids) < room else longer

    def answer(self, completion: _Completion) -> Answer:
        """The V1 result."""
        output = CompletionOutput(
            text=completion.text,
            num_prompt_tokens=len(completion.prompt),
            num_completion_tokens=len(completion.ids),
            tokens=list(completion.tokens) if self._with_tokens else None,
        )
        return Answer(output.model_dump(mode="json"), output.num_prompt_tokens, output.num_completion_tokens)

    async def _write(self, writer: Writer, completion: _Completion, *, may_run: bool) -> _Found:
        written = await writer.write(
            self._record,
            (*completion.prompt, *completion.ids),
            completed=completion.ids,
            stop=MARKER,
            max_tokens=self._room(writer, completion),
        )
        text = written.text + MARKER
        block = last_block(text) if may_run and written.stop == MARKER else None
        if block is None:
            return _longer(completion, written, len(written.ids), written.text)
        decode = partial(writer.decode, skip_special_tokens=self._skip_special_tokens)
        count, characters = tokens_before(decode, written.ids, text, block.end)
        kept = _longer(completion, written, count, text[:characters])
        return _Pause(kept, rest=text[characters : block.end], code=block.code)

    def _room(self, writer: Writer, completion: _Completion) -> int:
        """How many tokens the completion may still have."""
        room = self._content.max_new_tokens - len(completion.ids)
        if completion.prompt:
            # The first time, the engine itself says what is too long.
            room = min(room, writer.context_length - len(completion.prompt) - len(completion.ids))
        return room


def _longer(completion: _Completion, written: Written, count: int, text: str) -> _Completion:
    """The completion with the first ``count`` tokens of what was written, which make ``text``."""
    return _Completion(
        text=completion.text + text,
        ids=(*completion.ids, *written.ids[:count]),
        tokens=(*completion.tokens, *(written.tokens or ())[:count]),
        prompt=completion.prompt or written.before,
    )
