"""What an engine can do beside answering whole records: write on, from tokens of which others may have put some there.

Token ids are the model's own, so that they hold for another engine that has loaded the same model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from airflow_llmengine.spec.results import RecordErrorType, TokenOutput
from airflow_llmengine.worker.engines.base import Engine, RecordRejectedError
from airflow_llmengine.worker.records import Record


@dataclass(frozen=True, slots=True)
class Written:
    """What was written in one go."""

    before: tuple[int, ...]
    """Ids of all tokens before it: the record's prompt, and what it was to go on from."""
    text: str
    """Without the stop sequence that ended it."""
    ids: tuple[int, ...]
    """Ids of the tokens that were generated, those of the stop sequence and of the model's own end among them."""
    tokens: tuple[TokenOutput, ...] | None
    """The same tokens with their log probabilities, if the record asks for them."""
    stop: str | None
    """The stop sequence that ended it; None where the model ended, or the number of tokens was reached."""


class Writer(Protocol):
    """Writes V1 records in several goes. It is of one started engine, and may outlive it."""

    @property
    def context_length(self) -> int:
        """Most tokens of a prompt and its completion together."""

    async def write(
        self, record: Record, before: Sequence[int], *, completed: Sequence[int], stop: str, max_tokens: int
    ) -> Written:
        """Generate once. Cancelling the call aborts the request inside the engine.

        Args:
            record: A V1 record, whose parameters hold, its stop sequences included.
            before: Ids of the tokens to go on from, those of the prompt first; none: begin with the record's prompt.
            completed: The part of them that is the completion's, for what looks at the whole completion (penalties).
            stop: One more stop sequence; where it ends at the same place as one of the record's, it is the one.
            max_tokens: Most tokens of this go.

        Raises:
            RecordRejectedError: For a fault of the record.
            EngineDiedError: When the engine is gone.
        """
        ...

    def encode(self, text: str, *, after: str) -> list[int]:
        """Ids of the tokens of a text that stands after another one; no special tokens are added.

        Raises:
            EngineDiedError: When the engine is gone.
        """
        ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of tokens. Where a character is not whole, there is U+FFFD in its place."""
        ...


@runtime_checkable
class WritesOn(Protocol):
    """An engine that has a ``Writer``."""

    def writer(self) -> Writer:
        """The writer, once the engine has started.

        Raises:
            EngineDiedError: It is not running.
        """
        ...


def writer_of(engine: Engine) -> Writer:
    """The writer of an engine that has started.

    Raises:
        RecordRejectedError: It has none.
        EngineDiedError: It is not running.
    """
    if not isinstance(engine, WritesOn):
        raise RecordRejectedError(
            RecordErrorType.UNSUPPORTED, f"the engine {engine.name} can't write on after a tool: use another engine"
        )
    return engine.writer()
