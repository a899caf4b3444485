"""vLLM's part on a further node of a replica: its worker processes, which do what the first node's engine says."""

from __future__ import annotations

import asyncio
import concurrent.futures
import multiprocessing
import threading
from collections.abc import Callable
from typing import Any

from airflow_llmengine.worker.engines.base import EngineDiedError
from airflow_llmengine.worker.engines.processes import end_processes

PATIENCE_SECONDS = 3.0
"""How long vLLM's worker processes may take to end before they are killed: there is nothing to save."""


class Following:
    """vLLM's executor of another node than the first, in a thread of its own, as ``vllm serve --headless`` runs it.

    Args:
        configure: Makes vLLM's configuration.
    """

    def __init__(self, configure: Callable[[], Any]) -> None:
        self._configure = configure
        self._children_before = {child.pid for child in multiprocessing.active_children()}
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._executor: Any = None
        self._thread = threading.Thread(target=self._run, name="vllm-follower", daemon=True)
        self._thread.start()

    async def result(self) -> None:
        """Wait until a worker process has ended.

        Raises:
            EngineUnavailableError: vLLM refuses the settings.
            EngineDiedError: They could not be started.
        """
        await asyncio.wrap_future(self._ended)

    def end(self) -> None:
        """End them."""
        self._ended.cancel()
        if self._executor is not None:
            # It would take their end for an accident.
            self._executor.shutting_down = True
        children = [child.pid for child in multiprocessing.active_children() if child.pid not in self._children_before]
        end_processes([pid for pid in children if pid is not None], PATIENCE_SECONDS)
        self._thread.join(PATIENCE_SECONDS)

    def _run(self) -> None:
        try:
            self._compute(self._configure())
        except BaseException as error:  # noqa: BLE001 - whatever ended it, who waits for it must learn it
            if not self._ended.cancelled():
                self._ended.set_exception(error)
            return
        if not self._ended.cancelled():
            self._ended.set_result(None)

    def _compute(self, config: Any) -> None:
        from vllm.v1.executor.multiproc_executor import MultiprocExecutor

        try:
            self._executor = MultiprocExecutor(config, monitor_workers=False)
        except Exception as error:
            raise EngineDiedError(
                f"vLLM's processes did not start, and their own log lines say why ({type(error).__name__})"
            ) from error
        self._executor.start_worker_monitor(inline=True)
