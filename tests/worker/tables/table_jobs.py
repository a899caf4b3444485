"""Jobs with a table, run in this process with the stand-in engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.manifest import Manifest
from airflow_llmengine.spec.table import parse_table
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.job_directory import JobDirectory
from airflow_llmengine.worker.attempt import (
    AttemptOptions,
    AttemptOutcome,
    collect_job,
    join_job,
    run_attempt,
    table_output,
)
from airflow_llmengine.worker.engines.base import Engine
from airflow_llmengine.worker.engines.echo import EchoEngine
from airflow_llmengine.worker.readers import open_input
from airflow_llmengine.worker.stopping import Stop

PROMPT = {"prompt": "{{ text }}", "parameters": {"max_tokens": 16}}


class TableJob:
    """One job in a folder of its own, or below any other URL."""

    def __init__(self, source: Path | str, target: Path | str, table: Mapping[str, Any], **options: Any) -> None:
        self.source = str(source)
        self.target = str(target)
        self.table = dict(table)
        self.options = options
        self.storage = Storage()

    def run(self, make_engine: Callable[..., Engine] = EchoEngine, **options: Any) -> AttemptOutcome:
        request = validate_request(self.request, parse_table(self.table))
        return run_attempt(self.storage, request, self._attempt(options), Stop(), make_engine=make_engine)

    def collect(self, **options: Any) -> AttemptOutcome:
        """Put the output together, as the command does, of a job that replicas have done."""
        table = parse_table(self.table)
        request = validate_request(self.request, table)
        reader = open_input(self.storage, request, table)
        launch = join_job(self.storage, request, input_identity=reader.identity, engine="echo", table=table)
        directory = JobDirectory(self.storage, request.output_data_path)
        output = table_output(reader, request, table)
        return collect_job(directory, launch, request, "echo", self._attempt(options), output)

    @property
    def request(self) -> dict[str, Any]:
        return {
            "input_data_path": self.source,
            "output_data_path": self.target,
            "model_config": {"model": "stand-in"},
        }

    def _attempt(self, options: Mapping[str, Any]) -> AttemptOptions:
        table = parse_table(self.table)
        return AttemptOptions(**{"owner": "o", "series": "s", "table": table, **self.options, **options})

    def done(self, make_engine: Callable[..., Engine] = EchoEngine, **options: Any) -> Manifest:
        outcome = self.run(make_engine, **options)
        assert outcome.exit_code is ExitCode.DONE, outcome.message
        assert outcome.manifest is not None
        return outcome.manifest


def write_parquet(path: Path, columns: Mapping[str, Any], **options: Any) -> Path:
    """Write a small Parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(dict(columns)), path, **options)
    return path


def files_below(folder: Path) -> list[str]:
    """All files and empty folders below one, hidden ones included."""
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() or not any(path.iterdir())
    )
