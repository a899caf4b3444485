"""What Airflow lists of the provider."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from airflow_llmengine import __version__
from airflow_llmengine.get_provider_info import get_provider_info
from airflow_llmengine.hooks.connection_settings import ConnectionSettings
from airflow_llmengine.hooks.llmengine import LLMEngineHook

HEAVY = ("adlfs", "boto3", "botocore", "fsspec", "gcsfs", "pyarrow", "s3fs", "torch", "transformers", "vllm")


@pytest.mark.parametrize("schema", ["provider_info.schema.json", "provider.yaml.schema.json"])
def test_it_follows_airflows_schemas(schema: str) -> None:
    text = (resources.files("airflow") / schema).read_text()
    info = get_provider_info()
    if schema.startswith("provider.yaml"):
        # What an installed package states elsewhere: versions, and the state of its release.
        info |= {"versions": [__version__], "state": "ready", "lifecycle": "production", "source-date-epoch": 0}
    jsonschema.validate(info, json.loads(text))


def test_it_loads_nothing() -> None:
    script = (
        "import sys; before = set(sys.modules)\n"
        "from airflow_llmengine.get_provider_info import get_provider_info\n"
        "get_provider_info()\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert set(printed.split()) <= {"airflow_llmengine", *sys.stdlib_module_names}


def test_every_module_and_class_that_it_names_is_there() -> None:
    info = get_provider_info()
    for kind in ("operators", "sensors", "triggers", "hooks"):
        for entry in info[kind]:
            assert entry["integration-name"] == info["integrations"][0]["integration-name"]
            for module in entry["python-modules"]:
                importlib.import_module(module)
    for decorator in info["task-decorators"]:
        module, _, name = decorator["class-name"].rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))
    (connection_type,) = info["connection-types"]
    assert connection_type["hook-class-name"] == f"{LLMEngineHook.__module__}.{LLMEngineHook.__qualname__}"
    assert connection_type["connection-type"] == LLMEngineHook.conn_type
    assert connection_type["hook-name"] == LLMEngineHook.hook_name


def test_the_form_has_the_fields_that_the_hook_reads() -> None:
    (connection_type,) = get_provider_info()["connection-types"]
    assert set(connection_type["conn-fields"]) == set(ConnectionSettings.model_fields)
    for name, field in connection_type["conn-fields"].items():
        assert field["description"], name
        if "default" in field["schema"]:
            assert field["schema"]["default"] == ConnectionSettings.model_fields[name].default
    for name, example in connection_type["ui-field-behaviour"]["placeholders"].items():
        ConnectionSettings.parse("example", {name: example})


def test_airflow_reads_the_defaults_of_the_configuration() -> None:
    from airflow.sdk.configuration import conf

    assert conf.getint("llmengine", "grace_seconds") == 30
    assert conf.getint("llmengine", "max_inline_content_bytes") == 64 * 1024
    for name, option in get_provider_info()["config"]["llmengine"]["options"].items():
        assert option["description"], name


def modules_after(*steps: str) -> list[set[str]]:
    """The modules that are loaded after each of these statements, in one fresh process."""
    script = "import sys\n" + "\nprint(*sys.modules)\n".join([*(step.strip() for step in steps), ""])
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    return [set(line.split()) for line in printed.splitlines() if line.startswith("sys ")]


AIRFLOWS_OWN = """
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.sdk import BaseHook, BaseOperator, XComArg
from airflow.sdk.definitions.mappedoperator import OperatorPartial
"""


@pytest.mark.slow
def test_importing_the_operator_loads_little_beside_the_pod_operator() -> None:
    """The scheduler parses every DAG file again and again. Counted in modules: seconds depend on the machine."""
    airflows, ours, parsed, group = modules_after(
        AIRFLOWS_OWN,
        "from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator as Operator",
        "Operator(task_id='t', input_data_path='in', output_data_path='out', model_config={'model': 'm'})",
        "from airflow_llmengine.operators.task_group import LLMEngineBatchCompletionsTaskGroup",
    )
    added = ours - airflows
    assert not {name.partition(".")[0] for name in added} & set(HEAVY)
    assert {name for name in added if name.startswith("airflow.")} <= {"airflow.sdk.definitions._internal.mixins"}
    assert {name for name in added if name.startswith("airflow_llmengine")} <= {
        "airflow_llmengine",
        "airflow_llmengine.exceptions",
        "airflow_llmengine.get_provider_info",
        "airflow_llmengine.hooks",
        "airflow_llmengine.hooks.asset_events",
        "airflow_llmengine.hooks.cluster_errors",
        "airflow_llmengine.hooks.job_failure",
        "airflow_llmengine.hooks.job_summary",
        "airflow_llmengine.hooks.llmengine",
        "airflow_llmengine.operators",
        "airflow_llmengine.operators.attempt_options",
        "airflow_llmengine.operators.batch_completions",
        "airflow_llmengine.operators.batch_task",
        "airflow_llmengine.operators.follower_pods",
        "airflow_llmengine.operators.job_result",
        "airflow_llmengine.operators.launching",
        "airflow_llmengine.operators.mapping",
        "airflow_llmengine.operators.request_arguments",
        "airflow_llmengine.operators.table_argument",
        "airflow_llmengine.operators.task_pods",
        "airflow_llmengine.operators.worker_pod",
        "airflow_llmengine.operators.worker_task",
        "airflow_llmengine.spec",
        "airflow_llmengine.spec.exit_codes",
    }
    assert len(added) <= 20, sorted(added)
    # Making an operator checks its request, which needs the models and nothing else.
    added = parsed - ours
    assert not {name.partition(".")[0] for name in added} & set(HEAVY)
    assert not [name for name in added if name.startswith(("airflow_llmengine.storage", "airflow_llmengine.worker"))]
    added = group - parsed
    others = {name for name in added if not name.startswith("airflow_llmengine.operators.")}
    assert others <= {"airflow_llmengine.hooks.worker_attempt"}, sorted(added)


AIRFLOWS_SENSOR = """
from airflow.sdk import BaseHook, BaseSensorOperator, PokeReturnValue, XComArg
from airflow.sdk.definitions.xcom_arg import PlainXComArg
"""


@pytest.mark.slow
def test_importing_the_sensor_loads_neither_storage_nor_the_pod_operator() -> None:
    airflows, ours, parsed = modules_after(
        AIRFLOWS_SENSOR,
        "from airflow_llmengine.sensors.batch_completions import LLMEngineBatchCompletionsSensor as Sensor",
        "Sensor(task_id='t', job='path', deferrable=True)",
    )
    for added in (ours - airflows, parsed - ours):
        assert not {name.partition(".")[0] for name in added} & {*HEAVY, "kubernetes", "pydantic"}
        assert not [name for name in added if name.startswith(("airflow.", "airflow_llmengine.storage"))]


def airflow(*arguments: str) -> Any:
    command = [str(Path(sys.executable).parent / "airflow"), *arguments, "--output", "json"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(printed[printed.index("[") if "[" in printed else printed.index("{") :])


@pytest.mark.slow
def test_airflow_lists_the_provider() -> None:
    (provider,) = [row for row in airflow("providers", "list") if row["package_name"] == "airflow-llmengine"]
    assert provider["version"] == __version__
    assert "vLLM" in provider["description"]
    (provider,) = airflow("providers", "get", "airflow-llmengine")
    assert provider["Provider"] == "airflow-llmengine"
    (hook,) = [row for row in airflow("providers", "hooks") if row["connection_type"] == "llmengine"]
    assert hook["class"] == "airflow_llmengine.hooks.llmengine.LLMEngineHook"
    assert hook["conn_id_attribute_name"] == "llmengine_conn_id"
    fields = {row["connection_parameter_name"] for row in airflow("providers", "widgets") if "llmengine" in str(row)}
    assert {"launcher", "storage_conn_id", "request_defaults"} <= {name.rpartition("__")[2] for name in fields}
    assert [row for row in airflow("providers", "behaviours") if "llmengine" in str(row)]
