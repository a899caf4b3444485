"""What is made of what API servers say of pods in trouble."""

from __future__ import annotations

import json
from typing import Any, get_args

import kubernetes
import kubernetes_asyncio
import pytest

from airflow_llmengine.kube.diagnosis import Diagnosis, Kind, diagnose
from airflow_llmengine.kube.observed_pod import LONGEST_QUOTE
from airflow_llmengine.spec.exit_codes import ExitCode
from tests.kube.states import BY_NAME, CONTAINER, FOLDER, STATES, PodState

each_state = pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)


@each_state
def test_every_state_has_its_diagnosis(state: PodState) -> None:
    found = state.diagnosis()
    assert (found.kind, found.started, found.exit_code, found.limit) == (
        state.kind,
        state.started,
        state.exit_code,
        state.limit,
    )


@each_state
def test_every_diagnosis_is_one_line_for_people_that_names_the_pod(state: PodState) -> None:
    sentence = state.diagnosis().sentence
    assert "the pod batch/llmengine-7x3k" in sentence.replace("The pod", "the pod")
    assert sentence[0].isupper()
    assert sentence.endswith(".")
    assert not sentence.endswith("..")
    assert sentence.isprintable()
    assert "secret prompt" not in sentence


def test_no_state_and_no_kind_is_forgotten() -> None:
    assert {state.name for state in STATES} == {path.stem for path in FOLDER.iterdir()}
    assert {state.kind for state in STATES} == set(get_args(Kind))


@each_state
@pytest.mark.parametrize("package", [kubernetes, kubernetes_asyncio], ids=["kubernetes", "kubernetes_asyncio"])
def test_the_models_of_both_clients_say_the_same_as_the_json(state: PodState, package: Any) -> None:
    pod = None if state.pod is None else model(package, state.pod, "V1Pod")
    events = [model(package, event, "CoreV1Event") for event in state.events]
    assert diagnose(pod, events, container=CONTAINER) == state.diagnosis()


def model(package: Any, value: dict[str, Any], kind: str) -> Any:
    """The JSON form as a client would have read it."""
    client = object.__new__(package.client.ApiClient)
    client.configuration = package.client.Configuration()
    return client._ApiClient__deserialize(value, kind)


SAYS = {
    "no_such_gpu_free": "1 Insufficient nvidia.com/gpu",
    "no_such_node": "didn't match Pod's node affinity",
    "waits_in_a_queue": "kueue.x-k8s.io/admission",
    "image_missing_waiting_before_1_32": "not found",
    "image_rate_limited": "You have reached your pull rate limit",
    "init_container_waits_for_its_image": "image registry.example.com/llmengine:1",
    "secret_missing": 'secret "hub-token" not found',
    "secret_key_missing": "couldn't find key missing in Secret batch/present",
    "secret_of_a_volume_missing": 'secret "hub-token" not found',
    "config_map_missing": 'configmap "settings" not found',
    "claim_missing": 'persistentvolumeclaim "weights" not found',
    "command_missing": 'exec: "pyhton": executable file not found in $PATH',
    "volume_not_attached": "Multi-Attach error",
    "init_container_failed": "init container fetch ended with exit code 3",
    "no_gpu_on_the_node": "requested: 1, used: 8, capacity: 8",
    "out_of_memory": "limit of 64Mi",
    "storage_limit_exceeded": "total limit of containers 10Mi",
    "evicted_for_memory_of_the_node": "low on resource: memory",
    "preempted_before_its_start": "preempted before it started",
    "condition_preempted_before_its_start": "preempted before it started",
    "condition_preempted": "preempted: its place",
    "node_shut_down": "imminent node shutdown",
    "killed": "SIGKILL, exit code 137",
    "told_to_end": "SIGTERM, exit code 143",
    "segmentation_fault": "SIGSEGV",
    "engine_died": "exit code 69 (engine died)",
}


