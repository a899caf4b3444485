"""The documentation's tables of arguments, fields and options name all that there are, and nothing else."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.get_provider_info import get_provider_info
from airflow_llmengine.hooks.connection_settings import ConnectionSettings
from airflow_llmengine.kube.cluster import ClusterSettings, GpuNodes
from airflow_llmengine.kube.gpu_placement import gpu_placement
from airflow_llmengine.operators import task_group
from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsMixin
from airflow_llmengine.operators.batch_task import BatchTaskMixin
from airflow_llmengine.operators.request_arguments import REQUEST_FIELDS
from airflow_llmengine.operators.task_group import LLMEngineBatchCompletionsTaskGroup
from airflow_llmengine.operators.worker_pod import DEFAULTS
from airflow_llmengine.retry_policy import LLMEngineRetryPolicy
from airflow_llmengine.sensors.batch_completions import LLMEngineBatchCompletionsSensor
from airflow_llmengine.spec.engine_args import SERVING_ARGUMENTS
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.request import (
    CreateBatchCompletionsV1Request,
    GpuType,
)
from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.spec.validation import RequestInvalidError
from airflow_llmengine.worker import cli
from tests.docs.pages import DOCS, PAGES, first_column

OTHERS = {"others"}


def arguments(*classes: type[Any]) -> set[str]:
    """What the constructors of these classes take by name."""
    return {
        name
        for each in classes
        for name, parameter in inspect.signature(vars(each)["__init__"]).parameters.items()
        if name != "self" and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }


def wire_names(model: Any) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


@pytest.mark.parametrize(
    ("page", "heading", "names"),
    [
        (
            "operator",
            "Arguments",
            (arguments(BatchTaskMixin, LLMEngineBatchCompletionsMixin) - set(REQUEST_FIELDS)) | OTHERS,
        ),
        ("task_group", "Arguments", arguments(LLMEngineBatchCompletionsTaskGroup) | OTHERS),
        ("sensor", "Arguments", arguments(LLMEngineBatchCompletionsSensor) | OTHERS),
        ("connection", "Fields", set(ConnectionSettings.model_fields)),
        ("connection", "Cluster", set(ClusterSettings.model_fields)),
        ("connection", "Options in `airflow.cfg`", set(get_provider_info()["config"]["llmengine"]["options"])),
        ("gpu_platforms", "A cluster that differs", set(GpuNodes.model_fields)),
        ("gpu_platforms", "Where a type is found", {str(each) for each in GpuType}),
        ("command_line", "Exit codes", {str(int(each)) for each in ExitCode}),
        ("request", "Errors of a record", {str(each) for each in RecordErrorType}),
    ],
)
def test_a_table_names_all_there_are(page: str, heading: str, names: set[str]) -> None:
    found = first_column(DOCS / f"{page}.md", heading)
    plain = [re.sub(r"` \(.*", "", name) for name in found]
    assert sorted(plain) == sorted(names)


def test_the_requests_fields_are_the_contracts() -> None:
    assert wire_names(CreateBatchCompletionsV1Request) == set(REQUEST_FIELDS)
    said = DOCS.joinpath("operator.md").read_text()
    assert [name for name in REQUEST_FIELDS if f"`{name}`" not in said] == []


def test_the_operators_page_gives_the_pod_options_that_differ() -> None:
    said = DOCS.joinpath("operator.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| `?([\w]+)`?[^|]*\|$", said, re.MULTILINE))
    assert {name: rows.get(name, "").casefold() for name in DEFAULTS} == {
        name: str(value).casefold() for name, value in DEFAULTS.items()
    }


def test_the_retry_policys_waits_are_there() -> None:
    said = DOCS.joinpath("retries.md").read_text()
    assert [name for name in arguments(LLMEngineRetryPolicy) if f"`{name}`" not in said] == []


def commands(parser: argparse.ArgumentParser | None = None) -> dict[str, argparse.ArgumentParser]:
    parser = parser or cli._parser()
    groups = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    return {name: choice for group in groups for name, choice in group.choices.items()}


def options() -> Iterator[str]:
    for parser in commands().values():
        for action in (action for each in (parser, *commands(parser).values()) for action in each._actions):
            yield from (each for each in action.option_strings if each.startswith("--") and each != "--help")


def test_the_command_lines_page_names_every_command_and_option() -> None:
    said = DOCS.joinpath("command_line.md").read_text()
    assert set(re.findall(r"^\| `llmengine-batch (\w+)", said, re.MULTILINE)) == set(commands())
    assert set(re.findall(r"`(--[a-z-]+)`", said)) - {"--help", "--version"} == set(options())


@pytest.mark.parametrize("platform", ["gke", "eks", "nvidia"])
@pytest.mark.parametrize("gpu_type", list(GpuType), ids=str)
def test_the_table_of_gpus_is_that_of_the_code(platform: str, gpu_type: GpuType) -> None:
    said = DOCS.joinpath("gpu_platforms.md").read_text()
    (row,) = re.findall(rf"^\| `{gpu_type}`.*$", said, re.MULTILINE)
    whole = GpuType.NVIDIA_HOPPER_H100 if "-1g" in gpu_type or "-3g" in gpu_type else gpu_type
    (row_of_whole,) = re.findall(rf"^\| `{whole}`.*$", said, re.MULTILINE)
    column = {"gke": 1, "eks": 2, "nvidia": 3}[platform]
    cell = row_of_whole.strip("| ").split(" | ")[column]
    cluster = ClusterSettings.model_validate({"gpu_platform": platform})
    if cell == "none":
        with pytest.raises(RequestInvalidError):
            gpu_placement(gpu_type, cluster)
        return
    placement = gpu_placement(gpu_type, cluster)
    labels = dict(placement.node_labels)
    partition = labels.pop("cloud.google.com/gke-gpu-partition-size", None)
    if partition:
        assert partition[0] in row
    ((label, values),) = labels.items()
    assert label in said
    families = [value for value in re.findall(r"`([^`]+)`", cell) if value.endswith(".*")]
    expected = {f"{value.partition('.')[0]}.*" if families else value for value in values}
    assert set(re.findall(r"`([^`]+)`", cell)) == expected
    assert placement.resource in said


def test_airflows_own_limits_are_what_airflow_says() -> None:
    from airflow.configuration import conf

    rows = dict(re.findall(r"^\| `([^`]+)`[^|]*\| (\d+) \|", DOCS.joinpath("backfill.md").read_text(), re.MULTILINE))
    names = {
        "max_active_tasks": ("core", "max_active_tasks_per_dag"),
        "[core] parallelism": ("core", "parallelism"),
        "[triggerer] capacity": ("triggerer", "capacity"),
        "[core] max_map_length": ("core", "max_map_length"),
    }
    assert {name: rows.get(name) for name in names} == {
        name: conf.get_default_value(*option) for name, option in names.items()
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_row_of_a_table_has_as_many_cells(page: Path) -> None:
    blocks = re.findall(r"(?:^\|.*\n)+", page.read_text(), re.MULTILINE)
    cells = [{len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()} for block in blocks]
    assert [each for each in cells if len(each) != 1] == []


def test_errors_that_are_tried_again_are_marked() -> None:
    said = DOCS.joinpath("request.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| (yes|no) \|$", said, re.MULTILINE))
    assert rows == {str(each): "yes" if each.transient else "no" for each in RecordErrorType}


def test_the_groups_page_says_where_arguments_go() -> None:
    said = DOCS.joinpath("task_group.md").read_text()
    names = {*task_group._OF_ALL_TASKS, *task_group._OF_PLAN, *task_group._OF_COLLECT, *task_group._OF_GPU_PODS}
    assert [name for name in sorted(names) if f"`{name}`" not in said] == []


def test_the_operators_page_names_the_serving_arguments_that_engine_args_takes() -> None:
    section = DOCS.joinpath("operator.md").read_text().split("### Further arguments of vLLM")[1].split("\n- ")[0]
    assert set(re.findall(r"`([a-z_]+)`", section)) - {"engine_args"} == SERVING_ARGUMENTS
