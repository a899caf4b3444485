"""Ways to die that a real cluster can be made to show, and what is made of them.

What a newer cluster says of the same is in `tests/kube/pod_states`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from kubernetes import client

from airflow_llmengine.exceptions import LLMEngineError, PodQuotaError, PodRejectedError
from airflow_llmengine.hooks.pod_failure import rejected
from airflow_llmengine.kube.diagnosis import Diagnosis, Kind, diagnose
from airflow_llmengine.kube.rejection import Kind as Refusal
from airflow_llmengine.kube.rejection import rejection
from tests.kubernetes.cluster import Cluster
from tests.waiting import wait_until

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

SHELL, PYTHON = "local/busybox:1", "local/python:3.11"
SCARCE = "llmengine.test/deaths"
"""A resource of the node that no other test asks for."""

FOREVER = ["sleep", "3600"]
SAVES = ["sh", "-c", "trap 'exit 75' TERM; while true; do sleep 0.2; done"]
"""What a worker does that is told to end."""

EATS_MEMORY = "kept = []\nwhile True:\n    kept.append(bytearray(1 << 20))\n"
CHILD_EATS_MEMORY = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {EATS_MEMORY!r}])\nsys.exit(69)\n"
EATS_STORAGE = ["sh", "-c", "dd if=/dev/zero of=/large bs=1M count=40; sleep 3600"]
SAYS_WHY = '{"level": "ERROR", "logger": "airflow_llmengine.worker", "message": "the reason"}'


def pod(
    name: str,
    command: list[str] | None = None,
    *,
    image: str = SHELL,
    limits: Mapping[str, str] | None = None,
    container: Mapping[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    resources = {"limits": dict(limits or {}), "requests": dict(limits or {})}
    return {
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 3,
            "containers": [
                {
                    "name": "base",
                    "image": image,
                    "command": FOREVER if command is None else command,
                    "resources": resources,
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    **(container or {}),
                }
            ],
            **spec,
        },
    }


class Deaths:
    """Pods of a namespace, made to die, and their diagnoses."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    def create(self, body: Mapping[str, Any]) -> str:
        self.cluster.create_pod(self.namespace, body)
        name: str = body["metadata"]["name"]
        return name

    def diagnose(self, name: str) -> Diagnosis:
        events = self.cluster.core.list_namespaced_event(
            self.namespace, field_selector=f"involvedObject.name={name}"
        ).items
        return diagnose(self.cluster.pod(self.namespace, name), events, container="base")

    def await_kind(self, name: str, kind: Kind, also: Callable[[Diagnosis], bool] = lambda _: True) -> Diagnosis:
        """Wait until a pod's diagnosis is this one; gives it."""
        seen: list[Diagnosis] = []

        def reached() -> bool:
            seen.append(self.diagnose(name))
            return seen[-1].kind == kind and also(seen[-1])

        try:
            wait_until(reached, 90)
        except AssertionError:
            raise AssertionError(
                f"{ {(d.kind, d.sentence) for d in seen} }\n{self.cluster.describe(self.namespace, name)}"
            ) from None
        return seen[-1]

    def run(self, body: Mapping[str, Any], kind: Kind, also: Callable[[Diagnosis], bool] = lambda _: True) -> Diagnosis:
        """Make a pod, and wait until its diagnosis is this one."""
        return self.await_kind(self.create(body), kind, also)

    def start(self, body: Mapping[str, Any]) -> str:
        """Make a pod, and wait until it runs."""
        name = self.create(body)
        self.cluster.wait_for_phase(self.namespace, name, "Running")
        return name

    def refuse(self, body: Mapping[str, Any], namespace: str | None = None) -> tuple[Refusal, LLMEngineError]:
        """Try to make a pod that is not taken."""
        with pytest.raises(client.ApiException) as refusal:
            self.cluster.create_pod(namespace or self.namespace, body)
        return rejection(refusal.value.status, refusal.value.body).kind, rejected(refusal.value)


@pytest.fixture
def deaths(cluster: Cluster, namespace: str) -> Deaths:
    def takes_pods() -> bool:
        try:
            cluster.core.create_namespaced_pod(namespace, pod("a"), dry_run="All")
        except client.ApiException as error:
            # Before Kubernetes 1.24 the service account first waits for a token.
            return rejection(error.status, error.body).kind != "unavailable"
        return True

    wait_until(takes_pods)
    return Deaths(cluster, namespace)


