from __future__ import annotations

import re
from typing import Any

import pytest

from airflow_llmengine.kube.cluster import ClusterSettings
from airflow_llmengine.kube.labels import WORKER_SELECTOR, common_labels, identity_annotations, job_labels
from airflow_llmengine.spec.kubernetes_syntax import label_key_fault, label_value_fault
from airflow_llmengine.spec.validation import RequestInvalidError
from tests.kube.pods import HANDLE, a_request, build, built, operators_pod


def test_the_jobs_labels_win_over_the_models_and_both_are_on_the_pod() -> None:
    model = {"model": "m", "labels": {"team": "model", "cost": "center-1"}}
    labels = built(labels={"team": "job"}, model_config=model)["metadata"]["labels"]
    assert (labels["team"], labels["cost"]) == ("job", "center-1")
    assert labels.items() >= operators_pod()["metadata"]["labels"].items()


def test_the_recommended_labels_are_there_unless_the_job_gives_them_itself() -> None:
    labels = built()["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == labels["app.kubernetes.io/managed-by"] == "airflow-llmengine"
    assert labels["app.kubernetes.io/component"] == "replica"
    assert (
        built(labels={"app.kubernetes.io/name": "nightly"})["metadata"]["labels"]["app.kubernetes.io/name"] == "nightly"
    )


def test_a_recommended_label_that_the_pod_operator_gave_stays() -> None:
    manifest = operators_pod()
    manifest["metadata"]["labels"]["app.kubernetes.io/name"] = "nightly"
    assert built(manifest)["metadata"]["labels"]["app.kubernetes.io/name"] == "nightly"


@pytest.mark.parametrize("key", ["app.kubernetes.io/managed-by", "app.kubernetes.io/name"])
def test_our_pods_are_found_whatever_a_job_or_a_template_calls_them(key: str) -> None:
    """Else the sensor would take a pod at work for gone, and a failed one would be kept for ever."""
    name, value = WORKER_SELECTOR.split("=")
    manifest = operators_pod()
    manifest["metadata"]["labels"][key] = "someone"
    for pod in (built(labels={key: "someone"}), built(manifest), built(role="collect", labels={key: "someone"})):
        assert pod["metadata"]["labels"][key] == "someone"
        assert pod["metadata"]["labels"][name] == value


def test_the_label_that_our_pods_are_found_by_is_nobody_elses_to_give() -> None:
    name, value = WORKER_SELECTOR.split("=")
    manifest = operators_pod()
    manifest["metadata"]["labels"][name] = "no"
    with pytest.raises(RequestInvalidError, match="is set by the launcher itself; leave it out of the pod's labels"):
        build(manifest)
    manifest["metadata"]["labels"][name] = value
    assert build(manifest).metadata.labels[name] == value
    for fields in ({"labels": {name: value}}, {"model_config": {"model": "m", "labels": {name: "no"}}}):
        with pytest.raises(RequestInvalidError, match="Airflow finds its pods by a label of this name"):
            build(**fields)


def test_a_job_may_choose_its_own_queue() -> None:
    own = {"kueue.x-k8s.io/queue-name": "mine"}
    assert built(cluster=ClusterSettings(queue="gpus"), labels=own)["metadata"]["labels"].items() >= own.items()


def test_our_labels_are_ones_that_kubernetes_takes() -> None:
    for key, value in common_labels(ClusterSettings(queue="q"), component="replica").items():
        assert (label_key_fault(key), label_value_fault(value)) == (None, None)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"labels": {"dag_id": "x"}}, "labels.dag_id"),
        (
            {"model_config": {"model": "m", "labels": {"kubernetes_executor": "True"}}},
            "model_config.labels.kubernetes_executor",
        ),
    ],
)
def test_a_pod_with_such_a_label_is_not_made(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(RequestInvalidError, match=re.escape(path)):
        build(**fields)


def test_a_label_of_the_pod_operators_own_is_part_of_its_selector_and_stays() -> None:
    manifest = operators_pod()
    manifest["metadata"]["labels"]["team"] = "a"
    with pytest.raises(RequestInvalidError, match=r"labels\.team: the pod operator's own labels have another value"):
        build(manifest, labels={"team": "b"})
    assert build(manifest, labels={"team": "a"}).metadata.labels["team"] == "a"
    # The job's label is the same as the operator's; the model's has no effect anyway.
    model = {"model": "m", "labels": {"team": "b"}}
    assert build(manifest, labels={"team": "a"}, model_config=model).metadata.labels["team"] == "a"


def test_a_jobs_labels_have_a_dictionary_of_their_own() -> None:
    request = a_request(labels={"a": "b"})
    job_labels(request)["c"] = "d"
    assert request.labels == {"a": "b"}


def test_identity_tells_jobs_series_and_replicas_apart_and_keeps_paths_to_itself() -> None:
    first = identity_annotations(HANDLE, series="one", replica=0)
    assert first == identity_annotations(HANDLE, series="one", replica=0)
    others = [
        identity_annotations(HANDLE.model_copy(update={"path": "s3://bucket/other"}), series="one", replica=0),
        identity_annotations(HANDLE.model_copy(update={"generation": 3}), series="one", replica=0),
        identity_annotations(HANDLE.model_copy(update={"fingerprint": "f"}), series="one", replica=0),
        identity_annotations(HANDLE, series="two", replica=0),
        identity_annotations(HANDLE, series="one", replica=1),
        identity_annotations(HANDLE, series="one", replica=None),
    ]
    assert all(sum(first[key] != other[key] for key in first) == 1 for other in others)
    assert "bucket" not in str(first)
    assert all(label_key_fault(key) is None for key in first)
