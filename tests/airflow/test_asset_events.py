"""What the events of a task's outlets say, whichever task has the output."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, AssetAlias
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.sdk.execution_time.task_runner import _build_asset_profiles, _serialize_outlet_events

from airflow_llmengine.exceptions import RequestRefusedError, TooManyFailedRecordsError
from airflow_llmengine.hooks.asset_events import event_extra, fill_asset_events
from airflow_llmengine.hooks.llmengine import LLMEngineHook
from airflow_llmengine.operators.task_group import LLMEngineBatchCompletionsTaskGroup
from airflow_llmengine.sensors.batch_completions import LLMEngineBatchCompletionsSensor
from tests.airflow.operators_in_tests import EchoJob, run, task_context
from tests.airflow.test_group_tasks import Tasks
from tests.docs.pages import DOCS, first_column

ANSWERS = Asset(name="answers", uri="s3://bucket/answers", extra={"team": "support"})


class Store(dict[str, Any]):
    """Stands for the task's state store, which is behind the API server."""

    set = dict.__setitem__


def with_events(**fields: Any) -> Any:
    return task_context(outlet_events=OutletEventAccessors(), **fields)


def events_of(context: Any) -> list[dict[str, Any]]:
    """What the task runner sends of them."""
    found = list(_serialize_outlet_events(context["outlet_events"]))
    assert json.loads(json.dumps(found)) == found
    return found


def extra_of(job: EchoJob) -> dict[str, Any]:
    manifest = LLMEngineHook().read_manifest(str(job.output))
    assert manifest is not None
    return {
        "output_data_path": str(job.output),
        "records": 12,
        "succeeded": 12,
        "truncated": 0,
        "skipped": 0,
        "failed": 0,
        "prompt_tokens": 24,
        "completion_tokens": 24,
        "model": "stand-in",
        "model_identity": manifest.model_identity,
        "fingerprint": manifest.fingerprint,
        "generation": 1,
    }


def test_an_operators_outlets_say_what_is_in_the_output_and_of_which_job(echo_job: EchoJob) -> None:
    context = with_events()
    run(echo_job.operator(outlets=[ANSWERS]), context)
    expected = {"dest_asset_key": {"name": "answers", "uri": "s3://bucket/answers"}, "extra": extra_of(echo_job)}
    assert events_of(context) == [expected]
    assert "row" not in json.dumps({**extra_of(echo_job), "output_data_path": ""})


def test_an_output_that_stood_already_says_the_same(echo_job: EchoJob) -> None:
    run(echo_job.operator())
    context = with_events()
    run(echo_job.operator(outlets=[ANSWERS]), context)
    assert [event["extra"] for event in events_of(context)] == [extra_of(echo_job)]


def test_the_documentation_names_all_that_it_says(echo_job: EchoJob) -> None:
    run(echo_job.operator())
    manifest = LLMEngineHook().read_manifest(str(echo_job.output))
    assert manifest is not None
    assert sorted(first_column(DOCS / "assets.md", "Assets")) == sorted(event_extra(manifest))


def test_what_others_say_of_an_event_stays(echo_job: EchoJob) -> None:
    context = with_events()
    context["outlet_events"][ANSWERS].extra = {"mine": 1, "records": "not yet"}
    run(echo_job.operator(outlets=[ANSWERS]), context)
    assert [event["extra"] for event in events_of(context)] == [{"mine": 1, **extra_of(echo_job)}]


@pytest.mark.parametrize("scheme", ["", "s3://bucket"])
def test_an_alias_stands_for_the_output_itself(echo_job: EchoJob, scheme: str) -> None:
    run(echo_job.operator())
    manifest = LLMEngineHook().read_manifest(str(echo_job.output))
    assert manifest is not None
    path = f"{scheme}{echo_job.output}"
    context = with_events()
    fill_asset_events(context, [AssetAlias("outputs")], manifest.model_copy(update={"output_data_path": path}))
    (event,) = events_of(context)
    uri = path if scheme else f"file://{path}"
    assert (event["source_alias_name"], event["dest_asset_key"]) == ("outputs", {"name": uri, "uri": uri})
    assert event["extra"] == {**extra_of(echo_job), "output_data_path": path}


def test_each_of_several_outlets_has_its_event(echo_job: EchoJob) -> None:
    run(echo_job.operator())
    manifest = LLMEngineHook().read_manifest(str(echo_job.output))
    assert manifest is not None
    context = with_events()
    fill_asset_events(context, iter([ANSWERS, AssetAlias("outputs"), Asset("more")]), manifest)
    events = events_of(context)
    assert [event["dest_asset_key"]["name"] for event in events] == ["answers", f"file://{echo_job.output}", "more"]
    assert [event["extra"] for event in events] == [extra_of(echo_job)] * 3


