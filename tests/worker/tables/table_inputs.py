"""Tables opened as a job's input."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.table import parse_table
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.readers import open_input
from airflow_llmengine.worker.readers.validate import to_record
from airflow_llmengine.worker.records import RawRecord, Record
from airflow_llmengine.worker.tables.table_input import TableInput

TABLE = {"prompt": "{{ text }}", "parameters": {"max_tokens": 16}}


def opened(source: Path | str, table: Mapping[str, Any] = TABLE, storage: Storage | None = None) -> TableInput:
    """Open a table as ``input_data_path``; what is not given in ``table`` is as in ``TABLE``."""
    given = {**TABLE, **table}
    if given.get("messages"):
        given.pop("prompt")
    parsed = parse_table(given)
    request = validate_request(
        {
            "input_data_path": str(source),
            "output_data_path": "/nowhere/output.parquet",
            "model_config": {"model": "stand-in"},
        },
        parsed,
    )
    reader = open_input(storage or Storage(), request, parsed)
    assert isinstance(reader, TableInput)
    return reader


def raw_records(source: Path | str, table: Mapping[str, Any] = TABLE, **options: Any) -> list[RawRecord]:
    return list(opened(source, table, **options).records())


def prompts(source: Path | str, prompt: str, **table: Any) -> list[str | None]:
    """What a template makes of each row: its prompt, the message of its error, or None of a skipped row."""
    return [
        None if raw.skipped else raw.error.message if raw.error is not None else raw.value["prompt"]
        for raw in raw_records(source, {"prompt": prompt, **table})
    ]


def validated(raw: RawRecord) -> Any:
    """What a record is, past all checks; the message of its error."""
    request = validate_request(
        {"input_data_path": "/in", "output_data_path": "/out.jsonl", "model_config": {"model": "stand-in"}}
    )
    record = to_record(raw, request, None)
    return record.request if isinstance(record, Record) else record.message
