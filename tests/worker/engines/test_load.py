"""How an engine is chosen, and what a person reads when it can't be had."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import pytest

from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.worker.engines import load
from airflow_llmengine.worker.engines.base import Engine
from airflow_llmengine.worker.engines.echo import EchoEngine
from airflow_llmengine.worker.engines.load import EngineUnavailableError, load_engine, with_engine_args

REQUEST = CreateBatchCompletionsV1Request.model_validate(
    {"input_data_path": "in.jsonl", "output_data_path": "out.json", "model_config": {"model": "stand-in"}}
)


def test_the_environment_names_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMENGINE_ENGINE", "echo")
    assert load_engine(REQUEST).name == "echo"


def test_an_argument_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMENGINE_ENGINE", "nothing")
    assert load_engine(REQUEST, "echo").name == "echo"


def test_vllm_is_the_default_and_is_not_imported_before_it_starts() -> None:
    # In a process of its own: other tests of this one may have started vLLM.
    program = f"""
import subprocess
import sys
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.worker.engines.load import load_engine
engine = load_engine(CreateBatchCompletionsV1Request.model_validate({REQUEST.given()!r}))
print(engine.name, engine.version[0].isdigit(), {{"vllm", "torch", "transformers"}} & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "vllm True set()\n", done.stderr


def test_an_unknown_engine_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        EngineUnavailableError, match=r"no engine 'llama' \(LLMENGINE_ENGINE\); installed are echo, vllm"
    ):
        load_engine(REQUEST, "llama")


def test_a_missing_vllm_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", not_installed)
    with pytest.raises(EngineUnavailableError, match=r"airflow-llmengine\[vllm\]"):
        load_engine(REQUEST, "vllm")


def test_a_copy_of_the_files_has_no_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "entry_points", lambda group: ())
    with pytest.raises(EngineUnavailableError, match="install the package airflow-llmengine"):
        load_engine(REQUEST, "echo")


def test_a_setting_that_an_engine_cannot_read_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMENGINE_ECHO_CAPACITY", "many")
    with pytest.raises(EngineUnavailableError, match="LLMENGINE_ECHO_CAPACITY"):
        load_engine(REQUEST, "echo")


def test_an_engine_is_told_its_further_arguments_when_it_is_made() -> None:
    class Told(EchoEngine):
        def take_arguments(self, arguments: Mapping[str, Any]) -> None:
            self.arguments = arguments

    engine = with_engine_args(Told, {"max_logprobs": 40})(REQUEST)
    assert isinstance(engine, Told)
    assert engine.arguments == {"max_logprobs": 40}


def test_an_engine_that_takes_no_arguments_is_given_none() -> None:
    class Plain:
        name = "plain"

    def make(request: CreateBatchCompletionsV1Request) -> Engine:
        return Plain()  # type: ignore[return-value]

    assert with_engine_args(make, {})(REQUEST).name == "plain"
    with pytest.raises(EngineUnavailableError, match="the engine plain takes no engine_args: leave them out"):
        with_engine_args(make, {"max_logprobs": 40})(REQUEST)


def test_an_argument_that_vllm_does_not_have_is_refused_before_anything_is_loaded() -> None:
    make = with_engine_args(lambda request: load_engine(request, "vllm"), {"max_logprbs": 40, "xyz": 1, "runner": "x"})
    with pytest.raises(EngineUnavailableError) as refused:
        make(REQUEST)
    first, second = str(refused.value).split("; engine_args.")
    assert first.startswith("engine_args.max_logprbs: vLLM ")
    assert first.endswith("has no such argument; did you mean max_logprobs?")
    assert second.startswith("xyz: vLLM ")
    assert second.endswith("has no such argument; leave it out")
