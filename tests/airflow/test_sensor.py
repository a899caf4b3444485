"""The sensor and its trigger wait for real workers of the stand-in engine, without an Airflow around them."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)
from airflow.serialization.serialized_objects import DagSerialization

from airflow_llmengine.exceptions import (
    ConnectionUnusableError,
    DeadlineExceededError,
    JobCancelledError,
    JobSupersededError,
    LLMEngineError,
    RequestRefusedError,
    ResultMissingError,
    StorageFailedError,
    StorageRefusedError,
    TaskKilledError,
    TooManyFailedRecordsError,
)
from airflow_llmengine.hooks.job_watch import FAILED_LOOKS
from airflow_llmengine.hooks.llmengine import LLMEngineHook
from airflow_llmengine.sensors.batch_completions import LLMEngineBatchCompletionsSensor
from airflow_llmengine.spec.job_state import Heartbeat, InputEnd
from airflow_llmengine.storage.filesystem import Location, content_identity
from airflow_llmengine.storage.job_directory import JobDirectory
from airflow_llmengine.triggers.batch_completions import LLMEngineBatchCompletionsTrigger
from tests.airflow.operators_in_tests import connection, task_context
from tests.waiting import wait_until
from tests.worker.jobs import Job

CONTENT_IDENTITY = "airflow_llmengine.storage.job_directory.content_identity"
"""What reads an output to compare it with its manifest."""

RECORDS = 40
SLOW = {"LLMENGINE_ECHO_SECONDS_PER_RECORD": "0.2", "LLMENGINE_ECHO_CAPACITY": "1"}
"""Eight seconds for all of them."""


class StateStore(dict[str, Any]):
    """Stands for the task's state store, which is behind the API server."""

    def set(self, key: str, value: Any) -> None:
        self[key] = json.loads(json.dumps(value))


def context(store: StateStore | None = None, **fields: Any) -> Any:
    given = task_context(task_id="wait", task_state_store=StateStore() if store is None else store, **fields)
    given["ti"].get_first_reschedule_date = lambda _context: None
    return given


def sensor(job: Any, **arguments: Any) -> LLMEngineBatchCompletionsSensor:
    return LLMEngineBatchCompletionsSensor(**{"task_id": "wait", "job": job, "poke_interval": 0.2, **arguments})


@pytest.fixture(autouse=True)
def _connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection())


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path, [f"row {index}" for index in range(RECORDS)])


@pytest.fixture
def running(job: Job) -> Iterator[subprocess.Popen[bytes]]:
    """Its worker, at work."""
    worker = job.start(**SLOW)
    wait_until(lambda: job.generations().total() >= 1)
    yield worker
    worker.kill()
    worker.communicate()


@pytest.fixture
def running_long(job: Job) -> Iterator[subprocess.Popen[bytes]]:
    """Its worker, at work for far longer than the 5 s after which it looks whether it was cancelled."""
    worker = job.start(**SLOW | {"LLMENGINE_ECHO_SECONDS_PER_RECORD": "1"})
    wait_until(lambda: job.generations().total() >= 1)
    yield worker
    worker.kill()
    worker.communicate()


def handle_of(job: Job) -> dict[str, Any]:
    handle = LLMEngineHook().get(str(job.output)).handle
    assert handle is not None
    return handle.model_dump(mode="json")


