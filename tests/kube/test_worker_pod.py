from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_llmengine.kube.cluster import ClusterSettings
from airflow_llmengine.kube.worker_pod import GRACE_MARGIN_SECONDS, WorkerStart
from airflow_llmengine.spec.hardware.gpus import GIB, Gpu
from airflow_llmengine.spec.hardware.host_resources import HostResources
from airflow_llmengine.spec.hardware.inference import Hardware
from airflow_llmengine.spec.hardware.layout import Layout
from airflow_llmengine.spec.request import GpuType
from airflow_llmengine.spec.validation import RequestInvalidError
from tests.kube.pods import (
    CONTAINER,
    DEADLINE_SECONDS,
    GRACE_SECONDS,
    START,
    VERSIONS,
    build,
    built,
    environment_of,
    from_manifest,
    lost,
    mounts_of,
    operators_pod,
    require_valid,
    to_manifest,
    worker_of,
)

EVERYTHING = ClusterSettings(
    service_account_name="batch",
    credentials_secret="storage-keys",
    hugging_face_secret="hub/hf-token",
    image_pull_secrets=("registry", "mirror"),
    queue="gpu-queue",
    cache_volume="weights",
    node_selector={"pool": "batch"},
    tolerations=({"key": "spot", "operator": "Exists"},),
)


def with_container(**fields: Any) -> dict[str, Any]:
    return operators_pod(containers=[{"name": CONTAINER, **fields}])


# What is filled in


def test_the_worker_is_started() -> None:
    worker = worker_of(built())
    assert worker["image"] == "registry.example/worker:1"
    assert worker["command"] + worker["args"] == [
        *("python", "-m", "airflow_llmengine.worker"),
        *("run", "env:LLMENGINE_REQUEST", "--launched"),
    ]
    assert environment_of(built()).items() >= START.environment.items()


def test_kubernetes_puts_nothing_in_for_dollar_signs_of_ours() -> None:
    """And what the user gave to the pod operator means what it means there."""
    start = WorkerStart(
        command=["/opt/$$/python"],
        arguments=["--owner=$(HOME)"],
        environment={"PLAIN": "cash$$flow $(HOME) $x $", "BOTH": "$$"},
    )
    worker = worker_of(built(start=start))
    assert (worker["command"], worker["args"]) == (["/opt/$$$$/python"], ["--owner=$$(HOME)"])
    assert environment_of(built(start=start))["PLAIN"] == "cash$$$$flow $$(HOME) $$x $$"
    users = with_container(
        command=["$(PYTHON)"], args=["$(MODULE)", "$$"], env=[{"name": "BOTH", "value": "$(POD_NAME) $$"}]
    )
    pod = built(users, start=start)
    assert list(lost(users, pod)) == []
    assert environment_of(pod)["PLAIN"] == "cash$$$$flow $$(HOME) $$x $$"


def test_the_pod_is_never_restarted_and_ends_by_itself() -> None:
    pod = built(operators_pod(restartPolicy="Always"))
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["activeDeadlineSeconds"] == DEADLINE_SECONDS
    assert pod["spec"]["terminationGracePeriodSeconds"] == GRACE_SECONDS + GRACE_MARGIN_SECONDS
    assert worker_of(pod)["terminationMessagePolicy"] == "FallbackToLogsOnError"


@pytest.mark.parametrize(("own", "effective"), [(60, 60), (DEADLINE_SECONDS * 2, DEADLINE_SECONDS)])
def test_the_earlier_deadline_counts(own: int, effective: int) -> None:
    assert built(operators_pod(activeDeadlineSeconds=own))["spec"]["activeDeadlineSeconds"] == effective


def test_a_plain_pod_is_hardened() -> None:
    pod = built()
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["enableServiceLinks"] is False
    assert pod["spec"]["securityContext"] == {"fsGroup": 1000, "fsGroupChangePolicy": "OnRootMismatch"}
    assert worker_of(pod)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsGroup": 1000,
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert mounts_of(pod)["/tmp"]["emptyDir"] == {}
    assert environment_of(pod)["HOME"] == "/tmp"


