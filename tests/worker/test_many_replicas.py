"""Many replicas of one job at once, on one truth."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.launch import launch_job
from airflow_llmengine.worker.attempt import AttemptOptions, AttemptOutcome, run_attempt
from airflow_llmengine.worker.engines.base import Answer
from airflow_llmengine.worker.engines.echo import EchoEngine
from airflow_llmengine.worker.records import Record
from airflow_llmengine.worker.stopping import Stop, StopReason
from airflow_llmengine.worker.timing import Timing
from tests.worker.jobs import Job, text_of


@pytest.mark.slow
def test_four_replicas_at_once_generate_each_record_once(tmp_path: Path) -> None:
    job = Job(tmp_path, [f"row {index}" for index in range(400)])
    slowly = {"LLMENGINE_ECHO_SECONDS_PER_RECORD": "0.05", "LLMENGINE_ECHO_CAPACITY": "8"}
    workers = [job.start("--replica", str(i), "--replicas", "4", "--series", "one", **slowly) for i in range(4)]
    for worker in workers:
        _output, log = worker.communicate(timeout=60)
        assert worker.returncode == ExitCode.DONE, log.decode()
    assert job.generations() == dict.fromkeys(range(400), 1)
    assert job.run(command="collect").returncode == ExitCode.DONE
    assert [f"row {index}" in text_of(result) for index, result in enumerate(job.results())] == [True] * 400


@pytest.mark.slow
def test_12700_prompts_on_64_replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 2: no replica is left with the remainder, and the order is restored."""
    log = tmp_path / "generated.log"
    monkeypatch.setenv("LLMENGINE_ECHO_LOG", str(log))
    monkeypatch.setenv("LLMENGINE_ECHO_SECONDS_PER_RECORD", "0.02")
    monkeypatch.setenv("LLMENGINE_ECHO_CAPACITY", "4")
    job = Job(tmp_path, [f"row {index}" for index in range(12_700)], data_parallelism=64)
    request = validate_request(json.dumps(job.request))
    storage = Storage()
    launch_job(storage, request, owner="o", series="s", engine="echo")
    together = threading.Barrier(64)

    def replica(number: int) -> AttemptOutcome:
        together.wait()
        options = AttemptOptions(owner="o", series="s", replica=number, replicas=64, launched=True)
        return run_attempt(storage, request, options, Stop(), make_engine=EchoEngine)

    with ThreadPoolExecutor(64) as threads:
        outcomes = list(threads.map(replica, range(64)))
    assert {outcome.exit_code for outcome in outcomes} == {ExitCode.DONE}
    assert job.generations() == dict.fromkeys(range(12_700), 1)
    assert len(job.committed()) > 64 * 10, "cut finely enough that 64 replicas get even shares"
    assert job.run(command="collect", LLMENGINE_ENGINE="echo").returncode == ExitCode.DONE
    assert [f"row {index}" in text_of(result) for index, result in enumerate(job.results())] == [True] * 12_700


@pytest.mark.slow
def test_a_replica_that_never_starts_holds_nobody_up(tmp_path: Path) -> None:
    job = Job(tmp_path, [f"row {index}" for index in range(100)])
    for replica in (0, 2):
        assert job.run("--replica", str(replica), "--replicas", "3", "--series", "s").returncode == ExitCode.DONE
    assert job.run(command="collect").returncode == ExitCode.DONE
    assert len(job.results()) == 100


@pytest.mark.slow
def test_the_others_take_over_from_a_replica_that_is_killed(tmp_path: Path) -> None:
    job = Job(tmp_path, [f"row {index}" for index in range(300)])
    slowly = {"LLMENGINE_ECHO_SECONDS_PER_RECORD": "0.1", "LLMENGINE_ECHO_CAPACITY": "8"}
    workers = [job.start("--replica", str(i), "--replicas", "2", "--series", "one", **slowly) for i in range(2)]
    while job.generations().total() < 60:
        time.sleep(0.02)
    os.killpg(workers[0].pid, signal.SIGKILL)
    workers[0].communicate()
    _output, log = workers[1].communicate(timeout=60)
    assert workers[1].returncode == ExitCode.DONE, log.decode()
    assert job.run(command="collect").returncode == ExitCode.DONE
    assert len(job.results()) == 300
    assert job.manifest().failed == 0
    # What the killed one had in work, and no more.
    assert job.generations().total() <= 300 + 4 * 16


