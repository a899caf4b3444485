"""A worker's process from its launcher's side; small scripts stand for the worker."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_llmengine.hooks.local_worker import LocalWorker, WorkerOutcome, parse_log_line

Log = list[tuple[int, str]]


def worker(script: str, collected: Log | None = None, **arguments: Any) -> LocalWorker:
    lines: Log = [] if collected is None else collected
    return LocalWorker(
        [sys.executable, "-c", textwrap.dedent(script)],
        **{
            "request": b'{"a": 1}',
            "storage_options": {},
            "environment": dict(os.environ),
            "grace_seconds": 5.0,
            "log": lambda level, message: lines.append((level, message)),
            **arguments,
        },
    )


def when(condition: Callable[[], object], action: Callable[[], object]) -> threading.Thread:
    """Do something from another thread once something is true."""

    def wait() -> None:
        ends_at = time.monotonic() + 60
        while time.monotonic() < ends_at and not condition():
            time.sleep(0.02)
        action()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def is_gone(pid: int) -> bool:
    """Whether a process has ended, or does so at once: a busy kernel takes a moment to carry a SIGKILL out."""
    ends_at = time.monotonic() + 30
    while time.monotonic() < ends_at:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def test_the_worker_gets_its_request_its_options_and_a_session_of_its_own() -> None:
    script = """
        import json, os, sys
        control = os.fdopen(int(sys.argv[sys.argv.index("--control-fd") + 1]))
        print("noise")
        print(json.dumps({
            "request": sys.stdin.read(),
            "control": json.loads(control.readline()),
            "secret seen": any("s3cret" in text for text in (*sys.argv, *os.environ.values())),
            "leader": os.getsid(0) == os.getpid() == os.getpgid(0),
            "mark": os.environ["MARK"],
        }))
    """
    options = {"s3": {"secret": "s3cret"}}
    outcome = worker(script, storage_options=options, environment={**os.environ, "MARK": "here"}).run()
    assert (outcome.exit_code, outcome.killed, outcome.last_error) == (0, False, "")
    assert json.loads(outcome.last_line) == {
        "request": '{"a": 1}',
        "control": {"storage_options": options},
        "secret seen": False,
        "leader": True,
        "mark": "here",
    }


def test_a_request_that_nobody_reads_does_not_block() -> None:
    assert worker("", request=b"x" * 5_000_000).run().exit_code == 0


def test_options_that_would_not_fit_into_the_pipe_are_refused() -> None:
    with pytest.raises(ValueError, match="60000 bytes"):
        worker("", storage_options={"s3": {"key": "x" * 70_000}})


def test_log_lines_come_at_their_level_and_foreign_ones_at_debug() -> None:
    log: Log = []
    script = """
        import json, sys
        for level in ("INFO", "WARNING", "ERROR"):
            line = {"level": level, "logger": "airflow_llmengine", "message": f"{level} with ü"}
            print(json.dumps(line), file=sys.stderr)
        print("some library quotes: PROMPT", file=sys.stderr)
        print("y" * 3_000_000, file=sys.stderr)
        sys.stderr.buffer.write(b"\\xff no newline")
        sys.exit(69)
    """
    outcome = worker(script, log).run()
    assert outcome == WorkerOutcome(69, False, "", "ERROR with ü")
    assert log[:4] == [
        (logging.INFO, "INFO with ü"),
        (logging.WARNING, "WARNING with ü"),
        (logging.ERROR, "ERROR with ü"),
        (logging.DEBUG, "some library quotes: PROMPT"),
    ]
    assert {level for level, _ in log[4:]} == {logging.DEBUG}
    assert max(len(message) for _, message in log) <= 1 << 20
    assert log[-1][1].endswith("no newline")


@pytest.mark.parametrize(
    "line",
    [
        *("", "{}", "[1]", "null", '{"level": "info"}', '{"level": 1', "\ud800"),
        '{"level": "loud", "logger": "airflow_llmengine.worker", "message": "x"}',
        # A library that logs as JSON, too.
        '{"level": "INFO", "logger": "vllm.engine", "message": "x"}',
        '{"level": "INFO", "message": "x"}',
    ],
)
def test_what_is_not_the_workers_own_line_is_for_debug(line: str) -> None:
    assert parse_log_line(line) == (logging.DEBUG, line)


def test_stop_signals_the_worker_alone_and_waits_for_it() -> None:
    log: Log = []
    script = """
        import signal, subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        def stop(*_):
            # Its engine is still there to be shut down in order.
            assert child.poll() is None
            child.kill()
            print("saved", flush=True)
            sys.exit(75)
        signal.signal(signal.SIGTERM, stop)
        print("up", file=sys.stderr, flush=True)
        time.sleep(60)
    """
    running = worker(script, log)
    stopper = when(lambda: log, running.stop)
    began = time.monotonic()
    outcome = running.run()
    stopper.join()
    assert (outcome.exit_code, outcome.killed, outcome.last_line) == (75, False, "saved")
    assert time.monotonic() - began < 50


def test_a_worker_that_does_not_stop_is_killed_when_its_grace_is_over() -> None:
    log: Log = []
    script = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("up", file=sys.stderr, flush=True)
        time.sleep(60)
    """
    running = worker(script, log, grace_seconds=0.5)
    stopper = when(lambda: log, running.stop)
    outcome = running.run()
    stopper.join()
    assert (outcome.exit_code, outcome.killed) == (-signal.SIGKILL, True)


