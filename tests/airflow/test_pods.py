"""Calls of the Kubernetes API when its server is busy, away, or loses its answers.

The API server is scripted: a real one can't be made to fail so. How it answers when it is well, real pods show.
"""

from __future__ import annotations

import json
import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client import V1Container, V1EnvVar, V1ObjectMeta, V1Secret
from urllib3.exceptions import MaxRetryError, ReadTimeoutError

from airflow_llmengine.exceptions import (
    ClusterUnavailableError,
    PodQuotaError,
    PodRejectedError,
    PodStartError,
)
from airflow_llmengine.hooks.cluster_errors import cluster_errors
from airflow_llmengine.hooks.pods import (
    CALL_TIMEOUT,
    LOG_TAIL_LINES,
    create_pod,
    create_secret,
    delete_expired,
    delete_pod,
    events_of,
    log_tail,
    read_pod,
)
from airflow_llmengine.kube.labels import DEADLINE_ANNOTATION
from tests.airflow.cluster_double import CONTAINER, NAMESPACE, ScriptedApi, a_pod, moment, refusal

LOST = ReadTimeoutError(None, "/api/v1/namespaces/batch/pods", "no answer")  # type: ignore[arg-type]
BUSY = (429, "Too Many Requests")
QUOTA = 'pods "worker" is forbidden: exceeded quota: gpus, requested: pods=1, used: pods=1, limited: pods=1'


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was waited before each further try; nobody really waits."""
    waited: list[float] = []
    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=waited.append))
    return waited


def new_pod(**metadata: Any) -> Any:
    pod = a_pod(annotations={"job": "a"})
    pod.metadata.uid = None
    pod.metadata.labels = {"try_number": "1"}
    for name, value in metadata.items():
        setattr(pod.metadata, name, value)
    return pod


@pytest.mark.parametrize("trouble", [refusal(*BUSY), refusal(503), refusal(500), LOST])
def test_a_server_that_is_busy_or_away_for_a_moment_is_asked_again(trouble: Exception) -> None:
    api = ScriptedApi(a_pod())
    for verb in ("create", "read", "delete", "list"):
        api.troubles[verb].extend([trouble] * 4)
    assert create_pod(api, new_pod(name="new")).metadata.uid == "uid-of-new"
    found = read_pod(api, "worker", NAMESPACE)
    assert found is not None
    delete_pod(api, found)
    assert delete_expired(api, NAMESPACE, ttl_seconds=0) == []
    assert api.verbs() == [*["create"] * 5, *["read"] * 5, *["delete"] * 5, *["list"] * 5]
    # None waits for ever.
    assert {options["_request_timeout"] for _verb, options in api.calls} == {CALL_TIMEOUT}


def test_as_long_as_the_server_says(waits: list[float]) -> None:
    busy = refusal(*BUSY)
    busy.headers = {"Retry-After": "7"}
    api = ScriptedApi(a_pod())
    api.troubles["read"].append(busy)
    assert read_pod(api, "worker", NAMESPACE) is not None
    assert waits == [7]


def test_a_storm_is_not_endured_for_ever() -> None:
    api = ScriptedApi()
    api.troubles["create"].extend([refusal(*BUSY)] * 99)
    with pytest.raises(ClusterUnavailableError) as failed:
        create_pod(api, new_pod())
    assert failed.value.retry_helps
    assert len(api.calls) == 5
    api.troubles["create"].clear()
    api.troubles["create"].extend([LOST] * 99)
    with (
        pytest.raises(ClusterUnavailableError, match=r"can't be reached \(ReadTimeoutError\)") as failed,
        cluster_errors(),
    ):
        create_pod(api, new_pod())
    assert failed.value.__suppress_context__


def test_a_pod_whose_making_was_not_answered_is_not_made_twice() -> None:
    api = ScriptedApi()
    api.lost["create"].append(LOST)
    made = create_pod(api, new_pod())
    assert made.metadata.uid == "uid-of-worker"
    assert list(api.pods) == ["worker"]


@pytest.mark.parametrize(
    "others", [{"annotations": {"job": "b"}}, {"annotations": None}, {"labels": {"try_number": "2"}}]
)
def test_another_pod_that_has_the_name_is_not_taken_for_it(others: dict[str, Any], waits: list[float]) -> None:
    api = ScriptedApi(new_pod(**others))
    with pytest.raises(PodStartError, match="already"):
        create_pod(api, new_pod())
    assert not waits


def test_what_the_server_refuses_is_told_at_once_and_without_the_pod(waits: list[float]) -> None:
    pod = new_pod()
    pod.spec.containers = [V1Container(name=CONTAINER, env=[V1EnvVar(name="LLMENGINE_REQUEST", value="zanzibar")])]
    said = 'admission webhook "guard" denied the request: zanzibar is not a name'
    for message, expected in ((QUOTA, PodQuotaError), (said, PodRejectedError)):
        api = ScriptedApi()
        api.troubles["create"].append(refusal(403, "Forbidden", message=message))
        with pytest.raises(expected) as failed:
            create_pod(api, pod)
        assert "zanzibar" not in str(failed.value)
        assert failed.value.__context__ is None
    assert not waits


def test_a_secret_that_is_there_already_is_there(waits: list[float]) -> None:
    secret = V1Secret(metadata=V1ObjectMeta(name="keys", namespace=NAMESPACE))
    api = ScriptedApi()
    api.lost["create"].append(LOST)
    create_secret(api, secret)
    waits.clear()
    create_secret(api, secret)
    # A pod that is found again has its own already: nobody waits for that.
    assert not waits
    api.troubles["create"].append(refusal(403, "Forbidden", message='secrets is forbidden: User "u" cannot create'))
    with pytest.raises(PodRejectedError):
        create_secret(api, secret)


def test_a_pod_is_deleted_once_and_another_one_by_its_name_is_left_alone(waits: list[float]) -> None:
    api = ScriptedApi(a_pod(uid="second"))
    delete_pod(api, a_pod(uid="first"))
    assert list(api.pods) == ["worker"]
    delete_pod(api, a_pod(uid="second"), grace_seconds=7)
    assert not api.pods
    delete_pod(api, a_pod(uid="second"))
    assert [options["grace"] for _verb, options in api.calls] == [None, 7, None]
    assert not waits
    assert read_pod(api, "worker", NAMESPACE) is None


def test_a_pod_that_has_failed_and_still_runs_is_not_put_out_of_sight() -> None:
    api = ScriptedApi(a_pod(phase="Failed", told=time.time()))
    delete_pod(api, api.pods["worker"])
    assert delete_expired(api, NAMESPACE, ttl_seconds=0) == []
    assert "delete" not in api.verbs()
    # Nobody is there to say that it has ended.
    api.pods["worker"].metadata.managed_fields[0].time = moment(0)
    assert delete_expired(api, NAMESPACE, ttl_seconds=0) == ["worker"]
    assert not api.pods


def test_a_deletion_whose_answer_is_lost_has_happened() -> None:
    api = ScriptedApi(a_pod())
    api.lost["delete"].append(LOST)
    delete_pod(api, a_pod())
    assert not api.pods


def test_events_come_in_order_and_are_no_reason_to_fail() -> None:
    def event(name: str, **when: Any) -> Any:
        times = {"last_timestamp": None, "event_time": None, **when}
        return SimpleNamespace(reason=name, metadata=SimpleNamespace(creation_timestamp=None), **times)

    api = ScriptedApi(a_pod())
    api.events = [event("b", event_time=moment(2)), event("none"), event("a", last_timestamp=moment(1))]
    assert [each.reason for each in events_of(api, a_pod())] == ["none", "a", "b"]
    assert api.calls[0][1]["field_selector"] == "involvedObject.name=worker,involvedObject.uid=uid-of-worker"
    troubles = (refusal(403), MaxRetryError(None, "/"), ClusterUnavailableError("no token"))  # type: ignore[arg-type]
    for trouble in troubles:
        api.troubles["events"].clear()
        api.troubles["events"].extend([trouble] * 5)
        assert events_of(api, a_pod()) == []


def test_only_pods_that_ended_long_ago_are_deleted() -> None:
    api = ScriptedApi(
        a_pod("old", "Failed", ended=100),
        a_pod("young", "Failed", ended=901),
        a_pod("at-work", start_time=moment(1)),
        a_pod("waiting", "Pending"),
        a_pod("evicted", "Failed", start_time=moment(200)),
    )
    # What an evicted pod ran, nobody knows any more.
    api.pods["evicted"].status.container_statuses = None
    assert delete_expired(api, NAMESPACE, ttl_seconds=100, now=moment(1000)) == ["old", "evicted"]
    assert set(api.pods) == {"young", "at-work", "waiting"}
    assert api.calls[0][1]["label_selector"] == "airflow-llmengine/worker=true"


def test_a_pod_that_waits_to_start_past_its_deadline_is_deleted() -> None:
    """Kubernetes does not end it: a pod's time is counted from its start on."""

    def left(name: str, phase: str, deadline: str | None = "900", **fields: Any) -> Any:
        annotations = None if deadline is None else {DEADLINE_ANNOTATION: deadline}
        return a_pod(name, phase, annotations=annotations, **fields)

    api = ScriptedApi(
        left("missed", "Pending"),
        left("its-tasks-yet", "Pending", "941"),
        left("at-work", "Running"),
        left("going", "Pending", deletion=1100),
        left("of-an-older-version", "Pending", None),
        left("not-ours", "Pending", "noon"),
        left("failed", "Failed", ended=950),
    )
    assert delete_expired(api, NAMESPACE, ttl_seconds=100, now=moment(1000)) == ["missed"]


def test_of_the_log_only_the_workers_own_lines_are_told_above_debug() -> None:
    api, told = ScriptedApi(a_pod()), list[tuple[int, str]]()
    line = json.dumps({"level": "WARNING", "logger": "airflow_llmengine.worker", "message": "slow"})
    api.log = f"{line}\nzanzibar\n".encode() + b"\xff\n"
    log_tail(api, a_pod(), container=CONTAINER, log=lambda level, text: told.append((level, text)))
    assert told == [(logging.WARNING, "slow"), (logging.DEBUG, "zanzibar"), (logging.DEBUG, "\\xff")]
    assert api.calls[0][1]["container"] == CONTAINER
    told.clear()
    api.log = b"a\n" * LOG_TAIL_LINES
    log_tail(api, a_pod(), container=CONTAINER, log=lambda level, text: told.append((level, text)))
    assert told[0] == (logging.INFO, f"The last {LOG_TAIL_LINES} lines of the worker's log:")
