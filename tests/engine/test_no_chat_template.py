"""Case 9 of the public bug reports on the real engine: chats for a model without a chat template.

That each such record is an error of its own where a job is not one of chats, ``test_life`` shows.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.attempt import AttemptOptions, run_attempt
from airflow_llmengine.worker.engines.vllm import VLLMEngine, _arguments, _configured, _lacks_chat_template
from airflow_llmengine.worker.stopping import Stop
from airflow_llmengine.worker.weights.model_files import ModelFiles
from tests.engine.conftest import RunningEngine, engine_processes
from tests.engine.records import job

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


@pytest.fixture
def plain_model(quickstart_model: Path, tmp_path: Path) -> Path:
    """The same weights without a chat template."""
    directory = tmp_path / "plain"
    directory.mkdir()
    for path in quickstart_model.iterdir():
        if path.name != "chat_template.jinja":
            (directory / path.name).symlink_to(path)
    return directory


@pytest.mark.usefixtures("running")
def test_a_job_of_chats_is_refused_before_any_weight_is_loaded(
    plain_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LLMENGINE_ENGINE", raising=False)
    (tmp_path / "in.jsonl").write_text((json.dumps(CHAT) + "\n") * 1001)
    request = validate_request(
        {
            **job(plain_model).given(),
            "input_data_path": str(tmp_path / "in.jsonl"),
            "output_data_path": str(tmp_path / "out.jsonl"),
        }
    )
    before = set(engine_processes())

    def make_engine(request: Any) -> VLLMEngine:
        engine = VLLMEngine(request)
        monkeypatch.setattr("vllm.v1.engine.async_llm.AsyncLLM.from_vllm_config", pytest.fail)
        return engine

    outcome = run_attempt(Storage(), request, AttemptOptions(owner="t", series="a"), Stop(), make_engine=make_engine)
    assert outcome.exit_code is ExitCode.BAD_REQUEST
    assert outcome.message == (
        "the first 1000 records are all chats, and the model has no chat template: give one in "
        "model_config.chat_template, or use a model that has one"
    )
    assert set(engine_processes()) == before
    assert not (tmp_path / "out.jsonl").exists()


@pytest.fixture
def lacks_template(running: RunningEngine) -> Callable[..., bool]:
    def lacks(directory: Path, **fields: Any) -> bool:
        request = job(directory, **{"max_model_len": None, **fields})
        return _lacks_chat_template(*_parts(*_configured(_arguments(request, ModelFiles(Storage(), request).find()))))

    return lacks


def _parts(parsed: Any, config: Any) -> tuple[Any, Any]:
    return parsed, config.model_config


def test_what_vllm_finds_counts(lacks_template: Callable[..., bool], plain_model: Path, quickstart_model: Path) -> None:
    assert lacks_template(plain_model)
    assert not lacks_template(quickstart_model)
    assert not lacks_template(plain_model, chat_template="{{ messages }}")
    assert not lacks_template(plain_model, skip_tokenizer_init=True)


@pytest.mark.parametrize("where", ["tokenizer_config.json", "additional"])
def test_wherever_the_models_files_have_it(lacks_template: Callable[..., bool], plain_model: Path, where: str) -> None:
    if where == "additional":
        (plain_model / "additional_chat_templates").mkdir()
        (plain_model / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    else:
        config = json.loads((plain_model / where).read_text())
        (plain_model / where).unlink()
        (plain_model / where).write_text(json.dumps({**config, "chat_template": "{{ messages }}"}))
    assert not lacks_template(plain_model)


def test_vllms_own_template_for_a_kind_of_model_counts(
    lacks_template: Callable[..., bool], quickstart_model: Path, tmp_path: Path
) -> None:
    from tests.engine.seeing_model import make_seeing_model

    make_seeing_model(quickstart_model, tmp_path / "seeing")
    (tmp_path / "seeing" / "chat_template.jinja").unlink()
    assert not lacks_template(tmp_path / "seeing")
    shutil.rmtree(tmp_path / "seeing")
