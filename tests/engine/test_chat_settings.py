"""Chats on a second engine, whose model takes images and thinks, and whose job has a template and a role of its own.

One start of an engine shows what the shared one, with a model of text, can't: images for real, reasoning kept apart,
and what a record is told that calls tools where nobody said how the model writes calls.
"""

from __future__ import annotations

import asyncio
import base64
import io
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.engines.base import RecordRejectedError
from airflow_llmengine.worker.engines.vllm import VLLMEngine
from tests.engine.conftest import RunningEngine
from tests.engine.records import chat, job
from tests.engine.seeing_model import SIDE, make_seeing_model

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

Body = dict[str, Any]
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}{{ '<think>' if think }}"


def png(colour: tuple[int, ...]) -> bytes:
    from PIL import Image

    written = io.BytesIO()
    Image.new("RGBA" if len(colour) == 4 else "RGB", (SIDE, SIDE), colour).save(written, "PNG")
    return written.getvalue()


RED, BLUE, CLEAR = (255, 0, 0), (0, 0, 255), (255, 0, 0, 0)


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder from which records may read media."""
    folder = tmp_path_factory.mktemp("media")
    (folder / "red.png").write_bytes(png(RED))
    (folder.parent / "outside.png").write_bytes(png(RED))
    return folder


@pytest.fixture(scope="module")
def seeing(quickstart_model: Path, media: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """The engine."""
    directory = tmp_path_factory.mktemp("seeing")
    make_seeing_model(quickstart_model, directory)
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        patch.setenv("VLLM_MEDIA_FETCH_MAX_RETRIES", "1")
        engine = VLLMEngine(job(directory, max_model_len=256, response_role="critic", chat_template=TEMPLATE))
        engine.take_arguments(
            {
                "reasoning_parser": "deepseek_r1",
                "allowed_local_media_path": str(media),
                "allowed_media_domains": ["127.0.0.1"],
                "trust_request_mm_kwargs": True,
            }
        )
        try:
            runner.run(engine.start())
            yield RunningEngine(engine, runner)
        finally:
            runner.run(engine.stop())


@pytest.fixture
def ask(seeing: RunningEngine) -> Callable[..., Body]:
    def ask_one(content: Any, **fields: Any) -> Body:
        fields.setdefault("max_tokens", 3)
        return seeing.answer(chat(content, **fields)).body

    return ask_one


@pytest.fixture
def refused(seeing: RunningEngine) -> Callable[..., RecordRejectedError]:
    """A record's error; the engine goes on."""

    def ask_one(content: Any, **fields: Any) -> RecordRejectedError:
        with pytest.raises(RecordRejectedError) as caught:
            seeing.answer(chat(content, **fields))
        assert "\n" not in caught.value.message
        assert seeing.answer(chat("Hi", max_tokens=1)).completion_tokens == 1
        return caught.value

    return ask_one


