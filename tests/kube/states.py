"""What API servers said of pods in trouble, and what is to be made of it.

``pod_states/`` holds a file for each: ``pod`` as JSON (null: it is gone), ``events``, and ``kubernetes``, the version.
Those with ``scripted`` were written after the source and the documentation of that version; all others are what a real
cluster gave, less what does not matter, with other names.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_llmengine.kube.diagnosis import Diagnosis, Kind, diagnose

FOLDER = Path(__file__).with_name("pod_states")
CONTAINER = "base"


@dataclass(frozen=True, slots=True)
class PodState:
    """A pod in trouble, and its diagnosis."""

    name: str
    kind: Kind
    started: bool = False
    exit_code: int | None = None
    limit: str | None = None
    what: str = ""
    """What happens, for docs/failures.md; empty where another state stands for it."""

    @property
    def recorded(self) -> dict[str, Any]:
        recorded: dict[str, Any] = json.loads((FOLDER / f"{self.name}.json").read_text())
        return recorded

    @property
    def pod(self) -> dict[str, Any] | None:
        pod: dict[str, Any] | None = self.recorded["pod"]
        return pod

    @property
    def events(self) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = self.recorded["events"]
        return events

    def diagnosis(self) -> Diagnosis:
        return diagnose(self.pod, self.events, container=CONTAINER)


STATES = (
    PodState("pending", "pending", what="It has not started in time, and nobody says why"),
    PodState("waits_in_a_queue", "queued", what="Its queue (Kueue) has not admitted it in time"),
    PodState("no_such_gpu_free", "unschedulable", what="No node has the GPUs that it asks for"),
    PodState("no_such_node", "unschedulable"),
    PodState("image_pulled_for_long", "image_pull_failing", what="Its image takes longer than it may"),
    PodState("image_rate_limited", "image_pull_failing", what="The registry limits how often it is asked"),
    PodState("image_waiting_for_reasons_unknown", "image_pull_failing"),
    PodState("init_container_waits_for_its_image", "image_pull_failing"),
    PodState("registry_away", "image_pull_failing", what="The registry can't be reached"),
    PodState("registry_away_waiting", "image_pull_failing"),
    PodState("sidecar_waits_for_its_image", "image_pull_failing", started=True),
    PodState("image_missing", "image_unavailable", what="There is no such image"),
    PodState("image_missing_waiting", "image_unavailable"),
    PodState("image_missing_waiting_before_1_32", "image_unavailable"),
    PodState("image_name_invalid", "image_unavailable"),
    PodState("image_never_pulled", "image_unavailable"),
    PodState("image_not_permitted", "image_unavailable", what="The registry does not permit the image"),
    PodState("claim_missing", "misconfigured", what="A volume claim that it names does not exist"),
    PodState(
        "command_missing", "misconfigured", what="The image does not have the interpreter that the connection names"
    ),
    PodState("command_not_permitted", "misconfigured"),
    PodState("config_map_missing", "misconfigured"),
    PodState("runs_as_root", "misconfigured", what="The image would run as root"),
    PodState("secret_key_missing", "misconfigured"),
    PodState("secret_missing", "misconfigured", what="A Secret that it names does not exist"),
    PodState("secret_of_a_volume_missing", "misconfigured"),
    PodState("host_path_missing", "volume_not_mounted"),
    PodState("volume_not_attached", "volume_not_mounted", what="A volume can't be mounted"),
    PodState("container_not_created", "not_started"),
    PodState("init_container_failed", "not_started", what="An init container fails"),
    PodState("no_network_for_the_pod", "not_started"),
    PodState("gpu_plugin_refuses", "refused_by_node"),
    PodState("no_gpu_on_the_node", "refused_by_node", what="Its node refuses it"),
    PodState("condition_that_did_not_come_true", "running", started=True),
    PodState("running", "running", started=True),
    PodState("condition_preempted_when_all_was_done", "succeeded", started=True, exit_code=0),
    PodState("out_of_memory_beside_a_success", "succeeded", started=True, exit_code=0),
    PodState("succeeded", "succeeded", started=True, exit_code=0, what="It succeeds, and there is no result"),
    PodState("engine_died", "exited", started=True, exit_code=69, what="The worker ends with an exit code of its own"),
    PodState("exit_1", "exited", started=True, exit_code=1),
    PodState("exit_64", "exited", started=True, exit_code=64),
    PodState("killed", "exited", started=True, exit_code=137, what="The worker is killed"),
    PodState("saved_beside_an_out_of_memory", "exited", started=True, exit_code=75),
    PodState("segmentation_fault", "exited", started=True, exit_code=139),
    PodState("told_to_end", "exited", started=True, exit_code=143, what="The worker is told to end before it can save"),
    PodState("unreachable_storage", "exited", started=True, exit_code=74),
    PodState("out_of_memory", "out_of_memory", started=True, exit_code=137, limit="64Mi"),
    PodState("out_of_memory_in_a_child", "out_of_memory", started=True, exit_code=69, limit="64Mi"),
    PodState("out_of_memory_started_again", "out_of_memory", started=True, exit_code=137, limit="64Gi"),
    PodState(
        "out_of_memory_without_limit", "out_of_memory", started=True, exit_code=137, what="Memory of the node runs out"
    ),
    PodState("empty_dir_limit_exceeded", "out_of_storage", started=True),
    PodState("storage_limit_exceeded", "out_of_storage", started=True, limit="10Mi"),
    PodState("storage_limit_of_the_container", "out_of_storage", started=True, exit_code=137, limit="20Gi"),
    PodState("condition_evicted_by_the_api", "evicted", started=True, what="The node is drained, or scaled away"),
    PodState(
        "evicted_for_memory_of_the_node",
        "evicted",
        started=True,
        exit_code=137,
        what="Memory of the node runs low, and the kubelet evicts the pod",
    ),
    PodState("condition_preempted", "preempted", started=True),
    PodState(
        "condition_preempted_and_saved",
        "preempted",
        started=True,
        exit_code=75,
        what="A pod of a higher priority takes its place",
    ),
    PodState("condition_preempted_before_its_start", "preempted"),
    PodState("critical_pod_on_the_node", "preempted", started=True, exit_code=137),
    PodState("ended_by_its_queue", "preempted", started=True, what="Its queue (Kueue) gives its quota to another"),
    PodState("preempted_and_gone", "preempted", started=True),
    PodState("preempted_and_saved", "preempted", started=True, exit_code=75),
    PodState("preempted_and_saving", "preempted", started=True),
    PodState(
        "preempted_before_its_start", "preempted", what="A pod of a higher priority takes its place before it started"
    ),
    PodState("condition_device_taint", "node_lost", started=True),
    PodState("condition_node_gone", "node_lost", started=True, exit_code=137, what="The node is gone"),
    PodState("condition_taint", "node_lost", started=True, what="The node is not reachable"),
    PodState("container_lost", "node_lost", started=True, exit_code=137),
    PodState("node_does_not_answer", "node_lost", started=True),
    PodState("node_lost", "node_lost", started=True),
    PodState("node_shut_down", "node_lost", started=True, exit_code=75, what="The node shuts down"),
    PodState("node_shut_down_in_1_20", "node_lost", started=True, exit_code=137),
    PodState("node_shutting_down_refuses", "node_lost"),
    PodState("taken_off_a_silent_node", "node_lost"),
    PodState("taken_off_a_silent_node_and_gone", "node_lost"),
    PodState("deadline_exceeded_killed", "deadline_exceeded", started=True, exit_code=137),
    PodState(
        "deadline_exceeded_saved",
        "deadline_exceeded",
        started=True,
        exit_code=75,
        what="`max_runtime_sec` runs out, and Kubernetes ends the pod",
    ),
    PodState("deadline_exceeded_still_running", "deadline_exceeded", started=True),
    PodState("deleted_and_gone", "deleted", started=True, what="It is gone when one looks"),
    PodState("deleted_and_killed", "deleted", started=True, exit_code=137),
    PodState("deleted_and_saved", "deleted", started=True, exit_code=75, what="Somebody deletes it"),
    PodState("deleted_and_saving", "deleted", started=True),
)

BY_NAME = {state.name: state for state in STATES}
