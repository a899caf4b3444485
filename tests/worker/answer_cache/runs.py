"""Whole runs in this process, with the stand-in engine, which tells what it generated."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from airflow_llmengine.spec.manifest import Manifest
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.attempt import AttemptOptions, AttemptOutcome, run_attempt
from airflow_llmengine.worker.engines.base import Answer
from airflow_llmengine.worker.engines.echo import EchoEngine
from airflow_llmengine.worker.records import Record
from airflow_llmengine.worker.stopping import Stop


class Engines:
    """Makes engines, and knows what all of them did."""

    def __init__(self, *, version: str = "1", identity: str | None = "echo") -> None:
        self.started = 0
        self.generated: list[int] = []
        self.version = version
        self.identity = identity

    def __call__(self, request: CreateBatchCompletionsV1Request) -> EchoEngine:
        engines = self

        class Counted(EchoEngine):
            version = engines.version

            @property
            def model_identity(self) -> str | None:
                return engines.identity

            async def start(self) -> None:
                engines.started += 1
                await super().start()

            async def complete(self, record: Record) -> Answer:
                engines.generated.append(record.index)
                return await super().complete(record)

        return Counted(request)


class Run:
    """One run of a job of its own."""

    def __init__(
        self,
        folder: Path,
        name: str,
        records: Iterable[Mapping[str, Any] | str],
        *,
        cache: str | None,
        storage: Storage | None = None,
        engines: Engines | None = None,
        stop: Stop | None = None,
        fields: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.engines = engines or Engines()
        source = folder / f"{name}.in.jsonl"
        lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
        source.write_text("".join(f"{line}\n" for line in lines))
        self.output = folder / f"{name}.jsonl"
        request = {
            "input_data_path": str(source),
            "output_data_path": str(self.output),
            "model_config": {"model": "stand-in"},
            **(fields or {}),
        }
        self.outcome: AttemptOutcome = run_attempt(
            storage or Storage(),
            CreateBatchCompletionsV1Request.model_validate(request),
            AttemptOptions(owner="test", series=name, cache_path=cache, **options),
            stop or Stop(),
            make_engine=self.engines,
        )

    @property
    def generated(self) -> list[int]:
        return sorted(self.engines.generated)

    @property
    def manifest(self) -> Manifest:
        assert self.outcome.manifest is not None, self.outcome.message
        return self.outcome.manifest

    def results(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.read_text().splitlines()]


def prompts(rows: Iterable[int], **fields: Any) -> list[dict[str, Any]]:
    """Completions that are decoded greedily, one for each row."""
    return [{"prompt": f"row {row}", "max_tokens": 4, "temperature": 0, **fields} for row in rows]
