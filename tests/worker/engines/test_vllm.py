"""What of the vLLM engine can be seen without vLLM: what it sets in the environment, and how a failed load is told."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pydantic import BaseModel, ValidationError

from airflow_llmengine.worker.engines import vllm, vllm_environment
from airflow_llmengine.worker.engines.base import EngineDiedError
from airflow_llmengine.worker.engines.load import EngineUnavailableError
from airflow_llmengine.worker.engines.vllm_plugin import PLUGIN_NAME
from airflow_llmengine.worker.weights.model_source import ModelSource

SOURCE = ModelSource(Path("/models/none"), None)


@pytest.fixture
def environment() -> Iterator[os._Environ[str]]:
    """An environment in which nothing is set that the engine sets, put back afterwards."""
    names = ("HF_", "PYTHONWARNINGS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "LLMENGINE_", *names))}
    with mock.patch.dict(os.environ, kept, clear=True):
        yield os.environ


def prepare(source: ModelSource = SOURCE, *, quiet: bool = False, **arguments: Any) -> None:
    vllm_environment.prepare_environment(arguments, source, quiet=quiet)


def test_what_vllm_finds_in_its_environment(environment: os._Environ[str]) -> None:
    prepare()
    assert environment["LLMENGINE_END_WITH_PARENT"] == "1"
    assert environment["VLLM_NO_USAGE_STATS"] == "1"
    assert environment["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert environment["VLLM_LOGGING_STREAM"] == "ext://sys.stderr"
    assert "VLLM_PLUGINS" not in environment


@pytest.mark.parametrize(
    ("quiet", "asked", "level"),
    [(False, False, "WARNING"), (True, False, "ERROR"), (False, True, "INFO"), (True, True, "INFO")],
)
def test_vllm_says_what_somebody_may_need(environment: os._Environ[str], quiet: bool, asked: bool, level: str) -> None:
    prepare(quiet=quiet, enable_log_requests=asked)
    assert environment["VLLM_LOGGING_LEVEL"] == level


def test_media_are_not_looked_for_where_a_redirect_points(environment: os._Environ[str]) -> None:
    prepare()
    assert environment["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"


def test_what_the_user_has_set_stays(environment: os._Environ[str]) -> None:
    own = {"VLLM_NO_USAGE_STATS": "0", "VLLM_LOGGING_LEVEL": "DEBUG", "PYTHONWARNINGS": "error"}
    environment.update(own)
    prepare()
    assert {name: environment[name] for name in own} == own


@pytest.mark.parametrize(
    ("plugins", "expected"),
    [("theirs", f"theirs,{PLUGIN_NAME}"), ("", PLUGIN_NAME), (f"{PLUGIN_NAME},theirs", f"{PLUGIN_NAME},theirs")],
)
def test_a_choice_of_plugins_includes_ours(environment: os._Environ[str], plugins: str, expected: str) -> None:
    environment["VLLM_PLUGINS"] = plugins
    prepare()
    assert environment["VLLM_PLUGINS"] == expected


def test_vllm_neither_asks_the_hub_nor_has_a_token_for_it(
    environment: os._Environ[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    environment["HF_TOKEN"] = "hf_secret"
    prepare()
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert constants.HF_HUB_OFFLINE is True, "it was imported before"
    assert "HF_TOKEN" not in environment


def test_code_of_another_repository_is_asked_for_if_it_is_trusted(
    environment: os._Environ[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoConfig": "org/code--configuration.Config"}}')
    environment["HF_TOKEN"] = "hf_secret"
    prepare(ModelSource(tmp_path, None), trust_remote_code=True)
    assert "HF_HUB_OFFLINE" not in environment
    assert environment["HF_TOKEN"] == "hf_secret"
    prepare(ModelSource(tmp_path, None))
    assert environment["HF_HUB_OFFLINE"] == "1"


class Settings(BaseModel):
    max_model_len: int


def refused_by_pydantic() -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate({"max_model_len": "long"})
    return caught.value


@pytest.mark.parametrize(
    ("raised", "kind", "said"),
    [
        (ValueError("max_model_len is too large\nmore lines"), EngineUnavailableError, "settings .* is too large$"),
        (refused_by_pydantic(), EngineUnavailableError, "settings of the engine: Input should be a valid integer"),
        (ModuleNotFoundError("no LlamaConfig"), EngineUnavailableError, "no LlamaConfig; where torchvision"),
        (OSError("disk"), EngineDiedError, "could not be set up: OSError: disk"),
        (RuntimeError(), EngineDiedError, "could not be set up: RuntimeError"),
    ],
    ids=["value", "pydantic", "import", "os", "silent"],
)
def test_a_failed_set_up_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, kind: type[Exception], said: str
) -> None:
    def fail(_arguments: Any, *, headless: bool) -> None:
        raise raised

    monkeypatch.setattr(vllm, "_configure", fail)
    with pytest.raises(kind, match=said) as caught:
        vllm._load({})
    assert "\n" not in str(caught.value)
