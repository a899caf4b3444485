"""The commands besides ``run``, in this process."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.worker.cli import main
from tests.worker.jobs import Job

Capture = pytest.CaptureFixture[str]


def request_file(folder: Path, **fields: Any) -> str:
    request = {
        "input_data_path": str(folder / "in.jsonl"),
        "output_data_path": str(folder / "out.json"),
        "model_config": {"model": "m"},
        **fields,
    }
    path = folder / "request.json"
    path.write_text(json.dumps(request))
    return str(path)


def test_validate_says_yes(tmp_path: Path, capsys: Capture) -> None:
    assert main(["validate", request_file(tmp_path)]) == ExitCode.DONE
    assert capsys.readouterr().out == "valid\n"


def test_validate_and_plan_judge_engine_args(tmp_path: Path, capsys: Capture) -> None:
    path = request_file(tmp_path)
    for command in ("validate", "plan"):
        assert main([command, path, '--engine-args={"max_logprobs": 40}']) == ExitCode.DONE
        with pytest.raises(SystemExit) as ended:
            main([command, path, '--engine-args={"dtype": "half", "port": 80}'])
        assert ended.value.code == ExitCode.BAD_REQUEST
        said = capsys.readouterr().err
        assert "engine_args.dtype: has a field in the request; give model_config.dtype" in said
        assert "engine_args.port: can't be set: there is no HTTP server" in said


def test_validate_tells_every_fault_on_a_line_of_its_own(tmp_path: Path, capsys: Capture) -> None:
    """Case 13, and others at once."""
    path = request_file(
        tmp_path, max_runtime_secs=60, data_parallelism=65, model_config={"model": "m", "num_shards": 0}
    )
    assert main(["validate", path]) == ExitCode.BAD_REQUEST
    lines = capsys.readouterr().err.splitlines()[1:]
    assert len(lines) == 3
    assert any("max_runtime_secs" in line and "did you mean max_runtime_sec?" in line for line in lines)
    assert any(line.startswith("  data_parallelism: ") and "1 to 64" in line for line in lines)
    assert any(line.startswith("  model_config.num_shards: ") for line in lines)


@pytest.mark.parametrize("text", ["{", "[]", "3", ""])
def test_a_request_that_is_no_json_object_is_one_sentence(tmp_path: Path, capsys: Capture, text: str) -> None:
    (tmp_path / "request.json").write_text(text)
    assert main(["run", str(tmp_path / "request.json")]) == ExitCode.BAD_REQUEST
    assert "Traceback" not in capsys.readouterr().err


def test_a_request_that_is_not_there_is_one_sentence(tmp_path: Path, capsys: Capture) -> None:
    assert main(["validate", str(tmp_path / "missing.json")]) == ExitCode.BAD_REQUEST
    assert "missing.json" in capsys.readouterr().err


def test_plan_shows_what_a_job_asks_for(tmp_path: Path, capsys: Capture) -> None:
    path = request_file(
        tmp_path, data_parallelism=3, gpus=2, gpu_type="nvidia-hopper-h100", max_runtime_sec=5400, memory="64Gi"
    )
    assert main(["plan", path]) == ExitCode.DONE
    out = capsys.readouterr().out
    for fact in ("replicas  3", "2 x nvidia-hopper-h100", "6 in all", "5400 s (1 h 30 min)", "64Gi", "one JSON array"):
        assert fact in out


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("/data/out.parquet", "/data/out.parquet (a table as Parquet)"),
        ("/data/out.tsv", "/data/out.tsv (a table as TSV)"),
        ("/data/out/", "/data/out/ (a table as Parquet, a file for each of the input's)"),
    ],
)
def test_plan_says_how_a_table_is_written(tmp_path: Path, capsys: Capture, output: str, told: str) -> None:
    table = json.dumps({"prompt": "{{ text }}", "parameters": {"max_tokens": 9}})
    request = {"input_data_path": "/data/in.parquet", "output_data_path": output, "model_config": {"model": "m"}}
    (tmp_path / "request.json").write_text(json.dumps(request))
    assert main(["plan", str(tmp_path / "request.json"), "--table", table]) == ExitCode.DONE
    assert f"output    {told}\n" in capsys.readouterr().out


def test_status_of_nothing(tmp_path: Path, capsys: Capture) -> None:
    assert main(["status", str(tmp_path / "out.json")]) == ExitCode.BAD_REQUEST
    assert "nothing was launched" in capsys.readouterr().out


def test_status_of_a_finished_job(tmp_path: Path, capsys: Capture) -> None:
    job = Job(tmp_path, ["one", ""])
    assert job.run().returncode == ExitCode.DONE
    assert main(["status", str(job.output)]) == ExitCode.DONE
    assert "2 records, failed: 1 empty_prompt" in capsys.readouterr().out
    assert main(["status", "--json", str(job.output)]) == ExitCode.DONE
    status = json.loads(capsys.readouterr().out)
    assert (status["state"], status["manifest"]["failed"]) == ("done", 1)


def test_status_and_clean_of_a_stopped_job(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, [f"row {index}" for index in range(100)], max_runtime_sec=3)
    stopped = job.run("--chunk-records", "3", LLMENGINE_ECHO_SECONDS_PER_RECORD="0.1", LLMENGINE_ECHO_CAPACITY="1")
    assert stopped.returncode == ExitCode.PARTIAL
    assert main(["status", "--json", str(job.output)]) == ExitCode.DONE
    status = json.loads(capsys.readouterr().out)
    assert status["state"] == "stopped"
    assert status["replicas"][0]["phase"] == "partial"
    assert status["replicas"][0]["stop_reason"] == "deadline"
    assert status["chunks_committed"] == len(job.committed())

    assert main(["clean", str(job.output)]) == ExitCode.DONE
    assert capsys.readouterr().out == "nothing to delete\n"
    # Whatever is asked for, what may belong to a worker at work is left alone.
    assert main(["clean", str(job.output), "--older-than", "0s"]) == ExitCode.DONE
    assert job.committed()
    monkeypatch.setattr("airflow_llmengine.worker.command_line.jobs.HEARTBEAT_TIMEOUT_SECONDS", 0.05)
    time.sleep(0.1)
    capsys.readouterr()
    assert main(["clean", str(job.output), "--older-than", "0.1s", "--dry-run"]) == ExitCode.DONE
    assert "would delete" in capsys.readouterr().out
    assert job.committed()
    assert main(["clean", str(job.output), "--older-than", "0.1s"]) == ExitCode.DONE
    assert not job.committed()


def test_cancel_of_nothing(tmp_path: Path, capsys: Capture) -> None:
    assert main(["cancel", str(tmp_path / "out.json")]) == ExitCode.BAD_REQUEST
    assert "no job was launched" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "r.json", "--replica", "-1"],
        ["run", "r.json", "--replicas", "0"],
        ["run", "r.json", "--max-error-rate", "2"],
        ["clean", "o", "--older-than", "soon"],
        ["frobnicate"],
        [],
    ],
)
def test_bad_arguments_are_a_bad_request(arguments: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == ExitCode.BAD_REQUEST
    assert "usage:" in capsys.readouterr().err


def test_a_replica_beyond_the_last_is_refused(tmp_path: Path, capsys: Capture) -> None:
    job = Job(tmp_path, ["one"])
    done = job.run("--replica", "2", "--replicas", "2")
    assert done.returncode == ExitCode.BAD_REQUEST
    assert "--replica" in done.stderr


@pytest.mark.parametrize("command", ["run", "collect", "validate", "plan", "status", "cancel", "clean"])
def test_every_command_has_a_help_that_teaches(command: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert len(capsys.readouterr().out) > 400


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "-", "--max-error-rate", "much"], "'much' is not a number from 0 to 1"),
        (["run", "-", "--replicas", "many"], "'many' is not a whole number"),
        (["run", "-", "--replicas", "0"], "0 is less than 1"),
    ],
)
def test_a_bad_option_is_told_in_words(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == ExitCode.BAD_REQUEST
    assert said in capsys.readouterr().err


def test_a_bad_log_format_in_the_environment_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLMENGINE_LOG_FORMAT", "yaml")
    with pytest.raises(SystemExit) as ended:
        main(["validate", "-"])
    assert ended.value.code == ExitCode.BAD_REQUEST
    assert "LLMENGINE_LOG_FORMAT is 'yaml': it may be text or json" in capsys.readouterr().err


def test_replicas_that_make_it_anew_need_one_series(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "-", "--if-done", "regenerate", "--replicas", "3"])
    assert ended.value.code == ExitCode.BAD_REQUEST
    assert "give all of them one --series" in capsys.readouterr().err


def test_a_job_whose_output_was_changed_since_is_told_as_such(tmp_path: Path, capsys: Capture) -> None:
    job = Job(tmp_path, ["one"])
    assert job.run().returncode == ExitCode.DONE
    job.output.write_text("edited")
    main(["status", str(job.output)])
    assert "its output or its manifest was changed or deleted" in capsys.readouterr().out
    again = job.run()
    assert again.returncode == ExitCode.BAD_REQUEST
    assert "was changed, or lost its manifest, since a job of llmengine-batch wrote it" in again.stderr


@pytest.mark.slow
def test_what_earlier_generations_left_goes_and_what_another_job_left_is_told(tmp_path: Path) -> None:
    job = Job(tmp_path, ["one", "two"])
    replica = ("--replica", "0", "--replicas", "2", "--if-done", "regenerate")
    for series in ("a", "b"):
        assert job.run(*replica, "--series", series).returncode == ExitCode.DONE
    assert len(list(tmp_path.glob("output.json.job/*-[12]"))) == 2
    assert job.run(command="collect").returncode == ExitCode.DONE
    assert not list(tmp_path.glob("output.json.job/*/"))
    other = Job(tmp_path, ["one", "two", "three"])
    assert other.run("--replica", "0", "--replicas", "2", "--series", "c").returncode == ExitCode.DONE
    job = Job(tmp_path, ["one"])
    done = job.run()
    assert done.returncode == ExitCode.DONE, done.stderr
    assert "llmengine-batch clean" in done.stderr


def test_collect_says_what_to_do_about_missing_chunks(tmp_path: Path) -> None:
    job = Job(tmp_path, ["row"] * 40)
    none = job.run(command="collect")
    assert "no job was launched for" in none.stderr
    assert "--launched" not in none.stderr
    wrong = job.run("--launched", "--generation", "9")
    assert wrong.returncode == ExitCode.BAD_REQUEST


TABLE = {"prompt": "{{ text }}", "parameters": {"max_tokens": 4}}


def table_request(folder: Path, **fields: Any) -> str:
    (folder / "in.jsonl").write_text('{"text": "one"}\n{"text": null}\n{"text": "{{ 1 }}"}\n')
    return request_file(folder, output_data_path=str(folder / "out.jsonl"), **fields)


def test_run_takes_a_table_as_text_as_a_file_and_as_a_variable(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMENGINE_ENGINE", "echo")
    path = table_request(tmp_path)
    (tmp_path / "table.json").write_text(json.dumps(TABLE))
    monkeypatch.setenv("MY_TABLE", json.dumps(TABLE))
    for table in (json.dumps(TABLE), str(tmp_path / "table.json"), "env:MY_TABLE"):
        assert main(["validate", path, "--table", table]) == ExitCode.DONE
        monkeypatch.setenv("MY_TABLE", json.dumps(TABLE))
    fingerprints = set()
    for table in (json.dumps(TABLE), str(tmp_path / "table.json"), "env:MY_TABLE"):
        capsys.readouterr()
        assert main(["run", path, "--table", table]) == ExitCode.DONE
        manifest = json.loads(capsys.readouterr().out)
        assert (manifest["records"], manifest["failed"]) == (3, 1)
        fingerprints.add(manifest["fingerprint"])
    assert len(fingerprints) == 1
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == ["one", None, "{{ 1 }}"]
    assert [row["completion"] is None for row in rows] == [False, True, False]


def test_another_table_is_another_job(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMENGINE_ENGINE", "echo")
    path = table_request(tmp_path)
    fingerprints = []
    for table in (TABLE, {**TABLE, "prompt": "{{ text }}!"}, {**TABLE, "on_null": "skip"}):
        capsys.readouterr()
        assert main(["run", path, "--table", json.dumps(table)]) == ExitCode.DONE
        fingerprints.append(json.loads(capsys.readouterr().out)["fingerprint"])
    assert len(set(fingerprints)) == 3


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"prompt": "{{ text"}, "table.prompt is no template: line 1: "),
        (
            {"prompt": None, "messages": [{"role": "user", "content": "{{ a }}\n{{ a|nosuch }}"}]},
            "table.messages[0].content is no template: line 2: No filter named 'nosuch'",
        ),
        ({"prompt": "{% include 'a' %}"}, "table.prompt has {% include %}"),
    ],
)
def test_validate_reads_templates_without_the_table(
    tmp_path: Path, capsys: Capture, table: dict[str, Any], told: str
) -> None:
    path = request_file(tmp_path, output_data_path=str(tmp_path / "out.jsonl"))
    assert main(["validate", path, "--table", json.dumps({**TABLE, **table})]) == ExitCode.BAD_REQUEST
    assert told in capsys.readouterr().err


def test_a_table_that_can_not_be_is_refused_line_by_line(tmp_path: Path, capsys: Capture) -> None:
    path = table_request(tmp_path, tool_config={"name": "code_evaluator"})
    for command in ("validate", "plan", "run"):
        assert main([command, path, "--table", json.dumps({**TABLE, "columns": ["a", "a"]})]) == ExitCode.BAD_REQUEST
        lines = capsys.readouterr().err.splitlines()
        assert sum(line.startswith(("  table.columns: ", "  tool_config: ")) for line in lines) == 2
        assert main([command, path, "--table", '{"promt": ""}']) == ExitCode.BAD_REQUEST
        assert "  table.promt: unknown field; did you mean prompt?" in capsys.readouterr().err
        assert main([command, path, "--table", "{"]) == ExitCode.BAD_REQUEST
        assert "the table is not JSON" in capsys.readouterr().err


def test_a_column_that_is_not_there_is_told_before_anything_is_launched(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMENGINE_ENGINE", "echo")
    path = table_request(tmp_path)
    assert main(["run", path, "--table", json.dumps({**TABLE, "prompt": "{{ txt }}"})]) == ExitCode.BAD_REQUEST
    assert "table.prompt uses 'txt', which is no column of the input: did you mean 'text'?" in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl.job").exists()


def test_replicas_of_a_table_and_collect(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMENGINE_ENGINE", "echo")
    path = table_request(tmp_path)
    for number in range(50):
        with (tmp_path / "in.jsonl").open("a") as file:
            file.write(json.dumps({"text": f"row {number}"}) + "\n")
    table = ["--table", json.dumps(TABLE)]
    for replica in ("0", "1"):
        assert main(["run", path, *table, "--series", "s", "--replica", replica, "--replicas", "2"]) == ExitCode.DONE
    assert main(["collect", path]) == ExitCode.BAD_REQUEST
    assert "its table" in capsys.readouterr().err
    assert main(["collect", path, *table]) == ExitCode.DONE
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows[3:]] == [f"row {number}" for number in range(50)]
    assert all(row["completion"] for row in rows[3:])
