"""Real processes under real signals; the in-process campaign only stands for them."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from airflow_llmengine.spec.exit_codes import ExitCode
from tests.faults.invariants import EXCEPTION
from tests.waiting import wait_until
from tests.worker.jobs import Job, text_of

pytestmark = pytest.mark.slow

RECORDS = 240
CHUNK_RECORDS = 6
CAPACITY = 3


class Workers:
    """The worker processes of one job, all of the same series."""

    def __init__(self, folder: Path, seed: int) -> None:
        chance = random.Random(seed)
        self.prompts = [f"record {index} {chance.getrandbits(64):016x}" for index in range(RECORDS)]
        self.job = Job(folder, self.prompts)
        self.allowed_again = 0
        """What attempts had in work, and had not committed, when they were killed."""

    def start(self, replica: int, replicas: int, seconds_per_record: float = 0.03) -> subprocess.Popen[bytes]:
        return self.job.start(
            *("--replica", str(replica), "--replicas", str(replicas), "--series", "one"),
            *("--chunk-records", str(CHUNK_RECORDS)),
            LLMENGINE_ECHO_SECONDS_PER_RECORD=str(seconds_per_record),
            LLMENGINE_ECHO_CAPACITY=str(CAPACITY),
        )

    def note_what_is_open(self) -> None:
        committed = {index for records in self.job.committed().values() for index in records}
        open_chunks = {index // CHUNK_RECORDS for index in self.job.generations() if index not in committed}
        self.allowed_again += len(open_chunks) * CHUNK_RECORDS

    def require_whole(self, *, processes: list[subprocess.Popen[bytes]]) -> None:
        """The output stands, each answer in its place, and nothing is left over."""
        results = self.job.results()
        assert len(results) == RECORDS
        accused = [result for result in results if "error" in result]
        # A record that was alone in an engine at two deaths of its worker may be at fault, for all that can be told.
        assert {result["error"]["type"] for result in accused} <= {"engine_crash"}
        assert len(accused) <= 2
        for prompt, result in zip(self.prompts, results, strict=True):
            assert "error" in result or text_of(result) == prompt
        assert self.job.manifest().records == RECORDS
        assert self.job.generations().total() <= RECORDS + self.allowed_again
        assert not list(self.job.folder.glob("output.json.job/*/"))
        assert all(process.poll() is not None for process in processes)
        assert not left_in_sessions(processes)


def left_in_sessions(processes: list[subprocess.Popen[bytes]]) -> list[int]:
    """Processes that descend from these, each of which leads a session."""
    leaders = {process.pid for process in processes}
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(path.name)) in leaders and "Z" not in (path / "stat").read_text().rpartition(")")[2][:3]:
                found.append(int(path.name))
        except (ProcessLookupError, FileNotFoundError):
            continue
    return found


def last_line(worker: subprocess.Popen[bytes]) -> str:
    """What the worker said last; no traceback among it, and nothing of a prompt."""
    _output, log = worker.communicate(timeout=60)
    text = log.decode()
    assert "Traceback" not in text
    assert not re.search(r"record [0-9]+ [0-9a-f]{16}", text)
    return text.rstrip().rpartition("\n")[2]


@pytest.mark.parametrize("seed", [1, 2])
def test_signals_at_random_moments(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    workers = Workers(tmp_path, seed)
    started: list[subprocess.Popen[bytes]] = []
    for _round in range(6):
        replicas = chance.randint(1, 3)
        here = [workers.start(replica, replicas) for replica in range(replicas)]
        started += here
        enough = workers.job.generations().total() + chance.randint(0, 4 * CHUNK_RECORDS)
        latest = time.monotonic() + chance.uniform(2, 8)
        while workers.job.generations().total() < enough and time.monotonic() < latest:
            time.sleep(0.01)
        sent = {worker.pid: chance.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP]) for worker in here}
        for pid, number in sent.items():
            os.killpg(pid, number)
        time.sleep(chance.uniform(0, 0.3))
        # What was stopped wakes up and is told to end; a process that is gone has no group any more.
        for worker in here:
            if sent[worker.pid] is signal.SIGSTOP and worker.poll() is None:
                os.killpg(worker.pid, signal.SIGCONT)
                worker.send_signal(signal.SIGTERM)
        for worker in here:
            said = last_line(worker)
            if sent[worker.pid] is signal.SIGKILL:
                assert worker.returncode in (-signal.SIGKILL, ExitCode.DONE)
            else:
                # One that had not come to its signal handlers yet is ended by the signal itself.
                assert worker.returncode in (ExitCode.PARTIAL, ExitCode.DONE, -signal.SIGTERM)
                assert not EXCEPTION.search(said)
        workers.note_what_is_open()
        assert not left_in_sessions(here)
    last = [workers.start(replica, 2, seconds_per_record=0) for replica in range(2)]
    for worker in last:
        said = last_line(worker)
        assert worker.returncode == ExitCode.DONE, said
    collected = workers.job.run(command="collect")
    assert collected.returncode == ExitCode.DONE, collected.stderr
    assert json.loads(collected.stdout)["records"] == RECORDS
    workers.require_whole(processes=[*started, *last])


def test_a_process_that_was_stopped_wakes_after_the_job_is_done_and_changes_nothing(tmp_path: Path) -> None:
    workers = Workers(tmp_path, 3)
    zombie = workers.start(0, 1)
    wait_until(lambda: workers.job.generations().total() >= 4 * CHUNK_RECORDS)
    os.killpg(zombie.pid, signal.SIGSTOP)
    workers.note_what_is_open()
    # A later attempt of the same replica waits for the earlier one to see it, and then takes its chunks.
    later = workers.start(0, 1, seconds_per_record=0)
    said = last_line(later)
    assert later.returncode == ExitCode.DONE, said
    before = (workers.job.output.read_bytes(), workers.job.manifest())
    generated = workers.job.generations().total()
    os.killpg(zombie.pid, signal.SIGCONT)
    last_line(zombie)
    assert zombie.returncode in (ExitCode.DONE, ExitCode.PARTIAL)
    assert (workers.job.output.read_bytes(), workers.job.manifest()) == before
    # What was in flight when it was stopped comes back, and no more.
    assert workers.job.generations().total() <= generated + 2 * CAPACITY
    workers.allowed_again += 2 * CAPACITY
    workers.require_whole(processes=[zombie, later])


def test_a_record_that_kills_the_whole_process_is_found_out_by_retries(tmp_path: Path) -> None:
    prompts = [f"record {index}" for index in range(20)]
    prompts[7] = "llmengine-echo:kill"
    job = Job(tmp_path, prompts)
    codes: list[int] = []
    while not codes or codes[-1] != ExitCode.DONE:
        worker = job.start("--series", "one", "--chunk-records", "5")
        worker.communicate(timeout=60)
        codes.append(worker.returncode)
        assert len(codes) < 6
    assert codes == [-signal.SIGKILL] * 4 + [ExitCode.DONE]
    results = job.results()
    assert [index for index, result in enumerate(results) if "error" in result] == [7]
    assert results[7]["error"]["type"] == "engine_crash"
