"""What a reader would copy from the documentation is right: code, connections, requests, commands and manifests."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_llmengine.hooks.connection_settings import ConnectionSettings
from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.table import parse_table
from airflow_llmengine.worker import cli
from tests.docs.pages import PAGES, README, ROOT, Code, code_of_all, commands, connections
from tests.kube.pods import require_valid

SHELL = ("sh", "")
OF_OTHERS = {"Queue", "ResourceFlavor", "ClusterQueue", "LocalQueue", "Kustomization"}
"""Kinds that are no part of Kubernetes' own schemas."""
OF_A_TABLE = {"input_data_path": "/in.csv", "output_data_path": "/out.parquet", "model_config": {"model": "m"}}
"""A request beside which a sample of a table may stand."""


def readable_connection(text: str) -> None:
    connection = json.loads(text)
    if connection["conn_type"] == "llmengine":
        ConnectionSettings.parse("of the page", connection["extra"])
    else:
        assert connection["conn_type"] in {"aws", "kubernetes", "google_cloud_platform", "wasb"}


def test_every_code_says_its_language() -> None:
    unnamed = [each for each in code_of_all("") if connections(each.source) or "import " in each.source]
    assert unnamed == []


@pytest.mark.parametrize("sample", [each for each in code_of_all("python") if each.page != README], ids=str)
def test_code_is_included_from_files_that_are_run(sample: Code) -> None:
    assert sample.is_included
    assert set(re.findall(r'--8<-- "([^":]+)', sample.source)) <= {
        str(path.relative_to(ROOT)) for path in (ROOT / "dags").glob("*.py")
    }
    assert "--8<--" not in sample.text
    assert sample.text.strip()


@pytest.mark.parametrize("sample", [each for each in code_of_all("python") if each.page == README], ids=str)
def test_the_readmes_code_makes_tasks(sample: Code) -> None:
    from airflow.sdk import DAG, task

    from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator

    @task
    def load(path: str) -> str:
        return path

    # What it does not import was imported at its first sample.
    names: dict[str, Any] = {"load": load, "LLMEngineBatchCompletionsOperator": LLMEngineBatchCompletionsOperator}
    with DAG("of_the_readme", schedule=None) as dag:
        exec(compile(sample.source, "README.md", "exec", dont_inherit=True), names)  # noqa: S102
    assert dag.task_ids


@pytest.mark.parametrize("sample", code_of_all("json"), ids=str)
def test_json_is_a_connection_its_extra_a_request_or_a_table(sample: Code) -> None:
    content = json.loads(sample.text)
    if "conn_type" in content:
        readable_connection(sample.text)
    elif "output_data_path" in content:
        validate_request(content)
    elif content.keys() & {"prompt", "messages"}:
        validate_request(OF_A_TABLE, parse_table(content))
    else:
        ConnectionSettings.parse("of the page", content)


@pytest.mark.parametrize("sample", code_of_all("yaml"), ids=str)
def test_manifests_keep_to_kubernetes_schemas(sample: Code) -> None:
    manifests = [each for each in yaml.safe_load_all(sample.text) if each]
    assert manifests
    for manifest in manifests:
        assert manifest["apiVersion"]
        if manifest["kind"] not in OF_OTHERS:
            require_valid(manifest)


@pytest.mark.parametrize("sample", [each for each in code_of_all(*SHELL) if connections(each.text)], ids=str)
def test_connections_in_commands_can_be_used(sample: Code) -> None:
    assert len(connections(sample.text)) == sample.text.count("AIRFLOW_CONN_")
    for connection in connections(sample.text):
        readable_connection(connection)


def commands_of(program: str) -> list[str]:
    found = {line for each in code_of_all("sh") for line in commands(each.text) if line.startswith(f"{program} ")}
    return sorted(found)


@pytest.mark.parametrize("command", commands_of("airflow"))
def test_airflow_knows_the_command(command: str) -> None:
    from airflow.cli import cli_parser

    try:
        cli_parser.get_parser().parse_args(shlex.split(command)[1:])
    except SystemExit as error:
        raise AssertionError(command) from error


@pytest.mark.parametrize("command", commands_of("llmengine-batch"))
def test_the_command_line_knows_the_command(command: str) -> None:
    try:
        cli._parser().parse_args(shlex.split(command)[1:])
    except SystemExit as error:
        raise AssertionError(command) from error


def test_make_knows_its_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = "".join(page.read_text() for page in (*PAGES, README, ROOT / "CONTRIBUTING.md"))
    named = set(re.findall(r"(?:`|^|> )make ([a-z-]+)", text, re.MULTILINE))
    assert {"quickstart", "docs"} <= named
    assert named <= targets


def test_files_that_are_named_are_there() -> None:
    named = {
        (page.name, path)
        for page in (*PAGES, README, ROOT / "CONTRIBUTING.md")
        for path in re.findall(
            r"`((?:dags|docs|tests|scripts|requirements|deploy|docker|benchmarks)/[\w./-]*)`", page.read_text()
        )
    }
    assert len(named) > 10
    assert {(page, path) for page, path in named if not (ROOT / path).exists()} == set()


@pytest.mark.parametrize("page", [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_links_outside_of_the_site_lead_somewhere(page: Path) -> None:
    links = set(re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()))
    assert {link for link in links if not (ROOT / link).exists()} == set()