def ended(diagnosis: Diagnosis) -> bool:
    return diagnosis.exit_code is not None


# It does not start


def test_no_node_has_such_a_gpu(deaths: Deaths) -> None:
    found = deaths.run(pod("gpu", limits={"nvidia.com/gpu": "4000"}), "unschedulable")
    assert "Insufficient nvidia.com/gpu" in found.sentence
    assert not found.started


def test_no_node_is_of_such_a_kind(deaths: Deaths) -> None:
    deaths.run(pod("kind", nodeSelector={"cloud.google.com/gke-accelerator": "nvidia-h100"}), "unschedulable")


def test_images_that_can_not_be_had(deaths: Deaths) -> None:
    away = deaths.create(pod("away", image="registry.invalid/llmengine:1"))
    misspelt = deaths.create(pod("misspelt", image="registry.invalid/LLMEngine:1"))
    never = deaths.create(pod("never", image="registry.invalid/engine:1", container={"imagePullPolicy": "Never"}))
    assert "registry.invalid/llmengine:1" in deaths.await_kind(away, "image_pull_failing").sentence
    deaths.await_kind(misspelt, "image_unavailable")
    deaths.await_kind(never, "image_unavailable")
    # By then it waits for the next try, and its container says no more why.
    wait_until(lambda: "BackOff" in deaths.cluster.events(deaths.namespace, away))
    assert "registry.invalid" in deaths.await_kind(away, "image_pull_failing").sentence


def test_what_it_names_does_not_exist(deaths: Deaths) -> None:
    token = {"secretRef": {"name": "hub-token"}}
    settings = {"configMapRef": {"name": "settings"}}
    volume = {"name": "v", "secret": {"secretName": "weights-key"}}
    claim = {"name": "v", "persistentVolumeClaim": {"claimName": "weights"}}
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    named = {
        deaths.create(pod("secret", container={"envFrom": [token]})): "hub-token",
        deaths.create(pod("settings", container={"envFrom": [settings]})): "settings",
        deaths.create(pod("volume", container=mount, volumes=[volume])): "weights-key",
        deaths.create(pod("claim", container=mount, volumes=[claim])): "weights",
    }
    for name, what in named.items():
        assert f'"{what}" not found' in deaths.await_kind(name, "misconfigured").sentence


def test_what_it_asks_for_can_not_be_run(deaths: Deaths) -> None:
    command = deaths.create(pod("command", ["pyhton"]))
    root = deaths.create(pod("root", securityContext={"runAsNonRoot": True}))
    folder = {"name": "v", "hostPath": {"path": "/no/such/folder", "type": "Directory"}}
    volume = deaths.create(
        pod("folder", container={"volumeMounts": [{"name": "v", "mountPath": "/v"}]}, volumes=[folder])
    )
    found = deaths.await_kind(command, "misconfigured")
    assert '"pyhton": executable file not found' in found.sentence
    assert not found.started
    assert "runAsNonRoot" in deaths.await_kind(root, "misconfigured").sentence
    assert "not a directory" in deaths.await_kind(volume, "volume_not_mounted").sentence


def test_an_init_container_fails(deaths: Deaths) -> None:
    fetch = {"name": "fetch", "image": SHELL, "command": ["sh", "-c", "exit 3"]}
    found = deaths.run(pod("init", initContainers=[fetch]), "not_started")
    assert "init container fetch ended with exit code 3" in found.sentence


# It ends


def test_ends_by_itself(deaths: Deaths) -> None:
    done = deaths.create(pod("done", ["sh", "-c", "exit 0"]))
    engine = deaths.create(pod("engine", ["sh", "-c", f"echo '{SAYS_WHY}' >&2; exit 69"]))
    killed = deaths.create(pod("killed", ["sh", "-c", "exit 137"]))
    deaths.await_kind(done, "succeeded")
    found = deaths.await_kind(engine, "exited")
    assert found.exit_code == 69
    assert json.loads(found.termination_message)["message"] == "the reason"
    assert "SIGKILL" in deaths.await_kind(killed, "exited").sentence