def test_what_the_connection_says_is_in_the_pod() -> None:
    pod = built(cluster=EVERYTHING, priority="low")
    spec, environment = pod["spec"], environment_of(pod)
    assert spec["serviceAccountName"] == "batch"
    assert "automountServiceAccountToken" not in spec
    assert spec["imagePullSecrets"] == [{"name": "registry"}, {"name": "mirror"}]
    assert spec["priorityClassName"] == "low"
    assert spec["nodeSelector"] == {"pool": "batch"}
    assert {"key": "spot", "operator": "Exists"} in spec["tolerations"]
    assert worker_of(pod)["envFrom"] == [{"secretRef": {"name": "storage-keys"}}]
    assert environment["HF_TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "hf-token"}}
    assert mounts_of(pod)["/cache"]["persistentVolumeClaim"] == {"claimName": "weights"}
    assert (environment["HF_HOME"], environment["VLLM_CACHE_ROOT"]) == ("/cache/huggingface", "/cache/vllm")
    assert environment["LLMENGINE_MODEL_CACHE"] == "/cache/checkpoints"
    assert pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpu-queue"


def test_a_cache_volume_may_be_of_any_kind_and_anywhere() -> None:
    nfs = {"nfs": {"server": "10.0.0.2", "path": "/weights"}}
    pod = built(cluster=ClusterSettings(cache_volume=nfs, cache_path="/models/cache"))
    assert mounts_of(pod)["/models/cache"]["nfs"] == nfs["nfs"]
    assert environment_of(pod)["HF_HOME"] == "/models/cache/huggingface"


def test_the_pod_that_collects_has_neither_gpu_nor_model() -> None:
    pod = built(cluster=EVERYTHING, role="collect", gpus=4, gpu_type="nvidia-hopper-h100", cpus=32, memory="200Gi")
    assert worker_of(pod)["resources"] == {"requests": {"cpu": "500m", "memory": "1Gi"}}
    assert not {"/cache", "/dev/shm"} & mounts_of(pod).keys()
    assert "HF_TOKEN" not in environment_of(pod)
    assert "affinity" not in pod["spec"]
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "collect"
    assert worker_of(pod)["envFrom"] == [{"secretRef": {"name": "storage-keys"}}]


@pytest.mark.parametrize("options", [{"role": "collect"}, {"cluster": ClusterSettings(accelerator="none"), "gpus": 2}])
def test_a_pod_without_gpus_gets_none_from_its_image_either(options: dict[str, Any]) -> None:
    pod = built(**options)
    assert "nvidia" not in str(worker_of(pod)["resources"])
    assert "tolerations" not in pod["spec"]
    assert environment_of(pod)["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_a_pod_with_gpus_sees_what_the_device_plugin_gives() -> None:
    assert "NVIDIA_VISIBLE_DEVICES" not in environment_of(built())


# Hardware


def test_what_the_request_gives_is_request_and_limit() -> None:
    given = {"cpu": "6", "memory": "48Gi", "ephemeral-storage": "100Gi", "nvidia.com/gpu": "2"}
    pod = built(cpus=6, memory="48Gi", storage="100Gi", gpus=2)
    assert worker_of(pod)["resources"] == {"requests": given, "limits": given}


def test_what_is_not_given_is_asked_for_and_not_limited() -> None:
    resources = worker_of(built(gpus=2))["resources"]
    assert resources["limits"] == {"nvidia.com/gpu": "2"}
    assert resources["requests"] == {"cpu": "8", "memory": "34Gi", "nvidia.com/gpu": "2"}


def worked_out(*, storage: int | None = None) -> Hardware:
    gpu = Gpu("nvidia-l40s", 44 * GIB)
    return Hardware(gpu, Layout(1, 2, 2, 1), HostResources(cores=4, memory=26 * GIB, storage=storage), ())


L40S = ClusterSettings.model_validate(
    {
        "gpu_types": [{"type": "nvidia-l40s", "memory": "44Gi"}],
        "gpu_nodes": {"nvidia-l40s": {"node_selector": {"pool": "l40s"}}},
    }
)


def test_what_was_worked_out_for_the_model_is_asked_for_and_not_limited() -> None:
    model = {"model": "m", "tensor_parallel_size": 2}
    pod = built(cluster=L40S, gpus=2, model_config=model, hardware=worked_out(storage=20 * GIB))
    resources = worker_of(pod)["resources"]
    # Shared memory, which counts as the container's, comes on top.
    asked = {"cpu": "4", "memory": "29Gi", "ephemeral-storage": "20Gi", "nvidia.com/gpu": "2"}
    assert resources == {"requests": asked, "limits": {"nvidia.com/gpu": "2"}}
    assert pod["spec"]["nodeSelector"] == {"pool": "l40s"}


def test_what_the_request_gives_goes_before_what_was_worked_out() -> None:
    fields = {"gpus": 2, "cpus": 1, "memory": "8Gi", "storage": "9Gi", "hardware": worked_out(storage=20 * GIB)}
    given = {"cpu": "1", "memory": "8Gi", "ephemeral-storage": "9Gi", "nvidia.com/gpu": "2"}
    assert worker_of(built(cluster=L40S, **fields))["resources"] == {"requests": given, "limits": given}


@pytest.mark.parametrize(
    ("model", "gpus"),
    [
        ({}, "1"),
        ({"num_shards": 4}, "4"),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 3}, "6"),
        ({"num_shards": 2, "tensor_parallel_size": 2}, "2"),
        ({"num_shards": None, "tensor_parallel_size": None}, "1"),
    ],
)
def test_each_rank_has_a_gpu(model: dict[str, Any], gpus: str) -> None:
    assert worker_of(built(model_config={"model": "m", **model}))["resources"]["limits"]["nvidia.com/gpu"] == gpus


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({}, "2Gi"),
        ({"model_config": {"model": "m", "num_shards": 8}}, "9Gi"),
        ({"memory": "2Gi"}, "1Gi"),
        ({"memory": 1048576}, "524288"),
        ({"pod": with_container(resources={"limits": {"memory": "3Gi"}})}, "1536Mi"),
        ({"model_config": {"model": "m", "num_shards": 2, "swap_space": 4}}, "11Gi"),
        ({"model_config": {"model": "m", "swap_space": 1.5}, "memory": "3Gi"}, "2304Mi"),
    ],
)
def test_shared_memory_grows_with_the_ranks_and_leaves_half_of_a_limit(options: dict[str, Any], size: str) -> None:
    assert mounts_of(built(**options))["/dev/shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": size}


