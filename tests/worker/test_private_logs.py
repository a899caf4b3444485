"""Prompts and outputs are in no log above DEBUG, whatever goes wrong, and in no document of the job directory."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.worker.logs import configure_logs
from tests.worker.jobs import Job

PRIVATE = "qzprivateqz"

PATHS: dict[str, tuple[list[str], list[str], dict[str, str]]] = {
    "done": ([PRIVATE], [], {}),
    "rejected": ([PRIVATE, f"llmengine-echo:reject {PRIVATE}"], [], {}),
    "every record fails": ([f"llmengine-echo:reject {PRIVATE}"], [], {}),
    "too many fail": ([PRIVATE, f"llmengine-echo:reject {PRIVATE}"], ["--max-error-rate", "0.1"], {}),
    "the engine dies of a record": ([PRIVATE, f"llmengine-echo:die {PRIVATE}"], [], {}),
    "the engine dies again and again": ([PRIVATE] * 3, [], {"LLMENGINE_ECHO_DIES_AFTER": "0"}),
    "the worker is killed": ([PRIVATE, f"llmengine-echo:kill {PRIVATE}"], [], {}),
    "the engine is not there": ([PRIVATE], [], {"LLMENGINE_ENGINE": "nothing"}),
    "two of them": ([PRIVATE, PRIVATE], ["--replica", "1", "--replicas", "2"], {}),
}


def told_by(job: Job, *outputs: str) -> str:
    """All that a job tells: its logs, and its documents, which are everything but the results themselves."""
    documents = [
        path.read_text()
        for path in job.folder.rglob("output.json*/**/*")
        if path.is_file() and "chunks" not in path.parts
    ]
    manifest = job.folder / "output.json.manifest.json"
    return "\n".join([*outputs, *documents, manifest.read_text() if manifest.exists() else ""])


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("path", PATHS)
def test_no_prompt_is_told_whatever_goes_wrong(tmp_path: Path, path: str, log_format: str) -> None:
    prompts, arguments, environment = PATHS[path]
    job = Job(tmp_path, prompts)
    done = job.run(*arguments, "--log-format", log_format, **environment)
    told = told_by(job, done.stdout, done.stderr)
    assert "stand-in" in told or done.stderr
    assert PRIVATE not in told
    assert "Traceback" not in told


SPOILED: dict[str, bytes] = {
    "an invalid record": json.dumps({"prompt": PRIVATE, "temperature": PRIVATE, "max_tokns": PRIVATE}).encode(),
    "a wrong prompt": json.dumps({"prompt": {PRIVATE: PRIVATE}}).encode(),
    "a cut line": json.dumps({"prompt": PRIVATE}).encode()[:-2],
    "half a surrogate pair": b'{"prompt": "' + PRIVATE.encode() + b'\\ud800"}',
    "not UTF-8": b'{"prompt": "' + PRIVATE.encode() + b'\xff"}',
    "a cut document": b'[{"prompt": "' + PRIVATE.encode() + b'"},',
    "a wrong content object": json.dumps({"prompts": [PRIVATE], "temperature": PRIVATE}).encode(),
    "a wrong batch line": json.dumps({"custom_id": "c", "body": {"prompt": PRIVATE, "n": PRIVATE}}).encode(),
}


@pytest.mark.parametrize("what", SPOILED)
def test_no_text_of_an_input_that_can_not_be_read_is_told(tmp_path: Path, what: str) -> None:
    job = Job(tmp_path, [])
    job.input.write_bytes(SPOILED[what])
    done = job.run()
    assert done.returncode != 0
    assert PRIVATE not in told_by(job, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "chunk", [b"PRIVATE", b'{"chunk": "PRIVATE"}', b'{"chunk":0,"first":0,"records":1}\n"PRIVATE"\n']
)
def test_no_text_of_a_damaged_chunk_is_told(tmp_path: Path, chunk: bytes) -> None:
    job = Job(tmp_path, ["a", "b", "llmengine-echo:reject"])
    assert job.run("--max-error-rate", "0").returncode == 65
    for path in tmp_path.glob("output.json.job/*/chunks/*/*.jsonl"):
        path.write_bytes(chunk.replace(b"PRIVATE", PRIVATE.encode()))
    done = job.run()
    assert PRIVATE not in told_by(job, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr


def test_no_prompt_is_told_by_a_worker_that_is_stopped(tmp_path: Path) -> None:
    job = Job(tmp_path, [PRIVATE] * 200)
    worker = job.start(LLMENGINE_ECHO_SECONDS_PER_RECORD="0.2", LLMENGINE_ECHO_CAPACITY="4")
    ends_at = time.monotonic() + 60
    while not job.generations() and time.monotonic() < ends_at:
        time.sleep(0.02)
    worker.send_signal(signal.SIGTERM)
    out, err = worker.communicate(timeout=60)
    assert worker.returncode == 75
    assert PRIVATE not in told_by(job, out.decode(), err.decode())


@pytest.mark.parametrize("verbose", [False, True])
def test_an_exception_that_nobody_fetched_is_told_at_debug_only(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, verbose: bool
) -> None:
    """The event loop shows it with its text, which may be an engine's and quote a prompt."""
    loggers = [logging.getLogger(name) for name in ("asyncio", "airflow_llmengine")]
    before: list[dict[str, Any]] = [dict(vars(logger)) for logger in loggers]
    for logger in loggers:
        monkeypatch.setattr(logger, "handlers", list(logger.handlers))
    try:
        configure_logs("text", verbose=verbose)

        async def fail() -> None:
            raise ValueError(PRIVATE)

        async def forget() -> None:
            task = asyncio.create_task(fail())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            del task
            gc.collect()

        asyncio.run(forget())
    finally:
        for logger, values in zip(loggers, before, strict=True):
            logger.setLevel(values["level"])
            logger.propagate = values["propagate"]
    shown = capfd.readouterr().err
    assert (PRIVATE in shown) is verbose
    assert ("an exception was not fetched" in shown) is not verbose