def test_an_alias_names_what_airflow_takes_and_each_output_by_itself(echo_job: EchoJob) -> None:
    run(echo_job.operator())
    manifest = LLMEngineHook().read_manifest(str(echo_job.output))
    assert manifest is not None
    context = with_events()
    for path in ("s3://bucket/day#1.parquet", "s3://bucket/day#2.parquet", "/out/day=1?.csv", "gs://b/für Jürgen%.csv"):
        fill_asset_events(context, [AssetAlias("outputs")], manifest.model_copy(update={"output_data_path": path}))
    assert [event["dest_asset_key"]["uri"] for event in events_of(context)] == [
        "s3://bucket/day%231.parquet",
        "s3://bucket/day%232.parquet",
        "file:///out/day=1%3F.csv",
        "gs://b/f%C3%BCr J%C3%BCrgen%.csv",
    ]


def test_a_reference_means_the_asset_that_it_names(echo_job: EchoJob, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"answers": ANSWERS}

    def look_up(name: str | None = None, uri: str | None = None) -> Asset:
        if name not in known:
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.ASSET_NOT_FOUND))
        return known[name]

    monkeypatch.setattr(OutletEventAccessors, "_get_asset_from_db", staticmethod(look_up))
    monkeypatch.setattr(OutletEventAccessors, "_asset_ref_cache", {})
    context = with_events()
    outlets = [Asset.ref(name="gone"), Asset.ref(name="answers"), "no asset at all"]
    assert [profile.name for profile in _build_asset_profiles(outlets)] == ["gone", "answers"]
    run(echo_job.operator(outlets=outlets), context)
    (event,) = events_of(context)
    assert event["dest_asset_key"] == {"name": "answers", "uri": "s3://bucket/answers"}
    assert event["extra"] == extra_of(echo_job)


def test_a_job_that_fails_says_nothing(echo_job: EchoJob) -> None:
    with echo_job.input.open("a") as file:
        file.write('{"prompt": 5}\n')
    # So that there is an output, and only the task itself refuses it.
    run(echo_job.operator())
    context = with_events()
    with pytest.raises(TooManyFailedRecordsError):
        run(echo_job.operator(outlets=[ANSWERS], max_error_rate=0), context)
    assert events_of(context) == []


def test_a_sensor_says_what_the_operator_says(echo_job: EchoJob) -> None:
    run(echo_job.operator())
    for deferrable in (False, True):
        context = with_events(task_state_store=Store())
        LLMEngineBatchCompletionsSensor(
            task_id="wait", job=str(echo_job.output), outlets=[ANSWERS], deferrable=deferrable
        ).execute(context)
        assert [event["extra"] for event in events_of(context)] == [extra_of(echo_job)]


def test_a_task_that_does_not_wait_has_no_outlets(echo_job: EchoJob) -> None:
    with pytest.raises(RequestRefusedError, match=r"^outlets don't go with wait_for_completion=False"):
        echo_job.operator(outlets=[ANSWERS], wait_for_completion=False)


@pytest.mark.slow
def test_of_a_group_it_is_the_task_that_collects_that_says_it(echo_job: EchoJob) -> None:
    tasks = Tasks(echo_job, outlets=[ANSWERS], data_parallelism=1)
    (launch,) = tasks.plan()
    tasks.replica(launch)
    collect: Any = tasks.group().task_dict["teams.collect"]
    context = tasks.context("teams.collect")
    context["outlet_events"] = OutletEventAccessors()
    collect.render_template_fields(context)
    collect.execute(context)
    assert [event["extra"] for event in events_of(context)] == [extra_of(echo_job)]


def test_outlets_of_default_args_are_those_of_the_task_that_collects() -> None:
    with DAG("dag", schedule=None, default_args={"outlets": [ANSWERS]}) as dag:
        LLMEngineBatchCompletionsTaskGroup(
            "teams", input_data_path="s3://in/x.jsonl", output_data_path="s3://out/x.jsonl", model_config={"model": "m"}
        )
    plan, replicas, collect = (dag.task_dict[f"teams.{name}"] for name in ("plan", "replicas", "collect"))
    mapped: Any = replicas
    assert (plan.outlets, mapped.unmap({"launch": {}}).outlets, collect.outlets) == ([], [], [ANSWERS])
