from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.hardware.inference import Model
from airflow_llmengine.spec.hardware.weights import parameters
from airflow_llmengine.spec.validation import parse_request
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.model_config import read_model
from tests.storage.conftest import QUICK, Place
from tests.storage.s3_server import Fault, S3Server
from tests.worker.weights.hub_server import TOKEN, HubServer, Repository

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 128,
    "torch_dtype": "bfloat16",
}
INDEX = {"metadata": {"total_size": 123456}, "weight_map": {}}
FILES = {"config.json": json.dumps(CONFIG).encode(), "model.safetensors.index.json": json.dumps(INDEX).encode()}
NAME = "some-org/some-model"


def read(storage: Storage | None = None, **model: Any) -> Model:
    request = {"input_data_path": "in.jsonl", "output_data_path": "out.jsonl", "model_config": {"model": NAME, **model}}
    return read_model(storage or Storage(retry=QUICK), parse_request(request))


def sized(model: Model) -> int | None:
    assert model.facts is not None, model.source
    assert parameters(model.facts) > 0
    return model.facts.stored_bytes


@pytest.fixture(autouse=True)
def hub_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own; and no hub, unless a test has one."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HF_HOME", str(home))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    return home / "hub"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    server = HubServer()
    server.start()
    monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    yield server
    server.stop()


# In a folder


@pytest.mark.parametrize("store", ["local", "memory", "s3"])
def test_a_checkpoint_is_read_wherever_it_lies(store: str, request: pytest.FixtureRequest) -> None:
    place: Place = request.getfixturevalue(store)
    for name, content in FILES.items():
        place.at(f"checkpoint/{name}").replace(content)
    model = read(place.storage, checkpoint_path=f"{place.base}/checkpoint")
    assert sized(model) == 123456
    assert model.source == f"config.json in {place.at('checkpoint')}"


def test_without_an_index_the_one_file_says_how_large_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(FILES["config.json"])
    assert sized(read(checkpoint_path=str(tmp_path))) is None
    (tmp_path / "model.safetensors").write_bytes(b"x" * 777)
    assert sized(read(checkpoint_path=str(tmp_path))) == 777


@pytest.mark.parametrize(
    "index",
    [b"{", b"[]", b"{}", b'{"metadata": 1}', b'{"metadata": {"total_size": "1"}}', b'{"metadata": {"total_size": 0}}'],
)
def test_an_index_that_says_nothing_leaves_the_size_to_be_reckoned(tmp_path: Path, index: bytes) -> None:
    (tmp_path / "config.json").write_bytes(FILES["config.json"])
    (tmp_path / "model.safetensors.index.json").write_bytes(index)
    assert sized(read(checkpoint_path=str(tmp_path))) is None


def test_model_alone_may_be_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "some-org" / "some-model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes(FILES["config.json"])
    monkeypatch.chdir(tmp_path)
    for name in (str(folder), f"./{NAME}", NAME):
        assert read(model=name).source == f"config.json in {folder}"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "{folder} has no config.json here"),
        (b"{", "config.json in {folder} is not a JSON object"),
        (b"[]", "config.json in {folder} is not a JSON object"),
        (b"[" * 100_000, "config.json in {folder} is not a JSON object"),
        (b"{}", "config.json in {folder} is not understood: it has no num_hidden_layers that is a positive number"),
    ],
)
def test_what_can_not_be_read_is_said(tmp_path: Path, content: bytes | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    assert read(checkpoint_path=str(tmp_path)) == Model(None, reason.replace("{folder}", str(tmp_path)))


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_llmengine.storage.model_config.MOST_BYTES", 100)
    (tmp_path / "config.json").write_bytes(FILES["config.json"])
    assert "more than such a file ever has" in read(checkpoint_path=str(tmp_path)).source


def test_a_place_in_a_store_where_nothing_is(s3: Place) -> None:
    s3.at("half/weights.bin").replace(b"x")
    assert read(s3.storage, checkpoint_path=f"{s3.base}/half").source == f"{s3.base}/half has no config.json"
    nothing = read(s3.storage, checkpoint_path=f"{s3.base}/hal")
    assert nothing.source == f"there is nothing below {s3.base}/hal: check its spelling"
    no_bucket = read(s3.storage, checkpoint_path="s3://no-such-bucket-here/model")
    assert no_bucket.source.endswith("the bucket does not exist; create it or correct its name")
    assert not nothing.may_pass
    assert not no_bucket.may_pass


def test_a_store_that_refuses_is_said_and_one_that_does_not_answer_may_pass(s3: Place, s3_server: S3Server) -> None:
    anything: Any = {"matches": lambda *_request: True, "times": 1000}
    s3_server.faults = [Fault("GET", status=403, code="AccessDenied", **anything)]
    refused = read(s3.storage, checkpoint_path=f"{s3.base}/checkpoint")
    assert (refused.facts, refused.may_pass) == (None, False)
    assert refused.source.startswith("config.json could not be read: ")
    s3_server.faults = [Fault("GET", **anything)]
    away = read(s3.storage, checkpoint_path=f"{s3.base}/checkpoint")
    assert (away.facts, away.may_pass) == (None, True)


# In the hub's cache


def cache(hub_cache: Path, revision: str | None = "main", commit: str = "0123abc") -> Path:
    repository = hub_cache / "models--some-org--some-model"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for name, content in FILES.items():
        (snapshot / name).write_bytes(content)
    if revision is not None:
        (repository / "refs" / revision).parent.mkdir(parents=True, exist_ok=True)
        (repository / "refs" / revision).write_text(commit)
    return snapshot


def test_a_cached_model_needs_no_hub(hub_cache: Path) -> None:
    snapshot = cache(hub_cache)
    model = read()
    assert sized(model) == 123456
    assert model.source == f"config.json in {snapshot}"


def test_the_cache_is_where_the_hubs_libraries_have_it(
    hub_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    cache(tmp_path / "xdg" / "huggingface" / "hub")
    assert read().facts is not None
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "own"))
    assert read().facts is None
    cache(tmp_path / "own")
    assert read().facts is not None


