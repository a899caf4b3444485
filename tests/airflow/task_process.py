"""Runs one task as Airflow's executors do: a supervisor, and the task in a process that it forks.

The Execution API runs inside the supervisor, over the real metadata database, instead of behind HTTP; no scheduler is
there, so this script does the one thing that the scheduler would do: it queues the task.

::

    python task_process.py run DAG_ID TASK_ID RUN_ID     prints "state: <state>" at the end
    python task_process.py resume DAG_ID TASK_ID RUN_ID  the same for a task whose trigger has fired
    python task_process.py defer DAG_ID TASK_ID RUN_ID   starts a task from its trigger, as the scheduler does
    python task_process.py clear DAG_ID TASK_ID RUN_ID   clears the task, running or not
    python task_process.py fail DAG_ID TASK_ID RUN_ID    marks the task as failed

A DAG is in the file that is called like it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from uuid import UUID


def find_task_instance(session: Any, dag_id: str, task_id: str, run_id: str) -> Any:
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import select

    return session.scalar(
        select(TaskInstance).where(
            TaskInstance.dag_id == dag_id, TaskInstance.task_id == task_id, TaskInstance.run_id == run_id
        )
    )


def make_run(session: Any, dag_id: str, run_id: str) -> None:
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
    from airflow.models.dagrun import get_or_create_dagrun
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.sdk import timezone
    from airflow.utils.types import DagRunTriggeredByType

    manager: Any = DagBundlesManager()  # type: ignore[no-untyped-call]
    manager.sync_bundles_to_db(session=session)
    session.commit()
    for bundle in manager.get_all_dag_bundles():
        bundle.initialize()
        bag = BundleDagBag(dag_folder=bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
        sync_bag_to_db(bag, bundle.name, bundle.version)
    now = timezone.utcnow()
    dag = SerializedDagModel.get_dag(dag_id, session=session)
    assert dag is not None
    run = get_or_create_dagrun(
        dag=dag,
        run_id=run_id,
        logical_date=now,
        data_interval=None,
        run_after=now,
        start_date=now,
        conf=None,
        triggered_by=DagRunTriggeredByType.TEST,
        triggering_user_name="test",
        session=session,
    )
    run.dag = dag
    session.commit()


def defer(dag_id: str, task_id: str, run_id: str) -> str:
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.utils.session import create_session

    with create_session() as session:
        if find_task_instance(session, dag_id, task_id, run_id) is None:
            make_run(session, dag_id, run_id)
        found = find_task_instance(session, dag_id, task_id, run_id)
        dag = SerializedDagModel.get_dag(dag_id, session=session)
        assert dag is not None
        found.task = dag.get_task(task_id)
        assert found.defer_task(session=session), "it does not start from a trigger"
        session.commit()
        return str(found.state)


def resume(dag_id: str, task_id: str, run_id: str) -> str:
    return run(dag_id, task_id, run_id, tries=0)


def run(dag_id: str, task_id: str, run_id: str, tries: int = 1) -> str:
    from airflow.executors.workloads import BundleInfo
    from airflow.sdk.api.datamodels._generated import TaskInstance as SDKTaskInstance
    from airflow.sdk.execution_time.supervisor import InProcessTestSupervisor, supervise_task
    from airflow.utils.session import create_session
    from airflow.utils.state import TaskInstanceState

    with create_session() as session:
        found = find_task_instance(session, dag_id, task_id, run_id)
        if found is None:
            make_run(session, dag_id, run_id)
            found = find_task_instance(session, dag_id, task_id, run_id)
        found.try_number += tries
        found.state = TaskInstanceState.QUEUED
        session.commit()
        instance = SDKTaskInstance(
            id=UUID(str(found.id)),
            task_id=task_id,
            dag_id=dag_id,
            run_id=run_id,
            try_number=found.try_number,
            map_index=found.map_index,
            dag_version_id=UUID(str(found.dag_version_id)),
        )
    supervise_task(
        ti=instance,
        bundle_info=BundleInfo(name="dags-folder"),
        dag_rel_path=Path(f"{dag_id}.py"),
        token="",
        client=InProcessTestSupervisor._api_client(),  # type: ignore[no-untyped-call]
        subprocess_logs_to_stdout=True,
    )
    with create_session() as session:
        return str(find_task_instance(session, dag_id, task_id, run_id).state)


def clear(dag_id: str, task_id: str, run_id: str) -> str:
    from airflow.models.taskinstance import clear_task_instances
    from airflow.utils.session import create_session

    with create_session() as session:
        found = find_task_instance(session, dag_id, task_id, run_id)
        clear_task_instances([found], session)
        session.commit()
        return f"{found.state}, max_tries {found.max_tries}"


def fail(dag_id: str, task_id: str, run_id: str) -> str:
    from airflow.utils.session import create_session
    from airflow.utils.state import TaskInstanceState

    with create_session() as session:
        found = find_task_instance(session, dag_id, task_id, run_id)
        found.set_state(TaskInstanceState.FAILED, session=session)
        session.commit()
        return str(found.state)


if __name__ == "__main__":
    command, *names = sys.argv[1:]
    commands = {"run": run, "resume": resume, "defer": defer, "clear": clear, "fail": fail}
    sys.stdout.write(f"state: {commands[command](*names)}\n")
