"""Azure Blob Storage over HTTP: Microsoft's own emulator, Azurite, which is a package of npm."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that Azurite has, and its key, which everybody knows."""


def find_azurite() -> Path | None:
    """The program: where ``.ci/run`` puts it, or on the path; None if it is not installed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    put_there = cache / "airflow-llmengine" / "azurite" / "node_modules" / ".bin" / "azurite-blob"
    found = shutil.which("azurite-blob")
    return put_there if put_there.exists() else Path(found) if found else None


class Azurite:
    """A running emulator with nothing in it; what is put there is gone when it stops.

    Args:
        program: Where it is.
    """

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen(
            [program, "--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdout is not None
        said = []
        for line in self._process.stdout:
            said.append(line)
            listening = re.search(r"successfully listens on (http://\S+)", line)
            if listening is not None:
                break
        else:
            self.stop()
            raise AssertionError(f"Azurite did not start: {''.join(said)}")
        self.endpoint = f"{listening.group(1)}/{ACCOUNT}"

    def stop(self) -> None:
        # Told to end, it waits for connections that clients keep.
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def connection_string(self) -> str:
        return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={self.endpoint};"

    @property
    def options(self) -> dict[str, Any]:
        """What ``Storage`` takes for ``az``."""
        return {"connection_string": self.connection_string}

    def new_container(self, name: str) -> str:
        from azure.storage.blob import BlobServiceClient

        with BlobServiceClient.from_connection_string(self.connection_string) as client:
            client.create_container(name)
        return name