def test_a_revision_is_a_branch_or_a_commit(hub_cache: Path) -> None:
    cache(hub_cache, "refs/pr/1", "feedbeef")
    assert read(revision="refs/pr/1").facts is not None
    assert read(revision="feedbeef").facts is not None
    assert read().facts is None


@pytest.mark.parametrize(
    "given", [{"revision": "../../x"}, {"model": "a/b/c"}, {"model": "a b"}, {"revision": "a/../b"}]
)
def test_names_do_not_lead_out_of_the_cache(given: dict[str, Any]) -> None:
    assert read(**given).source.endswith("is neither a directory here nor an id of the Hugging Face hub")


# On the hub


def test_the_hub_is_asked_for_two_small_files(hub: HubServer) -> None:
    hub.repositories[NAME] = Repository({**FILES, "model-00001-of-00002.safetensors": b"x" * 1000})
    model = read()
    assert sized(model) == 123456
    assert model.source == f"config.json of {NAME} on the hub"
    assert [path for _method, path in hub.seen] == [
        f"/{NAME}/resolve/main/config.json",
        f"/{NAME}/resolve/main/model.safetensors.index.json",
    ]


def test_of_one_file_of_weights_only_the_size_is_asked_for(hub: HubServer) -> None:
    hub.repositories[NAME] = Repository({"config.json": FILES["config.json"], "model.safetensors": b"x" * 777})
    assert sized(read(revision="main")) == 777
    assert hub.seen[-1] == ("HEAD", f"/{NAME}/resolve/main/model.safetensors")


def test_a_gated_model_needs_a_token_here(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories[NAME] = Repository(dict(FILES), gated=True)
    refused = read()
    assert refused == Model(
        None, f"the hub refuses {NAME} (403): it is not there, or private or gated, and HF_TOKEN here has no access"
    )
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert sized(read()) == 123456


@pytest.mark.parametrize(
    ("files", "busy", "reason", "may_pass"),
    [
        ({"README.md": b""}, 0, f"{NAME} has no config.json on the hub", False),
        (FILES, 9, f"the hub answers 429 for config.json of {NAME}", True),
    ],
)
def test_what_the_hub_does_not_give_is_said(
    hub: HubServer, files: dict[str, bytes], busy: int, reason: str, may_pass: bool
) -> None:
    hub.repositories[NAME] = Repository(dict(files))
    hub.busy = busy
    assert read() == Model(None, reason, may_pass=may_pass)
    # It is not asked again and again.
    assert len(hub.seen) == 1


def test_a_hub_that_can_not_be_reached_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    model = read()
    assert model == Model(
        None, f"{NAME} is not in the hub's cache here, and the hub can't be reached (ConnectError)", may_pass=True
    )


def test_offline_is_offline(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert read() == Model(None, f"{NAME} is not in the hub's cache here, and HF_HUB_OFFLINE forbids to ask the hub")
    assert not hub.seen


def test_without_the_hubs_package_the_cache_is_read_all_the_same(
    hub_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert read().source == f"{NAME} is not in the hub's cache here, and the package huggingface_hub is not installed"
    cache(hub_cache)
    assert read().facts is not None
