"""How many interpreters there may be, and which engines can be written on with."""

from __future__ import annotations

import resource
from typing import Any, cast

import pytest

from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.engines.base import RecordRejectedError
from airflow_llmengine.worker.engines.echo import EchoEngine
from airflow_llmengine.worker.engines.echo_writing import EchoWriter
from airflow_llmengine.worker.engines.writing import WritesOn, writer_of
from airflow_llmengine.worker.nodes.leading import LeadingEngine
from airflow_llmengine.worker.tools import interpreters
from tests.worker.engines.test_echo import job

GIB = 2**30


@pytest.mark.parametrize(
    ("memory", "files", "processes", "most"),
    [
        (0, 10**6, None, 8),
        (4 * GIB, 10**6, None, 16),
        (32 * GIB, 10**6, None, 128),
        (1024 * GIB, 10**6, None, 256),
        (32 * GIB, 1024, None, 64),
        (32 * GIB, resource.RLIM_INFINITY, None, 128),
        (32 * GIB, resource.RLIM_INFINITY, 200, 50),
        (32 * GIB, resource.RLIM_INFINITY, 0, 8),
    ],
)
def test_interpreters_are_as_many_as_memory_open_files_and_processes_allow(
    monkeypatch: pytest.MonkeyPatch, memory: int, files: int, processes: int | None, most: int
) -> None:
    monkeypatch.setattr(interpreters, "available_processes", lambda: processes)
    monkeypatch.setattr(interpreters, "available_memory", lambda: memory)
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (files, files))
    assert interpreters.affordable_interpreters() == most


def test_a_replica_of_several_nodes_writes_on_with_the_engine_that_it_leads() -> None:
    engine = LeadingEngine(EchoEngine(job()), cast(Any, None), patience=1)
    assert isinstance(engine, WritesOn)
    assert isinstance(writer_of(engine), EchoWriter)


def test_an_engine_without_a_writer_refuses_the_record_and_says_so() -> None:
    class Simple:
        name = "simple"

    with pytest.raises(RecordRejectedError, match="the engine simple can't write on after a tool") as caught:
        writer_of(cast(Any, Simple()))
    assert caught.value.error_type is RecordErrorType.UNSUPPORTED
