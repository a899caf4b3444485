"""The README's first command, from the script that `make quickstart` calls."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
REVIEWS = ROOT / "dags" / "data" / "customer_reviews.jsonl"


def quickstart(folder: Path, engine: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "quickstart.py"), "--engine", engine, "--folder", str(folder)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param("echo", marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
        pytest.param("vllm", marks=[pytest.mark.engine, pytest.mark.timeout(900)]),
    ],
)
def test_it_shows_prompts_beside_completions_the_output_and_the_xcom(tmp_path: Path, engine: str) -> None:
    result = quickstart(tmp_path, engine)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    printed = result.stdout

    (output,) = tmp_path.glob("output/*/*.jsonl")
    assert f"The output is in {output}." in printed
    xcom, _ = json.JSONDecoder().raw_decode(printed.partition("The XCom that this task got: ")[2])
    assert xcom["output_data_path"] == str(output)
    assert (xcom["records"], xcom["failed"]) == (24, 0)

    rows = [json.loads(line) for line in REVIEWS.read_text().splitlines()]
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(rows) == len(answers) == 24
    for row, answer in zip(rows, answers, strict=True):
        review = row["messages"][0]["content"].partition("\n\n")[2]
        said = " ".join(answer["choices"][0]["message"]["content"].split())
        assert f"{review}\n            -> {said}\n" in printed


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_failed_run_says_why_in_one_line_and_where_the_whole_log_is(tmp_path: Path) -> None:
    (tmp_path / "output").write_text("a file where the output's folder should be")
    result = quickstart(tmp_path, "echo")
    assert result.returncode == 1
    assert "a file stands where a folder should be" in result.stdout
    assert "Traceback" not in result.stdout
    assert f"Airflow's whole log is in {tmp_path / 'airflow.log'}" in result.stderr
    assert "Traceback" in (tmp_path / "airflow.log").read_text()