@pytest.fixture
def web() -> Iterator[tuple[str, list[str]]]:
    """A server of images on this machine: its address, and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if self.path == "/elsewhere":
                self.send_response(302)
                self.send_header("Location", "/red.png")
                self.end_headers()
                return
            self.send_response(200 if self.path == "/red.png" else 404)
            self.end_headers()
            self.wfile.write(png(RED) if self.path == "/red.png" else b"")

        def log_message(self, *_arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()


def image(url: str) -> list[Body]:
    return [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]


def data_url(colour: tuple[int, ...]) -> str:
    return "data:image/png;base64," + base64.b64encode(png(colour)).decode()


@pytest.fixture
def seen(ask: Callable[..., Body]) -> Callable[..., list[float]]:
    """What the model makes of an image: the log probabilities of its likeliest tokens."""

    def log_probs(url: str, **fields: Any) -> list[float]:
        body = ask(image(url), max_tokens=1, logprobs=True, top_logprobs=20, **fields)
        (place,) = body["choices"][0]["logprobs"]["content"]
        return [token["logprob"] for token in place["top_logprobs"]]

    return log_probs


def test_the_model_sees_an_image(ask: Callable[..., Body], seen: Callable[..., list[float]]) -> None:
    assert seen(data_url(RED)) == pytest.approx(seen(data_url(RED)), abs=1e-4)
    assert seen(data_url(RED)) != pytest.approx(seen(data_url(BLUE)), abs=1e-3)
    text = ask("What is it?")["usage"]["prompt_tokens"]
    assert ask(image(data_url(RED)))["usage"]["prompt_tokens"] >= text + 4


def test_an_image_is_the_same_wherever_it_comes_from(
    seen: Callable[..., list[float]], media: Path, web: tuple[str, list[str]]
) -> None:
    address, asked = web
    given = seen(data_url(RED))
    assert seen((media / "red.png").as_uri()) == pytest.approx(given, abs=1e-4)
    assert seen(f"http://{address}/red.png") == pytest.approx(given, abs=1e-4)
    assert asked == ["/red.png"]


def test_nothing_is_read_from_elsewhere(
    refused: Callable[..., RecordRejectedError], media: Path, web: tuple[str, list[str]]
) -> None:
    address, asked = web
    port = address.rpartition(":")[2]
    for url, named in (
        (f"http://localhost:{port}/red.png", "engine_args.allowed_media_domains"),
        ("http://169.254.169.254/latest/meta-data/", "engine_args.allowed_media_domains"),
        ("ftp://127.0.0.1/red.png", "data, https, http or file"),
    ):
        error = refused(image(url))
        assert error.error_type is RecordErrorType.UNSUPPORTED
        assert error.message.startswith("messages[0].content[0]: ")
        assert named in error.message
    assert asked == []
    refused(image((media.parent / "outside.png").as_uri()))
    refused(image(media.as_uri() + "/../outside.png"))
    # A host that is allowed does not say where else to look.
    refused(image(f"http://{address}/elsewhere"))
    assert "/red.png" not in asked


@pytest.mark.parametrize("url", ["data:image/png;base64,AAAA", "data:image/png,plain", "data:", "http://127.0.0.1:1/"])
def test_an_image_that_can_not_be_read_costs_its_own_row(refused: Callable[..., RecordRejectedError], url: str) -> None:
    assert url not in refused(image(url)).message


def test_media_that_this_model_does_not_take(refused: Callable[..., RecordRejectedError]) -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    error = refused([*image(data_url(RED)), sound])
    assert error.error_type is RecordErrorType.UNSUPPORTED
    assert error.message.startswith("messages[0].content[2]: the model takes no sound, but text and images")
    assert "image" in refused([*image(data_url(RED)), *image(data_url(BLUE))]).message


def test_arguments_of_the_processor(seen: Callable[..., list[float]]) -> None:
    plain = seen(data_url(BLUE))
    assert seen(data_url(BLUE), mm_processor_kwargs={"do_normalize": False}) != pytest.approx(plain, abs=1e-3)


def test_arguments_of_reading(seen: Callable[..., list[float]]) -> None:
    white, blue = (
        seen(data_url(CLEAR), media_io_kwargs={"image": {"rgba_background_color": list(colour)}})
        for colour in ((255, 255, 255), BLUE)
    )
    assert white != pytest.approx(blue, abs=1e-3)
    assert blue == pytest.approx(seen(data_url(BLUE)), abs=1e-4)


def test_the_role_of_the_answer(ask: Callable[..., Body]) -> None:
    assert ask("Hi")["choices"][0]["message"]["role"] == "critic"


def test_the_jobs_template_is_used(ask: Callable[..., Body]) -> None:
    assert ask("Hi")["usage"]["prompt_tokens"] == 1


@pytest.fixture
def thinking(quickstart_model: Path) -> Body:
    """Fields by which the model thinks three words, and then says four; always the same one."""
    from transformers import AutoTokenizer

    (word,) = AutoTokenizer.from_pretrained(quickstart_model).encode("The")
    return {
        "chat_template_kwargs": {"think": True},
        "logit_bias": {str(word): 100},
        "max_tokens": 8,
        "thinking_token_budget": 3,
    }


def message_of(body: Body) -> Body:
    message: Body = body["choices"][0]["message"]
    return message


def test_reasoning_is_kept_apart(ask: Callable[..., Body], thinking: Body) -> None:
    body = ask("Hi", **thinking)
    assert message_of(body) == {"role": "critic", "reasoning": "The" * 3, "content": "The" * 4, "refusal": None}
    assert body["usage"]["completion_tokens"] == 8


def test_a_budget_ends_the_thinking(ask: Callable[..., Body], thinking: Body) -> None:
    for budget, reasoning in ((1, "The"), (2, "The" * 2), (-1, "The" * 8), (None, "The" * 8)):
        assert message_of(ask("Hi", **{**thinking, "thinking_token_budget": budget}))["reasoning"] == reasoning


def test_reasoning_can_be_left_out(ask: Callable[..., Body], thinking: Body) -> None:
    message = message_of(ask("Hi", **thinking, include_reasoning=False))
    assert message == {"role": "critic", "content": "The" * 4, "refusal": None}


def test_reasoning_that_is_left_out_is_not_shown_otherwise(
    refused: Callable[..., RecordRejectedError], thinking: Body
) -> None:
    error = refused("Hi", **thinking, include_reasoning=False, logprobs=True)
    assert error.message.startswith("logprobs: would show the reasoning")


@pytest.mark.parametrize("choice", [None, "auto", "required", {"type": "function", "function": {"name": "clock"}}])
def test_without_a_parser_of_calls_a_record_with_tools_is_told_what_is_missing(
    refused: Callable[..., RecordRejectedError], choice: Any
) -> None:
    tools = [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}]
    error = refused("Hi", tools=tools, tool_choice=choice)
    assert error.error_type is RecordErrorType.UNSUPPORTED
    assert "model_config.tool_call_parser and model_config.enable_auto_tool_choice" in error.message


def test_a_record_brings_no_template_unless_the_job_lets_it(refused: Callable[..., RecordRejectedError]) -> None:
    error = refused("Hi", chat_template="{{ messages }}")
    assert error.error_type is RecordErrorType.UNSUPPORTED
    assert "engine_args.trust_request_chat_template" in error.message
