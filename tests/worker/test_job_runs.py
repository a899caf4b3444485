"""Jobs run by the worker's own command, each in a process of its own, with the stand-in engine."""

from __future__ import annotations

import base64
import functools
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.status import job_status
from tests.waiting import wait_until
from tests.worker.jobs import Job, text_of

# Each starts worker processes.
pytestmark = pytest.mark.slow


def test_a_job_ends_with_output_manifest_and_no_scratch(tmp_path: Path) -> None:
    job = Job(tmp_path, ["one", "two", "three"])
    done = job.run("--owner", "dag/task")
    assert done.returncode == ExitCode.DONE, done.stderr
    assert [index for index in range(3) if ["one", "two", "three"][index] in text_of(job.results()[index])] == [0, 1, 2]
    manifest = job.manifest()
    assert json.loads(done.stdout) == manifest.model_dump(mode="json")
    assert (manifest.records, manifest.succeeded, manifest.failed) == (3, 3, 0)
    assert manifest.output_bytes == job.output.stat().st_size
    assert (manifest.owner, manifest.engine) == ("dag/task", "echo")
    assert manifest.prompt_tokens > 0
    assert manifest.completion_tokens > 0
    assert [path.name for path in (tmp_path / "output.json.job").iterdir()] == ["current.json"]
    ids = [result["id"] for result in job.results()]
    assert ids == [f"cmpl-{manifest.fingerprint}-{index}" for index in range(3)]
    assert {result["created"] for result in job.results()} == {int(manifest.created)}


def test_logs_hold_no_prompt_and_no_completion(tmp_path: Path) -> None:
    job = Job(tmp_path, ["a most private sentence", "", "llmengine-echo:reject private"])
    done = job.run()
    assert done.returncode == ExitCode.DONE
    assert "private" not in done.stderr
    assert "private" not in done.stdout
    assert "3 records" in done.stderr


def test_json_lines_where_the_output_ends_in_jsonl(tmp_path: Path) -> None:
    job = Job(tmp_path, ["one", "two\u2028three"], output_data_path=str(tmp_path / "out.jsonl"))
    assert job.run().returncode == ExitCode.DONE
    lines = (tmp_path / "out.jsonl").read_bytes().split(b"\n")
    assert lines.pop() == b""
    assert [text_of(json.loads(line)) for line in lines] == [text_of(json.loads(line)) for line in lines]
    assert len(lines) == 2
    assert "two\u2028three" in text_of(json.loads(lines[1]))


def test_a_v1_request_with_inline_content(tmp_path: Path) -> None:
    content = {"prompts": ["a", "{{ 7*7 }}"], "max_new_tokens": 4, "temperature": 0.0, "return_token_log_probs": True}
    job = Job(tmp_path, [], content=content, input_data_path=None)
    done = job.run()
    assert done.returncode == ExitCode.DONE, done.stderr
    results = job.results()
    assert [set(result) for result in results] == [{"text", "num_prompt_tokens", "num_completion_tokens", "tokens"}] * 2
    assert "{{ 7*7 }}" in results[1]["text"]
    assert all(token["log_prob"] is None or token["log_prob"] <= 0 for token in results[0]["tokens"])


def test_openai_batch_lines_are_answered_as_such(tmp_path: Path) -> None:
    job = Job(tmp_path, [])
    lines = [
        {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 4}},
        {"custom_id": "b", "method": "POST", "url": "/v1/nothing", "body": {"prompt": "x"}},
        {
            "custom_id": "c",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
        },
    ]
    job.input.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert job.run().returncode == ExitCode.DONE
    first, second, third = job.results()
    assert (first["custom_id"], first["error"], first["response"]["status_code"]) == ("a", None, 200)
    assert first["response"]["body"]["object"] == "text_completion"
    assert (second["custom_id"], second["response"]) == ("b", None)
    assert second["error"]["index"] == 1
    assert "url" in second["error"]["message"]
    assert third["response"]["body"]["object"] == "chat.completion"


