"""Plays the scheduler for one DAG run, and runs its tasks as Airflow's executors do: in supervised processes.

What may run next, what is skipped and into how many a mapped task is expanded are Airflow's own decisions, taken over
the real metadata database. All that may run is run at once.

::

    python scheduler_process.py DAG_ID COMMAND...

    run                     run what can be run, and go on until nothing can
    serial                  the same, one task after the other
    clear:TASK_ID[:INDEX]   clear a task
    downstream:TASK_ID      clear a task and what comes after it
    fail:TASK_ID[:INDEX]    mark a task as failed
    timeout:TASK_ID         what the scheduler does with a deferred task whose trigger has timed out
    lost                    take the tasks that run for dead

At the end it prints a line ``state: TASK_ID MAP_INDEX STATE`` for each task. Tasks that are deferred need a triggerer
beside this process.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.airflow.task_process import make_run

RUN_ID = "run-1"


def find_run(session: Any, dag_id: str, run_id: str) -> Any:
    from airflow.models.dagrun import DagRun
    from airflow.models.serialized_dag import SerializedDagModel
    from sqlalchemy import select

    found = session.scalar(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
    if found is not None:
        found.dag = SerializedDagModel.get_dag(dag_id, session=session)
    return found


def start(instance: Any, dag_id: str) -> int:
    """Run a task instance in a process of its own, under a supervisor; gives the supervisor's process id."""
    from airflow import settings
    from airflow.executors.workloads import BundleInfo
    from airflow.sdk.execution_time.supervisor import InProcessTestSupervisor, supervise_task

    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        # The parent's connections are the parent's.
        assert settings.engine is not None
        settings.engine.dispose(close=False)
        supervise_task(
            ti=instance,
            bundle_info=BundleInfo(name="dags-folder"),
            dag_rel_path=Path(f"{dag_id}.py"),
            token="",
            client=InProcessTestSupervisor._api_client(),  # type: ignore[no-untyped-call]
            subprocess_logs_to_stdout=True,
        )
        sys.stdout.flush()
    finally:
        os._exit(0)


def run(dag_id: str, run_id: str, most_at_once: int) -> None:
    from airflow.sdk.api.datamodels._generated import TaskInstance as SDKTaskInstance
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState, TaskInstanceState

    supervisors: set[int] = set()
    while True:
        starting = []
        with create_session() as session:
            dag_run = find_run(session, dag_id, run_id)
            if dag_run.state == DagRunState.QUEUED:
                dag_run.state = DagRunState.RUNNING
                session.commit()
            over = dag_run.state in (DagRunState.SUCCESS, DagRunState.FAILED)
            ready = [] if over else dag_run.update_state(session=session)[0]
            woken = dag_run.get_task_instances(state=[TaskInstanceState.SCHEDULED], session=session)
            for found in [*woken, *ready][: most_at_once - len(supervisors)]:
                # A task that a trigger has woken goes on with the same attempt.
                found.try_number += 0 if found.next_method else 1
                found.state = TaskInstanceState.QUEUED
                starting.append(
                    SDKTaskInstance(
                        id=UUID(str(found.id)),
                        task_id=found.task_id,
                        dag_id=dag_id,
                        run_id=run_id,
                        try_number=found.try_number,
                        map_index=found.map_index,
                        dag_version_id=UUID(str(found.dag_version_id)),
                    )
                )
            session.commit()
        supervisors |= {start(instance, dag_id) for instance in starting}
        if over and not supervisors:
            return
        time.sleep(0.1)
        supervisors -= {pid for pid in supervisors if os.waitpid(pid, os.WNOHANG)[0]}


def clear(dag_id: str, run_id: str, task_id: str, index: str | None, *, downstream: bool) -> None:
    from airflow.models.taskinstance import clear_task_instances
    from airflow.utils.session import create_session

    with create_session() as session:
        dag_run = find_run(session, dag_id, run_id)
        wanted = {task_id}
        if downstream:
            wanted |= {task.task_id for task in dag_run.dag.get_task(task_id).get_flat_relatives(upstream=False)}
        found = [
            instance
            for instance in dag_run.get_task_instances(session=session)
            if instance.task_id in wanted and (index is None or instance.map_index == int(index))
        ]
        assert found
        clear_task_instances(found, session)
        session.commit()


def fail(dag_id: str, run_id: str, task_id: str, index: str | None) -> None:
    from airflow.utils.session import create_session
    from airflow.utils.state import TaskInstanceState

    with create_session() as session:
        for instance in find_run(session, dag_id, run_id).get_task_instances(session=session):
            if instance.task_id == task_id and index in (None, str(instance.map_index)):
                instance.set_state(TaskInstanceState.FAILED, session=session)
        session.commit()


def lost(dag_id: str, run_id: str) -> None:
    """Take the tasks that run for dead, as the scheduler does when nobody hears of them any more."""
    from airflow.sdk import timezone
    from airflow.utils.session import create_session
    from airflow.utils.state import TaskInstanceState

    with create_session() as session:
        for instance in find_run(session, dag_id, run_id).get_task_instances(session=session):
            if instance.state == TaskInstanceState.RUNNING:
                instance.end_date = timezone.utcnow()
                instance.state = TaskInstanceState.UP_FOR_RETRY
        session.commit()


def time_out(dag_id: str, run_id: str, task_id: str) -> None:
    from airflow.models.trigger import TRIGGER_FAIL_REPR, TriggerFailureReason
    from airflow.utils.session import create_session
    from airflow.utils.state import TaskInstanceState

    with create_session() as session:
        for instance in find_run(session, dag_id, run_id).get_task_instances(session=session):
            if instance.task_id == task_id and instance.state == TaskInstanceState.DEFERRED:
                instance.state = TaskInstanceState.SCHEDULED
                instance.next_method = TRIGGER_FAIL_REPR
                instance.next_kwargs = {"error": TriggerFailureReason.TRIGGER_TIMEOUT}
                instance.trigger_id = None
        session.commit()


def load_what_tasks_need() -> None:
    """Once, before the first fork, instead of in every task."""
    from airflow.sdk.execution_time.supervisor import InProcessTestSupervisor, in_process_api_server

    import airflow_llmengine.operators.task_group
    import airflow_llmengine.storage.launch  # noqa: F401

    # The first request makes the Execution API's application, which takes seconds.
    InProcessTestSupervisor._api_client().task_instances.get_task_states(dag_id="none")  # type: ignore[no-untyped-call]
    # Its thread is not in the processes that are forked; each makes its own.
    del in_process_api_server().transport


def follow(dag_id: str, run_id: str, commands: Sequence[str]) -> None:
    from airflow.utils.session import create_session

    with create_session() as session:
        if find_run(session, dag_id, run_id) is None:
            make_run(session, dag_id, run_id)
    for command in commands:
        name, *arguments = command.split(":")
        if name in ("run", "serial"):
            run(dag_id, run_id, 64 if name == "run" else 1)
        elif name == "lost":
            lost(dag_id, run_id)
        else:
            task_id, index = [*arguments, None][:2]
            if name == "fail":
                fail(dag_id, run_id, str(task_id), index)
            elif name == "timeout":
                time_out(dag_id, run_id, str(task_id))
            else:
                clear(dag_id, run_id, str(task_id), index, downstream=name == "downstream")
    with create_session() as session:
        for instance in find_run(session, dag_id, run_id).get_task_instances(session=session):
            sys.stdout.write(f"state: {instance.task_id} {instance.map_index} {instance.state}\n")


if __name__ == "__main__":
    load_what_tasks_need()
    follow(sys.argv[1], RUN_ID, sys.argv[2:])
