"""What the worker asks of an engine. Another engine is one new module and one entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.records import Record
from airflow_llmengine.worker.weights.model_source import ModelFinder


class EngineDiedError(Exception):
    """The engine is gone or could not be started; no record can be answered any more by this one."""


class RecordRejectedError(Exception):
    """The engine can't answer this one record; it is alive and goes on with the others."""

    def __init__(self, error_type: RecordErrorType, message: str) -> None:
        super().__init__(message)
        self.error_type = error_type
        self.message = message


@dataclass(slots=True)
class Answer:
    """The answer to a record, and to every other one that asks the same.

    What only the job and the record's place give it (``id``, ``created``, ``metadata``) it need not have.
    """

    body: dict[str, Any]
    """V1: the fields of ``CompletionOutput``. V2 and chat: the API's response object. A tool call whose ``id`` is the
    empty string is named by its place in the output."""
    prompt_tokens: int
    completion_tokens: int
    truncated: bool = False
    """Whether it is structured output of which ``max_tokens`` cut off the end, in one of its choices at least."""


class Engine(Protocol):
    """An engine that answers records. All methods but the constructor run in one asyncio loop."""

    name: str
    """What results and manifest call it, for example ``vllm``."""
    version: str
    """Its version; known before it is started."""

    async def start(self) -> None:
        """Load the model.

        Raises ``EngineDiedError``; and when it can't be had, ``ModelNotFoundError``, ``ModelChangedError`` or
        ``StorageError``.
        """

    @property
    def model_identity(self) -> str | None:
        """The weights that were loaded, once started: a hub revision or a digest; None where it can't be told."""

    @property
    def capacity(self) -> int:
        """How many sequences the engine runs at once. The worker keeps somewhat more in flight."""

    async def complete(self, record: Record) -> Answer:
        """Answer one record. Cancelling the call aborts the request inside the engine.

        Raises ``RecordRejectedError`` for a fault of the record, ``EngineDiedError`` when the engine is gone.
        """

    async def stop(self) -> None:
        """Free everything, processes included. Safe to call twice, and after a failed start."""


class ModelNotFoundError(Exception):
    """The model or checkpoint does not exist or can't be read; the message says what was looked for and where."""


class ModelChangedError(Exception):
    """The weights are not those that an earlier attempt of the same job loaded."""


@runtime_checkable
class LoadsModel(Protocol):
    """An engine that has weights to load. Before it is started it is told how to find them."""

    def load_from(self, find: ModelFinder) -> None:
        """Load what ``find`` gives. It blocks, perhaps for hours, while the weights are fetched to this machine."""
        ...


@runtime_checkable
class TakesArguments(Protocol):
    """An engine that can be given further arguments, beyond the request's."""

    def take_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Be told them, right after it was made.

        Raises ``EngineUnavailableError`` for one that this version of it does not have.
        """
        ...


@runtime_checkable
class RendersChats(Protocol):
    """An engine whose model may have no template by which to write a chat. It finds out when it is started."""

    def require_chat_template(self, why: Callable[[], str | None]) -> None:
        """Refuse such a model in ``start``, by ``EngineUnavailableError``, and before its weights are loaded.

        Args:
            why: Says what the job needs one for, as the beginning of a sentence; None: it does not. It reads some of
                the input, so it is asked only where there is none.
        """
        ...


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """Where an engine keeps what it has computed of prompts, and finds what the next ones have in common with them."""

    tokens: int
    """How many it holds at most, with those of the records in work; what was not used for longest goes first."""
    block_tokens: int
    """It keeps and finds blocks of so many tokens, each together with all that stands before it."""


@runtime_checkable
class CachesPrefixes(Protocol):
    """An engine that computes what several prompts begin with only once, as long as it keeps it."""

    def prefix_cache(self) -> PrefixCache | None:
        """What it keeps, once started; None: nothing."""
        ...


@dataclass(frozen=True, slots=True)
class EngineStep:
    """What an engine says of itself after one step of its own loop."""

    running: int
    """Sequences that it works on, without those that ended in this step."""
    finished: int
    """Sequences that ended in this step, for which nothing has taken their place yet."""
    waiting: int
    """Sequences that wait for a place among them."""
    prompt_tokens: int
    """Tokens of the prompts that it began with in this step."""
    cached_tokens: int
    """Those of them that it found in its prefix cache."""


@runtime_checkable
class TellsSteps(Protocol):
    """An engine that counts, if somebody wants to know: counting has its price."""

    def tell_steps(self, observer: Callable[[EngineStep], None]) -> None:
        """Call ``observer`` after each step, in the asyncio loop. To be said before ``start``."""
        ...


class EngineFactory(Protocol):
    """What the entry point group ``airflow_llmengine.engines`` names. Must be cheap: the engine loads in ``start``."""

    def __call__(self, request: CreateBatchCompletionsV1Request) -> Engine:
        """Make the engine for this job; nothing is loaded yet."""
