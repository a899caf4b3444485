"""The tasks of a group one by one, on real storage and with real workers, without an Airflow around them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_llmengine.exceptions import (
    DeadlineExceededError,
    InputRefusedError,
    JobCancelledError,
    JobIncompleteError,
    JobNotLaunchedError,
    JobSupersededError,
    LLMEngineError,
    RequestRefusedError,
    TaskKilledError,
    TooManyFailedRecordsError,
)
from airflow_llmengine.hooks.leftovers import WorkerMark
from airflow_llmengine.hooks.llmengine import LLMEngineHook
from airflow_llmengine.hooks.worker_attempt import WorkerAttempt
from airflow_llmengine.operators.staging import INLINE_TABLE_BYTES
from airflow_llmengine.operators.task_group import LLMEngineBatchCompletionsTaskGroup
from airflow_llmengine.operators.worker_task import WorkerTaskMixin
from tests.airflow.operators_in_tests import EchoJob, connection, task_context

ONE_A_CHUNK = 200_000
"""Tokens that a record asks for, so that each is a chunk by itself."""


class Tasks:
    """A group's tasks, made anew for each attempt, and what Airflow would keep between them."""

    def __init__(self, job: EchoJob, **arguments: Any) -> None:
        self.job = job
        self.arguments = arguments
        self.xcoms: dict[str, dict[str, Any]] = {}
        self.states: dict[str, str] = {}
        self.tries = 0

    def group(self, **arguments: Any) -> DAG:
        with DAG("dag", schedule=None) as dag:
            LLMEngineBatchCompletionsTaskGroup(
                **{
                    "group_id": "teams",
                    "input_data_path": str(self.job.input),
                    "output_data_path": str(self.job.output),
                    "model_config": {"model": "stand-in"},
                    "data_parallelism": 2,
                    "termination_grace_period": 5,
                    **self.arguments,
                    **arguments,
                }
            )
        return dag

    def context(self, task_id: str, map_index: int = -1) -> Any:
        context = task_context(task_id=task_id, map_index=map_index, max_tries=self.tries)
        ti = context["ti"]
        key = task_id if map_index < 0 else f"{task_id}_{map_index}"
        pushed = self.xcoms[key] = {}
        ti.xcom_push = pushed.__setitem__
        ti.get_task_states = lambda **_criteria: {ti.run_id: self.states}
        ti.xcom_pull = self._pull
        return context

    def _pull(self, *, task_ids: str, key: str, map_indexes: list[int] | None = None) -> Any:
        if map_indexes is None:
            return self.xcoms.get(task_ids, {}).get(key)
        return [self.xcoms.get(f"{task_ids}_{index}", {}).get(key) for index in map_indexes]

    def plan(self, **arguments: Any) -> list[Any]:
        operator: Any = self.group(**arguments).task_dict["teams.plan"]
        context = self.context("teams.plan")
        operator.render_template_fields(context)
        self.states["teams.plan"] = "failed"
        launched: list[Any] = operator.execute(context)
        self.states["teams.plan"] = "success"
        return launched

    def replica(self, launch: Any, **arguments: Any) -> None:
        """Run a replica's task to its end, as an item of the plan's XCom tells it."""
        index = launch["replica"]
        self.states[f"teams.replicas_{index}"] = "failed"
        self.mapped(launch, **arguments).execute(self.context("teams.replicas", index))
        self.states[f"teams.replicas_{index}"] = "success"

    def mapped(self, launch: Any, **arguments: Any) -> Any:
        mapped: Any = self.group(**arguments).task_dict["teams.replicas"]
        operator = mapped.unmap({"launch": launch})
        operator.render_template_fields(self.context("teams.replicas", launch["replica"]))
        return operator

    def collect(self, **arguments: Any) -> dict[str, Any]:
        operator: Any = self.group(**arguments).task_dict["teams.collect"]
        context = self.context("teams.collect")
        operator.render_template_fields(context)
        result: dict[str, Any] = operator.execute(context)
        return result

    def be_late(self) -> None:
        """Have the job's time be over."""
        (document,) = Path(f"{self.job.output}.job").glob("*/job.json")
        document.write_text(json.dumps({**json.loads(document.read_text()), "deadline": 1.0}))

    def failure(self, launch: Any, **arguments: Any) -> LLMEngineError:
        with pytest.raises(LLMEngineError) as failed:
            self.replica(launch, **arguments)
        assert self.xcoms[f"teams.replicas_{launch['replica']}"]["failure"] == str(failed.value)
        return failed.value


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tasks:
    job = EchoJob(tmp_path / "job", [f"row {index}" for index in range(4)], max_tokens=ONE_A_CHUNK)
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(worker_environment=job.environment()))
    return Tasks(job)


