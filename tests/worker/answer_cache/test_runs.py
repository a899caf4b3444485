"""Runs that share a cache: who pays for what."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.storage.errors import StorageDeniedError, StorageError, StorageUnsupportedError
from airflow_llmengine.storage.filesystem import Location, Storage
from airflow_llmengine.worker.answer_cache import consultation, kept_answers
from airflow_llmengine.worker.answer_cache.answer_files import KeptAnswer
from airflow_llmengine.worker.answer_cache.known_answers import KnownAnswers
from airflow_llmengine.worker.engines.echo import EchoEngine
from airflow_llmengine.worker.weights.model_files import ModelFiles
from airflow_llmengine.worker.weights.model_source import ModelFinder, ModelSource
from tests.storage.s3_server import S3Server
from tests.waiting import wait_until
from tests.worker.answer_cache.runs import Engines, Run, prompts
from tests.worker.jobs import Job


@pytest.fixture
def cache(tmp_path: Path) -> str:
    return str(tmp_path / "cache")


def without_names(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results of two jobs, in which ids and times of launch differ."""
    return [{name: value for name, value in result.items() if name not in ("id", "created")} for result in results]


def test_an_overlapping_run_generates_the_new_rows_only(tmp_path: Path, cache: str) -> None:
    first = Run(tmp_path, "first", prompts(range(100)), cache=cache)
    second = Run(tmp_path, "second", prompts(range(60, 160)), cache=cache)
    assert first.generated == list(range(100))
    assert second.generated == list(range(40, 100))
    assert (first.manifest.cached, second.manifest.cached) == (0, 40)
    plain = Run(tmp_path, "plain", prompts(range(60, 160)), cache=None)
    assert without_names(second.results()) == without_names(plain.results())
    assert second.manifest.prompt_tokens == plain.manifest.prompt_tokens == 200
    assert second.manifest.completion_tokens == plain.manifest.completion_tokens