def test_stop_before_the_start_stops_it_too() -> None:
    running = worker("import time; time.sleep(60)")
    running.stop()
    assert running.run().exit_code == -signal.SIGTERM


def test_what_the_worker_leaves_in_its_group_is_killed_and_holds_nobody_up() -> None:
    script = """
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        print(child.pid, flush=True)
    """
    began = time.monotonic()
    outcome = worker(script).run()
    assert outcome.exit_code == 0
    assert time.monotonic() - began < 50
    assert is_gone(int(outcome.last_line))


class TaskTimeout(BaseException):
    """Stands for Airflow's, which a signal handler raises in the middle of anything."""


def test_an_exception_in_the_middle_ends_the_worker_before_it_goes_on() -> None:
    pids: list[int] = []

    def log(_level: int, message: str) -> None:
        if not pids:
            pids.append(int(message))
            raise TaskTimeout

    script = """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
        print(os.getpid(), file=sys.stderr, flush=True)
        time.sleep(60)
    """
    with pytest.raises(TaskTimeout):
        worker(script, log=log).run()
    assert is_gone(pids[0])


def test_an_exception_does_not_wait_for_a_worker_that_ignores_it() -> None:
    pids: list[int] = []

    def log(_level: int, message: str) -> None:
        pids.append(int(message))
        raise TaskTimeout

    script = """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(os.getpid(), file=sys.stderr, flush=True)
        time.sleep(60)
    """
    began = time.monotonic()
    with pytest.raises(TaskTimeout):
        worker(script, log=log, grace_seconds=0.5).run()
    assert time.monotonic() - began < 50
    assert is_gone(pids[0])


def test_the_control_pipe_ends_when_the_launcher_dies(tmp_path: Path) -> None:
    """The launcher is killed without a chance to say anything; the script stands for a worker that minds its pipe."""
    said = tmp_path / "said"
    mind_the_pipe = f"""
        import os, pathlib, sys
        control = os.fdopen(int(sys.argv[sys.argv.index("--control-fd") + 1]))
        control.readline()
        print(os.getpid(), file=sys.stderr, flush=True)
        assert control.read() == ""
        pathlib.Path({str(said)!r}).write_text("launcher gone")
    """
    launcher = os.fork()
    if launcher == 0:
        try:
            worker(mind_the_pipe, log=lambda *_: os.kill(os.getpid(), signal.SIGKILL)).run()
        finally:
            os._exit(1)
    _, status = os.waitpid(launcher, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    when(said.exists, lambda: None).join()
    assert said.read_text() == "launcher gone"