@pytest.mark.slow
def test_the_group_owns_its_output_and_one_replica_is_a_group_too(tasks: Tasks) -> None:
    (launch,) = tasks.plan(data_parallelism=None)
    assert launch == {
        "job": {"path": str(tasks.job.output), "fingerprint": launch["job"]["fingerprint"], "generation": 1},
        "owner": "dag/teams",
        "series": "dag/run-1/teams.plan/-1/0",
        "deadline": launch["deadline"],
        "replicas": 1,
        "model": None,
        "replica": 0,
    }
    tasks.replica(launch)
    assert tasks.collect()["records"] == 4
    assert LLMEngineHook().get(str(tasks.job.output)).manifest.owner == "dag/teams"  # type: ignore[union-attr]


def test_a_replica_alone_gets_no_new_budget_and_no_way_around_a_cancel(tasks: Tasks) -> None:
    launch, _ = tasks.plan()
    LLMEngineHook().cancel(launch["job"], "too dear")
    cancelled = tasks.failure(launch)
    assert isinstance(cancelled, JobCancelledError)
    assert "(too dear)" in str(cancelled)

    tasks.tries = 1
    launch, _ = tasks.plan()
    tasks.be_late()
    late = tasks.failure(launch)
    assert isinstance(late, DeadlineExceededError)
    for error in (cancelled, late):
        assert isinstance(error, AirflowFailException)
        assert "Clear teams.plan with its downstream tasks" in str(error)
    assert not tasks.job.generations(), "a worker was started"

    tasks.tries = 2
    launches = tasks.plan()
    assert launches[0]["deadline"] > launch["deadline"]
    assert launches[0]["job"] == launch["job"], "the chunks are kept"


def test_a_zombie_of_an_earlier_generation_stops(tasks: Tasks) -> None:
    old, _ = tasks.plan(if_done="regenerate")
    tasks.tries = 1
    new, _ = tasks.plan(if_done="regenerate")
    assert (old["job"]["generation"], new["job"]["generation"]) == (1, 2)
    superseded = tasks.failure(old)
    assert isinstance(superseded, JobSupersededError)
    assert "since teams.plan launched generation 1. Clear teams.plan" in str(superseded)
    tasks.xcoms["teams.plan"]["launch"] = {**new, "job": old["job"]}
    with pytest.raises(JobSupersededError):
        tasks.collect()
    assert not tasks.job.generations()


@pytest.mark.slow
def test_a_replica_whose_request_is_another_one_fails_in_one_sentence(tasks: Tasks) -> None:
    launch, _ = tasks.plan()
    elsewhere = tasks.failure(launch, output_data_path="{{ ti.task_id }}.json")
    assert isinstance(elsewhere, RequestRefusedError)
    assert str(elsewhere).startswith("output_data_path is ")
    assert "clear teams.plan" in str(elsewhere)
    other = tasks.failure(launch, model_config={"model": "other"})
    assert isinstance(other, InputRefusedError)
    assert "Correct it, and clear teams.plan." in str(other)
    assert not tasks.job.generations()


