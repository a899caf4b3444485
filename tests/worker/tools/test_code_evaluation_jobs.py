"""Whole jobs with code_evaluator by the worker's own command, with the stand-in engine and the real sandbox."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.exit_codes import ExitCode
from tests.waiting import wait_until
from tests.worker.jobs import Job
from tests.worker.tools.authors import block, ran

# Each starts worker processes, and these start interpreters.
pytestmark = pytest.mark.slow


class V1Job(Job):
    """A job of one V1 content object, whose prompts the stand-in writes."""

    def write_input(self, prompts: Iterable[str]) -> None:
        content = {"prompts": list(prompts), "max_new_tokens": 1000, "temperature": 0, "return_token_log_probs": True}
        self.input.write_text(json.dumps(content))


def job(folder: Path, prompts: Iterable[str], **tool: Any) -> V1Job:
    return V1Job(folder, prompts, tool_config={"name": "code_evaluator", **tool})


def test_code_runs_and_its_output_stands_in_the_result_and_in_no_log(tmp_path: Path) -> None:
    one = job(
        tmp_path,
        [
            "First: " + block("x = 6 * 7\nprint(x)") + "then " + block("x + 1") + "at last.",
            "no code at all",
            block("1 / 0") + "oh",
            block("qzprivateqz = 'a qzprivateqz'\nqzprivateqz"),
        ],
    )
    done = one.run()
    assert done.returncode == ExitCode.DONE, done.stderr
    first, second, third, fourth = one.results()
    assert first["text"] == "First: " + ran("x = 6 * 7\nprint(x)", "42") + "then " + ran("x + 1", "43") + "at last."
    assert second["text"] == "no code at all"
    assert third["text"].startswith("```python\n1 / 0\n```\nTraceback (most recent call last):\n")
    assert third["text"].endswith("\nZeroDivisionError: division by zero\n>>>\noh")
    assert fourth["text"] == ran("qzprivateqz = 'a qzprivateqz'\nqzprivateqz", "'a qzprivateqz'")
    for result in one.results():
        assert "".join(token["token"] for token in result["tokens"]) == result["text"]
        assert len(result["tokens"]) == result["num_completion_tokens"]
    assert one.manifest().completion_tokens == sum(result["num_completion_tokens"] for result in one.results())
    assert one.manifest().prompt_tokens == sum(result["num_prompt_tokens"] for result in one.results())
    assert "qzprivateqz" not in done.stdout + done.stderr


def test_an_input_that_is_not_v1_is_refused_in_one_sentence_before_a_model_is_loaded(tmp_path: Path) -> None:
    one = Job(tmp_path, ["a"], tool_config={"name": "code_evaluator"})
    done = one.run(LLMENGINE_ECHO_LOAD_SECONDS="60")
    assert done.returncode == ExitCode.BAD_REQUEST
    (line,) = done.stderr.splitlines()
    assert "The input is not a V1 content object, and tool_config is for V1 alone: leave tool_config out" in line


def interpreters_in(folder: Path) -> list[Path]:
    return list(folder.glob("llmengine-code-*"))


def slow_code(index: int) -> str:
    """Of some records, so that an end finds records that are finished, in their code, and not begun."""
    return f"y = {index}\nimport time\ntime.sleep({0.0 if index % 4 else 0.4})\ny * 2"


def test_a_job_that_is_killed_while_code_runs_goes_on_and_its_output_is_the_same(tmp_path: Path) -> None:
    scratch, folder, records = tmp_path / "scratch", tmp_path / "job", range(24)
    scratch.mkdir()
    folder.mkdir()
    one = job(folder, [block(slow_code(index)) + block("y * 3") + f"r{index}" for index in records])
    started = one.start("--chunk-records", "4", LLMENGINE_ECHO_CAPACITY="2", TMPDIR=str(scratch))
    wait_until(lambda: (one.committed() and interpreters_in(scratch)) or started.poll() is not None)
    os.killpg(started.pid, signal.SIGKILL)
    started.communicate(timeout=60)
    assert started.returncode == -signal.SIGKILL
    assert not one.output.exists()
    kept = {index for chunk in one.committed().values() for index in chunk}
    assert kept
    generated = one.generations()
    wait_until(lambda: not interpreters_in(scratch))

    done = one.run("--chunk-records", "4", TMPDIR=str(scratch))
    assert done.returncode == ExitCode.DONE, done.stderr
    assert all(one.generations()[index] == generated[index] for index in kept), "what was committed is not made again"
    assert [result["text"] for result in one.results()] == [
        ran(slow_code(index), str(index * 2)) + ran("y * 3", str(index * 3)) + f"r{index}" for index in records
    ]
    assert not interpreters_in(scratch)
