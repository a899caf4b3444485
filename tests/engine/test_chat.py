"""Chat records on the real engine, by the model's own template."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import RunningEngine
from tests.engine.records import chat, completion

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

QUESTION = "What is the capital of France?"
Body = dict[str, Any]


@pytest.fixture
def ask(running: RunningEngine) -> Callable[..., Body]:
    def ask_one(content: Any, **fields: Any) -> Body:
        return running.answer(chat(content, **fields)).body

    return ask_one


@pytest.fixture(scope="session")
def rendered(quickstart_model: Path) -> str:
    """The question as the model's own template writes it."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(quickstart_model)
    text: str = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, tokenize=False
    )
    return text


def content_of(body: Body, choice: int = 0) -> str:
    content: str = body["choices"][choice]["message"]["content"]
    return content


def test_the_result_is_the_apis_response_object(ask: Callable[..., Body]) -> None:
    body = ask(QUESTION, user="ada")
    assert body.keys() == {"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "metadata"}
    assert (body["object"], body["model"], body["metadata"]) == ("chat.completion", "small", {"user": "ada"})
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "The capital of France is Paris.", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]


def test_the_models_template_is_used(running: RunningEngine, ask: Callable[..., Body], rendered: str) -> None:
    written = running.answer(completion(rendered, max_tokens=20))
    asked = ask(QUESTION, max_tokens=20)
    assert content_of(asked) == written.body["choices"][0]["text"]
    assert asked["usage"]["prompt_tokens"] == written.prompt_tokens


def test_a_system_message_and_earlier_turns_count(ask: Callable[..., Body]) -> None:
    messages = [
        {"role": "system", "content": "You are a poet."},
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Hello Ada."},
        {"role": "user", "content": QUESTION},
    ]
    assert ask("", messages=messages, max_tokens=2)["usage"]["prompt_tokens"] > 37
    assert ask(QUESTION, max_tokens=2)["usage"]["prompt_tokens"] == 37


def test_content_in_parts_is_the_same_text(ask: Callable[..., Body]) -> None:
    parts = [{"type": "text", "text": QUESTION}]
    assert content_of(ask(parts)) == content_of(ask(QUESTION))


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_max_tokens(ask: Callable[..., Body], name: str) -> None:
    body = ask(QUESTION, **{name: 3})
    assert body["usage"]["completion_tokens"] == 3
    assert body["choices"][0]["finish_reason"] == "length"


def test_stop(ask: Callable[..., Body]) -> None:
    assert content_of(ask(QUESTION, stop=" France")) == "The capital of"


def test_n_and_seed(ask: Callable[..., Body]) -> None:
    bodies = [ask(QUESTION, n=3, temperature=2, seed=seed, max_tokens=8) for seed in (5, 5, 6)]
    contents = [[content_of(body, choice) for choice in range(3)] for body in bodies]
    assert contents[0] == contents[1] != contents[2]
    assert len(set(contents[0])) > 1


def test_logprobs(ask: Callable[..., Body]) -> None:
    listed = ask(QUESTION, logprobs=True, top_logprobs=2, max_tokens=4)["choices"][0]["logprobs"]["content"]
    assert "".join(token["token"] for token in listed) == "The capital of France"
    assert [len(token["top_logprobs"]) for token in listed] == [2] * 4
    assert all(token["logprob"] == token["top_logprobs"][0]["logprob"] < 0 for token in listed)


def test_the_last_message_can_be_continued(ask: Callable[..., Body]) -> None:
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "The capital of France"}]
    fields = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    assert content_of(ask("", **fields)).endswith("is Paris.")
    assert content_of(ask("", **fields, echo=True)) == "The capital of France is Paris."


@pytest.mark.parametrize("fields", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
def test_sampling_from_the_likeliest_token_alone_is_greedy(ask: Callable[..., Body], fields: Body) -> None:
    assert content_of(ask(QUESTION, temperature=2, **fields)) == content_of(ask(QUESTION))


def test_min_tokens(ask: Callable[..., Body]) -> None:
    assert ask(QUESTION, max_tokens=12)["usage"]["completion_tokens"] == 8
    assert ask(QUESTION, max_tokens=12, min_tokens=10)["usage"]["completion_tokens"] >= 10
