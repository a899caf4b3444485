"""A job that another version of the package has launched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine import __version__
from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.job_state import OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.launch import LaunchRefusedError, launch_job
from airflow_llmengine.worker.attempt import AttemptOptions, run_attempt
from airflow_llmengine.worker.engines.echo import EchoEngine
from airflow_llmengine.worker.stopping import Stop
from tests.worker.jobs import Job

OPTIONS = AttemptOptions(owner="o", series="s", launched=True)


def launch(job: Job, **written: Any) -> None:
    """Launch a job, as a version would that writes this into ``job.json``."""
    launch_job(Storage(), validate_request(job.request), owner="o", series="s", engine="echo")
    for path in job.folder.glob("output.json.job/*/job.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), **written}))


def documents(job: Job) -> set[str]:
    return {path.name for path in job.folder.glob("output.json.job/*/*")}


@pytest.mark.parametrize("command", ["run", "collect"])
@pytest.mark.parametrize("version", [PROTOCOL_VERSION + 1, OLDEST_PROTOCOL_VERSION - 1])
def test_a_worker_of_too_old_or_too_new_a_version_refuses_before_it_does_anything(
    tmp_path: Path, command: str, version: int
) -> None:
    job = Job(tmp_path, ["one"])
    # What a later version adds is no obstacle to reading who it was.
    launch(job, protocol_version=version, plugin_version="7.8.9", added_later=[1])
    refused = job.run(*(["--launched"] if command == "run" else []), command=command)
    assert refused.returncode == ExitCode.BAD_REQUEST, refused.stderr
    assert refused.stderr.count("\n") == 1
    for said in (f"launched by airflow-llmengine 7.8.9 with version {version} of its files", f" {__version__}, "):
        assert said in refused.stderr
    assert ("of airflow-llmengine 7.8.9 or newer" in refused.stderr) is (version > PROTOCOL_VERSION)
    # No heartbeat, no pinned input: not even the engine was begun with.
    assert documents(job) == {"job.json"}


def test_a_worker_goes_on_with_a_job_of_an_older_protocol_and_leaves_it_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, ["one", "two"])
    launch(job, plugin_version="0.0.1")
    monkeypatch.setattr("airflow_llmengine.spec.job_version.PROTOCOL_VERSION", PROTOCOL_VERSION + 1)
    request = validate_request(job.request)
    options = AttemptOptions(owner="o", series="s", launched=True, replicas=2)
    outcome = run_attempt(Storage(), request, options, Stop(), make_engine=EchoEngine)
    assert outcome.exit_code is ExitCode.DONE, outcome.message
    (written,) = (json.loads(path.read_text()) for path in tmp_path.glob("output.json.job/*/job.json"))
    assert (written["protocol_version"], written["plugin_version"]) == (PROTOCOL_VERSION, "0.0.1")
    # A retry, launched by the newer version, of the same series.
    launch_job(Storage(), request, owner="o", series="s", engine="echo")
    monkeypatch.setattr("airflow_llmengine.spec.job_version.OLDEST_PROTOCOL_VERSION", PROTOCOL_VERSION + 1)
    outcome = run_attempt(Storage(), request, options, Stop(), make_engine=EchoEngine)
    assert outcome.exit_code is ExitCode.BAD_REQUEST
    assert f"knows them from version {PROTOCOL_VERSION + 1} on" in outcome.message


def test_a_launch_by_an_older_version_does_not_take_a_newer_ones_job_over(tmp_path: Path) -> None:
    job = Job(tmp_path, ["one"])
    launch(job, protocol_version=PROTOCOL_VERSION + 1, plugin_version="7.8.9")
    for series in ("s", "another"):
        with pytest.raises(LaunchRefusedError, match=r"launched by airflow-llmengine 7\.8\.9 .* or newer\."):
            launch_job(Storage(), validate_request(job.request), owner="o", series=series, engine="echo")


def test_a_request_that_only_another_version_takes_is_explained_by_the_versions(tmp_path: Path) -> None:
    job = Job(tmp_path, ["one"])
    launch(job, plugin_version="7.8.9")
    job.fields["field_of_tomorrow"] = 1
    refused = job.run("--launched")
    assert refused.returncode == ExitCode.BAD_REQUEST
    assert "field_of_tomorrow" in refused.stderr
    assert f"airflow-llmengine 7.8.9 launched the job, and this is {__version__}" in refused.stderr
    # Of the same version, it is the request that is wrong.
    launch(Job(tmp_path, ["one"]), plugin_version=__version__)
    refused = job.run("--launched")
    assert "field_of_tomorrow" in refused.stderr
    assert "launched the job" not in refused.stderr


def test_another_fingerprint_is_explained_by_the_versions(tmp_path: Path) -> None:
    job = Job(tmp_path, ["one"])
    launch(job, plugin_version="7.8.9")
    job.write_input(["two"])
    outcome = run_attempt(Storage(), validate_request(job.request), OPTIONS, Stop(), make_engine=EchoEngine)
    assert outcome.exit_code is ExitCode.BAD_REQUEST
    assert f"airflow-llmengine 7.8.9 launched the job, and this is {__version__}" in outcome.message


def test_what_a_document_calls_its_version_forges_no_log_line(tmp_path: Path) -> None:
    job = Job(tmp_path, ["one"])
    launch(job, protocol_version=PROTOCOL_VERSION + 1, plugin_version="1\n22:00:00 INFO done\x1b[2J" + "0" * 99)
    refused = job.run("--launched")
    assert refused.stderr.count("\n") == 1
    assert "\x1b" not in refused.stderr
    assert "0" * 40 not in refused.stderr