def test_a_batch_file_of_every_kind_and_with_names_given_twice(tmp_path: Path) -> None:
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/embeddings", {"input": ["a cat", "a dog"], "user": "ada"}),
        ("/v1/score", {"queries": "a cat", "documents": ["a cat", "the moon"]}),
        ("/v1/rerank", {"query": "a cat", "documents": ["the moon", "a cat"], "top_n": 1}),
        ("/v1/embeddings", {"input": "a cat", "encoding_format": "base64", "dimensions": 3}),
        ("/v1/embeddings", {"input": ""}),
        ("/v1/completions", {"prompt": "a cat"}),
    ]
    names = ["a", "b", "a", "c", "b", "a"]
    lines = [
        {"custom_id": name, "method": "POST", "url": url, "body": body}
        for name, (url, body) in zip(names, bodies, strict=True)
    ]
    job = Job(tmp_path, [])
    job.input.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {**lines[0], "custom_id": None}]))
    done = job.run()
    assert done.returncode == ExitCode.DONE, done.stderr
    results = job.results()
    # Each is answered, at its own place, and told by its id.
    assert [result["custom_id"] for result in results] == [*names, None]
    manifest = job.manifest()
    assert [result["id"] for result in results] == [f"batch_req_{manifest.fingerprint}-{index}" for index in range(7)]
    assert (manifest.duplicate_custom_ids, manifest.records, manifest.failed) == (3, 7, 2)
    assert "3 lines have a custom_id that a line before them has, for example records 0 and 2, 1 and 4, 0 and 5" in (
        done.stderr
    )
    status = job_status(Storage(), str(job.output))
    assert "names      3 lines repeat the custom_id of an earlier one" in status.lines()

    embedded, scored, ranked, encoded, empty, completed, nameless = results
    body = embedded["response"]["body"]
    assert (body["id"], body["created"]) == (f"embd-{manifest.fingerprint}-0", int(manifest.created))
    assert [len(item["embedding"]) for item in body["data"]] == [8, 8]
    assert (body["usage"], body["metadata"]) == ({"prompt_tokens": 4, "total_tokens": 4}, {"user": "ada"})
    assert scored["response"]["body"]["id"] == f"score-{manifest.fingerprint}-1"
    assert scored["response"]["body"]["data"][0]["score"] == pytest.approx(1)
    assert scored["response"]["body"]["data"][1]["score"] < 0.9
    assert ranked["response"]["body"]["id"] == f"rerank-{manifest.fingerprint}-2"
    assert "created" not in ranked["response"]["body"]
    assert [result["index"] for result in ranked["response"]["body"]["results"]] == [1]
    assert len(base64.b64decode(encoded["response"]["body"]["data"][0]["embedding"])) == 3 * 4
    assert empty["error"]["type"] == "empty_prompt"
    assert completed["response"]["body"]["object"] == "text_completion"
    assert "custom_id: must be a string that is not empty" in nameless["error"]["message"]
    assert nameless["error"]["message"].startswith("line 7 ")
    assert (manifest.prompt_tokens, manifest.completion_tokens) == (4 + 6 + 6 + 2 + 2, 2)


def test_three_prompts_on_four_replicas(tmp_path: Path) -> None:
    """Case 1: exactly three rows; a replica without a share loads no engine."""
    job = Job(tmp_path, ["one", "two", "three"], data_parallelism=4)
    logs = []
    for replica in range(4):
        done = job.run("--replica", str(replica), "--replicas", "4", "--chunk-records", "1", "--series", "s")
        assert done.returncode == ExitCode.DONE, done.stderr
        logs.append(done.stderr)
    # The first helps with what the others have not begun.
    assert ["is ready" in log for log in logs] == [True, False, False, False]
    assert not job.output.exists()
    assert job.run(command="collect").returncode == ExitCode.DONE
    assert len(job.results()) == 3


@pytest.mark.parametrize("empty", ["", "\n", "[]"])
def test_an_empty_job_ends_with_an_empty_array_and_no_engine(tmp_path: Path, empty: str) -> None:
    """Case 4, second half."""
    job = Job(tmp_path, [])
    job.input.write_text(empty)
    done = job.run(LLMENGINE_ECHO_LOAD_SECONDS="60")
    assert done.returncode == ExitCode.DONE, done.stderr
    assert job.results() == []
    assert job.manifest().records == 0


def test_invalid_records_alone_load_no_engine(tmp_path: Path) -> None:
    job = Job(tmp_path, [])
    job.input.write_text("[1,2]\nnull\n")
    done = job.run(LLMENGINE_ECHO_LOAD_SECONDS="60")
    assert done.returncode == ExitCode.TOO_MANY_FAILED_RECORDS


