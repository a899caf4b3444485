"""A pod whose node is dead: it was deleted, and shows up for ever. The task gives it up, and its retry goes on.

The node was never there, which a control plane can't tell from one that has died.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_llmengine.exceptions import NodeLostError
from airflow_llmengine.hooks import worker_pod_manager
from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator
from tests.airflow.operators_in_tests import EchoJob, connection, run, task_context
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.host_python import HostPython
from tests.waiting import wait_until

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

PROMPTS = [f"row {index}" for index in range(5)]


class JobInPods:
    """A job of a task that is executed in this process."""

    def __init__(self, namespace: str, host_python: HostPython, folder: Path) -> None:
        self.echo = EchoJob(folder / "job", PROMPTS)
        self._template = host_python.pod_template()
        self._extra = {"launcher": "kubernetes", "namespace": namespace, "python": host_python.python}

    def connection(self, dead_node: str | None = None) -> str:
        """A connection that puts its pods on a node, or leaves that to the scheduler."""
        template = json.loads(json.dumps(self._template))
        if dead_node is not None:
            template["spec"] |= {"nodeName": dead_node, "tolerations": [{"key": dead_node, "operator": "Exists"}]}
        return connection(
            **self._extra,
            pod_template=template,
            cluster={"accelerator": "none"},
            worker_environment=self.echo.environment(),
        )

    def operator(self, **arguments: Any) -> LLMEngineBatchCompletionsOperator:
        return self.echo.operator(
            startup_check_interval_seconds=1, poll_interval=1, termination_grace_period=2, **arguments
        )


def context_of_a_task() -> Any:
    context = task_context(dag=SimpleNamespace())
    context["ti"].xcom_push = lambda **_xcom: None
    return context


@pytest.fixture
def job(namespace: str, shared_folder: Path, host_python_pod: HostPython, monkeypatch: pytest.MonkeyPatch) -> JobInPods:
    monkeypatch.setattr(worker_pod_manager, "LOST_AFTER_SECONDS", 1.0)
    return JobInPods(namespace, host_python_pod, shared_folder)


def wait_deferred(job: JobInPods) -> None:
    """Execute the task, its trigger, and the task again, each as in a process of its own."""
    operator = job.operator(deferrable=True)
    context = context_of_a_task()
    operator.render_template_fields(context)
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context)

    async def events() -> list[Any]:
        return [event.payload async for event in deferred.value.trigger.run()]

    (event,) = asyncio.run(events())
    job.operator(deferrable=True).resume_execution(
        deferred.value.method_name, {**(deferred.value.kwargs or {}), "event": event}, context
    )


def wait_here(job: JobInPods) -> None:
    run(job.operator(deferrable=False), context_of_a_task())


@contextmanager
def evicted(cluster: Cluster, namespace: str) -> Iterator[None]:
    """The one pod is deleted, as the control plane does with pods of a node that does not answer; it need not wait."""

    def delete() -> None:
        wait_until(lambda: cluster.pods(namespace))
        (pod,) = cluster.pods(namespace)
        cluster.delete_pod(namespace, pod.metadata.name, grace_seconds=1)

    with ThreadPoolExecutor() as thread:
        deleting = thread.submit(delete)
        yield
        deleting.result()


@pytest.mark.parametrize("wait", [wait_here, wait_deferred])
def test_a_pod_on_a_dead_node_is_given_up_and_a_retry_goes_on(
    job: JobInPods,
    cluster: Cluster,
    namespace: str,
    silent_node: str,
    monkeypatch: pytest.MonkeyPatch,
    wait: Any,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", job.connection(silent_node))
    with (
        pytest.raises(NodeLostError, match=f"its node {silent_node} does not answer"),
        evicted(cluster, namespace),
    ):
        wait(job)
    (pod,) = cluster.pods(namespace)
    assert pod.metadata.deletion_timestamp is not None
    monkeypatch.setenv("AIRFLOW_CONN_LLMENGINE_DEFAULT", job.connection())
    run(job.operator(deferrable=False), context_of_a_task())
    assert job.echo.texts() == PROMPTS
    wait_until(lambda: {each.metadata.name for each in cluster.pods(namespace)} <= {pod.metadata.name})
