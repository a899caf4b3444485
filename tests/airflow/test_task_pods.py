"""What a task does about pods of its earlier attempts before it makes one, without a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client import V1ContainerState, V1ContainerStateTerminated, V1Pod
from kubernetes.config.config_exception import ConfigException
from urllib3.exceptions import HTTPError

from airflow_llmengine.exceptions import ClusterUnavailableError
from airflow_llmengine.hooks.cluster_errors import only_warned_of
from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator
from tests.airflow.cluster_double import CONTAINER, NAMESPACE, ScriptedApi, a_pod, moment, refusal
from tests.airflow.operators_in_tests import task_context

IDENTITY = {"airflow-llmengine/job": "abc-1"}


def make_pod(
    api: ScriptedApi, name: str, *, meanwhile: Callable[[], None] = lambda: None, of_a_replica: bool = False
) -> V1Pod:
    """Have a task make its pod.

    Args:
        api: The cluster, whose pods are all of this task.
        name: Of the new pod.
        meanwhile: What happens while the task waits.
        of_a_replica: Whether it is looked first whether a pod of this replica has finished.
    """
    operator = LLMEngineBatchCompletionsOperator(
        task_id="job", input_data_path="in.json", output_data_path="out.json", model_config={"model": "stand-in"}
    )
    operator.__dict__["client"] = api
    doubles: dict[str, Any] = {
        "_pod_launch": SimpleNamespace(identity=IDENTITY, add_secret=lambda *_arguments: None),
        "_build_find_pod_label_selector": lambda *_arguments, **_options: "",
        "_pause": lambda _seconds: meanwhile(),
    }
    for attribute, double in doubles.items():
        setattr(operator, attribute, double)
    new = a_pod(name, None, annotations={**IDENTITY, "try": "2"})
    new.metadata.uid = None
    if of_a_replica:
        operator.namespace = NAMESPACE
        operator._attempt = SimpleNamespace(replicas=2, replica=0)  # type: ignore[assignment]
        assert not operator._has_finished(task_context())
    return operator.get_or_create_pod(new, task_context())


def test_a_kept_pod_gives_its_name_to_the_next_one_and_others_stay() -> None:
    """As with random_name_suffix=False: the API server refuses a second pod of a name."""
    ended: dict[str, Any] = {"phase": "Failed", "ended": time.time(), "exit_code": 75, "annotations": IDENTITY}
    api = ScriptedApi(*(a_pod(name, uid=f"first-{name}", **ended) for name in ("job", "older")))
    assert make_pod(api, "job").metadata.uid == "uid-of-job"
    assert set(api.pods) == {"job", "older"}


def test_a_failed_pod_is_waited_for_until_its_containers_have_ended() -> None:
    """At its deadline, or evicted, it is called failed at once, and has its grace: two workers must not be at work."""
    ending = a_pod("first", "Failed", annotations=IDENTITY, told=time.time())
    api = ScriptedApi(ending)
    made = []

    def end() -> None:
        made.append("second" in api.pods)
        terminated = V1ContainerStateTerminated(exit_code=75, finished_at=moment(time.time()))
        (container,) = ending.status.container_statuses
        assert container.name == CONTAINER
        container.state = V1ContainerState(terminated=terminated)

    assert make_pod(api, "second", meanwhile=end).metadata.namespace == NAMESPACE
    assert made == [False]
    # It is kept to be looked at.
    assert set(api.pods) == {"first", "second"}
    assert "delete" not in api.verbs()


@pytest.mark.parametrize(
    "error",
    [refusal(500), refusal(403), HTTPError("away"), ConfigException("no cluster"), ClusterUnavailableError("no token")],
    ids=lambda error: type(error).__name__,
)
def test_what_fails_while_a_task_clears_up_is_a_warning_without_its_text(error: Exception) -> None:
    warned: list[tuple[str, ...]] = []
    log = SimpleNamespace(warning=lambda *said: warned.append(said))

    def clear_up() -> None:
        raise error

    with only_warned_of(log, "%s could not be ended (%s).", "worker"):
        clear_up()
    assert warned == [("%s could not be ended (%s).", "worker", type(error).__name__)]


def test_a_task_that_is_ended_while_it_clears_up_is_ended() -> None:
    with pytest.raises(KeyboardInterrupt), only_warned_of(SimpleNamespace(), "(%s)"):
        raise KeyboardInterrupt


def test_a_replicas_start_lists_the_pods_of_its_task_once() -> None:
    api = ScriptedApi()
    made = make_pod(api, "job", of_a_replica=True)
    assert made.metadata.name == "job"
    # The second looks for pods of any task that have had their day.
    assert api.verbs().count("list") == 2
