"""A load of vLLM that can be given up, and the end of what it has loaded. Needs no vLLM itself."""

from __future__ import annotations

import asyncio
import concurrent.futures
import multiprocessing
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_llmengine.worker.engines.processes import end_processes, hurrying

WORKER_SHUTDOWN_SECONDS = 1.0
"""How long vLLM's worker processes may take to end before they are killed."""

ENGINE_SHUTDOWN_SECONDS = 3.0
"""How long its engine process may, which frees shared memory once the workers are gone."""

SHUTDOWN_SECONDS = 10.0
"""How long anything of vLLM may."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a load ends with."""

    client: Any
    """vLLM's ``AsyncLLM``."""
    arguments: Any
    """The parsed arguments."""


class Loading:
    """A load of vLLM, in a thread of its own: it takes half a minute and more, and the loop must go on meanwhile.

    The thread is a daemon, and not one of the loop's: nobody waits for it when the load is given up.

    Args:
        load: Loads vLLM; it blocks.
    """

    def __init__(self, load: Callable[[], Loaded]) -> None:
        self._load = load
        self._children_before = {child.pid for child in multiprocessing.active_children()}
        self._loaded: concurrent.futures.Future[Loaded] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name="vllm-load", daemon=True)
        self._thread.start()

    async def result(self) -> Loaded:
        """Wait for the end of the load. See ``VLLMEngine.start`` for what it raises."""
        return await asyncio.wrap_future(self._loaded)

    def end(self) -> None:
        """Give up the load, or end what it has loaded; no process is left."""
        self._loaded.cancel()
        children = [child.pid for child in multiprocessing.active_children() if child.pid not in self._children_before]
        roots = [pid for pid in children if pid is not None]
        if self._loaded.done() and not self._loaded.cancelled() and self._loaded.exception() is None:
            client = self._loaded.result().client
            # vLLM's engine process waits for those below it, and all are long about leaving: there is nothing to save.
            with hurrying(roots, WORKER_SHUTDOWN_SECONDS, ENGINE_SHUTDOWN_SECONDS):
                client.shutdown(timeout=SHUTDOWN_SECONDS)
            # Its finalizer does so once more, and at the interpreter's end it would find nothing left to call.
            client.shutdown = _do_nothing
        end_processes(roots, SHUTDOWN_SECONDS)
        self._thread.join(SHUTDOWN_SECONDS)

    def _run(self) -> None:
        try:
            loaded = self._load()
        except BaseException as error:  # noqa: BLE001 - whatever ended the load, who waits for it must learn it
            if not self._loaded.cancelled():
                self._loaded.set_exception(error)
            return
        try:
            self._loaded.set_result(loaded)
        except concurrent.futures.InvalidStateError:
            loaded.client.shutdown(timeout=0)


def _do_nothing() -> None:
    pass
