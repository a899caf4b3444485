"""Valid state documents and chunk files, for the fuzzers to spoil."""

from __future__ import annotations

import json
from typing import Any

from airflow_llmengine.spec.job_state import (
    CancelRequest,
    Claim,
    CurrentJob,
    Heartbeat,
    InputEnd,
    JobDocument,
    PinnedInput,
    PinnedModel,
)
from airflow_llmengine.spec.manifest import Manifest
from airflow_llmengine.worker.chunks import Finished, encode_results
from tests.fuzz.inputs import PRIVATE

_NOW = 1_700_000_000.0

STATE: list[dict[str, Any]] = [
    document.model_dump(mode="json")
    for document in (
        CurrentJob(fingerprint="0123abcd", generation=2, owner="dag/task", series="dag/run/task/-1/0"),
        JobDocument(
            plugin_version="1", request={}, owner="o", series="s", created=_NOW, launched=_NOW, deadline=_NOW + 9
        ),
        PinnedInput(input_identity="i", input_format="json_lines", chunk_records=256, chunk_tokens=1000),
        PinnedModel(model_identity=None, engine="echo", engine_version="1"),
        InputEnd(records=7, chunks=2),
        CancelRequest(fingerprint="0123abcd", generation=2, reason="by hand", requested=_NOW),
        Claim(replica=0, attempt="a", host="h", pid=1, claimed=_NOW),
        Heartbeat(
            replica=0,
            replicas=2,
            phase="generating",
            host="h",
            pid=1,
            started=_NOW,
            updated=_NOW,
            failures={"timeout": 1},
            chunks_committed=[(0, 3)],
        ),
        Manifest(
            output_data_path="/out.json",
            fingerprint="0123abcd",
            generation=2,
            owner="o",
            output_format="json",
            output_bytes=3,
            output_sha256="0",
            records=7,
            succeeded=6,
            failed=1,
            failures={"timeout": 1},
            prompt_tokens=1,
            completion_tokens=2,
            model="m",
            engine="echo",
            created=_NOW,
            finished=_NOW,
        ),
    )
]


def _element(**value: Any) -> bytes:
    return json.dumps(value).encode()


_FINISHED = [
    Finished(_element(text=PRIVATE, num_prompt_tokens=2, num_completion_tokens=3), None, 2, 3),
    Finished(_element(error={"type": "timeout", "message": PRIVATE, "index": 17}), "timeout"),
    Finished(
        _element(id="b", custom_id="c", response={"body": {"usage": {"prompt_tokens": 1, "completion_tokens": 1}}}),
        None,
        1,
        1,
    ),
]

CHUNKS: list[bytes] = [encode_results(1, 16, _FINISHED, None), encode_results(1, 16, _FINISHED, [16, 17, 40])]
"""A whole chunk and a part."""