def test_a_bad_record_costs_its_own_row_only(tmp_path: Path) -> None:
    job = Job(tmp_path, ["good", "llmengine-echo:reject", "", "good too"])
    done = job.run()
    assert done.returncode == ExitCode.DONE, done.stderr
    results = job.results()
    assert "choices" in results[0]
    assert results[1]["error"]["index"] == 1
    assert "line 2" in results[1]["error"]["message"]
    assert results[2]["error"]["type"] == "empty_prompt"
    assert "choices" in results[3]
    assert job.manifest().failed == 2


def test_a_job_whose_every_record_failed_is_a_failure(tmp_path: Path) -> None:
    job = Job(tmp_path, ["", "", "llmengine-echo:reject"])
    done = job.run()
    assert done.returncode == ExitCode.TOO_MANY_FAILED_RECORDS
    assert "all 3 records failed (2 empty_prompt, 1 " in done.stderr
    assert "for example: line 1" in done.stderr
    assert not job.output.exists()


@pytest.mark.parametrize(("rate", "code"), [("0.5", ExitCode.DONE), ("0.4", ExitCode.TOO_MANY_FAILED_RECORDS)])
def test_max_error_rate(tmp_path: Path, rate: str, code: ExitCode) -> None:
    job = Job(tmp_path, ["good", "", "good", ""])
    done = job.run("--max-error-rate", rate)
    assert done.returncode == code
    assert job.output.exists() == (code is ExitCode.DONE)


def test_max_error_rate_stops_early_once_it_is_sure_to_be_exceeded(tmp_path: Path) -> None:
    job = Job(tmp_path, ["llmengine-echo:reject"] * 20 + ["good"] * 180)
    done = job.run(
        "--max-error-rate",
        "0.05",
        "--chunk-records",
        "10",
        LLMENGINE_ECHO_SECONDS_PER_RECORD="0.02",
        LLMENGINE_ECHO_CAPACITY="1",
        LLMENGINE_ECHO_LOAD_SECONDS="0.5",
    )
    assert done.returncode == ExitCode.TOO_MANY_FAILED_RECORDS
    assert "more than max_error_rate 0.05 allows" in done.stderr
    assert job.generations().total() < 100


def test_a_finished_job_is_given_back_and_regenerated_only_when_told(tmp_path: Path) -> None:
    job = Job(tmp_path, ["one", "two"])
    first = job.run()
    again = job.run()
    assert again.returncode == ExitCode.DONE
    assert again.stdout == first.stdout
    assert "--if-done regenerate" in again.stderr
    assert job.generations().total() == 2
    assert job.run("--if-done", "regenerate").returncode == ExitCode.DONE
    assert job.generations().total() == 4
    assert job.manifest().generation == 2


def test_max_error_rate_holds_for_an_output_that_stands_already(tmp_path: Path) -> None:
    job = Job(tmp_path, ["good", ""])
    assert job.run().returncode == ExitCode.DONE
    strict = job.run("--max-error-rate", "0.1")
    assert strict.returncode == ExitCode.TOO_MANY_FAILED_RECORDS
    assert "1 of 2 records failed" in strict.stderr
    assert job.run("--max-error-rate", "0.5").returncode == ExitCode.DONE


def test_a_damaged_chunk_is_named_and_not_quoted(tmp_path: Path) -> None:
    job = Job(tmp_path, [f"row {index}" for index in range(20)])
    done = job.run("--replica", "0", "--replicas", "2", "--chunk-records", "20", "--series", "s")
    assert done.returncode == ExitCode.DONE, done.stderr
    chunk = min(tmp_path.glob("output.json.job/*/chunks/*/*.jsonl"))
    chunk.write_text('{"text": "a private completion"}\n')
    collected = job.run(command="collect")
    assert collected.returncode == ExitCode.BAD_REQUEST
    assert str(chunk) in collected.stderr
    assert "private" not in collected.stderr