@pytest.mark.parametrize(("name", "words"), SAYS.items())
def test_the_sentence_says_what_one_has_to_know(name: str, words: str) -> None:
    assert words in BY_NAME[name].diagnosis().sentence


def test_who_took_a_pods_place_is_not_told() -> None:
    said = next(event["message"] for event in BY_NAME["preempted_and_saved"].events if event["reason"] == "Preempted")
    assert "online/server" in said
    assert "online" not in BY_NAME["preempted_and_saved"].diagnosis().sentence


@pytest.mark.parametrize("name", ["preempted_and_saved", "preempted_and_saving", "taken_off_a_silent_node"])
def test_without_events_an_older_clusters_pod_was_deleted(name: str) -> None:
    assert diagnose(BY_NAME[name].pod, container=CONTAINER).kind == "deleted"


def test_without_anything_a_pod_is_gone() -> None:
    assert diagnose(None, container=CONTAINER) == Diagnosis(
        "deleted", "The pod is gone: it was deleted by somebody, or by something in the cluster.", started=False
    )


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("running", "deleted"),
        ("pending", "deleted"),
        ("secret_missing", "deleted"),
        ("condition_preempted", "preempted"),
        ("evicted_for_memory_of_the_node", "evicted"),
        ("out_of_memory", "out_of_memory"),
        ("exit_64", "exited"),
        ("preempted_and_saved", "preempted"),
    ],
)
def test_what_was_last_seen_of_a_pod_that_is_gone_explains_its_end(name: str, kind: Kind) -> None:
    state = BY_NAME[name]
    found = diagnose(None, state.events, container=CONTAINER, last_seen=state.pod)
    assert found.kind == kind
    assert (found.started, found.exit_code) == (state.started, state.exit_code)
    assert "batch/llmengine-7x3k" in found.sentence


def ending_with(code: int, reason: str = "Error", state: str = "condition_preempted_and_saved") -> Diagnosis:
    pod = json.loads(json.dumps(BY_NAME[state].pod))
    pod["status"]["containerStatuses"][0]["state"]["terminated"] |= {"exitCode": code, "reason": reason}
    return diagnose(pod, container=CONTAINER)


@pytest.mark.parametrize("code", [ExitCode.BAD_REQUEST, ExitCode.TOO_MANY_FAILED_RECORDS])
def test_the_workers_word_on_its_request_goes_before_what_became_of_the_pod(code: ExitCode) -> None:
    assert ending_with(code).kind == "exited"


@pytest.mark.parametrize("code", [*set(ExitCode) - {ExitCode.DONE, ExitCode.BAD_REQUEST, 65}, 1, 137, 143])
def test_what_was_done_to_the_pod_explains_how_its_worker_ended(code: int) -> None:
    found = ending_with(code)
    assert (found.kind, found.exit_code) == ("preempted", code)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(0, "succeeded"), (64, "exited"), (65, "exited"), (75, "exited"), (69, "out_of_memory"), (70, "out_of_memory"),
     (74, "out_of_memory"), (1, "out_of_memory"), (137, "out_of_memory")],
)  # fmt: skip
def test_a_kill_for_memory_explains_only_ends_that_it_can_have_brought_about(code: int, kind: Kind) -> None:
    """The kubelet says OOMKilled whenever any process of the container was, also beside a worker that ended well."""
    assert ending_with(code, "OOMKilled", "out_of_memory").kind == kind


