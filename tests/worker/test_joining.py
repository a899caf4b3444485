"""Joining a job that a launcher has written down: exactly that generation, and with the launcher's credentials."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.launch import launch_job
from airflow_llmengine.worker.cli import main
from tests.storage.s3_server import S3Server
from tests.worker.jobs import Job


def launch(job: Job, series: str = "one") -> int:
    """Launch as a task does; gives the generation."""
    request = validate_request(job.request)
    launched = launch_job(Storage(), request, owner="dag/task", series=series, if_done="regenerate", engine="echo")
    return launched.handle.generation


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "collect"])
def test_only_the_generation_that_was_launched_is_joined(tmp_path: Path, command: str) -> None:
    job = Job(tmp_path, ["one", "two"], data_parallelism=2)
    old, new = launch(job, "one"), launch(job, "two")
    arguments = ["--launched"] if command == "run" else []
    refused = job.run(*arguments, f"--generation={old}", command=command)
    assert refused.returncode == ExitCode.BAD_REQUEST
    assert refused.stderr.count("\n") == 1
    assert f"generation {old} of {job.output} is to be joined, and {new} is the current one" in refused.stderr
    assert not job.generations()
    for replica in ("0", "1"):
        done = job.run("--launched", f"--generation={new}", f"--replica={replica}", "--replicas=2")
        assert done.returncode == ExitCode.DONE, done.stderr
    collected = job.run(f"--generation={new}", "--owner=dag/task", command="collect")
    assert collected.returncode == ExitCode.DONE, collected.stderr
    assert (job.manifest().generation, job.manifest().owner) == (new, "dag/task")


@pytest.mark.slow
def test_engine_args_that_are_others_are_another_job(tmp_path: Path) -> None:
    job = Job(tmp_path, ["one"], data_parallelism=2)
    launch_job(
        Storage(), validate_request(job.request), owner="me", series="s", engine="echo", engine_args={"max_logprobs": 4}
    )
    refused = job.run("--launched", "--replicas=2")
    assert refused.returncode == ExitCode.BAD_REQUEST
    assert "its engine_args or its table are others" in refused.stderr
    same = '--engine-args={"max_logprobs": 4, "async_scheduling": true}'
    for replica in ("0", "1"):
        done = job.run("--launched", same, f"--replica={replica}", "--replicas=2")
        assert done.returncode == ExitCode.DONE, done.stderr
    assert job.run("--owner=me", command="collect").returncode == ExitCode.BAD_REQUEST
    assert job.run("--owner=me", same, command="collect").returncode == ExitCode.DONE


@pytest.mark.slow
def test_an_argument_that_the_engine_does_not_have_ends_it_before_anything_is_launched(tmp_path: Path) -> None:
    job = Job(tmp_path, ["one"])
    refused = job.run('--engine-args={"max_logprbs": 4}', LLMENGINE_ENGINE="vllm")
    assert refused.returncode == ExitCode.BAD_REQUEST
    assert "did you mean max_logprobs?" in refused.stderr
    assert not job.output.parent.joinpath(f"{job.output.name}.job").exists()


def test_a_generation_is_only_named_with_a_launched_job(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "request.json", "--generation", "2"])
    assert ended.value.code == ExitCode.BAD_REQUEST
    assert "give --launched too" in capsys.readouterr().err


@pytest.mark.slow
def test_collect_reaches_storage_as_its_launcher_does_and_logs_json(tmp_path: Path) -> None:
    server = S3Server()
    server.start()
    try:
        bucket = server.new_bucket()
        server.client.put_object(Bucket=bucket, Key="in.jsonl", Body=b'{"prompt": "row 0", "max_tokens": 4}\n')
        job = Job(tmp_path, [], input_data_path=f"s3://{bucket}/in.jsonl", output_data_path=f"s3://{bucket}/out.json")
        options = {"s3": server.options}
        request = validate_request(job.request)
        launched = launch_job(Storage(options), request, owner="dag/task", series="s", engine="echo").handle
        generation = f"--generation={launched.generation}"
        done = by_pipe(job, options, "run", "--launched", generation, "--replicas=2")
        assert done.returncode == ExitCode.DONE, done.stderr
        collected = by_pipe(job, options, "collect", generation, "--log-format=json")
        assert collected.returncode == ExitCode.DONE, collected.stderr
        assert json.loads(collected.stdout)["output_data_path"] == f"s3://{bucket}/out.json"
        assert [json.loads(line)["level"] for line in collected.stderr.splitlines()] == ["INFO"]
    finally:
        server.stop()


def by_pipe(job: Job, options: object, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a launcher does, which alone has the credentials."""
    (job.folder / "request.json").write_text(json.dumps(job.request))
    reader, writer = os.pipe()
    with os.fdopen(reader), os.fdopen(writer, "w") as launcher:
        launcher.write(json.dumps({"storage_options": options}) + "\n")
        launcher.flush()
        return subprocess.run(
            [
                *(sys.executable, "-m", "airflow_llmengine.worker", command[0], "request.json"),
                *command[1:],
                f"--control-fd={reader}",
            ],
            env={name: value for name, value in job.environment().items() if not name.startswith("AWS_")},
            cwd=job.folder,
            pass_fds=(reader,),
            capture_output=True,
            text=True,
            timeout=60,
        )