def test_refused_before_the_engine_loads(tmp_path: Path) -> None:
    (tmp_path / "foreign.json").write_text("somebody's work")
    (tmp_path / "file").write_text("")
    for output, said in (
        ("foreign.json", "overwrite"),
        ("input.jsonl", "input"),
        ("file/out.json", "file/out.json"),
    ):
        job = Job(tmp_path, ["one"], output_data_path=str(tmp_path / output))
        done = job.run(LLMENGINE_ECHO_LOAD_SECONDS="60")
        assert done.returncode == ExitCode.BAD_REQUEST, (output, done.stderr)
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    assert (tmp_path / "foreign.json").read_text() == "somebody's work"


def slow_job(tmp_path: Path, **fields: Any) -> Job:
    return Job(tmp_path, [f"row {index}" for index in range(200)], **fields)


SLOWLY = {"LLMENGINE_ECHO_SECONDS_PER_RECORD": "0.05", "LLMENGINE_ECHO_CAPACITY": "2"}


def assert_kept_and_completed(job: Job) -> None:
    """Stopped in the middle, with its finished records kept; the next run generates the others only."""
    before = job.generations()
    assert 0 < before.total() < 200
    assert not job.output.exists()
    done = job.run()
    assert done.returncode == ExitCode.DONE, done.stderr
    assert [f"row {index}" in text_of(result) for index, result in enumerate(job.results())] == [True] * 200
    # At most what was in flight when it stopped.
    assert job.generations().total() <= 200 + 10
    assert job.manifest().records == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_keeps_what_is_finished_in_the_middle_of_a_chunk(tmp_path: Path, number: signal.Signals) -> None:
    job = slow_job(tmp_path)
    worker = job.start("--grace-seconds", "10", **SLOWLY)
    wait_until(lambda: job.generations().total() >= 20)
    os.kill(worker.pid, number)
    _output, log = worker.communicate()
    assert worker.returncode == ExitCode.PARTIAL, log.decode()
    assert number.name in log.decode()
    assert_kept_and_completed(job)


def test_a_signal_while_the_engine_loads_ends_at_once(tmp_path: Path) -> None:
    job = slow_job(tmp_path)
    worker = job.start(LLMENGINE_ECHO_LOAD_SECONDS="60")
    wait_until(lambda: any("loading" in path.read_text() for path in tmp_path.glob("output.json.job/*/replicas/*")))
    os.kill(worker.pid, signal.SIGTERM)
    worker.communicate(timeout=50)
    assert worker.returncode == ExitCode.PARTIAL
    assert job.run().returncode == ExitCode.DONE


def test_the_deadline_keeps_what_is_finished(tmp_path: Path) -> None:
    job = slow_job(tmp_path, max_runtime_sec=4)
    done = job.run(**SLOWLY)
    assert done.returncode == ExitCode.PARTIAL, done.stderr
    assert "max_runtime_sec" in done.stderr
    job.fields.clear()
    assert_kept_and_completed(job)


def test_a_deadline_shorter_than_the_model_takes_to_load_ends_the_worker(tmp_path: Path) -> None:
    job = slow_job(tmp_path, max_runtime_sec=2)
    done = job.run(LLMENGINE_ECHO_LOAD_SECONDS="60")
    assert done.returncode == ExitCode.PARTIAL
    assert "max_runtime_sec" in done.stderr


def test_retries_of_one_series_share_one_deadline(tmp_path: Path) -> None:
    job = slow_job(tmp_path, max_runtime_sec=3)
    assert job.run("--series", "a", **SLOWLY).returncode == ExitCode.PARTIAL
    time.sleep(1)
    again = job.run("--series", "a", **SLOWLY)
    assert again.returncode == ExitCode.BAD_REQUEST
    assert "used up" in again.stderr
    # A new series has a new budget. How long a busy machine takes for the rest is no matter here.
    job.fields["max_runtime_sec"] = 600
    assert job.run("--series", "b").returncode == ExitCode.DONE


def test_cancel_keeps_what_is_finished(tmp_path: Path) -> None:
    job = slow_job(tmp_path)
    # Cancellation is looked for every 5 s: far longer than that.
    worker = job.start(**SLOWLY | {"LLMENGINE_ECHO_SECONDS_PER_RECORD": "0.2"})
    wait_until(lambda: job.generations().total() >= 10)
    from airflow_llmengine.worker.cli import main

    assert main(["cancel", str(job.output), "--reason", "enough"]) == ExitCode.DONE
    _output, log = worker.communicate(timeout=60)
    assert worker.returncode == ExitCode.PARTIAL
    assert "cancelled (enough)" in log.decode()
    assert_kept_and_completed(job)


