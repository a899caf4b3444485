"""The pipe between a launcher and its worker: it brings the credentials, and its end means that the launcher died.

An engine survives a SIGKILL of its parent and goes on computing, with all of the GPU's memory. A worker whose launcher
is gone therefore ends itself and its whole process group.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import Any, BinaryIO

from airflow_llmengine.worker.stopping import Stop, StopReason

FIRST_LINE_LIMIT = 1 << 20


class LauncherPipe:
    """The worker's end.

    Args:
        descriptor: The inherited file descriptor.
    """

    def __init__(self, descriptor: int) -> None:
        self._pipe: BinaryIO = os.fdopen(descriptor, "rb")
        os.set_inheritable(self._pipe.fileno(), False)

    def read_storage_options(self) -> dict[str, dict[str, Any]]:
        """Read the first line: ``{"storage_options": {<protocol>: {...}}}``; empty when the launcher sent none."""
        line = self._pipe.readline(FIRST_LINE_LIMIT)
        options = json.loads(line).get("storage_options", {}) if line.strip() else {}
        return {str(protocol): dict(values) for protocol, values in options.items()}

    def watch(self, stop: Stop, grace_seconds: float) -> None:
        """Stop, and then end the process group, when the launcher's end of the pipe closes."""

        def wait_for_end() -> None:
            while self._pipe.read(1):
                pass
            timer = threading.Timer(grace_seconds, _end_group)
            timer.daemon = True
            timer.start()
            stop.request(
                StopReason.LAUNCHER_GONE,
                "the process that launched this worker is gone; what is finished is kept",
                seconds=0.9 * grace_seconds,
            )

        threading.Thread(target=wait_for_end, name="launcher-pipe", daemon=True).start()


def _end_group() -> None:
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
