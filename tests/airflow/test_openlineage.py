"""What OpenLineage is told of a job: by the methods that its provider calls, and in a real task's events."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from airflow.sdk import DAG

from airflow_llmengine.exceptions import StorageRefusedError, TooManyFailedRecordsError
from airflow_llmengine.hooks.openlineage_names import dataset_name
from airflow_llmengine.operators.batch_completions import LLMEngineBatchCompletionsOperator
from airflow_llmengine.spec.job_state import JobHandle
from airflow_llmengine.spec.manifest import Manifest, OutputFile
from tests.airflow.manifests import manifest_of
from tests.airflow.operators_in_tests import EchoJob, connection, run
from tests.airflow.test_group_tasks import Tasks

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket/in/x.jsonl", ("s3://bucket", "in/x.jsonl")),
        ("s3a://bucket/in/", ("s3://bucket", "in")),
        ("gcs://bucket/in/x.jsonl", ("gs://bucket", "in/x.jsonl")),
        ("abfs://box@account.dfs.core.windows.net/in/x", ("abfss://box@account.dfs.core.windows.net", "in/x")),
        ("az://box/in/x", ("az://box", "in/x")),
        ("/data/in/", ("file", "/data/in")),
        ("file:///data/x.csv", ("file", "/data/x.csv")),
        ("s3://bucket/in/day=*/x.jsonl", ("s3://bucket", "in")),
        ("s3://bucket/in/day=0[1-7].jsonl", ("s3://bucket", "in")),
        ("s3://bucket/*.jsonl", ("s3://bucket", "/")),
        ("s3://key:secret@bucket/x", ("s3://bucket", "x")),
        ("https://host/x?token=secret", ("https://host", "x")),
        ("", None),
        ("file://host/x", None),
    ],
)
def test_places_have_the_names_that_openlineage_gives_them(url: str, expected: tuple[str, str] | None) -> None:
    assert dataset_name(url) == expected


def test_the_names_are_those_of_openlineages_own_library() -> None:
    naming = pytest.importorskip("openlineage.client.naming.dataset")
    for url, name in (
        ("s3://bucket/in/x", naming.S3("bucket", "in/x")),
        ("gs://bucket/in/x", naming.GCS("bucket", "in/x")),
        ("abfss://box@account.dfs.core.windows.net/in/x", naming.ABFSS("box", "account", "in/x")),
        ("/data/x", naming.LocalFileSystem("/data/x")),
    ):
        assert dataset_name(url) == (name.get_namespace(), name.get_name())


def test_a_relative_glob_is_the_current_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert dataset_name("*.jsonl") == ("file", str(tmp_path))


def lineage_of(task: Any) -> dict[str, Any]:
    """What a task says on success, as OpenLineage serializes it."""
    serde = pytest.importorskip("openlineage.client.serde").Serde
    lineage = task.get_openlineage_facets_on_complete(None)
    inputs, outputs = ([serde.to_dict(dataset) for dataset in found] for found in (lineage.inputs, lineage.outputs))
    return {"inputs": inputs, "outputs": outputs, **serde.to_dict(lineage.run_facets["llmengine"])}


def test_before_it_has_run_a_task_says_what_it_will_read_write_and_load(echo_job: EchoJob) -> None:
    pytest.importorskip("airflow.providers.openlineage")
    task = echo_job.operator(
        model_config={"model": "stand-in", "dtype": "float32", "chat_template": "PRIVATE {{ messages }}"},
        engine_args='{"max_logprobs": 4}',
    )
    lineage = task.get_openlineage_facets_on_start()
    assert [(dataset.namespace, dataset.name) for dataset in lineage.inputs] == [("file", str(echo_job.input))]
    assert [(dataset.namespace, dataset.name) for dataset in lineage.outputs] == [("file", str(echo_job.output))]
    facet = lineage.run_facets["llmengine"]
    assert (facet.model, facet.parameters) == ("stand-in", {"dtype": "float32", "max_logprobs": 4})
    assert (facet.records, facet.fingerprint) == (None, None)


def test_when_it_has_run_it_says_what_the_manifest_says(echo_job: EchoJob) -> None:
    pytest.importorskip("airflow.providers.openlineage")
    task = echo_job.operator()
    result = run(task)
    told = lineage_of(task)
    written = told["outputs"][0]["outputFacets"]["outputStatistics"]
    assert (written["rowCount"], written["size"]) == (12, echo_job.output.stat().st_size)
    assert written["fileCount"] == 1
    expected = {**result, **result["job"], "engine": "echo"}
    for name in ("model", "engine", "fingerprint", "generation", "records", "succeeded", "truncated", "failed"):
        assert told[name] == expected[name], name
    assert (told["prompt_tokens"], told["completion_tokens"], told["cached"], told["repeated"]) == (24, 24, 0, 0)


def test_all_that_a_manifest_says_of_a_table_is_told() -> None:
    pytest.importorskip("airflow.providers.openlineage")
    from airflow_llmengine.hooks.openlineage_facets import job_lineage

    handle = JobHandle(path="s3://bucket/out/", fingerprint="ab12", generation=3)
    files = [OutputFile(name=name, records=1, bytes=1, sha256="0") for name in ("a.parquet", "b.parquet")]
    manifest = manifest_of(handle, "parquet", succeeded=1, truncated=2, skipped=3, failures={"timeout": 4}).model_copy(
        update={"files": files, "repeated": 5, "cached": 6, "engine_version": "1", "model_identity": "abc"}
    )
    lineage = job_lineage(
        {"model_config": {"model": "m", "dtype": "half"}},
        table={"parameters": {"max_tokens": 5, "chat_template": "PRIVATE"}},
        manifest=manifest,
    )
    facet = lineage.run_facets["llmengine"]
    told = [name for name in attrs.fields_dict(type(facet)) if name in Manifest.model_fields]
    assert len(told) == 16
    assert {name: getattr(facet, name) for name in told} == {name: getattr(manifest, name) for name in told}
    assert facet.parameters == {"dtype": "half", "max_tokens": 5}
    (output,) = lineage.outputs
    assert (output.namespace, output.name) == ("s3://bucket", "out")
    assert output.outputFacets["outputStatistics"].fileCount == 2


@pytest.mark.parametrize("given", [dict, json.dumps, lambda _table: "{{ params.table | tojson }}"])
def test_a_tasks_table_is_in_its_lineage(echo_job: EchoJob, given: Callable[[Any], Any]) -> None:
    pytest.importorskip("airflow.providers.openlineage")
    messages = [{"role": "user", "content": "{{ prompt }}"}]
    table = {"messages": messages, "parameters": {"max_tokens": 4, "chat_template": "PRIVATE"}}
    task = echo_job.operator(output_data_path=f"{echo_job.output}.csv", table=given(table))
    task.render_template_fields({"params": {"table": table}})
    assert task.get_openlineage_facets_on_start().run_facets["llmengine"].parameters == {"max_tokens": 4}


def test_what_is_wrong_with_a_task_does_not_keep_its_lineage_from_being_told() -> None:
    pytest.importorskip("airflow.providers.openlineage")
    from airflow_llmengine.hooks.openlineage_facets import job_lineage

    for request in (
        "{{ not rendered }}",
        None,
        {"model_config": "x"},
        {"input_data_path": 5, "output_data_path": "file://host/x"},
    ):
        lineage = job_lineage(request, engine_args={"port": 80}, table="{")
        assert (lineage.inputs, lineage.outputs) == ([], [])
        assert (lineage.run_facets["llmengine"].model, lineage.run_facets["llmengine"].parameters) == (None, {})
    assert job_lineage({"model_config": {"model": 5}}).run_facets["llmengine"].model is None


def test_prompts_are_in_no_lineage(echo_job: EchoJob) -> None:
    pytest.importorskip("airflow.providers.openlineage")
    content = {"prompts": ["PRIVATE"] * 3, "max_new_tokens": 4, "temperature": 0}
    task = echo_job.operator(input_data_path=None, content=content)
    run(task)
    assert "PRIVATE" in echo_job.output.read_text()
    told = lineage_of(task)
    assert (told["inputs"], told["records"]) == ([], 3)
    assert "PRIVATE" not in json.dumps(told)


@pytest.mark.parametrize("whole", [True, False])
def test_prompts_are_in_no_lineage_of_all_that_a_task_holds(echo_job: EchoJob, whole: bool) -> None:
    """As ``[openlineage] include_full_task_info`` makes it."""
    utils = pytest.importorskip("airflow.providers.openlineage.utils.utils")
    serde = pytest.importorskip("openlineage.client.serde").Serde
    fields = {
        "content": {"prompts": ["PRIVATE"], "max_new_tokens": 4, "temperature": 0},
        "output_data_path": str(echo_job.output),
        "model_config": {"model": "stand-in"},
    }
    with DAG("dag", schedule=None):
        task = LLMEngineBatchCompletionsOperator(task_id="job", **({"request": fields} if whole else fields))
    run(task)
    told = serde.to_json(dict(utils.TaskInfoComplete(task)))
    assert str(echo_job.output) in told
    assert "PRIVATE" not in told


def test_a_failure_says_what_was_written_if_something_was(echo_job: EchoJob) -> None:
    pytest.importorskip("airflow.providers.openlineage")
    with echo_job.input.open("a") as file:
        file.write('{"prompt": 5}\n')
    task = echo_job.operator()
    run(task)
    strict = echo_job.operator(max_error_rate=0)
    with pytest.raises(TooManyFailedRecordsError):
        run(strict)
    facet = strict.get_openlineage_facets_on_failure(None).run_facets["llmengine"]
    assert (facet.records, facet.failed, facet.failures) == (13, 1, {"invalid_record": 1})
    echo_job.input.unlink()
    gone = echo_job.operator()
    with pytest.raises(StorageRefusedError):
        run(gone)
    lineage = gone.get_openlineage_facets_on_failure(None)
    assert lineage.run_facets["llmengine"].records is None
    assert [dataset.name for dataset in lineage.outputs] == [str(echo_job.output)]


@pytest.mark.timeout(1200)
@pytest.mark.slow
def test_of_a_group_it_is_the_task_that_collects_that_says_it(echo_job: EchoJob) -> None:
    pytest.importorskip("airflow.providers.openlineage")
    tasks = Tasks(echo_job, data_parallelism=1)
    (launch,) = tasks.plan()
    tasks.replica(launch)
    collect: Any = tasks.group().task_dict["teams.collect"]
    context = tasks.context("teams.collect")
    collect.render_template_fields(context)
    collect.execute(context)
    told = lineage_of(collect)
    assert [dataset["name"] for dataset in told["inputs"]] == [str(echo_job.input)]
    assert (told["records"], told["model"]) == (12, "stand-in")
    for name in ("plan", "replicas"):
        assert not hasattr(tasks.group().task_dict[f"teams.{name}"], "get_openlineage_facets_on_complete")


def test_nothing_of_openlineage_is_needed_to_run_a_job() -> None:
    script = (
        "import sys; sys.modules['openlineage'] = None\n"
        "import airflow_llmengine.operators.task_group, airflow_llmengine.operators.batch_completions\n"
        "import airflow_llmengine.plugin, airflow_llmengine.operators.job_result\n"
        "print('airflow_llmengine.hooks.openlineage_facets' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.split()[-1] == "False"


@pytest.mark.timeout(1200)
@pytest.mark.slow
def test_a_real_tasks_events_carry_it(echo_job: EchoJob, airflow_environment: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("airflow.providers.openlineage")
    events = tmp_path / "events.jsonl"
    done = subprocess.run(
        [sys.executable, str(HERE / "task_process.py"), "run", "echo_job", "job", "run-1"],
        env=airflow_environment
        | {
            "TEST_INPUT": str(echo_job.input),
            "TEST_OUTPUT": str(echo_job.output),
            "AIRFLOW_CONN_LLMENGINE_DEFAULT": connection(),
            "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(
                {"type": "file", "log_file_path": str(events), "append": True}
            ),
        },
        capture_output=True,
        text=True,
    )
    assert re.findall(r"^state: (.*)$", done.stdout, re.MULTILINE) == ["success"], done.stdout + done.stderr
    found = {event["eventType"]: event for event in map(json.loads, events.read_text().splitlines())}
    assert set(found) == {"START", "COMPLETE"}
    for event in found.values():
        assert event["job"]["name"] == "echo_job.job"
        assert [(each["namespace"], each["name"]) for each in event["inputs"]] == [("file", str(echo_job.input))]
        assert [(each["namespace"], each["name"]) for each in event["outputs"]] == [("file", str(echo_job.output))]
    assert found["COMPLETE"]["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 12
    facet = found["COMPLETE"]["run"]["facets"]["llmengine"]
    assert (facet["records"], facet["prompt_tokens"], facet["model"]) == (12, 24, "stand-in")
    assert "row 1" not in events.read_text()