def test_a_superseded_worker_stops_before_its_next_commit(tmp_path: Path) -> None:
    job = slow_job(tmp_path)
    worker = job.start("--chunk-records", "4", **SLOWLY)
    wait_until(lambda: len(job.committed()) >= 2)
    current = tmp_path / "output.json.job" / "current.json"
    current.write_text(json.dumps({**json.loads(current.read_text()), "generation": 2}))
    _output, log = worker.communicate(timeout=60)
    assert worker.returncode == ExitCode.PARTIAL
    assert "another launch took over" in log.decode()
    assert not job.output.exists()


def test_a_record_that_brings_the_engine_down_is_found_out(tmp_path: Path) -> None:
    prompts = [f"row {index}" for index in range(40)] + ["llmengine-echo:die private"] + ["row"] * 10
    job = Job(tmp_path, prompts)
    done = job.run("--chunk-records", "8", LLMENGINE_ECHO_CAPACITY="4", LLMENGINE_ECHO_SECONDS_PER_RECORD="0.01")
    assert done.returncode == ExitCode.DONE, done.stderr
    failed = {index: result["error"] for index, result in enumerate(job.results()) if "error" in result}
    assert list(failed) == [40]
    assert failed[40]["type"] == "engine_crash"
    assert "line 41" in failed[40]["message"]
    assert "private" not in done.stderr
    assert done.stderr.count("starting it again") == 3


def test_two_records_that_bring_the_engine_down_beside_one_another(tmp_path: Path) -> None:
    job = Job(tmp_path, ["row", "llmengine-echo:die", "row", "llmengine-echo:die", "row"] * 2)
    done = job.run(LLMENGINE_ECHO_SECONDS_PER_RECORD="0.01")
    assert done.returncode == ExitCode.DONE, done.stderr
    assert ["error" in result for result in job.results()] == [False, True, False, True, False] * 2
    assert job.manifest().failures == {"engine_crash": 4}


def test_a_record_that_kills_the_whole_worker_is_found_out(tmp_path: Path) -> None:
    """As a pod that runs out of memory: nothing is left to tell but the claims."""
    job = Job(tmp_path, [f"row {index}" for index in range(10)] + ["llmengine-echo:kill"] + ["row"] * 10)
    codes = []
    for _attempt in range(5):
        done = job.run("--series", "one", LLMENGINE_ECHO_SECONDS_PER_RECORD="0.01")
        codes.append(done.returncode)
    assert codes == [-9, -9, -9, -9, 0], done.stderr
    assert job.manifest().failures == {"engine_crash": 1}
    assert job.results()[10]["error"]["type"] == "engine_crash"


def test_an_engine_that_dies_for_its_own_reasons_is_started_again(tmp_path: Path) -> None:
    job = Job(tmp_path, [f"row {index}" for index in range(50)])
    done = job.run(LLMENGINE_ECHO_CAPACITY="4", LLMENGINE_ECHO_DIES_AFTER="20")
    assert done.returncode == ExitCode.DONE, done.stderr
    assert job.manifest().failed == 0
    assert done.stderr.count("starting it again") == 2


def test_an_engine_that_dies_again_and_again_keeps_what_is_finished(tmp_path: Path) -> None:
    job = Job(tmp_path, [f"row {index}" for index in range(100)])
    done = job.run("--chunk-records", "4", LLMENGINE_ECHO_CAPACITY="4", LLMENGINE_ECHO_DIES_AFTER="10")
    assert done.returncode == ExitCode.ENGINE_DIED
    assert "started again 3 times" in done.stderr
    assert len(job.committed()) >= 4
    assert not job.output.exists()
    # The next attempt takes the chunks at once, and pays for nothing that was finished.
    assert job.run().returncode == ExitCode.DONE
    assert len(job.results()) == 100
    assert job.generations().total() <= 104


