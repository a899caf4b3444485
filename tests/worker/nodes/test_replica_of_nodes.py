"""Replicas that span several nodes, as processes of this machine, with the stand-in engine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.worker.engines.echo import DIE_MARKER
from tests.waiting import wait_until
from tests.worker.jobs import Job

pytestmark = pytest.mark.slow

RECORDS = 40
NODES = 3
TOKEN = {"LLMENGINE_NODE_TOKEN": "what these nodes share"}


class Nodes:
    """The nodes of one replica at a time.

    Args:
        job: What they work on.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.started: list[subprocess.Popen[bytes]] = []
        with socket.create_server(("", 0)) as server:
            self._port = f"--nodes-port={server.getsockname()[1]}"

    def lead(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        leader = self.job.start(
            self._port,
            *arguments,
            **{"LLMENGINE_ECHO_CAPACITY": "1", "LLMENGINE_ECHO_SECONDS_PER_RECORD": "0.1", **TOKEN, **environment},
        )
        self.started.append(leader)
        return leader

    def follow(self, node: int, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "airflow_llmengine.worker", "follow", str(self.job.folder / "request.json")]
        follower = subprocess.Popen(
            [*command, f"--node={node}", "--leader=localhost", self._port, *arguments],
            env=self.job.environment(TOKEN),
            stderr=subprocess.PIPE,
        )
        self.started.append(follower)
        return follower

    def wait_until_generating(self) -> None:
        """Until a heartbeat says that all nodes are at work: the first records are in flight then."""
        beats = self.job.folder.glob
        wait_until(
            lambda: any(b'"generating"' in beat.read_bytes() for beat in beats("output.json.job/*/replicas/0.json")),
            seconds=60,
        )

    def wait_for_records(self, count: int) -> None:
        wait_until(lambda: self.job.generations().total() >= count, seconds=60)


def end_of(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Exit code and log."""
    _output, log = process.communicate(timeout=60)
    return process.returncode, log.decode()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    nodes = Nodes(Job(tmp_path, [f"prompt {index}" for index in range(RECORDS)], nodes_per_worker=NODES))
    yield nodes
    for process in nodes.started:
        process.kill()
        process.communicate()


def test_the_end_of_a_follower_is_the_end_of_the_replica_and_the_next_goes_on(nodes: Nodes) -> None:
    leader, first, second = nodes.lead("--chunk-records=4"), nodes.follow(1), nodes.follow(2)
    nodes.wait_for_records(6)
    second.kill()
    code, log = end_of(leader)
    assert code == ExitCode.ENGINE_DIED, log
    assert "node 2 of this replica is gone" in log.splitlines()[-1]
    assert end_of(first)[0] == ExitCode.DONE

    leader, first, second = nodes.lead(LLMENGINE_ECHO_SECONDS_PER_RECORD="0"), nodes.follow(1), nodes.follow(2)
    for process in (leader, first, second):
        code, log = end_of(process)
        assert code == ExitCode.DONE, log
    assert nodes.job.generations().total() <= RECORDS + 1


def test_a_follower_that_is_told_to_end_has_the_work_saved(nodes: Nodes) -> None:
    leader, first, second = nodes.lead(), nodes.follow(1), nodes.follow(2)
    nodes.wait_for_records(6)
    first.send_signal(signal.SIGTERM)
    code, log = end_of(leader)
    assert code == ExitCode.PARTIAL, log
    assert "node 1 of this replica was told to end (got SIGTERM)" in log
    # What Kubernetes says of its pod is told then, and not that it is done.
    assert [end_of(first)[0], end_of(second)[0]] == [ExitCode.PARTIAL, ExitCode.DONE]
    done = nodes.job.generations().total()
    leader, *_others = nodes.lead(LLMENGINE_ECHO_SECONDS_PER_RECORD="0"), nodes.follow(1), nodes.follow(2)
    assert end_of(leader)[0] == ExitCode.DONE
    assert nodes.job.generations().total() == RECORDS >= done


def test_what_is_in_flight_is_not_waited_for_when_a_follower_that_was_told_to_end_is_gone(nodes: Nodes) -> None:
    """An engine answers nothing without one of its nodes: the leader would wait nearly as long as the follower has."""
    leader = nodes.lead("--chunk-records=20", LLMENGINE_ECHO_SECONDS_PER_RECORD="1000")
    first, _second = nodes.follow(1, "--grace-seconds=1000"), nodes.follow(2)
    nodes.wait_until_generating()
    first.send_signal(signal.SIGTERM)
    assert leader.stderr is not None
    assert any(b"node 1 of this replica was told to end" in line for line in iter(leader.stderr.readline, b""))
    assert leader.poll() is None
    first.kill()
    code, log = end_of(leader)
    assert code == ExitCode.PARTIAL, log


def test_followers_end_with_a_leader_that_is_killed(nodes: Nodes) -> None:
    leader, first, second = nodes.lead(), nodes.follow(1), nodes.follow(2)
    nodes.wait_for_records(1)
    os.killpg(leader.pid, signal.SIGKILL)
    assert [end_of(first)[0], end_of(second)[0]] == [ExitCode.DONE, ExitCode.DONE]


def test_an_engine_that_dies_is_started_again_on_all_nodes(nodes: Nodes) -> None:
    nodes.job.write_input([*(f"prompt {index}" for index in range(5)), f"{DIE_MARKER} at once"])
    leader, first, _second = nodes.lead(), nodes.follow(1), nodes.follow(2)
    code, log = end_of(leader)
    assert code == ExitCode.DONE, log
    assert [result["error"]["type"] for result in nodes.job.results() if "error" in result] == ["engine_crash"]
    code, log = end_of(first)
    assert code == ExitCode.DONE, log
    assert log.count("starts its part of the engine") > 1


def test_a_follower_that_is_told_to_end_before_there_is_a_leader(nodes: Nodes) -> None:
    (nodes.job.folder / "request.json").write_text(json.dumps(nodes.job.request))
    follower = nodes.follow(1)
    assert follower.stderr is not None
    lines = iter(follower.stderr.readline, b"")
    assert any(b"looks for its leader" in line for line in lines)
    follower.send_signal(signal.SIGTERM)
    assert end_of(follower)[0] == ExitCode.PARTIAL
