"""How the engine begins and ends: models, settings, and that no process of it outlives its worker."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.engines.base import ModelNotFoundError
from airflow_llmengine.worker.engines.load import EngineUnavailableError
from airflow_llmengine.worker.engines.vllm import VLLMEngine
from airflow_llmengine.worker.weights.local import DIGEST_PREFIX
from tests.engine.conftest import RunningEngine, engine_processes
from tests.engine.engine_process import CAPITAL_IDS, LIMIT
from tests.engine.records import CAPITAL, completion, job, v1

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def plain_model(quickstart_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights without a chat template, and with a generation config that has an opinion."""
    directory = tmp_path_factory.mktemp("plain")
    for path in quickstart_model.iterdir():
        if path.name == "generation_config.json":
            config = {**json.loads(path.read_text()), "do_sample": True, "temperature": 0.7, "top_k": 1}
            (directory / path.name).write_text(json.dumps(config))
        elif path.name != "chat_template.jinja":
            (directory / path.name).symlink_to(path)
    return directory


class EngineProcess:
    """A process with an engine of its own: see ``engine_process.py``."""

    def __init__(self, checkpoint: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.engine.engine_process", str(checkpoint), *arguments],
            cwd=ROOT,
            env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def begin(self) -> EngineProcess:
        """Wait until the engine has answered its first records."""
        first = self.line()
        self.answers = first["answers"]
        self.engine_processes = [psutil.Process(pid) for pid in first["processes"]]
        return self

    def line(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            pytest.fail(self.process.stderr.read()[-4000:])
        # Nothing else may be on standard output: it is the command's own.
        return json.loads(line)

    def tell(self, word: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self.line()

    def alive(self) -> list[psutil.Process]:
        return [
            process
            for process in self.engine_processes
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        ]


@pytest.fixture
def engine_process(plain_model: Path) -> Iterator[Callable[..., EngineProcess]]:
    started: list[EngineProcess] = []

    def start(*arguments: str) -> EngineProcess:
        started.append(EngineProcess(plain_model, *arguments))
        return started[-1].begin()

    yield start
    for one in started:
        if one.process.poll() is None:
            # Its own group, for vLLM's processes are in it.
            os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()
        for pipe in (one.process.stdin, one.process.stdout, one.process.stderr):
            assert pipe is not None
            pipe.close()


def gone_within(process: EngineProcess, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while process.alive() and time.monotonic() < deadline:
        time.sleep(0.1)
    return not process.alive()


def test_the_engine_does_not_outlive_a_killed_worker(engine_process: Callable[..., EngineProcess]) -> None:
    worker = engine_process()
    no_template, greedy, first, second, sampled, longest, too_long = worker.answers

    # Case 9 of the public bug reports.
    assert no_template[:2] == ["RecordRejectedError", RecordErrorType.MISSING_CHAT_TEMPLATE]
    assert "chat template" in no_template[2]
    assert "model_config.chat_template" in no_template[2]

    # What a record does not give comes from the model's own generation config: top_k of 1 is greedy.
    assert first["choices"] == second["choices"] == greedy["choices"]
    assert sampled["choices"] != greedy["choices"]

    assert longest["usage"] == {"prompt_tokens": LIMIT - 1, "completion_tokens": 1, "total_tokens": LIMIT}
    assert too_long[1] == RecordErrorType.CONTEXT_LENGTH_EXCEEDED

    assert len(worker.alive()) >= 2
    worker.process.kill()
    worker.process.wait()
    assert gone_within(worker, 30)


def test_a_dead_engine_is_told_and_leaves_nothing(engine_process: Callable[..., EngineProcess]) -> None:
    worker = engine_process("Hello")
    # The template of one word is that word, whatever the messages say.
    assert worker.answers[0]["usage"]["prompt_tokens"] == 1

    # An interrupt from a terminal reaches all processes; the engine leaves it to the worker.
    for process in worker.alive():
        process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert worker.tell("ask")["choices"]

    core = max(worker.alive(), key=lambda process: len(process.children()))
    core.kill()
    for _ in range(2):
        kind, _type, message = worker.tell("ask")
        assert kind == "EngineDiedError"
        assert "ended" in message
    assert worker.tell("stop")["left"] == []
    assert gone_within(worker, 30)


def test_an_engine_without_a_tokenizer_answers_ids_with_ids_and_its_stop_leaves_no_process(
    engine_process: Callable[..., EngineProcess], running: RunningEngine
) -> None:
    worker = engine_process("--without-tokenizer")
    first, several, too_long = worker.answers
    told = running.answer(completion(CAPITAL)).body["choices"][0]
    assert running.engine._started().client.get_tokenizer().encode(CAPITAL) == CAPITAL_IDS
    (choice,) = first["choices"]
    assert running.engine._started().client.get_tokenizer().decode(choice["token_ids"]) == told["text"]
    assert (choice["text"], choice["finish_reason"]) == ("", told["finish_reason"])
    assert "prompt_token_ids" not in choice
    assert [len(each["token_ids"]) > 0 for each in several["choices"]] == [True] * 4
    assert too_long[1] == RecordErrorType.CONTEXT_LENGTH_EXCEEDED

    assert worker.tell("stop")["left"] == []
    assert gone_within(worker, 0)
    _rest, log = worker.process.communicate(timeout=120)
    assert worker.process.returncode == 0
    assert "Traceback" not in log
    assert "leaked" not in log


def test_a_load_can_be_given_up(running: RunningEngine, quickstart_model: Path) -> None:
    async def give_up() -> None:
        engine = VLLMEngine(job(quickstart_model))
        loading = asyncio.create_task(engine.start())
        before = set(engine_processes())
        while not set(engine_processes()) - before:
            await asyncio.sleep(0.1)
            assert not loading.done()
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        await engine.stop()
        assert not set(engine_processes()) - before

    running.run(give_up())
    assert running.engine.capacity == 32


def test_the_loop_goes_on_while_the_model_is_looked_for_and_refused(running: RunningEngine, tmp_path: Path) -> None:
    engine = VLLMEngine(job(tmp_path / "nothing"))
    with pytest.raises(ModelNotFoundError, match="there is no directory"):
        running.run(engine.start())
    running.run(engine.stop())


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"max_model_len": 100_000}, "max_model_len"),
        ({"dtype": "float1"}, "dtype"),
        ({"cache_dtype": "float1"}, "kv-cache-dtype"),
        ({"tokenizer_mode": "by hand"}, "tokenizer"),
        ({"quantization": "by hand"}, "quantization"),
    ],
    ids=str,
)
def test_settings_that_vllm_refuses(
    running: RunningEngine, quickstart_model: Path, settings: dict[str, Any], named: str
) -> None:
    engine = VLLMEngine(job(quickstart_model, **settings))
    with pytest.raises(EngineUnavailableError, match=named) as caught:
        running.run(engine.start())
    assert "\n" not in str(caught.value)
    running.run(engine.stop())


def test_a_broken_checkpoint_is_no_traceback(running: RunningEngine, quickstart_model: Path, tmp_path: Path) -> None:
    shutil.copy(quickstart_model / "config.json", tmp_path)
    engine = VLLMEngine(job(tmp_path))
    with pytest.raises(Exception, match="vLLM") as caught:
        running.run(engine.start())
    assert "\n" not in str(caught.value)
    running.run(engine.stop())


def test_what_a_started_engine_tells_of_itself(running: RunningEngine) -> None:
    assert running.engine.capacity == 32
    assert running.engine.model_identity is not None
    assert running.engine.model_identity.startswith(DIGEST_PREFIX)


def test_the_capital_again_so_that_all_of_this_has_left_the_shared_engine_alone(running: RunningEngine) -> None:
    assert running.answer(v1(CAPITAL)).body["text"].startswith(" Paris")
