"""Waiting for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], seconds: float = 120) -> None:
    """Look again and again until it is so; fails the test when it is not so in time."""
    latest = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < latest, f"it did not come about in {seconds} s"
        time.sleep(0.05)