def test_memory_to_swap_to_is_asked_for_with_each_gpu() -> None:
    def memory(**fields: Any) -> str:
        return str(worker_of(built(**fields))["resources"]["requests"]["memory"])

    model = {"model": "m", "num_shards": 2}
    assert memory(model_config=model) == "35Gi"
    assert memory(model_config={**model, "swap_space": 4}) == "43Gi"


def test_memory_that_does_not_hold_what_is_swapped_is_refused() -> None:
    with pytest.raises(RequestInvalidError, match="memory: 8Gi does not hold the swap_space of 8Gi for 2 GPUs"):
        built(model_config={"model": "m", "num_shards": 2, "swap_space": 4}, memory="8Gi")


# What a person gave stands

USERS_POD = operators_pod(
    containers=[
        {
            "name": CONTAINER,
            "image": "mine:2",
            "command": ["profile", "python"],
            "args": ["-m", "mine"],
            "env": [
                {"name": "HOME", "value": "/home/me"},
                {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "mine", "key": "hf"}}},
                {"name": "TOKENIZERS_PARALLELISM", "value": "true"},
            ],
            "envFrom": [{"configMapRef": {"name": "settings"}}],
            "resources": {
                "limits": {"cpu": "3", "nvidia.com/mig-1g.10gb": "1"},
                "requests": {"nvidia.com/mig-1g.10gb": "1"},
            },
            "securityContext": {"runAsUser": 0},
            "terminationMessagePolicy": "File",
            "volumeMounts": [{"name": "ram", "mountPath": "/dev/shm"}, {"name": "ssd", "mountPath": "/tmp"}],
        },
        {"name": "proxy", "image": "proxy:1", "env": [{"name": "A", "value": "B"}]},
    ],
    initContainers=[{"name": "before", "image": "busybox:1"}],
    volumes=[{"name": "ram", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}}, {"name": "ssd", "emptyDir": {}}],
    securityContext={"fsGroup": 7},
    serviceAccountName="mine",
    automountServiceAccountToken=True,
    imagePullSecrets=[{"name": "mine"}],
    enableServiceLinks=True,
    priorityClassName="mine",
    terminationGracePeriodSeconds=5,
    nodeSelector={"pool": "mine"},
    tolerations=[{"key": "mine", "operator": "Exists"}],
    affinity={
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
                    {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]},
                ]
            }
        }
    },
)


