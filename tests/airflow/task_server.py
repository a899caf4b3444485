"""Runs many tasks as ``task_process.py`` and ``scheduler_process.py`` do, without starting Python for each.

Airflow and what its tasks import take seconds to load. This process loads them once and then forks a process for each
command that it reads: a line of JSON with ``call`` (``task`` or ``group``), ``arguments``, ``environment`` and ``log``,
the file that is given all output. It answers with a line: the process id. All commands share one metadata database.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from tests.airflow import scheduler_process, task_process


def call_task(command: str, *names: str) -> None:
    calls: Mapping[str, Callable[..., str]] = {
        "run": task_process.run,
        "clear": task_process.clear,
        "fail": task_process.fail,
    }
    sys.stdout.write(f"state: {calls[command](*names)}\n")


def call_group(dag_id: str, run_id: str, *commands: str) -> None:
    scheduler_process.follow(dag_id, run_id, commands)


CALLS: Mapping[str, Callable[..., None]] = {"task": call_task, "group": call_group}


def serve(call: str, arguments: Sequence[str], environment: Mapping[str, str], log: str) -> NoReturn:
    """What a forked process does."""
    from airflow import settings

    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            os.dup2(descriptor, stream.fileno())
        os.environ.clear()
        os.environ.update(environment)
        assert settings.engine is not None
        settings.engine.dispose(close=False)
        CALLS[call](*arguments)
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, the test is shown it
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def main() -> None:
    # Warmed up here, and not in each process.
    import airflow.providers.amazon.aws.hooks.s3
    import airflow.providers.cncf.kubernetes.hooks.kubernetes  # noqa: F401
    import s3fs  # noqa: F401

    import airflow_llmengine.hooks.pod_failure
    import airflow_llmengine.kube.worker_pod
    import airflow_llmengine.operators.pod_launch  # noqa: F401

    scheduler_process.load_what_tasks_need()
    # Whoever started a command looks at its process, and nobody waits for it here.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            serve(**command)
        sys.stdout.write(f"started {pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
