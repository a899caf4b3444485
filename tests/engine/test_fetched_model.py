"""vLLM and a model that was fetched: it takes it for a local one, and needs no hub for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants, hf_api

from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.engines.vllm_arguments import engine_arguments
from airflow_llmengine.worker.weights.model_files import ModelFiles
from airflow_llmengine.worker.weights.model_source import ModelSource
from tests.engine.records import job
from tests.storage.s3_server import S3Server
from tests.worker.weights.checkpoints import put
from tests.worker.weights.hub_server import HubServer, Repository

pytestmark = pytest.mark.engine


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server.running() as server:
        yield server


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    server = HubServer()
    server.start()
    monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
    monkeypatch.setattr(hf_api.api, "endpoint", server.endpoint)
    template = server.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    yield server
    server.stop()


def configured(request: CreateBatchCompletionsV1Request, source: ModelSource) -> None:
    """Let vLLM read the model's config and find its tokenizer; no weights are loaded."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.tokenizers import cached_tokenizer_from_config

    arguments = engine_arguments(request.model_cfg, source)
    config = EngineArgs(model=arguments["model"], dtype=arguments["dtype"]).create_model_config()
    assert config.model == str(source.directory)
    assert config.hf_config.architectures == ["LlamaForCausalLM"]
    tokenizer = cached_tokenizer_from_config(config)
    assert tokenizer.decode(tokenizer.encode("Paris")) == "Paris"


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_checkpoint_of_an_object_store(
    server: S3Server, quickstart_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMENGINE_MODEL_CACHE", str(tmp_path))
    url = put(server, server.new_bucket(), files_of(quickstart_model))
    request = job(quickstart_model, checkpoint_path=url)
    source = ModelFiles(Storage({"s3": server.options}), request).find()
    assert files_of(source.directory).items() >= files_of(quickstart_model).items()
    configured(request, source)


def test_a_model_of_the_hub(hub: HubServer, quickstart_model: Path) -> None:
    hub.repositories["org/small"] = Repository(files_of(quickstart_model))
    request = job(quickstart_model, model="org/small", checkpoint_path=None)
    source = ModelFiles(Storage(), request).find()
    hub.seen.clear()
    configured(request, source)
    assert hub.seen == [], "vLLM needs nothing more of the hub, though it may ask"