def test_whatever_the_user_gave_stands() -> None:
    pod = built(USERS_POD, cluster=EVERYTHING, gpus=2, gpu_type="nvidia-ampere-a10", cpus=1, priority="low")
    assert list(lost(USERS_POD, pod)) == []


def test_the_user_decides_on_a_resource_as_a_whole() -> None:
    resources = worker_of(built(USERS_POD, cluster=EVERYTHING, gpus=2, cpus=16))["resources"]
    assert resources["limits"] == {"cpu": "3", "nvidia.com/mig-1g.10gb": "1"}
    assert "cpu" not in resources["requests"]


def test_gpus_that_are_claimed_are_not_asked_for_again() -> None:
    manifest = with_container(resources={"claims": [{"name": "gpu"}]})
    manifest["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    assert "limits" not in worker_of(built(manifest))["resources"]


def test_a_user_may_give_a_gpu_to_a_pod_that_would_have_none() -> None:
    manifest = with_container(resources={"limits": {"nvidia.com/gpu": "1"}})
    pod = built(manifest, role="collect")
    assert worker_of(pod)["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert "NVIDIA_VISIBLE_DEVICES" not in environment_of(pod)


def test_other_containers_are_left_alone() -> None:
    pod = built(USERS_POD, cluster=EVERYTHING)
    assert pod["spec"]["containers"][1] == USERS_POD["spec"]["containers"][1]
    assert pod["spec"]["initContainers"] == USERS_POD["spec"]["initContainers"]


def test_each_of_the_users_alternatives_asks_for_the_gpu() -> None:
    spec = built(USERS_POD, gpu_type="nvidia-ampere-a10")["spec"]
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    a10 = {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-A10", "NVIDIA-A10G"]}
    assert [term["matchExpressions"][1:] for term in required["nodeSelectorTerms"]] == [[a10], [a10]]


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H200"}},
        {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": "Exists"}]}
                        ]
                    }
                }
            }
        },
    ],
)
def test_a_label_that_the_user_speaks_of_is_the_users(spec: dict[str, Any]) -> None:
    pod = built(operators_pod(**spec), gpu_type="nvidia-hopper-h100")
    assert {key: pod["spec"].get(key) for key in ("nodeSelector", "affinity")} == {
        key: spec.get(key) for key in ("nodeSelector", "affinity")
    }


def test_a_user_who_says_who_runs_the_pod_is_not_contradicted_by_the_container() -> None:
    context = worker_of(built(operators_pod(securityContext={"runAsUser": 0})))["securityContext"]
    assert context == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def test_empty_options_of_the_pod_operator_are_no_options() -> None:
    pod = from_manifest(operators_pod())
    pod.spec.security_context = {}
    pod.spec.affinity = {}
    pod.spec.node_selector = {}
    pod.spec.tolerations = []
    pod.spec.volumes = []
    worker = pod.spec.containers[0]
    worker.command, worker.args, worker.env, worker.volume_mounts = [], [], [], []
    assert built(pod, gpu_type="nvidia-ampere-a10") == built(gpu_type="nvidia-ampere-a10")


def test_an_empty_security_context_in_a_template_is_none() -> None:
    manifest = with_container(securityContext={})
    manifest["spec"]["securityContext"] = {}
    assert built(manifest) == built()


def test_the_pod_that_comes_in_is_not_changed() -> None:
    pod = from_manifest(USERS_POD)
    build(pod, cluster=EVERYTHING, gpu_type="nvidia-ampere-a10")
    assert to_manifest(pod) == USERS_POD


