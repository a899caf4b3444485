"""Spoiled inputs, requests, records, state documents and chunks: only documented errors come out, in plain words.

Here each fuzzer takes a second or two. ``make fuzz`` goes on with them for as long as it is told, and with
coverage-guided ones where atheris is installed.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_llmengine.worker.records import RawRecord
from tests.fuzz import oracles
from tests.fuzz.inputs import (
    INLINE_REQUEST,
    RECORDS,
    REQUEST,
    VALUES,
    spoiled_bytes,
    spoiled_files,
    spoiled_json,
    spoiled_values,
)
from tests.fuzz.state import CHUNKS, STATE
from tests.worker.readers.files import request_for

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "150"))

fuzzed = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))


def in_file(data: bytes) -> Path:
    path = Path(tempfile.gettempdir()) / f"llmengine-fuzz-{os.getpid()}"
    path.write_bytes(data)
    return path


@fuzzed
@given(spoiled_files())
def test_a_spoiled_file_is_records_row_errors_or_one_job_error(data: bytes) -> None:
    path = in_file(data)
    try:
        oracles.read_file(path)
    finally:
        path.unlink()


@fuzzed
@given(spoiled_json(RECORDS) | st.binary())
def test_a_value_is_taken_as_the_standard_library_does_or_refused(raw: bytes) -> None:
    oracles.read_value(raw)


@fuzzed
@given(st.sampled_from(RECORDS).flatmap(spoiled_values) | VALUES)
def test_a_spoiled_record_is_a_record_or_an_error_in_its_place(value: Any) -> None:
    oracles.judge_record(RawRecord(index=3, location="line 4", value=value, size=9), request_for("/x"))


@fuzzed
@given(spoiled_values(REQUEST) | spoiled_values(INLINE_REQUEST))
def test_a_spoiled_request_is_refused_in_plain_words_or_taken(request: Any) -> None:
    oracles.read_request(request, is_private=True)


@fuzzed
@given(spoiled_json([REQUEST, INLINE_REQUEST]))
def test_a_spoiled_text_of_a_request_is_refused_in_plain_words_or_taken(text: bytes) -> None:
    oracles.read_request(text)


@fuzzed
@given(spoiled_json(STATE) | st.sampled_from(CHUNKS).flatmap(spoiled_bytes))
def test_a_spoiled_state_document_is_read_or_refused(data: bytes) -> None:
    path = in_file(data)
    try:
        oracles.read_state(path)
    finally:
        path.unlink()


@st.composite
def spoiled_chunks(draw: st.DrawFn) -> bytes:
    """One line of a chunk's file with another value, or any bytes of it spoiled."""
    chunk = draw(st.sampled_from(CHUNKS))
    if draw(st.booleans()):
        return draw(spoiled_bytes(chunk))
    lines = chunk.removesuffix(b"\n").split(b"\n")
    place = draw(st.integers(0, len(lines) - 1))
    lines[place] = json.dumps(draw(spoiled_values(json.loads(lines[place])))).encode()
    return b"\n".join(lines) + b"\n"


@fuzzed
@given(spoiled_chunks())
def test_a_spoiled_chunk_is_refused_or_can_be_counted(data: bytes) -> None:
    oracles.read_chunk(data)
