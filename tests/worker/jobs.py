"""Jobs for the tests of the worker: requests, worker processes, and what they generated.

The engine is the stand-in that echoes (`worker/engines/echo.py`): it stands for a model, which these tests don't need,
and writes down which records it generated, which a model would not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from airflow_llmengine.spec.manifest import Manifest


class Job:
    """One job in a folder of its own.

    Args:
        folder: Where input, output and logs lie.
        prompts: The input; written as V2 records, one a line.
    """

    def __init__(self, folder: Path, prompts: Iterable[str], **fields: Any) -> None:
        self.folder = folder
        self.input = folder / "input.jsonl"
        self.output = folder / "output.json"
        self.generated = folder / "generated.log"
        self.fields = fields
        self.write_input(prompts)

    def write_input(self, prompts: Iterable[str]) -> None:
        with self.input.open("w") as lines:
            for prompt in prompts:
                lines.write(json.dumps({"prompt": prompt, "max_tokens": 4}) + "\n")

    @property
    def request(self) -> dict[str, Any]:
        return {
            "input_data_path": str(self.input),
            "output_data_path": str(self.output),
            "model_config": {"model": "stand-in"},
            **self.fields,
        }

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        return {
            **os.environ,
            "LLMENGINE_ENGINE": "echo",
            "LLMENGINE_ECHO_LOG": str(self.generated),
            **(extra or {}),
        }

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a worker process in a session of its own."""
        (self.folder / "request.json").write_text(json.dumps(self.request))
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "airflow_llmengine.worker",
                "run",
                str(self.folder / "request.json"),
                *arguments,
            ],
            env=self.environment(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def run(self, *arguments: str, command: str = "run", **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the job's request to its end."""
        (self.folder / "request.json").write_text(json.dumps(self.request))
        return subprocess.run(
            [
                sys.executable,
                "-m",
                "airflow_llmengine.worker",
                command,
                str(self.folder / "request.json"),
                *arguments,
            ],
            env=self.environment(environment),
            capture_output=True,
            text=True,
            timeout=120,
        )

    def generations(self) -> Counter[int]:
        """How often each record was generated, over all attempts."""
        if not self.generated.exists():
            return Counter()
        return Counter(int(line.split()[0]) for line in self.generated.read_text().splitlines())

    def committed(self) -> dict[int, range]:
        """The chunks that are committed, with their records, from the scratch folders of the job."""
        chunks = {}
        for path in self.folder.glob("output.json.job/*/chunks/*/*.jsonl"):
            if ".part-" in path.name or ".transient-" in path.name:
                continue
            header = json.loads(path.read_bytes().split(b"\n", 1)[0])
            chunks[header["chunk"]] = range(header["first"], header["first"] + header["records"])
        return chunks

    def results(self) -> list[dict[str, Any]]:
        loaded: list[dict[str, Any]] = json.loads(self.output.read_text())
        return loaded

    def manifest(self) -> Manifest:
        return Manifest.model_validate_json((self.folder / "output.json.manifest.json").read_text())


def text_of(result: Mapping[str, Any]) -> str:
    """The text of a V2 completion."""
    text: str = result["choices"][0]["text"]
    return text