def defer(task: LLMEngineBatchCompletionsSensor, given: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(given)
    return deferred.value


def fired(trigger: Any) -> dict[str, Any]:
    """The trigger's event, as Airflow brings it back: by way of its serialized form."""
    classpath, arguments = trigger.serialize()
    assert classpath == f"{LLMEngineBatchCompletionsTrigger.__module__}.LLMEngineBatchCompletionsTrigger"
    again = LLMEngineBatchCompletionsTrigger(**json.loads(json.dumps(arguments)))

    async def first() -> Any:
        return [event async for event in again.run()]

    (event,) = asyncio.run(first())
    payload: dict[str, Any] = json.loads(json.dumps(event.payload))
    return payload


def waited(task: LLMEngineBatchCompletionsSensor, given: Any) -> Any:
    """What a deferrable sensor gives, its trigger run to the end."""
    event = fired(defer(task, given).trigger)
    again = sensor(task.job, **{name: getattr(task, name) for name in ("on_timeout", "deferrable", "soft_fail")})
    again.max_runtime_sec = task.max_runtime_sec
    return again.execute_complete(given, event)


def test_it_hands_on_what_the_operator_does(job: Job) -> None:
    job.run()
    manifest = job.manifest()
    result = sensor(str(job.output)).execute(context())
    assert result == {
        "output_data_path": str(job.output),
        "manifest_path": f"{job.output}.manifest.json",
        "records": RECORDS,
        "succeeded": RECORDS,
        "truncated": 0,
        "skipped": 0,
        "failed": 0,
        "failures": {},
        "repeated": 0,
        "cached": 0,
        "prompt_tokens": manifest.prompt_tokens,
        "completion_tokens": manifest.completion_tokens,
        "model": "stand-in",
        "job": manifest.handle.model_dump(mode="json"),
    }
    # By the handle, by that very result, and by what a template makes of either.
    for form in (result["job"], result, str(result["job"]), json.dumps(result)):
        assert sensor(form).execute(context()) == result


@pytest.mark.slow
def test_it_waits_for_a_running_worker(job: Job, running: subprocess.Popen[bytes]) -> None:
    handle = handle_of(job)
    assert sensor(handle).poke(context()) is False
    result = sensor(handle).execute(context())
    assert result["records"] == RECORDS
    assert result["job"] == handle


@pytest.mark.slow
def test_it_waits_in_the_triggerer(job: Job, running: subprocess.Popen[bytes]) -> None:
    result = waited(sensor(handle_of(job), deferrable=True), context())
    assert result["records"] == RECORDS


@pytest.mark.slow
def test_a_job_that_is_not_there_yet_is_waited_for(job: Job) -> None:
    given = context()
    deferred = defer(sensor(str(job.output), deferrable=True), given)
    worker = job.start()
    event = fired(deferred.trigger)
    assert event["outcome"] == "finished"
    assert sensor(str(job.output), deferrable=True).execute_complete(given, event)["records"] == RECORDS
    worker.communicate()


def test_a_finished_job_is_not_deferred_for(job: Job) -> None:
    job.run()
    assert sensor(str(job.output), deferrable=True).execute(context())["records"] == RECORDS


@pytest.mark.slow
def test_past_the_deadline_the_job_is_cancelled_and_its_worker_stops(
    job: Job, running_long: subprocess.Popen[bytes]
) -> None:
    with pytest.raises(DeadlineExceededError, match=r"\d+ of .* records and \d+ of .* chunks are done\.") as late:
        sensor(handle_of(job), max_runtime_sec=1).execute(context())
    assert isinstance(late.value, AirflowFailException)
    assert "cancelled" in str(late.value)
    assert "clear the task that launches it, with a larger max_runtime_sec" in str(late.value)
    _output, log = running_long.communicate(timeout=60)
    assert b"past the deadline of the sensor dag/wait" in log
    assert not job.output.exists()
    assert 1 <= job.generations().total() < RECORDS


@pytest.mark.slow
def test_the_trigger_cancels_by_itself(job: Job, running_long: subprocess.Popen[bytes]) -> None:
    given = context()
    deferred = defer(sensor(handle_of(job), max_runtime_sec="3", deferrable=True), given)
    event = fired(deferred.trigger)
    assert event["outcome"] == "deadline"
    running_long.communicate(timeout=60)
    assert not job.output.exists()
    cancelled = LLMEngineHook().get(str(job.output)).cancelled
    with pytest.raises(DeadlineExceededError, match="It was cancelled"):
        sensor(handle_of(job), max_runtime_sec="3", deferrable=True).execute_complete(given, event)
    assert LLMEngineHook().get(str(job.output)).cancelled == cancelled, "cancelled twice"


@pytest.mark.slow
def test_past_the_deadline_the_job_can_be_left_to_itself(job: Job, running: subprocess.Popen[bytes]) -> None:
    for deferrable in (False, True):
        task = sensor(handle_of(job), max_runtime_sec=0.1, on_timeout="leave", deferrable=deferrable)
        with pytest.raises(DeadlineExceededError, match="It was left alone, and may go on"):
            task.execute(context())
    running.communicate(timeout=60)
    assert len(job.results()) == RECORDS


@pytest.mark.slow
def test_the_jobs_own_deadline_holds_unless_another_is_given(tmp_path: Path) -> None:
    job = Job(tmp_path, ["row"] * 10, max_runtime_sec=1)
    job.run(**SLOW)
    assert not job.output.exists()
    time.sleep(0.1)
    with pytest.raises(DeadlineExceededError, match="did not end by its deadline"):
        sensor(str(job.output), on_timeout="leave").execute(context())
    assert sensor(str(job.output), max_runtime_sec=3600).poke(context()) is False


def test_soft_fail_skips_and_says_why(job: Job) -> None:
    job.run()
    LLMEngineHook().create(
        {**job.request, "model_config": {"model": "another"}}, owner="me", series="s", overwrite=True
    )
    job.output.unlink()
    LLMEngineHook().cancel(str(job.output), "too dear")
    for deferrable in (False, True):
        with pytest.raises(AirflowSkipException, match=r"cancelled \(too dear\).*soft_fail"):
            sensor(str(job.output), soft_fail=True, deferrable=deferrable).execute(context())
    with pytest.raises(AirflowSkipException, match="did not look"):
        sensor("x", soft_fail=True).execute_complete(
            context(), {"error": "StorageFailedError", "message": "did not look", "first_look": 1.0}
        )
    with pytest.raises(AirflowSkipException, match="Nothing was launched"):
        sensor(str(job.folder / "never"), soft_fail=True, timeout=0).execute(context())


def test_a_cancelled_job_fails_at_once(job: Job) -> None:
    LLMEngineHook().create(job.request, owner="me", series="s")
    LLMEngineHook().cancel(str(job.output), "too dear")
    for form in (str(job.output), handle_of(job)):
        with pytest.raises(JobCancelledError, match=r"\(too dear\).*clear the task that launches it") as failed:
            sensor(form).execute(context())
        assert isinstance(failed.value, AirflowFailException)
        event = fired(LLMEngineBatchCompletionsTrigger(job=form))
        assert event["outcome"] == "cancelled"


def test_a_handle_that_is_not_current_any_more_is_superseded(job: Job) -> None:
    LLMEngineHook().create(job.request, owner="me", series="one")
    old = handle_of(job)
    LLMEngineHook().create({**job.request, "model_config": {"model": "new"}}, owner="me", series="two")
    with pytest.raises(JobSupersededError, match="took over"):
        sensor(old).execute(context())
    # The path means the new one, which is waited for.
    assert sensor(str(job.output)).poke(context()) is False
    assert sensor(handle_of(job)).poke(context()) is False


@pytest.mark.slow
def test_the_result_of_a_superseded_job_stands_until_it_is_replaced(job: Job) -> None:
    job.run()
    finished = job.manifest().handle.model_dump(mode="json")
    LLMEngineHook().create({**job.request, "model_config": {"model": "new"}}, owner="me", series="two", overwrite=True)
    assert sensor(finished).execute(context())["records"] == RECORDS
    # By the path it is another job's result that is waited for.
    assert sensor(str(job.output)).poke(context()) is False


def test_an_output_that_somebody_changed_is_no_result_and_read_once(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.run()
    text = job.output.read_text()
    job.output.write_text(text.replace("row 1", "row 0"))
    reads: list[str] = []

    def read(place: Location) -> str:
        reads.append(place.url)
        return content_identity(place)

    monkeypatch.setattr(CONTENT_IDENTITY, read)
    with pytest.raises(ResultMissingError, match="somebody changed or deleted it"):
        sensor(str(job.output)).execute(context())
    assert len(reads) == 1
    # The trigger leaves the reading to the task.
    assert fired(LLMEngineBatchCompletionsTrigger(job=str(job.output)))["outcome"] == "finished"
    assert len(reads) == 1


def test_while_it_waits_no_output_is_read(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.run()
    LLMEngineHook().create({**job.request, "model_config": {"model": "new"}}, owner="me", series="two", overwrite=True)
    monkeypatch.setattr(CONTENT_IDENTITY, lambda _place: pytest.fail("the old output was read"))
    assert sensor(str(job.output)).poke(context()) is False


@pytest.mark.slow
def test_max_error_rate_is_judged_as_the_operator_does(job: Job) -> None:
    job.input.write_text('{"prompt": "", "max_tokens": 4}\n' + '{"prompt": "x", "max_tokens": 4}\n')
    job.run()
    result = sensor(str(job.output)).execute(context())
    assert (result["failed"], result["failures"]) == (1, {"empty_prompt": 1})
    with pytest.raises(TooManyFailedRecordsError, match="1 of 2 records failed"):
        sensor(str(job.output), max_error_rate="0.1").execute(context())


def test_a_job_that_never_comes_ends_by_the_sensors_clock(job: Job) -> None:
    with pytest.raises(AirflowSensorTimeout, match=r"Nothing was launched for .*output\.json in 0 s, which"):
        sensor(str(job.output), timeout=0).execute(context())
    with pytest.raises(DeadlineExceededError, match=r"Nothing was launched for .* within the 0\.001 s"):
        sensor(str(job.output), max_runtime_sec=0.001).execute(context())
    assert sensor(str(job.output)).timeout > 10 * 365 * 24 * 3600 - 1
    event = fired(LLMEngineBatchCompletionsTrigger(job=str(job.output), timeout=60.0, first_look=time.time() - 61))
    assert event["outcome"] == "timeout"


def test_the_first_look_is_kept_through_reschedules_deferrals_and_retries(job: Job) -> None:
    store = StateStore()
    with pytest.raises(AirflowRescheduleException):
        sensor(str(job.output), mode="reschedule").execute(context(store))
    first = store["llmengine_sensor"]["first_look"]
    deferred = defer(sensor(str(job.output), deferrable=True), context(store))
    _, arguments = deferred.trigger.serialize()
    assert arguments["first_look"] == first
    store["llmengine_sensor"]["first_look"] -= 100
    # The base class would begin anew with this try.
    with pytest.raises(AirflowSensorTimeout):
        sensor(str(job.output), mode="reschedule", timeout=90).execute(context(store))
    with pytest.raises(DeadlineExceededError):
        sensor(str(job.output), max_runtime_sec=90).execute(context(store))
    # A clear waits anew.
    assert sensor(str(job.output), max_runtime_sec=90).poke(context(store, max_tries=5)) is False


def test_a_sensor_that_was_started_from_its_trigger_counts_from_the_triggers_start(job: Job) -> None:
    from datetime import UTC, datetime

    trigger = LLMEngineBatchCompletionsTrigger(job=str(job.output), timeout=5000.0, trigger_timeout=5060.0)
    began = time.time() - 5001
    trigger.timeout_after = datetime.fromtimestamp(began + 5060, UTC)

    async def first() -> Any:
        return await asyncio.wait_for(anext(trigger.run()), timeout=60)

    event = asyncio.run(first()).payload
    assert event["outcome"] == "timeout"
    assert event["first_look"] == pytest.approx(began)
    store = StateStore()
    with pytest.raises(AirflowSensorTimeout):
        sensor(str(job.output), timeout=5000).execute_complete(context(store), event)
    assert store["llmengine_sensor"]["first_look"] == event["first_look"]


def test_a_trigger_whose_clock_is_ahead_is_believed(job: Job) -> None:
    LLMEngineHook().create({**job.request, "max_runtime_sec": 100}, owner="me", series="s")
    event = {"outcome": "deadline", "now": time.time() + 101, "first_look": time.time()}
    with pytest.raises(DeadlineExceededError):
        sensor(str(job.output), deferrable=True).execute_complete(context(), event)


def test_a_relaunch_between_the_event_and_the_task_is_waited_for(job: Job) -> None:
    LLMEngineHook().create(job.request, owner="me", series="s")
    event = {"outcome": "cancelled", "now": time.time(), "first_look": time.time()}
    with pytest.raises(TaskDeferred):
        sensor(str(job.output), deferrable=True).execute_complete(context(), event)


def test_a_projected_end_past_the_deadline_is_warned_of_once(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    launch = LLMEngineHook().create({**job.request, "max_runtime_sec": 1000}, owner="me", series="s")
    scratch = JobDirectory(LLMEngineHook().storage(), str(job.output)).scratch(launch.handle)
    scratch.write_end(InputEnd(records=10_000, chunks=100))

    def work(records_per_second: float) -> None:
        now = time.time()
        scratch.write_heartbeat(
            Heartbeat(
                replica=0,
                replicas=1,
                phase="generating",
                host="h",
                pid=1,
                started=now,
                updated=now,
                records_per_second=records_per_second,
            )
        )

    def warnings(poke: Callable[[], object]) -> list[str]:
        capsys.readouterr()
        poke()
        return [line for line in capsys.readouterr().out.splitlines() if "will be late" in line]

    task, given = sensor(str(job.output)), context()
    work(20.0)
    assert not warnings(lambda: task.poke(given))
    work(5.0)
    (line,) = warnings(lambda: task.poke(given))
    assert "warning" in line
    assert re.search(r"at 5\.0 records/s of 1 replica, .* it ends 0:16:\d\d after its deadline \d{4}-", line)
    assert "More replicas (data_parallelism) or a larger max_runtime_sec help" in line
    work(4.9)
    assert not warnings(lambda: task.poke(given))
    work(2.0)
    assert warnings(lambda: task.poke(given))
    # Each process of a rescheduled sensor knows what the one before said.
    store = StateStore()
    assert warnings(lambda: sensor(str(job.output), mode="reschedule").poke(context(store)))
    assert not warnings(lambda: sensor(str(job.output), mode="reschedule").poke(context(store)))


def break_job(job: Job) -> Path:
    """Make the job directory unreadable as what it should be."""
    LLMEngineHook().create(job.request, owner="me", series="s")
    current = Path(f"{job.output}.job/current.json")
    current.rename(current.with_suffix(".kept"))
    current.write_text("{")
    return current


def mend_job(current: Path) -> None:
    current.with_suffix(".kept").replace(current)


def test_a_first_look_that_is_refused_fails_at_once(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    break_job(job)
    with pytest.raises(StorageRefusedError, match=r"current\.json"):
        sensor(str(job.output)).execute(context())
    event = fired(LLMEngineBatchCompletionsTrigger(job=str(job.output)))
    assert event["error"] == "StorageRefusedError"
    with pytest.raises(StorageRefusedError, match=r"current\.json"):
        sensor(str(job.output)).execute_complete(context(), event)
    monkeypatch.delenv("AIRFLOW_CONN_LLMENGINE_DEFAULT")
    with pytest.raises(ConnectionUnusableError):
        sensor(str(job.output)).execute(context())
    assert fired(LLMEngineBatchCompletionsTrigger(job="x"))["error"] == "ConnectionUnusableError"


def test_a_storage_that_is_away_for_a_while_is_borne_with(job: Job) -> None:
    mend_job(break_job(job))
    task, given = sensor(str(job.output)), context()
    assert task.poke(given) is False
    current = Path(f"{job.output}.job/current.json")
    current.replace(current.with_suffix(".kept"))
    current.write_text("{")
    for _ in range(FAILED_LOOKS - 1):
        assert task.poke(given) is False
    mend_job(current)
    assert task.poke(given) is False
    current.replace(current.with_suffix(".kept"))
    current.write_text("{")
    for _ in range(FAILED_LOOKS - 1):
        assert task.poke(given) is False
    with pytest.raises(StorageFailedError, match="5 looks at the job in a row failed") as failed:
        task.poke(given)
    assert not isinstance(failed.value, AirflowFailException)


def test_failed_looks_are_counted_through_reschedules(job: Job) -> None:
    mend_job(break_job(job))
    store = StateStore()
    sensor(str(job.output), mode="reschedule").poke(context(store))
    Path(f"{job.output}.job/current.json").write_text("{")
    for _ in range(FAILED_LOOKS - 1):
        assert sensor(str(job.output), mode="reschedule").poke(context(store)) is False
    with pytest.raises(StorageFailedError):
        sensor(str(job.output), mode="reschedule").poke(context(store))


def test_a_sensor_that_airflow_ends_does_not_succeed_any_more(job: Job) -> None:
    job.run()
    task = sensor(str(job.output), soft_fail=True)
    task.on_kill()
    with pytest.raises(TaskKilledError, match="The job goes on"):
        task.execute(context())


@pytest.mark.slow
def test_ending_the_waiting_leaves_the_job_alone(job: Job, running: subprocess.Popen[bytes]) -> None:
    trigger = LLMEngineBatchCompletionsTrigger(job=str(job.output))
    asyncio.run(trigger.on_kill())
    sensor(str(job.output)).on_kill()
    running.communicate(timeout=60)
    assert len(job.results()) == RECORDS


def test_every_error_that_a_trigger_can_report_is_raised_as_what_it_is(job: Job) -> None:
    from airflow_llmengine import exceptions

    for name in ("StorageFailedError", "StorageRefusedError", "ConnectionUnusableError", "RequestRefusedError"):
        with pytest.raises(LLMEngineError) as raised:
            sensor("x").execute_complete(context(), {"error": name, "message": "m", "first_look": 1.0})
        assert type(raised.value) is getattr(exceptions, name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"job": {"path": "x"}}, "job is no job handle, which has path, fingerprint and generation"),
        ({"job": ""}, "it must be a job handle or an output_data_path"),
        ({"job": 3}, "job is a int"),
        ({"job": "x", "on_timeout": "kill"}, "on_timeout is 'kill'; it must be one of cancel, leave"),
        ({"job": "x", "max_runtime_sec": 0}, "max_runtime_sec is 0; it must be a positive number"),
        ({"job": "x", "max_runtime_sec": "soon"}, "max_runtime_sec is 'soon'"),
        ({"job": "x", "max_error_rate": 2}, "max_error_rate is 2"),
    ],
)
def test_what_can_not_be_is_refused_when_the_dag_is_parsed(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestRefusedError, match=message):
        LLMEngineBatchCompletionsSensor(task_id="wait", **arguments)


def test_templates_are_rendered_and_checked_when_the_task_runs(job: Job) -> None:
    job.run()
    handle = {"path": "{{ path }}", "fingerprint": "{{ fingerprint }}", "generation": "{{ 1 }}"}
    task = sensor(handle, max_runtime_sec="{{ 60 }}", llmengine_conn_id="{{ 'llmengine_default' }}")
    given = context(path=str(job.output), fingerprint=job.manifest().fingerprint)
    task.render_template_fields(given)
    assert task.execute(given)["records"] == RECORDS
    task = sensor("{{ none }}")
    task.render_template_fields(given)
    with pytest.raises(RequestRefusedError, match="Did the task that runs the job hand one on"):
        task.execute(given)
    task = sensor("{{ 'x' }}", max_runtime_sec="{{ -1 }}")
    task.render_template_fields(given)
    with pytest.raises(RequestRefusedError, match="max_runtime_sec"):
        task.execute(given)


def test_what_start_from_trigger_can_not_do_is_refused_when_the_dag_is_parsed() -> None:
    from airflow.sdk import DAG, task, task_group

    with DAG("dag", schedule=None) as dag:

        @task
        def launch() -> str:
            return "path"

        @task
        def take(number: int) -> str:
            return str(number)

        @task_group
        def each(number: int) -> None:
            sensor("path", start_from_trigger=True)

        path: Any = launch()
        wait = sensor(path, start_from_trigger=True)
        assert wait.deferrable
        assert wait.start_trigger_args is not None
        arguments: Any = wait.start_trigger_args.trigger_kwargs
        assert arguments["job"] == (
            "{{ task_instance.xcom_pull(task_ids='launch', dag_id='dag', key='return_value', map_indexes=-1) }}"
        )
        assert wait.upstream_task_ids == {"launch"}
        many: Any = take.expand(number=[1, 2])
        mixed: list[Any] = [path.map(str), many, {"path": path, "fingerprint": "f", "generation": 1}]
        for number, job in enumerate(mixed):
            with pytest.raises(RequestRefusedError, match="start_from_trigger does not go with a job that comes from"):
                sensor(job, task_id=f"other_{number}", start_from_trigger=True)
        with pytest.raises(RequestRefusedError, match="does not go with dynamic task mapping"):
            LLMEngineBatchCompletionsSensor.partial(task_id="mapped", start_from_trigger=True).expand(job=["a"])
        with pytest.raises(RequestRefusedError, match="does not go with a mapped task group"):
            each.expand(number=[1, 2])
        with pytest.raises(RequestRefusedError, match="add map_indexes=-1"):
            sensor("{{ ti.xcom_pull('launch') }}", task_id="pull", start_from_trigger=True)
        sensor("{{ ti.xcom_pull('launch', map_indexes=-1) }}", task_id="pull_one", start_from_trigger=True)
        with pytest.raises(RequestRefusedError, match=r"^start_from_trigger does not go with macros\.llmengine in job"):
            sensor("out/{{ macros.llmengine.run_slug(dag_run) }}", task_id="slug", start_from_trigger=True)
        LLMEngineBatchCompletionsSensor.partial(task_id="good", deferrable=True).expand(job=["a", "b"])
    DagSerialization.from_dict(DagSerialization.to_dict(dag))


def test_no_secret_goes_into_the_trigger(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "c3VwZXIgc2VjcmV0"
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(storage_conn_id="storage"))
    monkeypatch.setenv("AIRFLOW_CONN_STORAGE", json.dumps({"conn_type": "aws", "login": "AKIA0", "password": secret}))
    deferred = defer(sensor(str(job.output), deferrable=True), context())
    assert secret not in str(deferred.trigger.serialize())
    assert secret not in repr(deferred.trigger)
    assert set(deferred.trigger.serialize()[1]) == {
        "job",
        "llmengine_conn_id",
        "max_runtime_sec",
        "on_timeout",
        "timeout",
        "poke_interval",
        "first_look",
        "trigger_timeout",
    }