def test_a_volume_of_the_users_takes_the_place_of_ours() -> None:
    users = {"name": "llmengine-tmp", "emptyDir": {"sizeLimit": "1Gi"}}
    pod = built(operators_pod(volumes=[users]))
    assert mounts_of(pod)["/tmp"] == users
    assert [volume["name"] for volume in pod["spec"]["volumes"]].count("llmengine-tmp") == 1


def test_a_node_is_not_emptied_under_a_worker_only_to_save_a_node() -> None:
    annotations = built()["metadata"]["annotations"]
    assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    assert annotations["karpenter.sh/do-not-disrupt"] == "true"
    assert "karpenter.sh/do-not-disrupt" not in built(role="collect")["metadata"]["annotations"]


def test_identity_is_the_only_thing_that_replaces() -> None:
    manifest = operators_pod()
    manifest["metadata"]["annotations"] = {
        "airflow-llmengine/replica": "17",
        "karpenter.sh/do-not-disrupt": "false",
        "note": "mine",
    }
    annotations = built(manifest)["metadata"]["annotations"]
    assert annotations["airflow-llmengine/replica"] == "0"
    assert annotations["airflow-llmengine/job"] == "0123456789abcdef-2"
    assert (annotations["karpenter.sh/do-not-disrupt"], annotations["note"]) == ("false", "mine")


# Refusals


def test_what_the_launcher_tells_its_worker_is_not_overruled() -> None:
    with pytest.raises(RequestInvalidError, match=r"env_vars\.LLMENGINE_REQUEST: is set by the launcher itself"):
        build(with_container(env=[{"name": "LLMENGINE_REQUEST", "value": "{1}"}]))


def test_a_missing_container_is_named() -> None:
    with pytest.raises(ValueError, match="The pod has no container base"):
        build(operators_pod(containers=[{"name": "main"}]))


def test_a_gpu_that_the_platform_lacks_is_refused_before_any_pod() -> None:
    with pytest.raises(RequestInvalidError, match="gpu_type: GKE has no nvidia-ampere-a10"):
        build(cluster=ClusterSettings(gpu_platform="gke"), gpu_type="nvidia-ampere-a10")


# Any combination

