"""How often and how long a transient failure of a store is tried again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from airflow_llmengine.storage.failures import is_transient

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounds of trying again. Waits grow exponentially and are random, so that replicas don't return all at once."""

    attempts: int = 8
    """Calls at most, the first included."""
    total_seconds: float = 120.0
    """No further attempt begins later than this after the first."""
    first_wait_seconds: float = 0.5
    """Upper bound of the first wait; each next one's is twice as long."""
    longest_wait_seconds: float = 15.0

    def call(self, function: Callable[[], T]) -> T:
        """Call ``function`` until it succeeds, fails for good, or the bounds are reached; then its error is raised."""
        import tenacity  # here, so that importing the Airflow ring does not pay for it

        retrying = tenacity.Retrying(
            stop=tenacity.stop_any(
                tenacity.stop_after_attempt(self.attempts), tenacity.stop_before_delay(self.total_seconds)
            ),
            wait=tenacity.wait_random_exponential(multiplier=self.first_wait_seconds, max=self.longest_wait_seconds),
            retry=tenacity.retry_if_exception(is_transient),
            reraise=True,
        )
        return retrying(function)
