"""The name of a run as a part of a path, and the macro by which templates have it."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from importlib.metadata import entry_points
from typing import Any

import pytest
from airflow.sdk.execution_time.context import MacrosAccessor
from airflow.sdk.plugins_manager import integrate_macros_plugins
from hypothesis import given
from hypothesis import strategies as st

from airflow_llmengine.run_slug import MAX_SLUG_LENGTH, run_slug
from tests.airflow.operators_in_tests import EchoJob, run, task_context

MORNING = datetime(2026, 1, 5, 3, tzinfo=UTC)


@dataclass
class Run:
    run_id: str = "manual__1"
    logical_date: datetime | None = None
    partition_key: str | None = None


def test_a_partition_goes_before_a_date_and_a_date_before_the_runs_id() -> None:
    assert run_slug(Run(partition_key="2026-01", logical_date=MORNING)) == "2026-01"
    assert run_slug(Run(logical_date=MORNING)) == "20260105T030000"
    assert run_slug(Run()) == "manual__1"
    assert run_slug(Run(partition_key="", logical_date=MORNING)) == "20260105T030000"


def test_runs_of_one_hour_and_of_one_second_differ() -> None:
    moments = [MORNING, MORNING + timedelta(hours=1), MORNING + timedelta(microseconds=1)]
    assert [run_slug(Run(logical_date=moment)) for moment in moments] == [
        "20260105T030000",
        "20260105T040000",
        "20260105T030000.000001",
    ]


@pytest.mark.parametrize("key", ["2026-01-05T03:00:00", "2026-01-05T03:00:00Z", "2026-01-05T05:00:00+02:00"])
def test_a_point_in_time_is_written_as_a_logical_date_is(key: str) -> None:
    assert run_slug(Run(partition_key=key)) == run_slug(Run(logical_date=MORNING))


def test_a_date_in_another_zone_is_the_same_point_in_time() -> None:
    assert run_slug(Run(logical_date=MORNING.astimezone(timezone(timedelta(hours=9))))) == "20260105T030000"


def test_keys_that_no_point_in_time_tells_apart_are_no_points_in_time() -> None:
    keys = ["2026-01-05T03:00:00.000001", "2026-01-05T03:00:00.0000012", "2026-01-05T03:00:00.0000013"]
    assert len({run_slug(Run(partition_key=key)) for key in keys}) == 3


@pytest.mark.parametrize("key", ["2026-01-05", "2026-01-05T03", "region=eu", "2026-W01", "a.b_c"])
def test_what_is_safe_already_stays_as_it_is(key: str) -> None:
    assert run_slug(Run(partition_key=key)) == key


def test_what_is_not_safe_is_replaced_and_told_apart() -> None:
    slugs = [run_slug(Run(partition_key=key)) for key in ("us|2026/01", "us/2026|01", "us-2026-01")]
    assert [re.sub(r"-[0-9a-f]{8}$", "-#", slug) for slug in slugs] == ["us-2026-01-#", "us-2026-01-#", "us-2026-01"]
    assert len(set(slugs)) == 3
    assert re.fullmatch(r"us-[0-9a-f]{8}", run_slug(Run(partition_key="us/")))


@pytest.mark.parametrize("key", ["2026-02-31T00:00:00", "..", "../..", "_hidden", ".hidden", "\ud800", "é" * 250, " "])
def test_nothing_leads_out_of_a_folder_or_hides_in_it(key: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9=][A-Za-z0-9._=-]*", run_slug(Run(partition_key=key)))


@given(st.lists(st.text(min_size=1, max_size=250), min_size=2, max_size=2, unique=True))
def test_two_keys_never_share_a_slug_and_each_is_short_enough(keys: list[str]) -> None:
    first, second = (run_slug(Run(partition_key=key)) for key in keys)
    assert first != second
    assert 0 < len(first) <= MAX_SLUG_LENGTH


def test_airflows_processes_load_nothing_for_it() -> None:
    script = (
        "import sys, airflow.sdk.plugins_manager; before = set(sys.modules)\n"
        "import airflow_llmengine.plugin\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert set(printed.splitlines()[-1].split()) <= {"airflow_llmengine", *sys.stdlib_module_names}


def test_templates_have_it_as_a_macro(echo_job: EchoJob) -> None:
    (found,) = (point for point in entry_points(group="airflow.plugins") if point.name == "llmengine")
    assert found.value == "airflow_llmengine.plugin:LLMEnginePlugin"
    # As the task runner does before it parses a DAG.
    integrate_macros_plugins()
    context: Any = task_context(dag_run=Run(partition_key="2026-01-05T03:00:00"), macros=MacrosAccessor())
    path = f"{echo_job.output.parent}/{{{{ macros.llmengine.run_slug(dag_run) }}}}/output.json"
    assert run(echo_job.operator(output_data_path=path), context)["output_data_path"] == str(
        echo_job.output.parent / "20260105T030000" / "output.json"
    )