def test_records_are_looked_up_once_and_together(tmp_path: Path, cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many chunks are claimed at a time: each row group that is read for one of them costs its time."""
    Run(tmp_path, "first", prompts(range(200)), cache=cache)
    looked_up: list[int] = []
    look_up = KnownAnswers.look_up

    def count(self: KnownAnswers, keys: Sequence[bytes | None], found: Callable[[int, KeptAnswer], None]) -> None:
        looked_up.append(len(keys))
        look_up(self, keys, found)

    monkeypatch.setattr(KnownAnswers, "look_up", count)
    second = Run(tmp_path, "second", prompts(range(100, 300)), cache=cache, chunk_records=8)
    assert (second.manifest.cached, len(second.generated)) == (100, 100)
    assert [records for records in looked_up if records] == [200]


def test_a_run_whose_answers_are_all_known_starts_no_engine(tmp_path: Path, cache: str) -> None:
    Run(tmp_path, "first", prompts(range(100)), cache=cache)
    second = Run(tmp_path, "second", prompts(reversed(range(100))), cache=cache)
    assert (second.engines.started, second.generated) == (0, [])
    assert [result["choices"][0]["text"] for result in second.results()] == [
        f"row {row}" for row in reversed(range(100))
    ]
    assert (second.manifest.cached, second.manifest.succeeded) == (100, 100)
    # What answered is told as if it had been loaded.
    assert (second.manifest.model_identity, second.manifest.engine_version) == ("echo", "1")


def test_bytes_of_an_output_do_not_tell_where_an_answer_came_from(tmp_path: Path, cache: str) -> None:
    lines = [
        {"custom_id": f"c{row}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for row, body in enumerate(
            {
                "messages": [{"role": "user", "content": f"größer ☃ {row}"}],
                "temperature": 0,
                "user": f"user {row}",
                "metadata": {"row": str(row)},
            }
            for row in range(5)
        )
    ]
    Run(tmp_path, "first", [{**line, "custom_id": "another"} for line in lines], cache=cache)
    second = Run(tmp_path, "second", lines, cache=cache)
    assert second.generated == []
    output = second.output.read_bytes()
    job = second.manifest.handle
    plain = Run(tmp_path, "plain", lines, cache=None)
    assert (
        output.replace(job.fingerprint.encode(), plain.manifest.fingerprint.encode()).replace(
            str(int(second.manifest.created)).encode(), str(int(plain.manifest.created)).encode()
        )
        == plain.output.read_bytes()
    )


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "x"},
        {"prompt": "x", "temperature": 0.7},
        {"prompt": "x", "temperature": 1, "seed": None},
        {"messages": [{"role": "user", "content": "x"}], "temperature": 0.1},
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "what is this?"},
                        {"type": "image_url", "image_url": {"url": "https://x.example/y.png"}},
                    ],
                }
            ],
            "temperature": 0,
        },
    ],
)
def test_what_is_sampled_without_a_seed_or_may_change_is_never_kept(
    tmp_path: Path, cache: str, record: dict[str, Any]
) -> None:
    for name in ("first", "second"):
        run = Run(tmp_path, name, [record], cache=cache)
        assert (run.generated, run.manifest.cached) == ([0], 0)
    assert list(Path(cache).glob("*/*.parquet")) == []


def test_what_is_sampled_with_a_seed_is_kept(tmp_path: Path, cache: str) -> None:
    Run(tmp_path, "first", [{"prompt": "x", "temperature": 1, "seed": 7}], cache=cache)
    assert Run(tmp_path, "second", [{"prompt": "x", "temperature": 1, "seed": 7}], cache=cache).generated == []
    assert Run(tmp_path, "third", [{"prompt": "x", "temperature": 1, "seed": 8}], cache=cache).generated == [0]


@pytest.mark.parametrize(
    ("engines", "fields", "options", "record"),
    [
        pytest.param(Engines(version="2"), {}, {}, {}, id="version of the engine"),
        pytest.param(Engines(identity="another"), {}, {}, {}, id="model"),
        pytest.param(None, {"model_config": {"model": "renamed"}}, {}, {}, id="the name that results show"),
        pytest.param(None, {"model_config": {"model": "stand-in", "dtype": "float16"}}, {}, {}, id="settings"),
        pytest.param(None, {}, {"engine_args": {"max_logprobs": 5}}, {}, id="engine_args"),
        pytest.param(None, {}, {}, {"prompt": "row  0"}, id="prompt"),
        pytest.param(None, {}, {}, {"max_tokens": 5}, id="sampling"),
        pytest.param(None, {}, {}, {"echo": True}, id="form of the answer"),
    ],
)
def test_what_another_model_setting_or_prompt_would_answer_is_not_known(
    tmp_path: Path,
    cache: str,
    engines: Engines | None,
    fields: dict[str, Any],
    options: dict[str, Any],
    record: dict[str, Any],
) -> None:
    (first,) = prompts([0])
    Run(tmp_path, "first", [first], cache=cache)
    other = Run(tmp_path, "other", [{**first, **record}], cache=cache, engines=engines, fields=fields, **options)
    assert (other.generated, other.manifest.cached) == ([0], 0)


def test_settings_of_speed_and_the_place_of_the_model_make_no_other_answers(tmp_path: Path, cache: str) -> None:
    Run(tmp_path, "first", prompts([0]), cache=cache, fields={"model_config": {"model": "m", "max_num_seqs": 4}})
    model = {"model": "m", "max_num_seqs": 8, "checkpoint_path": "/elsewhere", "labels": {"a": "b"}}
    fields = {"model_config": model, "labels": {"c": "d"}, "gpus": 2}
    assert Run(tmp_path, "second", prompts([0]), cache=cache, fields=fields).generated == []


def test_errors_are_not_kept(tmp_path: Path, cache: str) -> None:
    records = [*prompts([0]), {"prompt": "llmengine-echo:reject", "temperature": 0}, {"prompt": 5}]
    Run(tmp_path, "first", records, cache=cache)
    second = Run(tmp_path, "second", records, cache=cache)
    assert second.generated == [1]
    assert (second.manifest.cached, second.manifest.failed) == (1, 2)


def test_without_a_known_model_the_cache_is_left_alone(
    tmp_path: Path, cache: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("first", "second"):
        assert Run(tmp_path, name, prompts([0]), cache=cache, engines=Engines(identity=None)).generated == [0]
    assert not Path(cache).exists()
    assert caplog.text.count("it can't be told which model this is") == 2


def test_several_replicas_read_and_write_one_cache(tmp_path: Path, cache: str) -> None:
    Run(tmp_path, "first", prompts(range(300)), cache=cache)
    engines = Engines()
    for replica in (0, 1, 2):
        run = Run(
            *(tmp_path, "second", prompts(range(100, 400))), cache=cache, engines=engines, replica=replica, replicas=3
        )
        assert run.outcome.exit_code is ExitCode.DONE
    assert run.generated == list(range(200, 300))


def test_records_are_looked_up_block_by_block_and_none_is_missed(
    tmp_path: Path, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consultation, "BLOCK_RECORDS", 7)
    monkeypatch.setattr(consultation, "IN_MEMORY_BYTES", 50)
    Run(tmp_path, "first", prompts(range(0, 200, 2)), cache=cache)
    second = Run(tmp_path, "second", prompts(range(200)), cache=cache, chunk_records=5)
    assert second.generated == list(range(1, 200, 2))
    assert [result["choices"][0]["text"] for result in second.results()] == [f"row {row}" for row in range(200)]


def test_input_that_ends_in_the_middle_of_a_record_costs_no_more_with_a_cache(tmp_path: Path, cache: str) -> None:
    """What stops the reader is told as ever, after the records before it."""
    Run(tmp_path, "first", prompts(range(3)), cache=cache)
    broken = json.dumps(prompts(range(3)))[:-1] + ', {"prompt": '
    outcomes = [
        Run(tmp_path, name, [broken], cache=path).outcome for name, path in (("with", cache), ("without", None))
    ]
    assert {outcome.exit_code for outcome in outcomes} == {ExitCode.BAD_REQUEST}
    assert len({outcome.message.replace("without", "with") for outcome in outcomes}) == 1


def put_answers(cache: str, body: bytes) -> None:
    """Replace the answers of a cache, as somebody might who can write to it."""
    import pyarrow
    from pyarrow import parquet

    (path,) = Path(cache).glob("*/*.parquet")
    table = parquet.read_table(path)
    planted = pyarrow.array([body] * len(table), pyarrow.binary()).cast(pyarrow.string(), safe=False)
    at = table.schema.get_field_index("body")
    parquet.write_table(table.set_column(at, table.schema.field("body"), planted), path)


LINES: dict[str, Any] = {
    "/v1/completions": {"prompt": "x", "temperature": 0},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "temperature": 0},
    "/v1/embeddings": {"input": "x"},
    "/v1/score": {"text_1": "x", "text_2": "y"},
    "/v1/rerank": {"query": "x", "documents": ["y"]},
}
NO_ANSWERS = (
    *(b"", b"{", b"[]", b"null", b"{}", b"[" * 100_000),
    b'{"choices": 5, "data": 5, "results": 5, "usage": {}}',
    b'{"choices": [5], "data": [5], "results": [5], "usage": {}}',
    b'{"choices": [{"message": {"tool_calls": 5}}], "data": [{}], "results": [{}], "usage": {}}',
)


@pytest.mark.parametrize("body", NO_ANSWERS, ids=range(len(NO_ANSWERS)))
def test_what_is_no_answer_is_generated(tmp_path: Path, cache: str, body: bytes) -> None:
    lines = [
        {"custom_id": url, "method": "POST", "url": url, "body": {**record, "model": "stand-in"}}
        for url, record in LINES.items()
    ]
    first = Run(tmp_path, "first", lines, cache=cache)
    assert (first.generated, first.manifest.succeeded) == ([0, 1, 2, 3, 4], 5)
    put_answers(cache, body)
    second = Run(tmp_path, "second", lines, cache=cache)
    assert (second.generated, second.manifest.cached, second.manifest.succeeded) == ([0, 1, 2, 3, 4], 0, 5)


@pytest.mark.parametrize("body", NO_ANSWERS[:6], ids=range(6))
def test_what_is_no_v1_answer_is_generated(tmp_path: Path, cache: str, body: bytes) -> None:
    content = {"prompts": ["x", "y"], "max_new_tokens": 4, "temperature": 0}
    Run(tmp_path, "first", [content], cache=cache)
    put_answers(cache, body)
    second = Run(tmp_path, "second", [content], cache=cache)
    assert (second.generated, second.manifest.cached, second.manifest.succeeded) == ([0, 1], 0, 2)


def test_each_kind_of_record_is_found_again(tmp_path: Path, cache: str) -> None:
    lines = [
        {"custom_id": url, "method": "POST", "url": url, "body": {**record, "model": "stand-in"}}
        for url, record in LINES.items()
    ]
    content = {"prompts": ["x", "y"], "max_new_tokens": 4, "temperature": 0}
    for records in (lines, [content]):
        runs = [Run(tmp_path, name, records, cache=cache) for name in ("first", "second")]
        assert (len(runs[0].generated), runs[1].generated) == (runs[0].manifest.records, [])


class LoadingEngines(Engines):
    """Engines that load the files of a model."""

    def __call__(self, request: CreateBatchCompletionsV1Request) -> EchoEngine:
        made = super().__call__(request)

        class Loading(type(made)):  # type: ignore[misc]
            loaded: ModelSource | None = None

            def load_from(self, find: ModelFinder) -> None:
                self._find = find

            async def start(self) -> None:
                await super().start()
                self.loaded = self._find()

            @property
            def model_identity(self) -> str | None:
                return None if self.loaded is None else self.loaded.identity

        loading: EchoEngine = Loading(request)
        return loading


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(1000))
    return folder


def test_no_weights_are_looked_for_where_all_is_known_and_other_weights_answer_anew(
    tmp_path: Path, cache: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"model_config": {"model": "small", "checkpoint_path": str(model)}}
    first = Run(tmp_path, "first", prompts(range(3)), cache=cache, engines=LoadingEngines(), fields=fields)
    assert first.generated == [0, 1, 2]
    with monkeypatch.context() as patch:
        patch.setattr(ModelFiles, "find", None)
        second = Run(tmp_path, "second", prompts(range(3)), cache=cache, engines=LoadingEngines(), fields=fields)
    assert (second.generated, second.manifest.cached) == ([], 3)
    assert second.manifest.model_identity == first.manifest.model_identity
    (model / "model.safetensors").write_bytes(bytes(999) + b"\1")
    third = Run(tmp_path, "third", prompts(range(3)), cache=cache, engines=LoadingEngines(), fields=fields)
    assert third.generated == [0, 1, 2]


def test_weights_that_were_replaced_before_they_were_loaded_put_nothing_into_the_cache(
    tmp_path: Path, cache: str, model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    find = ModelFiles.find

    def replaced(files: ModelFiles) -> ModelSource:
        (model / "model.safetensors").write_bytes(bytes(999) + b"\1")
        return find(files)

    monkeypatch.setattr(ModelFiles, "find", replaced)
    fields = {"model_config": {"model": "small", "checkpoint_path": str(model)}}
    first = Run(tmp_path, "first", prompts(range(3)), cache=cache, engines=LoadingEngines(), fields=fields)
    assert first.generated == [0, 1, 2]
    assert list(Path(cache).glob("*/*.parquet")) == []
    assert "new answers are not put into the cache: the model loaded is" in caplog.text


@pytest.mark.parametrize("job_template", [None, "{{ strftime_now() }}"])
def test_chats_with_the_date_in_them_are_not_kept_and_completions_are(
    tmp_path: Path, cache: str, model: Path, job_template: str | None
) -> None:
    (model / "chat_template.jinja").write_text("{{ messages }}" if job_template else "{{ strftime_now() }}")
    settings = {"model": "small", "checkpoint_path": str(model)}
    fields = {"model_config": settings | ({"chat_template": job_template} if job_template else {})}
    records = [*prompts([0]), {"messages": [{"role": "user", "content": "x"}], "temperature": 0}]
    for name, generated in (("first", [0, 1]), ("second", [1])):
        assert Run(tmp_path, name, records, cache=cache, engines=LoadingEngines(), fields=fields).generated == generated


def test_cache_path_and_tool_config_are_not_for_the_same_job(tmp_path: Path, cache: str) -> None:
    fields = {"tool_config": {"name": "code_evaluator"}}
    content = {"prompts": ["x"], "max_new_tokens": 4, "temperature": 0}
    run = Run(tmp_path, "first", [content], cache=cache, fields=fields)
    assert run.outcome.exit_code is ExitCode.BAD_REQUEST
    assert run.outcome.message.startswith("cache_path: has no effect with tool_config")


def test_a_cache_path_that_is_a_file_is_refused_before_anything_is_generated(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    run = Run(tmp_path, "first", prompts([0]), cache=str(tmp_path / "cache"))
    assert run.outcome.exit_code is ExitCode.BAD_REQUEST
    assert (run.generated, str(tmp_path / "cache") in run.outcome.message) == ([], True)


def test_a_cache_that_may_not_be_listed_is_refused_before_anything_is_generated(
    tmp_path: Path, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = Location.folders

    def refuse(location: Location) -> list[str]:
        if location.url == cache:
            raise StorageDeniedError(f"you may not list {location}")
        return folders(location)

    monkeypatch.setattr(Location, "folders", refuse)
    run = Run(tmp_path, "first", prompts([0]), cache=cache)
    assert (run.outcome.exit_code, run.generated) == (ExitCode.BAD_REQUEST, [])
    assert run.outcome.message == f"you may not list {cache}"


@pytest.mark.parametrize("kind", [StorageDeniedError, StorageUnsupportedError, StorageError])
def test_a_cache_that_can_only_be_read_is_read(
    tmp_path: Path,
    cache: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type[StorageError],
) -> None:
    Run(tmp_path, "first", prompts([0]), cache=cache)
    create = Location.create

    def refuse(location: Location, data: bytes, *, durable: bool = True) -> bool:
        if "/cache/" in location.url:
            raise kind("nothing can be written here")
        return create(location, data, durable=durable)

    monkeypatch.setattr(Location, "create", refuse)
    second = Run(tmp_path, "second", prompts(range(2)), cache=cache)
    assert (second.generated, second.manifest.succeeded) == ([1], 2)
    assert caplog.text.count("not put into the cache") == 1
    assert "new answers are not put into the cache: nothing can be written here" in caplog.text


@pytest.fixture
def bucket() -> Iterator[tuple[S3Server, str]]:
    with S3Server.running() as server:
        yield server, server.new_bucket()


@pytest.mark.slow
def test_a_cache_in_a_bucket_is_used_and_faults_of_the_store_cost_no_record(
    tmp_path: Path, bucket: tuple[S3Server, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, name = bucket
    monkeypatch.setattr(kept_answers, "FILE_ANSWERS", 30)
    storage = Storage({"s3": server.options})
    cache = f"s3://{name}/some/cache"
    Run(tmp_path, "first", prompts(range(100)), cache=cache, storage=storage)
    second = Run(tmp_path, "second", prompts(range(50, 150)), cache=cache, storage=storage)
    assert second.generated == list(range(50, 100))
    third = Run(tmp_path, "third", prompts(range(150)), cache=cache, storage=storage)
    assert (third.generated, third.engines.started) == ([], 0)


@pytest.mark.slow
def test_a_worker_that_is_killed_leaves_a_cache_that_can_be_read(tmp_path: Path, cache: str) -> None:
    job = Job(tmp_path, [])
    job.input.write_text("".join(json.dumps(record) + "\n" for record in prompts(range(3000))))
    worker = job.start(f"--cache-path={cache}", LLMENGINE_ECHO_SECONDS_PER_RECORD="0.05", LLMENGINE_ECHO_CAPACITY="16")
    wait_until(lambda: len(job.generations()) > 300)
    worker.send_signal(signal.SIGTERM)
    worker.communicate()
    kept = job.generations()
    killed = job.start(f"--cache-path={cache}", LLMENGINE_ECHO_SECONDS_PER_RECORD="0.05")
    wait_until(lambda: len(job.generations()) > len(kept) + 300)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    (tmp_path / "other").mkdir()
    other = Job(tmp_path / "other", [])
    other.input.write_bytes(job.input.read_bytes())
    finished = other.run(f"--cache-path={cache}")
    assert finished.returncode == 0, finished.stderr
    # What the first had generated until it was told to stop is there; what the second had not yet written is not.
    assert other.manifest().cached >= len(kept)
    assert other.manifest().succeeded == 3000


def test_no_prompt_is_in_the_cache_or_in_a_log(tmp_path: Path, cache: str, caplog: pytest.LogCaptureFixture) -> None:
    """The stand-in engine answers with the last message: what stands before it is in the prompt alone."""
    import pyarrow.parquet

    caplog.set_level("INFO")
    private = "qzprivateqz"
    chats = [
        {"messages": [{"role": "system", "content": private}, {"role": "user", "content": f"{row}"}], "temperature": 0}
        for row in range(5)
    ]
    for name in ("first", "second"):
        Run(tmp_path, name, chats, cache=cache)
    (path,) = Path(cache).glob("*/*.parquet")
    kept = pyarrow.parquet.read_table(path).to_pylist()
    assert [json.loads(row["body"])["choices"][0]["message"]["content"] for row in kept] == ["0", "1", "2", "3", "4"]
    assert private not in str(kept) + path.with_name("about.json").read_text()
    put_answers(cache, json.dumps({"choices": private}).encode())
    Run(tmp_path, "third", chats, cache=cache)
    assert "what is no answer to it" in caplog.text
    assert private not in caplog.text