def test_a_replica_with_other_staged_content_fails_in_one_sentence(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__LLMENGINE__MAX_INLINE_CONTENT_BYTES", "10")
    content = {"prompts": ["PRIVATE"], "max_new_tokens": 4, "temperature": 0}
    launch, _ = tasks.plan(input_data_path=None, content=content)
    other = tasks.failure(launch, input_data_path=None, content={**content, "prompts": ["another"]})
    assert isinstance(other, RequestRefusedError)
    assert str(other).startswith("content is not what it was when the job was launched")
    assert "PRIVATE" not in json.dumps(tasks.xcoms)


@pytest.mark.slow
def test_engine_args_reach_every_worker(tasks: Tasks) -> None:
    tasks.arguments["engine_args"] = {"max_logprobs": "{{ 40 }}", "compilation_config": {"mode": 0}}
    launches = tasks.plan()
    # A worker that is told others finds that it is another job.
    assert "its engine_args or its table are others" in str(tasks.failure(launches[0], engine_args={}))
    for launch in launches:
        tasks.replica(launch)
    assert tasks.collect()["failed"] == 0


@pytest.mark.slow
def test_a_table_reaches_every_worker(tasks: Tasks, tmp_path: Path) -> None:
    output = tmp_path / "out.csv"
    # Larger than what is told on a command line.
    prompt = "{{ prompt }}" + " " * INLINE_TABLE_BYTES
    tasks.arguments |= {
        "table": {"prompt": prompt, "parameters": {"max_tokens": "{{ 4 }}"}, "columns": ["max_tokens"]},
        "output_data_path": str(output),
    }
    launches = tasks.plan()
    for launch in launches:
        tasks.replica(launch)
    other = tasks.failure(launches[0], table={"prompt": "x", "parameters": {"max_tokens": 4}})
    assert "its engine_args or its table are others" in str(other)
    assert tasks.collect()["failed"] == 0
    header, *rows = output.read_text().splitlines()
    assert header.replace('"', "") == "max_tokens,completion"
    assert len(rows) == 4


@pytest.mark.slow
def test_max_error_rate_counts_in_replicas_and_where_they_are_collected(tasks: Tasks) -> None:
    tasks.job.input.write_text('{"prompt": "", "max_tokens": 4}\n' + '{"prompt": "x", "max_tokens": 4}\n' * 3)
    launches = tasks.plan()
    for launch in launches:
        tasks.replica(launch, max_error_rate="{{ 0.5 }}")
    with pytest.raises(TooManyFailedRecordsError, match=r"1 of 4 records failed.*clear teams\.plan with"):
        tasks.collect(max_error_rate=0.1)
    assert not tasks.job.output.exists()
    assert tasks.collect(max_error_rate="{{ 0.5 }}")["failures"] == {"empty_prompt": 1}
    with pytest.raises(TooManyFailedRecordsError):
        tasks.collect(max_error_rate=0.1)


@pytest.mark.slow
def test_collect_tells_a_deadline_and_a_cancel_from_mere_missing_chunks(tasks: Tasks) -> None:
    tasks.plan()
    tasks.states |= {f"teams.replicas_{index}": "failed" for index in range(5)} | {"teams.replicas_5": "success"}
    tasks.xcoms["teams.replicas_1"] = {"failure": "The v1.5 engine died: it did. What was finished is kept."}
    with pytest.raises(JobIncompleteError) as failed:
        tasks.collect()
    assert str(failed.value) == (
        "The job is not done: no replica has read the input to its end. Replica 0: its state is failed; see its log. "
        "Replica 1: The v1.5 engine died: it did. Replica 2: its state is failed; see its log. 2 more replicas did not "
        "succeed. What was finished is kept. Clear the replicas that failed, with their downstream tasks, to go on "
        "within this max_runtime_sec; or teams.plan for a new one."
    )
    assert isinstance(failed.value, AirflowFailException)
    LLMEngineHook().cancel(str(tasks.job.output), "too dear")
    with pytest.raises(JobCancelledError, match=r"^The job is not done: .* Replica 0: .*\(too dear\)"):
        tasks.collect()


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[WorkerAttempt]:
    """What workers were started for."""
    started = []
    run_worker = WorkerTaskMixin._run_worker

    def note(self: Any, context: Any, hook: Any, attempt: WorkerAttempt, request: Any) -> Any:
        started.append(attempt)
        return run_worker(self, context, hook, attempt, request)

    monkeypatch.setattr(WorkerTaskMixin, "_run_worker", note)
    return started


@pytest.mark.slow
def test_past_the_deadline_what_was_made_in_time_is_still_put_together(
    tasks: Tasks, attempts: list[WorkerAttempt]
) -> None:
    launches = tasks.plan()
    for launch in launches:
        tasks.replica(launch)
    made = tasks.job.generations()
    tasks.be_late()
    attempts.clear()
    tasks.replica(launches[0])
    assert not attempts, "nothing is left for it to do"
    assert tasks.collect()["records"] == 4
    # A pod that was given none would not be made, or end at once.
    (collecting,) = attempts
    assert collecting.deadline > time.time()
    assert tasks.job.generations() == made


def test_past_the_deadline_collect_tells_what_is_missing_without_a_worker(
    tasks: Tasks, attempts: list[WorkerAttempt]
) -> None:
    tasks.plan()
    tasks.states["teams.replicas_0"] = "failed"
    tasks.be_late()
    with pytest.raises(DeadlineExceededError, match=r"^The job is not done: .*Replica 0: .* max_runtime_sec is used"):
        tasks.collect()
    assert not attempts


def test_collect_without_a_launch_says_so_before_it_renders_anything(tasks: Tasks) -> None:
    with pytest.raises(JobNotLaunchedError, match=r"teams\.plan launched no job: its state is None"):
        tasks.collect(output_data_path="{{ nothing.of_the_kind }}")
    # What an earlier attempt launched is still in its XCom if the plan did not even begin this time.
    tasks.plan()
    tasks.states["teams.plan"] = "upstream_failed"
    with pytest.raises(JobNotLaunchedError, match=r"teams\.plan launched no job: its state is upstream_failed"):
        tasks.collect()


def test_a_killed_plan_is_no_success(tasks: Tasks) -> None:
    operator: Any = tasks.group().task_dict["teams.plan"]
    operator.on_kill()
    with pytest.raises(TaskKilledError):
        operator.execute(tasks.context("teams.plan"))
    assert "launch" not in tasks.xcoms["teams.plan"]


@pytest.mark.slow
def test_a_replica_ends_its_own_leftovers_only(tasks: Tasks) -> None:
    def leave(replica: int | None) -> subprocess.Popen[bytes]:
        mark = WorkerMark(str(tasks.job.output), replica, launches[0]["series"]).environment()
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"], env=mark, start_new_session=True)

    launches = tasks.plan()
    left = {replica: leave(replica) for replica in (0, 1, None)}
    tasks.replica(launches[1])
    assert {replica: process.poll() is None for replica, process in left.items()} == {0: True, 1: False, None: True}
    tasks.replica(launches[0])
    tasks.collect()
    assert all(process.poll() is not None for process in left.values())
