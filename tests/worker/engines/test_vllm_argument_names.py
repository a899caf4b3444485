"""The names of the installed vLLM's arguments, read from its source."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from airflow_llmengine.worker.engines.vllm_argument_names import engine_argument_names, unknown_arguments


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stands for the installed vLLM."""
    found = ModuleSpec("vllm", None, is_package=True)
    found.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found if name == "vllm" else None)
    engine_argument_names.cache_clear()
    yield tmp_path
    engine_argument_names.cache_clear()


def test_they_are_the_fields_of_its_classes(package: Path) -> None:
    (package / "engine").mkdir()
    (package / "engine" / "arg_utils.py").write_text(
        "class Other:\n    no: int = 1\n\n"
        "class EngineArgs:\n    model: str = ''\n    max_logprobs: int = 20\n    _inner: int = 1\n    plain = 3\n\n"
        "class AsyncEngineArgs(EngineArgs):\n    enable_log_requests: bool = False\n"
    )
    assert engine_argument_names() == {"model", "max_logprobs", "enable_log_requests"}
    assert unknown_arguments(["max_logprobs", "cohere_format"], "9") == []
    # What would be refused in turn is not offered.
    assert unknown_arguments(["modell"], "9") == ["engine_args.modell: vLLM 9 has no such argument; leave it out"]


@pytest.mark.parametrize("source", [None, "class EngineArgs(", "x = 1\n"])
def test_where_they_can_not_be_read_vllm_itself_is_left_to_judge(package: Path, source: str | None) -> None:
    if source is not None:
        (package / "engine").mkdir()
        (package / "engine" / "arg_utils.py").write_text(source)
    assert unknown_arguments(["anything"], "9") == []
