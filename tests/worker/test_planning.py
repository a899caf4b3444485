"""``llmengine-batch plan`` shows the hardware, and the arithmetic behind it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.hardware.inference import Model
from airflow_llmengine.worker import planning
from airflow_llmengine.worker.cli import main
from tests.spec.hardware.models import MODELS

LLAMA = MODELS["meta-llama/Llama-3.1-8B-Instruct"]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA.config))
    return folder


def plan(folder: Path, model: Path, *options: str, **fields: Any) -> int:
    of_model = {"model": "llama", "checkpoint_path": str(model), **fields.pop("model_config", {})}
    least = {"input_data_path": "in.jsonl", "output_data_path": "out.jsonl", "model_config": of_model}
    (folder / "request.json").write_text(json.dumps({**least, **fields}))
    return main(["plan", str(folder / "request.json"), *options])


def test_the_cheapest_of_the_listed_types_is_shown_with_the_arithmetic(
    tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--gpu-types", "nvidia-ampere-a10,nvidia-hopper-h100"]
    assert plan(tmp_path, checkpoint, *options, data_parallelism=3, model_config={"max_model_len": 8192}) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("GPUs      2 x nvidia-ampere-a10 for each of 3 pods, 6 in all")
    begins = (
        f"weights of 15.0 GiB (16 bit) and max_model_len 8,192, by config.json in {checkpoint}",
        "passed over: 1 x nvidia-ampere-a10: 2.5 GiB for the KV cache",
        "2 x nvidia-ampere-a10 (tensor parallel 2): each GPU has 22.0 GiB",
        "one sequence of max_model_len (8,192 tokens) needs 0.5 GiB of KV cache",
    )
    for line, begin in zip(lines[at + 1 : at + 5], begins, strict=True):
        assert line.strip().startswith(begin)
    assert lines[at + 5] == (
        "others    cpus 4 (worked out), memory 27Gi and shared memory (worked out), storage not given"
    )


def test_what_is_given_is_shown_as_it_is(tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"gpus": 1, "gpu_type": "nvidia-hopper-h100", "cpus": 9, "memory": "50Gi", "storage": "60Gi"}
    assert plan(tmp_path, checkpoint, **given) == ExitCode.DONE
    out = capsys.readouterr().out
    assert "GPUs      1 x nvidia-hopper-h100 for one pod" in out
    assert "others    cpus 9, memory 50Gi, storage 60Gi" in out
    assert "it has 79.1 GiB, of which vLLM takes 72.8 GiB" in out


def test_without_a_list_and_a_type_the_rest_is_shown(
    tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker on a machine of its own has what that has."""
    assert plan(tmp_path, checkpoint, gpus=2) == ExitCode.DONE
    out = capsys.readouterr().out
    assert "GPUs      2 x any type for one pod" in out
    assert "which they would be is not known: say gpu_type in the request, or give --gpu-types" in out
    assert "deadline  86400 s" in out


@pytest.mark.parametrize("given", [{}, {"gpus": 2}], ids=["nothing given", "and GPUs asked for"])
def test_workers_without_gpus(
    tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str], given: dict[str, Any]
) -> None:
    assert plan(tmp_path, checkpoint, "--gpu-types", "none", **given) == ExitCode.DONE
    out = capsys.readouterr().out
    assert "GPUs      none" in out
    assert "others    cpus 15 (worked out), memory 35Gi and shared memory (worked out)" in out


def test_what_does_not_fit_is_refused_with_the_numbers(
    tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(tmp_path, checkpoint, "--gpu-types", "nvidia-tesla-t4", gpus=1) == ExitCode.BAD_REQUEST
    assert "gpus: the model does not fit: weights of 15.0 GiB (16 bit)" in capsys.readouterr().err


def test_a_model_that_is_not_here_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"gpus": 2, "gpu_type": "nvidia-ampere-a10"}
    assert plan(tmp_path, tmp_path / "elsewhere", **given) == ExitCode.DONE
    assert "whether the model fits was not checked" in capsys.readouterr().out
    assert plan(tmp_path, tmp_path / "elsewhere", gpu_type="nvidia-ampere-a10") == ExitCode.BAD_REQUEST
    assert "gpus: gpus can't be worked out" in capsys.readouterr().err


def test_a_hub_that_does_not_answer_is_no_fault_of_the_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    away = Model(None, "the hub can't be reached", may_pass=True)
    monkeypatch.setattr(planning, "read_model", lambda *_arguments: away)
    assert plan(tmp_path, tmp_path, gpu_type="nvidia-ampere-a10") == ExitCode.STORAGE_UNREACHABLE
    assert "the hub can't be reached); give gpus, or try again." in capsys.readouterr().err


def test_types_of_the_clusters_own_may_be_listed(
    tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    l40s = '[{"type": "nvidia-l40s", "memory": "44Gi"}]'
    assert plan(tmp_path, checkpoint, "--gpu-types", l40s) == ExitCode.DONE
    assert "GPUs      1 x nvidia-l40s for one pod" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("listed", "fault"),
    [
        ("h100", "h100 is no type that is known: give its memory, for example 44Gi"),
        ("", "it names no type"),
        ("[", "is not JSON: Expecting value in line 1, column 2"),
        ("nvidia-tesla-t4,nvidia-tesla-t4", "nvidia-tesla-t4 is listed twice: name each type once"),
    ],
)
def test_a_list_that_can_not_be_read_is_a_bad_request(
    tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str], listed: str, fault: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        plan(tmp_path, checkpoint, f"--gpu-types={listed}")
    assert ended.value.code == ExitCode.BAD_REQUEST
    assert fault in capsys.readouterr().err
