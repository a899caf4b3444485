"""vLLM's own server, as a process of its own, and its answers over HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

AT_ONCE = 40
"""Requests that are under way together; somewhat more than the engine runs at once, as the worker keeps it."""


class ApiServer:
    """A server that starts; it listens on a socket in ``folder``, so that no port is taken.

    Args:
        model: The model's directory.
        folder: For the socket and the log; its path is short enough for a socket.
        arguments: Further arguments of the server.
    """

    def __init__(self, model: Path, folder: Path, *arguments: str) -> None:
        self._socket = folder / "socket"
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)),
                    *("--uds", str(self._socket), *arguments),
                ],
                env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def answers(self, requests: Sequence[tuple[str, dict[str, Any]]]) -> list[tuple[int, Any]]:
        """Ask, many at once and in order; the status and the body of each response. Waits for the start first."""
        return asyncio.run(self._answers(requests))

    async def _answers(self, requests: Sequence[tuple[str, dict[str, Any]]]) -> list[tuple[int, Any]]:
        transport = httpx.AsyncHTTPTransport(uds=str(self._socket))
        places = asyncio.Semaphore(AT_ONCE)
        async with httpx.AsyncClient(transport=transport, base_url="http://server", timeout=600) as client:

            async def ask(url: str, body: dict[str, Any]) -> tuple[int, Any]:
                async with places:
                    response = await client.post(url, json=body)
                    return response.status_code, response.json()

            await self._started(client)
            return await asyncio.gather(*(ask(url, body) for url, body in requests))

    async def _started(self, client: httpx.AsyncClient) -> None:
        deadline = time.monotonic() + 500
        while True:
            if self._process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"vLLM's server did not start: {self._log.read_text()[-4000:]}")
            try:
                if (await client.get("/health")).is_success:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.2)

    def end(self) -> None:
        """End it with all its processes, which are one group."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
