"""How far a fetch is: told to the log now and then, and to whoever shows it elsewhere."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

LINE_SECONDS = 30.0
"""How often a line is logged."""

Say = Callable[[str], None]
"""Shows in a few words, elsewhere than in the log, what is going on."""


def say_nothing(_words: str) -> None:
    """For who shows it nowhere."""


class FetchProgress:
    """Bytes of one fetch. Its methods may be called from any thread.

    Args:
        what: What is fetched, as it may be shown.
        total: Bytes in all; None if unknown.
        say: Is told each line too.
        measured: Gives the bytes that are there, where nobody calls ``add``.
    """

    def __init__(
        self, what: str, total: int | None, *, say: Say = say_nothing, measured: Callable[[], int] | None = None
    ) -> None:
        self._what = what
        self._total = total
        self._say = say
        self._measured = measured
        self._done = 0
        self._found = 0
        self._started = time.monotonic()
        self._lock = threading.Lock()

    def add(self, size: int, *, found: bool = False) -> None:
        """Count bytes that are there now; ``found``: that an earlier worker had fetched."""
        with self._lock:
            self._done += size
            self._found += size if found else 0

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Log a line at the beginning, now and then, and, if it ends well, at the end."""
        ended = threading.Event()
        logger.info("fetching %s%s", self._what, "" if self._total is None else f": {shown_bytes(self._total)}")
        self._say(f"fetching {self._what}")
        ticker = threading.Thread(target=self._tick, args=(ended,), name="fetch-progress", daemon=True)
        ticker.start()
        try:
            yield
        finally:
            ended.set()
            ticker.join()
            self._say("")
        seconds = time.monotonic() - self._started
        found = f", of which {shown_bytes(self._found)} were there already" if self._found else ""
        size = self._bytes() if self._total is None else self._total
        logger.info("fetched %s: %s in %.1f s%s", self._what, shown_bytes(size), seconds, found)

    def _tick(self, ended: threading.Event) -> None:
        while not ended.wait(LINE_SECONDS):
            line = self.line()
            logger.info("%s", line)
            self._say(line)

    def line(self) -> str:
        """Bytes done of bytes in all, and bytes a second since the beginning."""
        done = self._bytes()
        speed = (done - self._found) / max(1e-3, time.monotonic() - self._started)
        of = "" if self._total is None else f" of {shown_bytes(self._total)}"
        return f"fetching {self._what}: {shown_bytes(done)}{of}, {shown_bytes(int(speed))}/s"

    def _bytes(self) -> int:
        return self._done if self._measured is None else self._measured()


def shown_bytes(size: int) -> str:
    """A size for people, in decimal units, as stores and disks count."""
    value = float(size)
    for unit in ("bytes", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"