def test_a_shells_codes_and_signals_have_their_words() -> None:
    said = {code: ending_with(code, state="exit_1").sentence for code in (126, 127, 128, 134, 165, 255)}
    assert "may not be executed" in said[126]
    assert "no such program" in said[127]
    assert "SIGABRT" in said[134]
    assert "signal 37" in said[165]
    assert said[128].endswith("ended with exit code 128.")
    assert said[255].endswith("ended with exit code 255.")


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("{image}: not found", "image_unavailable"),
        ("unexpected status from GET request to https://{image}: 401 Unauthorized", "image_unavailable"),
        ("pull access denied for {image}, repository does not exist", "image_unavailable"),
        ("403 Forbidden: you have exceeded your rate limit", "image_pull_failing"),
        ("dial tcp: lookup registry.example.com: no such host: not found", "image_pull_failing"),
        ("context deadline exceeded", "image_pull_failing"),
        ("something new", "image_pull_failing"),
        # The words are the name's, and not the registry's.
        (
            'failed to resolve reference "{image}": failed to do request: Head "https://{image}": EOF',
            "image_pull_failing",
        ),
        ("failed to copy: https://registry.example.com/v2/forbidden-names: EOF", "image_pull_failing"),
        ("{image}: EOF", "image_pull_failing"),
    ],
)
def test_a_hopeless_image_is_told_from_one_that_may_come(said: str, kind: Kind) -> None:
    image = "registry.example.com/forbidden-names/access-denied:1"
    pod = json.loads(json.dumps(BY_NAME["image_missing"].pod).replace("registry.example.com/llmengine:1", image))
    pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"] = said.format(image=image)
    assert diagnose(pod, container=CONTAINER).kind == kind


def test_a_node_that_shuts_down_is_known_by_the_condition_alone() -> None:
    pod = json.loads(json.dumps(BY_NAME["node_shut_down"].pod))
    del pod["status"]["reason"]
    assert diagnose(pod, container=CONTAINER).kind == "node_lost"


@pytest.mark.parametrize("reason", ["NodeNotReady", "Preempted", "TaintManagerEviction", "Evicted"])
def test_what_once_befell_a_pod_that_is_still_there_is_over(reason: str) -> None:
    event = {"reason": reason, "message": "said", "lastTimestamp": "2026"}
    assert diagnose(BY_NAME["running"].pod, [event], container=CONTAINER).kind == "running"


def test_a_pulled_image_shows_that_volumes_were_mounted() -> None:
    """A Secret that is made after its pod is missed for a moment."""
    state = BY_NAME["image_pulled_for_long"]
    assert state.diagnosis().sentence.endswith("is still being pulled.")
    missed, pulling = state.events
    assert diagnose(state.pod, [missed], container=CONTAINER).kind == "misconfigured"
    pulled = {**pulling, "reason": "Pulled", "message": "Successfully pulled image", "lastTimestamp": "2027"}
    assert diagnose(state.pod, [missed, pulling, pulled], container=CONTAINER).kind == "pending"


def test_another_container_that_ended_holds_nothing_up() -> None:
    pod = json.loads(json.dumps(BY_NAME["running"].pod))
    pod["status"]["containerStatuses"].append({"name": "proxy", "state": {"terminated": {"exitCode": 1}}})
    assert diagnose(pod, container=CONTAINER).kind == "running"


def test_the_latest_event_is_believed() -> None:
    state = BY_NAME["taken_off_a_silent_node"]
    cancelled = {"reason": "TaintManagerEviction", "message": "Cancelling deletion of Pod", "lastTimestamp": "2099"}
    assert diagnose(state.pod, [cancelled, *state.events], container=CONTAINER).kind == "deleted"
    assert diagnose(state.pod, [{**cancelled, "lastTimestamp": "1999"}, *state.events], container=CONTAINER).kind == (
        "node_lost"
    )


def test_what_others_say_is_cut_and_has_no_line_breaks() -> None:
    pod = json.loads(json.dumps(BY_NAME["evicted_for_memory_of_the_node"].pod))
    pod["status"]["message"] = "low on\n\x1b[31mmemory " + "x" * 5000
    sentence = diagnose(pod, container=CONTAINER).sentence
    assert "low on [31mmemory" in sentence
    assert sentence.isprintable()
    assert len(sentence) < LONGEST_QUOTE + 100


def test_what_the_container_said_last_is_kept_apart() -> None:
    found = BY_NAME["engine_died"].diagnosis()
    assert "secret prompt" in found.termination_message
    assert BY_NAME["command_missing"].diagnosis().termination_message == ""