def test_memory_runs_out(deaths: Deaths) -> None:
    limits = {"memory": "64Mi"}
    itself = deaths.create(pod("itself", ["python3", "-c", EATS_MEMORY], image=PYTHON, limits=limits))
    child = deaths.create(pod("child", ["python3", "-c", CHILD_EATS_MEMORY], image=PYTHON, limits=limits))
    found = deaths.await_kind(itself, "out_of_memory")
    assert (found.exit_code, found.limit) == (137, "64Mi")
    assert "64Mi" in found.sentence
    # As when the engine's own process is killed, and the worker lives to tell.
    found = deaths.await_kind(child, "out_of_memory")
    assert (found.exit_code, found.limit) == (69, "64Mi")


def test_ephemeral_storage_runs_out(deaths: Deaths) -> None:
    found = deaths.run(pod("large", EATS_STORAGE, limits={"ephemeral-storage": "10Mi"}), "out_of_storage")
    assert (found.started, found.limit) == (True, "10Mi")
    assert "10Mi" in found.sentence


def test_its_deadline_passes(deaths: Deaths) -> None:
    saves = deaths.create(pod("saves", SAVES, activeDeadlineSeconds=3))
    clings = deaths.create(pod("clings", activeDeadlineSeconds=3))
    # It is so before the container has ended.
    deaths.await_kind(clings, "deadline_exceeded")
    assert deaths.await_kind(saves, "deadline_exceeded", ended).exit_code == 75
    assert deaths.await_kind(clings, "deadline_exceeded", ended).exit_code == 137


def test_somebody_deletes_it(deaths: Deaths) -> None:
    name = deaths.start(pod("deleted", SAVES))
    deaths.cluster.delete_pod(deaths.namespace, name)
    assert deaths.await_kind(name, "deleted", ended).exit_code == 75
    last_seen = deaths.cluster.pod(deaths.namespace, name)
    deaths.cluster.wait_until_gone(deaths.namespace, name)
    found = deaths.diagnose(name)
    assert (found.kind, found.exit_code) == ("deleted", None)
    assert diagnose(None, container="base", last_seen=last_seen).exit_code == 75


def test_its_node_is_drained(deaths: Deaths) -> None:
    """Such a pod carries a condition since Kubernetes 1.26; before, only who deleted it knows why."""
    name = deaths.start(pod("drained", SAVES))
    metadata = {"name": name, "namespace": deaths.namespace}
    version = "policy/v1" if _serves_policy_v1(deaths.cluster) else "policy/v1beta1"
    deaths.cluster.core.create_namespaced_pod_eviction(
        name, deaths.namespace, {"apiVersion": version, "kind": "Eviction", "metadata": metadata}
    )
    wait_until(lambda: ended(deaths.diagnose(name)))
    found = deaths.diagnose(name)
    assert found.kind in ("evicted", "deleted")
    assert (found.kind == "evicted") == (version == "policy/v1" and _has_disruption_target(deaths, name))
    assert found.exit_code == 75


def _serves_policy_v1(cluster: Cluster) -> bool:
    groups = client.ApisApi(cluster.api_client).get_api_versions().groups
    return any(version.group_version == "policy/v1" for group in groups for version in group.versions)


def _has_disruption_target(deaths: Deaths, name: str) -> bool:
    found = deaths.cluster.pod(deaths.namespace, name)
    return any(condition.type == "DisruptionTarget" for condition in found.status.conditions)


def test_its_place_is_given_away(deaths: Deaths, scarce: int, low_and_high: tuple[str, str]) -> None:
    low, high = low_and_high
    assert scarce == 2
    absent = {"name": "v", "secret": {"secretName": "absent"}}
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    running = deaths.start(pod("running", SAVES, limits={SCARCE: "1"}, priorityClassName=low))
    starting = deaths.create(
        pod("starting", limits={SCARCE: "1"}, priorityClassName=low, container=mount, volumes=[absent])
    )
    wait_until(lambda: deaths.cluster.pod(deaths.namespace, starting).spec.node_name)
    deaths.create(pod("high", limits={SCARCE: "2"}, priorityClassName=high))
    for name in (running, starting):
        found = deaths.await_kind(name, "preempted")
        assert found.started == (name == running)
        assert ("before it started" in found.sentence) == (name == starting)
    for name in (running, starting):
        deaths.cluster.wait_until_gone(deaths.namespace, name)
        assert deaths.diagnose(name).kind == "preempted"


