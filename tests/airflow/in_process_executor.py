"""An executor for a real scheduler: its tasks run in supervised processes, as those of LocalExecutor do.

The Execution API runs inside each supervisor, over the real metadata database, instead of in an API server behind HTTP;
and what all tasks import is imported once, before they are forked.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from airflow.executors.base_executor import BaseExecutor

from tests.airflow.scheduler_process import load_what_tasks_need


class InProcessExecutor(BaseExecutor):
    """Forks a supervisor for each task instance that the scheduler queues."""

    is_local = True

    def __init__(self, *arguments: Any, **others: Any) -> None:
        super().__init__(*arguments, **others)
        self.supervisors: dict[int, Any] = {}

    def start(self) -> None:
        load_what_tasks_need()

    def _process_workloads(self, workloads: Sequence[Any]) -> None:
        for workload in workloads:
            del self.queued_tasks[workload.key]
            self.supervisors[_supervise(workload)] = workload.key

    def sync(self) -> None:
        for pid, key in list(self.supervisors.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self.supervisors[pid]
                (self.success if status == 0 else self.fail)(key)

    def end(self) -> None:
        for pid in self.supervisors:
            os.waitpid(pid, 0)

    def terminate(self) -> None:
        self.end()


def _supervise(workload: Any) -> int:
    """Run a task instance in a process of its own; gives its supervisor's process id."""
    from airflow import settings
    from airflow.sdk.execution_time.supervisor import InProcessTestSupervisor, supervise_task

    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    exit_code = 1
    try:
        # The parent's connections are the parent's.
        assert settings.engine is not None
        settings.engine.dispose(close=False)
        exit_code = supervise_task(
            ti=workload.ti,
            bundle_info=workload.bundle_info,
            dag_rel_path=workload.dag_rel_path,
            token="",
            client=InProcessTestSupervisor._api_client(),  # type: ignore[no-untyped-call]
            subprocess_logs_to_stdout=True,
        )
        sys.stdout.flush()
    finally:
        os._exit(exit_code)
