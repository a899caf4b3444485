"""Structured answers that max_tokens cut: counted as such in every place that counts records.

The stand-in engine cuts the answers to prompts with its marker; which of them asked for structure, the records say.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.manifest import Manifest
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.status import job_status
from airflow_llmengine.worker.attempt import AttemptOptions, AttemptOutcome, run_attempt
from airflow_llmengine.worker.chunks import Finished
from airflow_llmengine.worker.engines.base import Answer, EngineDiedError
from airflow_llmengine.worker.engines.echo import LENGTH_MARKER, REJECT_MARKER, EchoEngine
from airflow_llmengine.worker.progress import Progress
from airflow_llmengine.worker.records import Record
from airflow_llmengine.worker.stopping import Stop
from tests.worker.jobs import Job

CHOICE = {"guided_choice": ["yes", "no"]}
WHOLE = {"prompt": "one", **CHOICE}
CUT = {"prompt": f"{LENGTH_MARKER} x", **CHOICE}
CUT_TEXT = {"prompt": f"{LENGTH_MARKER} x"}
FAILED = {"prompt": f"{REJECT_MARKER} x", **CHOICE}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path, [])


def write(job: Job, *records: dict[str, Any]) -> None:
    job.input.write_text("".join(json.dumps(record) + "\n" for record in records))


def run(job: Job, make_engine: Callable[..., EchoEngine] = EchoEngine, **options: Any) -> AttemptOutcome:
    return run_attempt(
        Storage(),
        validate_request(job.request),
        AttemptOptions(owner="o", series="s", **options),
        Stop(),
        make_engine=make_engine,
    )


def counts(manifest: Manifest) -> tuple[int, int, int, int]:
    return manifest.records, manifest.succeeded, manifest.truncated, manifest.failed


def test_a_truncated_answer_is_neither_a_success_nor_a_failure(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    batch = {"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": CUT}
    write(job, WHOLE, CUT, CUT_TEXT, FAILED, {"messages": [{"role": "user", "content": CUT["prompt"]}], **CHOICE})
    with caplog.at_level(logging.INFO):
        outcome = run(job, max_error_rate=0.2)
    assert outcome.exit_code is ExitCode.DONE, outcome.message
    assert outcome.message.startswith("5 records, 1 of them failed and 2 truncated, are in ")
    assert counts(job.manifest()) == (5, 2, 2, 1)
    assert "failed: 1 rejected_by_engine, truncated by max_tokens: 2; tokens" in caplog.text
    (warning,) = (line for line in caplog.messages if "finish_reason length" in line)
    assert warning.startswith("2 of 5 records asked for structured output, and max_tokens cut it off")
    # The elements are the API's, and say it by its own means alone.
    element = job.results()[1]
    assert element["choices"][0] == {"index": 0, "text": CUT["prompt"], "logprobs": None, "finish_reason": "length"}
    assert "truncated" not in json.dumps(element)
    write(job, batch)
    assert counts(run(job, overwrite=True).manifest or job.manifest()) == (1, 0, 1, 0)


def test_a_job_of_which_no_answer_is_whole_is_done_and_says_so_loudly(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    write(job, CUT, CUT, FAILED)
    assert run(job).exit_code is ExitCode.DONE
    (warning,) = (record for record in caplog.records if "finish_reason length" in record.getMessage())
    assert warning.levelno == logging.WARNING
    assert warning.getMessage().startswith("No record has a whole answer: 2 of 3 records")
    assert "Raise max_tokens" in warning.getMessage()
    caplog.clear()
    # Also when it is answered from storage.
    assert run(job).manifest == job.manifest()
    assert "No record has a whole answer" in caplog.text


def test_only_failures_count_for_max_error_rate(job: Job) -> None:
    write(job, CUT, CUT, CUT, FAILED)
    assert run(job, max_error_rate=0.25).exit_code is ExitCode.DONE
    assert run(job, max_error_rate=0.2).exit_code is ExitCode.TOO_MANY_FAILED_RECORDS


def test_a_job_of_failures_alone_still_fails(job: Job) -> None:
    write(job, FAILED, FAILED)
    assert run(job).exit_code is ExitCode.TOO_MANY_FAILED_RECORDS


def test_the_count_outlives_the_attempt_that_made_it(job: Job) -> None:
    """An engine that dies leaves a part; the attempt that goes on with it has the part's counts."""
    write(job, CUT, WHOLE, CUT, CUT, WHOLE)

    class DiesAfterThree(EchoEngine):
        async def complete(self, record: Record) -> Answer:
            if record.index >= 3:
                raise EngineDiedError("it was to die")
            return await super().complete(record)

    assert run(job, DiesAfterThree).exit_code is not ExitCode.DONE
    assert list(job.folder.glob("output.json.job/*/chunks/*/*.part-*")) or job.committed()
    generated: list[int] = []

    class Counts(EchoEngine):
        async def complete(self, record: Record) -> Answer:
            generated.append(record.index)
            return await super().complete(record)

    assert run(job, Counts).exit_code is ExitCode.DONE
    assert sorted(generated) == [3, 4]
    assert counts(job.manifest()) == (5, 2, 3, 0)


def test_replicas_and_collect_count_together(job: Job) -> None:
    write(job, *[CUT, WHOLE] * 40)
    for replica in range(2):
        assert run(job, replica=replica, replicas=2).exit_code is ExitCode.DONE
    status = job_status(Storage(), str(job.output))
    assert sum(beat.records_truncated for beat in status.heartbeats) == 40
    assert any(" 0 failed, 40 truncated by max_tokens, " in line for line in status.lines())
    assert job.run(command="collect").returncode == ExitCode.DONE
    assert counts(job.manifest()) == (80, 40, 40, 0)
    status = job_status(Storage(), str(job.output))
    assert status.lines()[0] == "done       80 records, failed: none, truncated by max_tokens: 40"


def test_the_progress_line_tells_of_truncated_answers() -> None:
    progress = Progress(replica=0, replicas=1, total=3)
    progress.count(Finished(element=b"{}"))
    assert "truncated" not in progress.line() + progress.summary()
    progress.count(Finished(element=b"{}", truncated=True))
    assert progress.line().endswith("0 failed, 1 truncated by max_tokens")
    assert ", failed: none, truncated by max_tokens: 1; " in progress.summary()


def test_a_manifest_without_the_count_stays_valid(job: Job) -> None:
    write(job, WHOLE)
    run(job)
    older = job.manifest().model_dump(mode="json", exclude={"truncated"})
    assert Manifest.model_validate(older).truncated == 0
