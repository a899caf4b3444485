"""vLLM's statistics of its steps, as the worker's. Needs no vLLM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow_llmengine.worker.engines.base import EngineStep


class StepTeller:
    """What vLLM calls a stat logger, of one of its engine processes.

    Args:
        observer: Told each step.
        vllm_config: vLLM's settings.
        engine_index: Which of vLLM's engine processes it is.
    """

    def __init__(self, observer: Callable[[EngineStep], None], vllm_config: Any, engine_index: int = 0) -> None:
        self._observer = observer

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        """Be told of one step."""
        if scheduler_stats is None:
            return
        prefixes = scheduler_stats.prefix_cache_stats
        self._observer(
            EngineStep(
                running=scheduler_stats.num_running_reqs,
                finished=0 if iteration_stats is None else len(iteration_stats.finished_requests),
                waiting=scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs,
                prompt_tokens=prefixes.queries,
                cached_tokens=prefixes.hits,
            )
        )

    def log(self) -> None:
        """Nothing: this is for vLLM's own lines in the log."""

    def log_engine_initialized(self) -> None:
        """Nothing, as with ``log``."""

    def record_sleep_state(self, is_awake: int, level: int) -> None:
        """Nothing: the engine is never put to sleep."""