@pytest.mark.slow
def test_a_later_attempt_of_a_replica_ends_the_earlier_one(tmp_path: Path) -> None:
    job = Job(tmp_path, [f"row {index}" for index in range(400)])
    slowly = {"LLMENGINE_ECHO_SECONDS_PER_RECORD": "4", "LLMENGINE_ECHO_CAPACITY": "4"}
    earlier = job.start("--series", "one", **slowly)
    while job.generations().total() < 4:
        time.sleep(0.02)
    later = job.start("--series", "one", LLMENGINE_ECHO_CAPACITY="64")
    _output, log = earlier.communicate(timeout=60)
    assert earlier.returncode == ExitCode.PARTIAL
    assert "a later attempt of replica 0 has begun" in log.decode()
    _output, log = later.communicate(timeout=60)
    assert later.returncode == ExitCode.DONE, log.decode()
    assert len(job.results()) == 400
    assert job.generations().total() <= 400 + 8, "what the earlier one had in flight when it stopped"


class SometimesFailing(EchoEngine):
    """An engine with a defect that is over after a while: it stands for one whose requests time out."""

    broken = True

    async def complete(self, record: Record) -> Answer:
        if self.broken and record.index % 10 == 7:
            raise TimeoutError("private text")
        return await super().complete(record)


class Mended(SometimesFailing):
    broken = False


@pytest.mark.slow
def test_transient_errors_are_made_again_by_the_next_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMENGINE_ECHO_LOG", str(tmp_path / "generated.log"))
    job = Job(tmp_path, [f"row {index}" for index in range(50)] + [""])
    request = validate_request(json.dumps(job.request))

    def attempt(engine: type[EchoEngine]) -> AttemptOutcome:
        options = AttemptOptions(owner="o", series="one", replica=0, replicas=2)
        return run_attempt(Storage(), request, options, Stop(), make_engine=engine)

    for _again in range(2):
        assert attempt(SometimesFailing).exit_code is ExitCode.DONE
        failed = job.run("--max-error-rate", "0.05", command="collect")
        assert failed.returncode == ExitCode.PARTIAL, "a retry helps"
        assert "5 internal, 1 empty_prompt" in failed.stderr
        assert "the next attempt makes those again" in failed.stderr
        assert "private" not in failed.stderr
    permanent = job.run("--max-error-rate", "0.01", command="collect")
    assert permanent.returncode == ExitCode.TOO_MANY_FAILED_RECORDS, "a retry could not mend the empty prompt"
    assert attempt(Mended).exit_code is ExitCode.DONE
    assert job.run("--max-error-rate", "0.05", command="collect").returncode == ExitCode.DONE
    assert job.manifest().failures == {"empty_prompt": 1}, "a permanent error stands"
    assert [f"row {index}" in text_of(result) for index, result in enumerate(job.results()[:50])] == [True] * 50
    assert job.generations() == dict.fromkeys(range(50), 1), "only what had failed was made again"


@pytest.mark.slow
def test_failures_of_all_replicas_count_for_max_error_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replica alone is below the rate; the one with the good records stops because of the other's bad ones."""
    monkeypatch.setenv("LLMENGINE_ECHO_SECONDS_PER_RECORD", "0.1")
    monkeypatch.setenv("LLMENGINE_ECHO_CAPACITY", "1")
    job = Job(tmp_path, ["row", "llmengine-echo:reject"] * 100)
    request = validate_request(json.dumps(job.request))
    timing = Timing(heartbeat_seconds=0.05, look_seconds=0.1)
    stops = [Stop(), Stop()]

    def replica(number: int) -> AttemptOutcome:
        options = AttemptOptions(
            owner="o",
            series="s",
            replica=number,
            replicas=2,
            chunk_records=1,
            max_error_rate=0.4 if number == 0 else None,
        )
        return run_attempt(Storage(), request, options, stops[number], make_engine=EchoEngine, timing=timing)

    with ThreadPoolExecutor(2) as threads:
        first, second = (threads.submit(replica, number) for number in range(2))
        outcome = first.result(60)
        stops[1].request(StopReason.TERMINATED, "enough")
        assert second.result(60).exit_code is ExitCode.PARTIAL
    assert outcome.exit_code is ExitCode.TOO_MANY_FAILED_RECORDS, outcome.message
    assert "of 200 records have failed, more than max_error_rate 0.4 allows" in outcome.message


@pytest.mark.slow
def test_a_worker_that_is_stopped_while_it_loads_gives_its_chunk_back_and_says_that_it_ended(tmp_path: Path) -> None:
    job = Job(tmp_path, ["row"] * 5)
    worker = job.start("--series", "one", LLMENGINE_ECHO_LOAD_SECONDS="600")
    heartbeats = tmp_path.glob
    while not any(
        b"loading the model" in path.read_bytes() for path in heartbeats("output.json.job/*/replicas/0.json")
    ):
        time.sleep(0.05)
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=60)
    assert worker.returncode == ExitCode.PARTIAL
    (beat,) = (json.loads(path.read_bytes()) for path in heartbeats("output.json.job/*/replicas/0.json"))
    assert (beat["phase"], beat["stop_reason"]) == ("partial", "terminated")
    (claim,) = (json.loads(path.read_bytes()) for path in heartbeats("output.json.job/*/claims/*/*"))
    assert claim["given_back"]