def test_the_end_of_the_launchers_pipe_ends_the_worker_with_its_work_saved(tmp_path: Path) -> None:
    job = slow_job(tmp_path)
    (tmp_path / "request.json").write_text(json.dumps(job.request))
    reader, writer = os.pipe()
    import subprocess
    import sys

    worker = subprocess.Popen(
        [
            *(sys.executable, "-m", "airflow_llmengine.worker", "run", str(tmp_path / "request.json")),
            *("--control-fd", str(reader), "--grace-seconds", "10"),
        ],
        env=job.environment(SLOWLY),
        pass_fds=(reader,),
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    os.close(reader)
    os.write(writer, b'{"storage_options": {}}\n')
    wait_until(lambda: job.generations().total() >= 10)
    os.close(writer)
    _output, log = worker.communicate(timeout=60)
    assert worker.returncode == ExitCode.PARTIAL, log.decode()
    assert "launched this worker is gone" in log.decode()
    assert_kept_and_completed(job)


def test_an_input_replaced_in_mid_run_is_an_error(tmp_path: Path) -> None:
    job = slow_job(tmp_path)
    worker = job.start(**SLOWLY)
    wait_until(lambda: job.generations().total() >= 10)
    job.write_input(["another", "input"])
    _output, log = worker.communicate(timeout=60)
    assert worker.returncode == ExitCode.BAD_REQUEST, log.decode()
    assert not job.output.exists()


def test_another_worker_with_the_weights_replaced_is_refused(tmp_path: Path) -> None:
    job = slow_job(tmp_path)
    worker = job.start("--series", "s", **SLOWLY)
    wait_until(lambda: job.generations().total() >= 10)
    worker.kill()
    worker.communicate()
    (pinned,) = tmp_path.glob("output.json.job/*/model.json")
    pinned.write_text(json.dumps({**json.loads(pinned.read_text()), "model_identity": "sha256:other"}))
    done = job.run("--series", "s")
    assert done.returncode == ExitCode.BAD_REQUEST
    assert "sha256:other" in done.stderr


def test_several_records_that_kill_the_whole_worker_are_found_out_one_after_the_other(tmp_path: Path) -> None:
    """Each costs two attempts; what was found out and finished is not lost with the next."""
    prompts = [f"row {index}" for index in range(12)]
    prompts[3] = prompts[8] = prompts[10] = "llmengine-echo:kill"
    job = Job(tmp_path, prompts)
    codes: list[int] = []
    while not job.output.exists() and len(codes) < 12:
        codes.append(job.run("--series", "one", LLMENGINE_ECHO_SECONDS_PER_RECORD="0.01").returncode)
    assert codes == [-9] * 8 + [0]
    assert [index for index, result in enumerate(job.results()) if "error" in result] == [3, 8, 10]
    assert max(job.generations().values()) <= 3, "alone, each is generated once"


def generated(job: Job, count: int) -> bool:
    return job.generations().total() >= count


def test_a_record_that_was_alone_when_its_worker_was_killed_for_another_reason_is_tried_again(tmp_path: Path) -> None:
    """A pool of preemptible nodes takes three workers over one chunk; no record is at fault."""
    job = Job(tmp_path, [f"row {index}" for index in range(12)])
    for kills in range(1, 4):
        worker = job.start("--series", "one", LLMENGINE_ECHO_SECONDS_PER_RECORD="0.5", LLMENGINE_ECHO_CAPACITY="4")
        enough = job.generations().total() + 5 if kills == 3 else 1
        wait_until(functools.partial(generated, job, enough))
        os.killpg(worker.pid, signal.SIGKILL)
        worker.communicate()
    # Of the chunk that went record by record at last, what was finished is kept, and nobody is blamed.
    done = job.run("--series", "one", "--verbose")
    assert done.returncode == ExitCode.DONE, done.stderr
    assert job.manifest().failed == 0
    assert max(job.generations().values()) <= 4


def test_a_record_that_killed_the_worker_is_not_tried_again(tmp_path: Path) -> None:
    job = Job(tmp_path, [f"row {index}" for index in range(5)] + ["llmengine-echo:kill"])
    replicas = ("--series", "one", "--replica", "0", "--replicas", "2")
    codes = [job.run(*replicas, LLMENGINE_ECHO_SECONDS_PER_RECORD="0.01").returncode for _attempt in range(7)]
    assert codes == [-9] * 4 + [0] * 3
    collected = job.run("--max-error-rate", "0.1", command="collect")
    assert collected.returncode == ExitCode.TOO_MANY_FAILED_RECORDS, "a retry would not help"
