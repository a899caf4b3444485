"""The operator runs real worker processes of the stand-in engine, without an Airflow around it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_llmengine.exceptions import (
    ConnectionUnusableError,
    InputRefusedError,
    LaunchForbiddenError,
    RequestRefusedError,
    StorageRefusedError,
    TaskKilledError,
    TooManyFailedRecordsError,
    WorkerDiedError,
)
from airflow_llmengine.hooks.leftovers import MARK_VARIABLE, WorkerMark
from airflow_llmengine.hooks.llmengine import LLMEngineHook
from tests.airflow.operators_in_tests import EchoJob, connection, run, task_context
from tests.waiting import wait_until


def test_a_job_gives_its_summary_and_never_data(echo_job: EchoJob) -> None:
    result = run(echo_job.operator())

    assert echo_job.texts() == [f"row {index}" for index in range(12)]
    assert result == {
        "output_data_path": str(echo_job.output),
        "manifest_path": f"{echo_job.output}.manifest.json",
        "records": 12,
        "succeeded": 12,
        "truncated": 0,
        "skipped": 0,
        "failed": 0,
        "failures": {},
        "repeated": 0,
        "cached": 0,
        "prompt_tokens": 24,
        "completion_tokens": 24,
        "model": "stand-in",
        "job": {"path": str(echo_job.output), "fingerprint": result["job"]["fingerprint"], "generation": 1},
    }
    assert json.loads(json.dumps(result)) == result
    assert "row" not in json.dumps({**result, "output_data_path": "", "manifest_path": "", "job": ""})


def test_a_finished_job_is_answered_from_storage(echo_job: EchoJob) -> None:
    first = run(echo_job.operator())
    cleared = run(echo_job.operator(), task_context(max_tries=5))
    assert cleared == first
    assert set(echo_job.generations().values()) == {1}


@pytest.mark.slow
def test_regenerate_makes_each_series_anew_and_a_retry_only_once(echo_job: EchoJob) -> None:
    run(echo_job.operator(if_done="regenerate"))
    retried = run(echo_job.operator(if_done="regenerate"))
    assert retried["job"]["generation"] == 1
    assert set(echo_job.generations().values()) == {1}
    cleared = run(echo_job.operator(if_done="{{ 'regenerate' }}"), task_context(max_tries=5))
    assert cleared["job"]["generation"] == 2
    assert set(echo_job.generations().values()) == {2}


@pytest.mark.slow
def test_what_an_earlier_job_was_answered_is_found_by_the_next(echo_job: EchoJob, tmp_path: Path) -> None:
    cache = f"{tmp_path}/{{{{ 'cache' }}}}"
    for rows, known in ((range(10), 0), (range(6, 16), 4)):
        lines = [{"prompt": f"row {row}", "max_tokens": 4, "temperature": 0} for row in rows]
        echo_job.input.write_text("".join(json.dumps(line) + "\n" for line in lines))
        result = run(echo_job.operator(cache_path=cache))
        assert (result["records"], result["cached"]) == (10, known)
    assert echo_job.texts() == [f"row {row}" for row in range(6, 16)]


@pytest.mark.slow
def test_another_tasks_output_is_refused_unless_it_may_be_overwritten(echo_job: EchoJob) -> None:
    run(echo_job.operator())
    echo_job.input.write_text('{"prompt": "changed", "max_tokens": 4}\n')
    other = task_context(task_id="other")
    with pytest.raises(LaunchForbiddenError, match=r"belongs to dag/job, not to dag/other.*overwrite=True") as refused:
        run(echo_job.operator(task_id="other"), other)
    assert isinstance(refused.value, AirflowFailException)
    assert len(echo_job.texts()) == 12
    result = run(echo_job.operator(task_id="other", overwrite="{{ 'True' }}"), other)
    assert result["records"] == 1


def test_a_mapped_task_does_not_replace_what_another_of_its_run_made(echo_job: EchoJob, tmp_path: Path) -> None:
    other = EchoJob(tmp_path / "other", ["other"])

    def mapped(map_index: int, job: EchoJob, **context: Any) -> dict[str, Any]:
        return run(job.operator(output_data_path=str(echo_job.output)), task_context(map_index=map_index, **context))

    first = mapped(0, echo_job)
    with pytest.raises(LaunchForbiddenError, match=r"of another mapped task of this run, .* \{\{ ti\.map_index \}\}"):
        mapped(1, other)
    assert len(echo_job.texts()) == 12
    assert mapped(1, echo_job) == first, "the same job is answered from storage"
    # After a clear the indexes may be of other things, and another run is another time.
    assert mapped(1, other, max_tries=3)["records"] == 1
    assert mapped(0, echo_job, run_id="run-2")["records"] == 12
    assert mapped(0, other, run_id="run-2")["records"] == 1, "its own retry has another input"


def test_a_file_that_is_not_ours_is_refused(echo_job: EchoJob) -> None:
    echo_job.output.write_text("precious")
    with pytest.raises(LaunchForbiddenError, match="no job of this plugin wrote it"):
        run(echo_job.operator())
    assert echo_job.output.read_text() == "precious"


def test_a_job_whose_every_record_failed_is_a_failure(echo_job: EchoJob) -> None:
    echo_job.input.write_text('{"prompt": ""}\n' * 3)
    with pytest.raises(TooManyFailedRecordsError, match=r"Too many records failed: .*3") as failed:
        run(echo_job.operator())
    assert isinstance(failed.value, AirflowFailException)
    assert not failed.value.retry_helps
    assert not echo_job.output.exists()


@pytest.mark.slow
def test_max_error_rate_is_the_workers_business(echo_job: EchoJob) -> None:
    echo_job.input.write_text('{"prompt": "", "max_tokens": 4}\n' + '{"prompt": "x", "max_tokens": 4}\n' * 3)
    with pytest.raises(TooManyFailedRecordsError):
        run(echo_job.operator(max_error_rate="{{ 0.1 }}"))
    result = run(echo_job.operator(max_error_rate=0.5), task_context(max_tries=3))
    assert (result["records"], result["succeeded"], result["failed"]) == (4, 3, 1)
    assert result["failures"] == {"empty_prompt": 1}


def test_an_input_that_is_not_there_names_it(echo_job: EchoJob) -> None:
    echo_job.input.unlink()
    with pytest.raises(StorageRefusedError, match=r"There is no input at .*input\.jsonl") as refused:
        run(echo_job.operator())
    # It will not be there at the next attempt either: the task keeps its retries.
    assert isinstance(refused.value, AirflowFailException)


@pytest.mark.slow
def test_max_error_rate_holds_for_an_output_that_stands_already(echo_job: EchoJob) -> None:
    echo_job.input.write_text('{"prompt": "", "max_tokens": 4}\n' + '{"prompt": "x", "max_tokens": 4}\n')
    run(echo_job.operator())
    with pytest.raises(TooManyFailedRecordsError, match="1 of 2 records failed"):
        run(echo_job.operator(max_error_rate=0.1))
    assert set(echo_job.generations().values()) == {1}


@pytest.mark.slow
def test_an_input_that_holds_nothing_like_records_fails_without_retry(echo_job: EchoJob) -> None:
    echo_job.input.write_text("just text")
    with pytest.raises((InputRefusedError, TooManyFailedRecordsError)) as failed:
        run(echo_job.operator())
    assert isinstance(failed.value, AirflowFailException)
    assert "just text" not in str(failed.value)


def test_an_interpreter_without_the_package_says_what_to_do(
    echo_job: EchoJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'No module named airflow_llmengine' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(python=str(python)))
    with pytest.raises(WorkerDiedError, match=r"exit code 1, .*press Test"):
        run(echo_job.operator())
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(python=str(tmp_path / "nothing")))
    with pytest.raises(ConnectionUnusableError, match="No such file or directory"):
        run(echo_job.operator())


def test_a_pod_without_an_image_is_refused_in_one_sentence(echo_job: EchoJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(launcher="kubernetes"))
    with pytest.raises(ConnectionUnusableError, match=r"^There is no worker image: give it in the field image of"):
        run(echo_job.operator())


def test_a_local_worker_is_waited_for(echo_job: EchoJob) -> None:
    with pytest.raises(RequestRefusedError, match=r"^wait_for_completion=False goes with the launcher kubernetes only"):
        run(echo_job.operator(wait_for_completion=False))


def test_a_missing_connection_says_how_to_define_it(echo_job: EchoJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_LLMENGINE_DEFAULT")
    with pytest.raises(ConnectionUnusableError, match="AIRFLOW_CONN_LLMENGINE_DEFAULT="):
        run(echo_job.operator())


@pytest.mark.slow
def test_the_connections_defaults_are_laid_under_the_request(
    echo_job: EchoJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = {"max_runtime_sec": 0, "model_config": {"served_model_name": "by default"}}
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(request_defaults=defaults))
    with pytest.raises(RequestRefusedError, match="max_runtime_sec"):
        run(echo_job.operator())
    assert run(echo_job.operator(max_runtime_sec=60))["model"] == "by default"


@pytest.mark.slow
def test_large_content_is_staged_and_a_clear_finds_it_again(echo_job: EchoJob) -> None:
    prompts = [f"{index} " + "word " * 450 for index in range(1000)]
    content = {"prompts": prompts, "max_new_tokens": 4, "temperature": 0}
    assert len(json.dumps(content)) > 2 * 1024**2
    operator = echo_job.operator(input_data_path=None, content=content)
    result = run(operator)
    assert result["records"] == 1000
    assert [element["text"] for element in json.loads(echo_job.output.read_text())] == prompts
    staged = list(Path(f"{echo_job.output}.job/inputs").iterdir())
    assert [json.loads(path.read_text()) for path in staged] == [content]
    assert run(echo_job.operator(input_data_path=None, content=content), task_context(max_tries=9)) == result
    assert set(echo_job.generations().values()) == {1}

    # Another content takes its place.
    content["prompts"] = [f"new {prompt}" for prompt in prompts]
    run(echo_job.operator(input_data_path=None, content=content))
    assert [json.loads(path.read_text()) for path in Path(f"{echo_job.output}.job/inputs").iterdir()] == [content]


def test_what_was_staged_for_a_refused_launch_is_taken_back(echo_job: EchoJob) -> None:
    echo_job.output.write_text("precious")
    content = {"prompts": ["word " * 20000], "max_new_tokens": 4, "temperature": 0}
    with pytest.raises(LaunchForbiddenError):
        run(echo_job.operator(input_data_path=None, content=content))
    assert not [path for path in Path(f"{echo_job.output}.job").rglob("*") if path.is_file()]


def marked_processes(job: EchoJob) -> list[psutil.Process]:
    place = WorkerMark(str(job.output), 0, "").environment()[MARK_VARIABLE].rpartition("/")[0]
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK_VARIABLE, "").startswith(place) and process.status() != "zombie":
                found.append(process)
        except psutil.Error:
            continue
    return found


SLOW = {"LLMENGINE_ECHO_SECONDS_PER_RECORD": "0.2", "LLMENGINE_ECHO_CAPACITY": "1"}


@pytest.mark.slow
def test_a_killed_task_is_no_success_and_the_next_attempt_goes_on(
    echo_job: EchoJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    slower = {**SLOW, "LLMENGINE_ECHO_SECONDS_PER_RECORD": "0.5"}
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(worker_environment=echo_job.environment(**slower)))
    # Too little time for the records in flight, and a second of it for writing down what was finished.
    operator = echo_job.operator(termination_grace_period=3)

    def kill_when_half_done() -> None:
        wait_until(lambda: echo_job.generations().total() >= 4)
        operator.on_kill()

    killer = threading.Thread(target=kill_when_half_done)
    killer.start()
    with pytest.raises(TaskKilledError, match="Airflow ended the task") as killed:
        run(operator)
    killer.join()
    assert killed.value.retry_helps
    assert not isinstance(killed.value, AirflowFailException)
    assert not marked_processes(echo_job)
    assert not echo_job.output.exists()
    before = echo_job.generations().total()
    assert 4 <= before < 12

    assert run(echo_job.operator())["records"] == 12
    # The record that was being made at the kill may be made twice.
    assert echo_job.generations().total() <= 13
    assert echo_job.texts() == [f"row {index}" for index in range(12)]


@pytest.mark.slow
def test_a_task_that_was_killed_is_no_success_even_if_the_job_is_done(echo_job: EchoJob) -> None:
    run(echo_job.operator())
    operator = echo_job.operator()
    operator.on_kill()
    with pytest.raises(TaskKilledError):
        run(operator)


@pytest.mark.slow
def test_leftovers_of_an_earlier_attempt_are_ended_first(echo_job: EchoJob) -> None:
    # An engine that outlived its worker and knows no mercy; of a launcher that is gone.
    mark = WorkerMark(str(echo_job.output), 0, "another series").environment()
    leftover = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(99)",
        ],
        env={**os.environ, **mark, "LLMENGINE_LAUNCHER": "1@0.00"},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with leftover:
        assert leftover.stdout is not None
        leftover.stdout.readline()
        began = time.monotonic()
        run(echo_job.operator(termination_grace_period=1))
        assert time.monotonic() - began < 90
        # It would have slept on; and it is our own child here, which was reaped when it was waited for.
        assert leftover.poll() is not None


@pytest.mark.slow
def test_another_living_tasks_worker_on_the_same_output_is_left_alone(echo_job: EchoJob) -> None:
    mark = WorkerMark(str(echo_job.output), 0, "another series").environment()
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], env={**os.environ, **mark}, stdin=subprocess.PIPE
    ) as other:
        run(echo_job.operator())
        assert other.poll() is None
        other.communicate(b"\n")
        assert other.returncode == 0


@pytest.mark.slow
def test_two_jobs_take_turns_on_one_slot(
    tmp_path: Path, echo_job: EchoJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    second = EchoJob(tmp_path / "second", ["only row"])
    slow = {**SLOW, "LLMENGINE_ECHO_SECONDS_PER_RECORD": "0.1"}
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(worker_environment=echo_job.environment(**slow)))
    monkeypatch.setenv("AIRFLOW_CONN_SECOND", connection(worker_environment=second.environment()))
    first = threading.Thread(target=run, args=(echo_job.operator(),))
    first.start()
    wait_until(lambda: echo_job.generations().total() >= 1)
    run(second.operator(task_id="second", llmengine_conn_id="second"), task_context(task_id="second"))
    assert echo_job.output.exists(), "the second did not wait for the first"
    assert second.texts() == ["only row"]
    first.join()


@pytest.mark.slow
def test_waiting_for_a_slot_ends_when_the_task_is_killed_or_its_time_is_over(
    tmp_path: Path, echo_job: EchoJob, runtime_directory: Path
) -> None:
    from airflow_llmengine.exceptions import DeadlineExceededError
    from airflow_llmengine.hooks.worker_slots import take_slot

    runtime_directory.mkdir()
    slot = take_slot(
        runtime_directory, 1, holder="somebody", deadline=time.time() + 5, check=lambda: None, log=lambda _message: None
    )
    operator = echo_job.operator()
    threading.Timer(1.0, operator.on_kill).start()
    with pytest.raises(TaskKilledError, match="before its worker was started"):
        run(operator)
    with pytest.raises(DeadlineExceededError, match="waited for its turn"):
        run(echo_job.operator(max_runtime_sec=2), task_context(max_tries=7))
    slot.release()


@pytest.mark.slow
def test_a_cancelled_job_fails_and_a_clear_goes_on(echo_job: EchoJob, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_llmengine.exceptions import JobCancelledError

    slow = connection(worker_environment=echo_job.environment(**{**SLOW, "LLMENGINE_ECHO_SECONDS_PER_RECORD": "1"}))
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", slow)

    def cancel() -> None:
        wait_until(lambda: echo_job.generations().total() >= 1)
        LLMEngineHook().cancel(str(echo_job.output), "too dear")

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(JobCancelledError, match="too dear") as cancelled:
        run(echo_job.operator())
    canceller.join()
    assert isinstance(cancelled.value, AirflowFailException)
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(worker_environment=echo_job.environment()))
    assert run(echo_job.operator(), task_context(max_tries=4))["records"] == 12
    assert echo_job.generations().total() <= 13


@pytest.mark.slow
def test_a_deadline_fails_and_is_not_retried(echo_job: EchoJob, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_llmengine.exceptions import DeadlineExceededError

    slow = connection(worker_environment=echo_job.environment(**{**SLOW, "LLMENGINE_ECHO_SECONDS_PER_RECORD": "0.9"}))
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", slow)
    with pytest.raises(DeadlineExceededError, match="max_runtime_sec is used up") as failed:
        run(echo_job.operator(max_runtime_sec=6))
    assert isinstance(failed.value, AirflowFailException)
    assert not marked_processes(echo_job)


@pytest.mark.slow
def test_a_worker_killed_by_the_system_is_retried_with_a_hint(
    echo_job: EchoJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = connection(worker_environment=echo_job.environment(**SLOW))
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", slow)

    def kill() -> None:
        wait_until(lambda: echo_job.generations().total() >= 1)
        os.kill(int(echo_job.generated.read_text().split()[1]), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(WorkerDiedError, match="memory") as died:
        run(echo_job.operator())
    killer.join()
    assert died.value.retry_helps
    assert not isinstance(died.value, AirflowFailException)


KILLED_TASK = """
import os, sys
from tests.airflow.operators_in_tests import run
from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator

source, output, model = sys.argv[1:]
run(
    LLMEngineBatchCompletionsOperator(
        task_id="job",
        input_data_path=source,
        output_data_path=output,
        model_config={"model": "m", "checkpoint_path": model, "max_model_len": 512, "enforce_eager": True},
        termination_grace_period=20,
    )
)
"""


@pytest.mark.engine
@pytest.mark.timeout(900)
@pytest.mark.parametrize("moment", ["loading", "generating"])
def test_no_engine_outlives_a_task_that_was_killed(
    tmp_path: Path, echo_job: EchoJob, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """With the real engine, whose process survives its parent's SIGKILL by itself."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    model = cache / "airflow-llmengine" / "SmolLM2-135M-Instruct"
    root = Path(__file__).parents[2]
    if not model.is_dir():
        subprocess.run([sys.executable, str(root / "scripts" / "prepare_quickstart_model.py")], check=True)
    record = {"prompt": "Once upon a time", "max_tokens": 400, "temperature": 1, "ignore_eos": True}
    echo_job.input.write_text((json.dumps(record) + "\n") * 200)
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", connection(engine="vllm"))
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_TASK, str(echo_job.input), str(echo_job.output), str(model)], cwd=root
    ) as task:
        wait_until(lambda: len(marked_processes(echo_job)) >= 2, seconds=120)
        if moment == "generating":
            hook = LLMEngineHook()
            wait_until(
                lambda: any(beat.phase == "generating" for beat in hook.get(str(echo_job.output)).heartbeats),
                seconds=600,
            )
        task.kill()
    wait_until(lambda: not marked_processes(echo_job), seconds=60)
    assert not echo_job.output.exists()