NAMES = st.from_regex(r"[a-z]([a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
QUANTITIES = st.sampled_from(["1", "500m", "2Gi", "1e3", "17179869184"])
VALUES = st.text("abcXYZ 019{}$%", max_size=12)
LABELS = st.dictionaries(NAMES.map("example.com/{}".format), NAMES, max_size=3)
TOLERATIONS = st.lists(
    st.fixed_dictionaries({"operator": st.just("Exists")}, optional={"key": NAMES, "effect": st.just("NoSchedule")}),
    min_size=1,
    max_size=3,
)
EXPRESSIONS = st.builds(
    lambda key, values: {"key": key, "operator": "In", "values": values},
    NAMES | st.just("nvidia.com/gpu.product"),
    st.lists(NAMES, min_size=1, max_size=3),
)
AFFINITY = st.lists(st.lists(EXPRESSIONS, min_size=1, max_size=2), min_size=1, max_size=2).map(
    lambda terms: {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": expressions} for expressions in terms]
            }
        }
    }
)
RESOURCES = st.dictionaries(
    st.sampled_from(["cpu", "memory", "ephemeral-storage", "nvidia.com/gpu", "nvidia.com/mig-1g.20gb"]),
    QUANTITIES,
    min_size=1,
)
VARIABLES = st.dictionaries(
    st.sampled_from(["HOME", "USER", "HF_HOME", "HF_TOKEN", "TOKENIZERS_PARALLELISM", "NVIDIA_VISIBLE_DEVICES", "A"]),
    VALUES,
    min_size=1,
).map(lambda variables: [{"name": name, "value": value} for name, value in variables.items()])
CONTAINER_OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "image": NAMES,
    "command": st.lists(VALUES, min_size=1, max_size=3),
    "args": st.lists(VALUES, min_size=1, max_size=3),
    "env": VARIABLES,
    "envFrom": st.lists(NAMES.map(lambda name: {"secretRef": {"name": name}}), min_size=1, max_size=2),
    "resources": st.dictionaries(st.sampled_from(["limits", "requests"]), RESOURCES, min_size=1),
    "securityContext": st.sampled_from([{"runAsUser": 0}, {"privileged": True}]),
    "volumeMounts": st.lists(st.sampled_from(["/tmp", "/cache", "/dev/shm", "/data"]), unique=True, min_size=1).map(
        lambda paths: [{"name": "mine", "mountPath": path} for path in paths]
    ),
    "terminationMessagePolicy": st.sampled_from(["File", "FallbackToLogsOnError"]),
    "imagePullPolicy": st.just("Never"),
}
CONTAINERS = st.fixed_dictionaries({"name": st.just(CONTAINER)}, optional=CONTAINER_OPTIONS)
PODS = st.builds(
    lambda container, spec, labels: (
        operators_pod(
            containers=[container, {"name": "side", "image": "side"}],
            volumes=[{"name": "mine", "emptyDir": {}}],
            **spec,
        )
        | {"metadata": {"name": "task-abc", "labels": {"dag_id": "dag", **labels}, "annotations": labels}}
    ),
    CONTAINERS,
    st.fixed_dictionaries(
        {},
        optional={
            "nodeSelector": st.dictionaries(NAMES | st.just("pool"), NAMES, min_size=1, max_size=2),
            "tolerations": TOLERATIONS,
            "affinity": AFFINITY,
            "securityContext": st.sampled_from([{"runAsUser": 0}, {"fsGroup": 5}]),
            "serviceAccountName": NAMES,
            "automountServiceAccountToken": st.booleans(),
            "priorityClassName": NAMES,
            "imagePullSecrets": st.lists(NAMES.map(lambda name: {"name": name}), min_size=1, max_size=2),
            "terminationGracePeriodSeconds": st.integers(0, 600),
            "activeDeadlineSeconds": st.integers(1, DEADLINE_SECONDS),
            "enableServiceLinks": st.booleans(),
            "schedulerName": NAMES,
            "runtimeClassName": NAMES,
            "hostNetwork": st.booleans(),
        },
    ),
    LABELS,
)
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "gpu_type": st.sampled_from([gpu.value for gpu in GpuType]),
        "gpus": st.integers(1, 8),
        "cpus": st.sampled_from([1, 0.5, "2", "500m"]),
        "memory": st.sampled_from(["16Gi", 2**34, "1.5Gi"]),
        "storage": st.sampled_from(["100Gi", 1e11]),
        "priority": NAMES,
        "labels": st.dictionaries(NAMES.map("job.example/{}".format), NAMES, max_size=2),
    },
)
CLUSTERS = st.sampled_from(
    [ClusterSettings(), EVERYTHING, ClusterSettings(gpu_platform="eks"), ClusterSettings(accelerator="none")]
)


@settings(max_examples=50)
@given(pod=PODS, cluster=CLUSTERS, fields=REQUESTS, role=st.sampled_from(["replica", "collect"]))
def test_no_option_of_the_users_is_lost_and_kubernetes_takes_the_pod(
    pod: dict[str, Any], cluster: ClusterSettings, fields: dict[str, Any], role: Any
) -> None:
    result = to_manifest(build(pod, cluster=cluster, role=role, **fields))
    assert list(lost(pod, result)) == []
    require_valid(result, VERSIONS[-1:])
    names = [variable["name"] for variable in worker_of(result)["env"]]
    assert len(names) == len(set(names))
    volumes = {volume["name"] for volume in result["spec"]["volumes"]}
    mounts = worker_of(result)["volumeMounts"]
    assert {mount["name"] for mount in mounts} <= volumes
    assert len({mount["mountPath"] for mount in mounts}) == len(mounts)


@settings(max_examples=50)
@given(pod=PODS, cluster=CLUSTERS, fields=REQUESTS)
def test_a_worker_put_in_twice_is_a_worker_put_in_once(
    pod: dict[str, Any], cluster: ClusterSettings, fields: dict[str, Any]
) -> None:
    once = to_manifest(build(pod, cluster=cluster, **fields))
    assert to_manifest(build(once, cluster=cluster, **fields)) == once