@pytest.fixture
def scarce(cluster: Cluster) -> Iterator[int]:
    """The node has two of a resource that nobody else asks for."""
    name = cluster.node.metadata.name
    capacity = {SCARCE: "2"}
    cluster.core.patch_node_status(name, {"status": {"capacity": capacity, "allocatable": capacity}})
    yield 2
    nothing = {SCARCE: None}
    cluster.core.patch_node_status(name, {"status": {"capacity": nothing, "allocatable": nothing}})


@pytest.fixture
def low_and_high(cluster: Cluster, namespace: str) -> Iterator[tuple[str, str]]:
    """The names of two PriorityClasses."""
    classes = client.SchedulingV1Api(cluster.api_client)
    names = f"{namespace}-low", f"{namespace}-high"
    for value, name in enumerate(names, start=1):
        classes.create_priority_class({"metadata": {"name": name}, "value": value})
    yield names
    for name in names:
        classes.delete_priority_class(name)


def test_its_node_falls_silent(deaths: Deaths, silent_node: str) -> None:
    """The node was never there, which a control plane can't tell from one that does not answer any more."""
    impatient = [
        {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
        for what in ("not-ready", "unreachable")
    ]
    name = deaths.create(
        pod("silent", nodeName=silent_node, tolerations=[*impatient, {"key": silent_node, "operator": "Exists"}])
    )
    deaths.await_kind(name, "node_lost")


# It is not taken


@contextmanager
def quota(cluster: Cluster, namespace: str, hard: Mapping[str, str]) -> Iterator[None]:
    cluster.core.create_namespaced_resource_quota(
        namespace, {"metadata": {"name": "team"}, "spec": {"hard": dict(hard)}}
    )
    wait_until(lambda: cluster.core.read_namespaced_resource_quota("team", namespace).status.used)
    yield
    cluster.core.delete_namespaced_resource_quota("team", namespace)


def test_the_quota_leaves_no_room(deaths: Deaths) -> None:
    with quota(deaths.cluster, deaths.namespace, {"requests.nvidia.com/gpu": "4"}):
        deaths.create(pod("first", limits={"nvidia.com/gpu": "3"}))
        kind, error = deaths.refuse(pod("second", limits={"nvidia.com/gpu": "2"}))
        assert kind == "quota"
        assert type(error) is PodQuotaError
        assert "asked for 2, used 3 of 4" in str(error)
        kind, error = deaths.refuse(pod("second", limits={"nvidia.com/gpu": "5"}))
        assert kind == "beyond_quota"
        assert type(error) is PodRejectedError


def test_pods_that_no_cluster_takes(deaths: Deaths) -> None:
    secret = "hf_a_secret_value"
    variable = {"env": [{"name": "TOKEN", "value": secret}]}
    unreadable = pod("a", container=variable)
    unreadable["spec"]["containers"][0]["resources"] = {"limits": {"memory": "16gb"}}
    more_asked_than_allowed = pod("a", container={"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}})
    two_sources = pod(
        "a", container={"env": [{**variable["env"][0], "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}
    )
    expected: list[tuple[Refusal, dict[str, Any], str]] = [
        ("priority_class_missing", pod("a", priorityClassName="no-such-class"), "no-such-class"),
        ("service_account_missing", pod("a", serviceAccountName="nobody"), "nobody"),
        ("invalid", unreadable, "quantities must match"),
        ("invalid", more_asked_than_allowed, "requests"),
        ("invalid", two_sources, "valueFrom"),
        ("invalid", pod("Upper_Case"), "metadata.name"),
    ]
    for kind, body, words in expected:
        found, error = deaths.refuse(body)
        assert found == kind
        assert type(error) is PodRejectedError
        assert words in str(error)
        assert secret not in str(error)
    found, error = deaths.refuse(pod("a"), namespace="no-such-namespace")
    assert found == "namespace_missing"
    assert "no-such-namespace" in str(error)
    name = deaths.create(pod("a"))
    assert deaths.refuse(pod(name))[0] == "conflict"


def test_somebody_who_may_not(deaths: Deaths) -> None:
    with client.ApiClient(deaths.cluster.api_client.configuration) as api_client:
        api_client.set_default_header("Impersonate-User", "system:serviceaccount:airflow:worker")
        with pytest.raises(client.ApiException) as refusal:
            client.CoreV1Api(api_client).create_namespaced_pod(deaths.namespace, pod("a"))
    error = rejected(refusal.value)
    assert type(error) is PodRejectedError
    assert f"system:serviceaccount:airflow:worker may not create pods in the namespace {deaths.namespace}." in str(
        error
    )
