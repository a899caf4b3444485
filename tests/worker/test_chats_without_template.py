"""Case 9 of the public bug reports: a job of chats for a model that can't render any is refused before it loads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.attempt import AttemptOptions, AttemptOutcome, run_attempt
from airflow_llmengine.worker.engines.base import RendersChats
from airflow_llmengine.worker.engines.echo import EchoEngine
from airflow_llmengine.worker.engines.load import EngineUnavailableError
from airflow_llmengine.worker.readers.chats import RECORDS_THAT_TELL
from airflow_llmengine.worker.stopping import Stop
from tests.worker.jobs import Job

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


class WithoutTemplate(EchoEngine):
    """An engine whose model has no chat template. It answers chats all the same: here they need not fail."""

    def require_chat_template(self, why: Callable[[], str | None]) -> None:
        self.why = why

    async def start(self) -> None:
        why = self.why()
        if why is not None:
            raise EngineUnavailableError(f"{why}, and the model has no chat template")
        await super().start()


@pytest.fixture
def attempt(tmp_path: Path) -> Callable[..., AttemptOutcome]:
    def run(records: list[Any], replica: int = 0, replicas: int = 1, **fields: Any) -> AttemptOutcome:
        job = Job(tmp_path, [], **fields)
        job.input.write_text("".join(json.dumps(record) + "\n" for record in records))
        options = AttemptOptions(owner="test", series="a", replica=replica, replicas=replicas, launched=replica > 0)
        return run_attempt(Storage(), validate_request(job.request), options, Stop(), make_engine=WithoutTemplate)

    return run


def test_the_engine_is_one_that_can_be_told() -> None:
    assert issubclass(WithoutTemplate, RendersChats)
    assert not issubclass(EchoEngine, RendersChats)


def test_each_replica_refuses_a_job_of_chats(attempt: Callable[..., AttemptOutcome], tmp_path: Path) -> None:
    chats = [CHAT] * (RECORDS_THAT_TELL + 500)
    for replica in range(3):
        outcome = attempt(chats, replica, 3)
        assert outcome.exit_code is ExitCode.BAD_REQUEST
        assert (
            outcome.message
            == f"the first {RECORDS_THAT_TELL} records are all chats, and the model has no chat template"
        )
    assert Job(tmp_path, []).committed() == {}


@pytest.mark.parametrize(
    "records",
    [[CHAT] * (RECORDS_THAT_TELL - 1), [*[CHAT] * (RECORDS_THAT_TELL - 1), {"prompt": "hi"}, CHAT]],
    ids=["fewer", "one that is none"],
)
def test_another_job_is_run_record_by_record(attempt: Callable[..., AttemptOutcome], records: list[Any]) -> None:
    outcome = attempt(records)
    assert outcome.exit_code is ExitCode.DONE, outcome.message
    assert outcome.manifest is not None
    assert outcome.manifest.records == len(records)
