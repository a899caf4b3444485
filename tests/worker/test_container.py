"""What the only program of a container must see to itself: signals from its first moment on, and its last words."""

from __future__ import annotations

import json
import logging
import os
import signal
import textwrap
from pathlib import Path

import pytest

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.worker.cli import main
from airflow_llmengine.worker.logs import LONGEST_END, configure_logs, log_end
from tests.waiting import wait_until
from tests.worker.jobs import Job

SIGTERM_WHILE_IT_IS_IMPORTED = textwrap.dedent(
    """
    import os, signal, sys

    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name == "airflow_llmengine.worker.cli":
                sys.meta_path.remove(self)
                os.kill(os.getpid(), signal.SIGTERM)

    sys.meta_path.insert(0, Finder())
    """
)


def python_path(folder: Path) -> str:
    """Where a worker finds a ``sitecustomize`` of this test's, and this checkout."""
    return f"{folder}{os.pathsep}{Path(__file__).parents[2]}"


def last_line(log: str | bytes) -> dict[str, str]:
    line: dict[str, str] = json.loads(log.splitlines()[-1])
    return line


@pytest.mark.parametrize("command", ["run", "collect"])
def test_sigterm_is_not_lost_while_the_worker_is_still_imported(tmp_path: Path, command: str) -> None:
    """The kernel drops it if the first process of a container has no handler."""
    (tmp_path / "sitecustomize.py").write_text(SIGTERM_WHILE_IT_IS_IMPORTED)
    job = Job(tmp_path, ["one"])
    done = job.run("--log-format=json", command=command, PYTHONPATH=python_path(tmp_path))
    assert done.returncode == ExitCode.PARTIAL, done.stderr
    assert last_line(done.stderr)["message"] == "got SIGTERM; what is finished is kept"
    assert not job.generations()
    assert not job.output.exists()


def test_the_other_commands_end_at_once(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SIGTERM_WHILE_IT_IS_IMPORTED)
    job = Job(tmp_path, ["one"])
    done = job.run(command="validate", PYTHONPATH=python_path(tmp_path))
    assert done.returncode == -signal.SIGTERM


def test_sigterm_while_the_model_loads_ends_with_the_reason(tmp_path: Path) -> None:
    job = Job(tmp_path, ["one"])
    worker = job.start("--log-format=json", LLMENGINE_ECHO_LOAD_SECONDS="600")
    wait_until(lambda: list(tmp_path.glob("output.json.job/*/replicas/0.json")))
    worker.send_signal(signal.SIGTERM)
    _out, log = worker.communicate(timeout=60)
    assert worker.returncode == ExitCode.PARTIAL
    assert last_line(log) == {
        "level": "ERROR",
        "logger": "airflow_llmengine.worker.stopping",
        "message": "got SIGTERM; what is finished is kept",
    }


def test_nothing_is_said_after_the_last_line_and_nothing_hangs(tmp_path: Path) -> None:
    """What libraries leave behind: a thread that never ends, and what is said when the interpreter ends."""
    (tmp_path / "sitecustomize.py").write_text(
        textwrap.dedent(
            """
            import atexit, sys, threading

            atexit.register(print, "at exit", file=sys.stderr)
            threading.Thread(target=threading.Event().wait).start()
            """
        )
    )
    job = Job(tmp_path, ["llmengine-echo:reject"])
    done = job.run("--log-format=json", PYTHONPATH=python_path(tmp_path))
    assert done.returncode == ExitCode.TOO_MANY_FAILED_RECORDS, done.stderr
    assert last_line(done.stderr)["level"] == "ERROR"


@pytest.mark.parametrize("message", ["a" * 5000, "ä" * 5000, "\n" * 5000, '"' * 5000])
def test_a_long_reason_is_followed_by_a_line_that_fits_a_termination_message(
    message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logs("json")
    log_end(logging.getLogger("airflow_llmengine.worker"), message)
    whole, short = capsys.readouterr().err.splitlines()
    assert json.loads(whole)["message"] == message
    kept = f"{whole}\n{short}\n".encode()[-2048:].decode(errors="replace").splitlines()[-1]
    said = json.loads(kept)["message"]
    assert said.startswith(message[: LONGEST_END // 7])
    log_end(logging.getLogger("airflow_llmengine.worker"), "short")
    assert capsys.readouterr().err.count("\n") == 1
    configure_logs("text")
    log_end(logging.getLogger("airflow_llmengine.worker"), message)
    assert capsys.readouterr().err.count(message) == 1


def test_a_launcher_can_read_what_is_wrong_with_the_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    """A plugin that is newer than the worker's image may give it an option that it does not have."""
    with pytest.raises(SystemExit) as ended:
        main(["run", "-", "--log-format=json", "--option-of-tomorrow=1"])
    assert ended.value.code == ExitCode.BAD_REQUEST
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["level"] == "ERROR"
    assert "unrecognized arguments: --option-of-tomorrow=1" in json.loads(line)["message"]
    with pytest.raises(SystemExit):
        main(["run", "-", "--option-of-tomorrow=1"])
    assert "usage: " in capsys.readouterr().err
