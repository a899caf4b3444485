"""Chat records on the real engine: what of the chat reaches the model, and each field that only chats have."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import processors

from airflow_llmengine.spec.results import RecordErrorType
from tests.engine.conftest import RunningEngine
from tests.engine.records import BEGIN, END, chat, completion
from tests.engine.test_faults import rejected
from tests.engine.test_sampling_fields import serving
from tests.engine.test_v2 import tokenizer

__all__ = ["tokenizer"]

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


def prompt_of(body: Body, tokenizer: Any) -> str:
    """What the model was shown; asked for by ``return_token_ids``."""
    text: str = tokenizer.decode(body["prompt_token_ids"])
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


def test_token_ids_are_given_on_request(ask: Callable[..., Body], rendered: str, tokenizer: Any) -> None:
    body = ask(QUESTION, return_token_ids=True)
    assert prompt_of(body, tokenizer) == rendered
    assert tokenizer.decode(body["choices"][0]["token_ids"]) == content_of(body) + END
    assert "token_ids" not in ask(QUESTION)["choices"][0]


def test_logit_bias(ask: Callable[..., Body], tokenizer: Any) -> None:
    (paris,) = tokenizer.encode(" Paris")
    assert "Paris" not in content_of(ask(QUESTION, logit_bias={str(paris): -100}))
    assert content_of(ask(QUESTION, logit_bias={str(paris): 100}, max_tokens=2)) == " Paris Paris"


def test_bad_words(ask: Callable[..., Body]) -> None:
    assert "Paris" in content_of(ask(QUESTION))
    assert "Paris" not in content_of(ask(QUESTION, bad_words=["Paris"]))


def test_allowed_token_ids(ask: Callable[..., Body], tokenizer: Any) -> None:
    allowed = tokenizer.encode(" Paris London")
    body = ask(QUESTION, allowed_token_ids=allowed, max_tokens=4, return_token_ids=True)
    assert set(body["choices"][0]["token_ids"]) <= set(allowed)


def test_the_log_probabilities_of_the_prompt(ask: Callable[..., Body]) -> None:
    body = ask(QUESTION, prompt_logprobs=1, max_tokens=1, return_token_ids=True)
    listed = body["prompt_logprobs"]
    # There is none for the first token, which follows nothing.
    assert len(listed) == body["usage"]["prompt_tokens"]
    assert [str(token) in place for token, place in zip(body["prompt_token_ids"][1:], listed[1:], strict=True)]
    assert all(entry["logprob"] <= 0 for place in listed[1:] for entry in place.values())
    messages = [{"role": "assistant", "content": "Hi"}]
    assert "prompt_logprobs" not in ask("", messages=messages, echo=True, max_tokens=1)


def test_a_prompt_can_be_truncated_at_either_end(ask: Callable[..., Body]) -> None:
    def prompt(**fields: Any) -> list[int]:
        ids: list[int] = ask(QUESTION, max_tokens=1, return_token_ids=True, **fields)["prompt_token_ids"]
        return ids

    whole = prompt()
    assert prompt(truncate_prompt_tokens=5) in (whole[:5], whole[-5:])
    assert prompt(truncate_prompt_tokens=5, truncation_side="left") == whole[-5:]
    assert prompt(truncate_prompt_tokens=5, truncation_side="right") == whole[:5]
    assert prompt(truncate_prompt_tokens=-1) == whole


def test_a_record_may_bring_its_own_template(ask: Callable[..., Body], tokenizer: Any) -> None:
    """The job of these tests lets it."""
    template = "{{ bos_token }}{% for message in messages %}[{{ message.role }}] {{ message.content }}{% endfor %}"
    body = ask(QUESTION, chat_template=template, max_tokens=1, return_token_ids=True)
    assert prompt_of(body, tokenizer) == f"{BEGIN}[user] {QUESTION}"


def test_values_for_the_template(ask: Callable[..., Body], tokenizer: Any) -> None:
    template = "{{ style }}|{{ documents[0].text }}|{{ reasoning_effort }}|{{ messages[0].name }}"
    body = ask(
        "",
        messages=[{"role": "user", "content": QUESTION, "name": "ada"}],
        chat_template=template,
        chat_template_kwargs={"style": "short"},
        documents=[{"title": "a", "text": "b"}],
        reasoning_effort="low",
        max_tokens=1,
        return_token_ids=True,
    )
    assert prompt_of(body, tokenizer) == "short|b|low|ada"


@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"documents": [{"text": "a"}]},
        {"reasoning_effort": "low"},
    ],
    ids=str,
)
def test_a_value_that_the_models_template_does_not_read_is_refused(running: RunningEngine, fields: Body) -> None:
    error = rejected(running, chat(QUESTION, **fields))
    assert error.error_type is RecordErrorType.UNSUPPORTED
    assert error.message.startswith(next(iter(fields)))
    assert "the chat template does not read it" in error.message


@pytest.mark.parametrize("template", ["{{", "{{ raise_exception('no') }}", "{{ cycler.__init__.__globals__.os }}"])
def test_a_template_that_fails_or_reaches_out_costs_its_own_row(running: RunningEngine, template: str) -> None:
    error = rejected(running, chat(QUESTION, chat_template=template))
    assert error.error_type is RecordErrorType.REJECTED_BY_ENGINE


def test_whether_the_template_opens_the_answer(ask: Callable[..., Body], tokenizer: Any) -> None:
    opening = f"{BEGIN}assistant\n"
    for value in (True, False):
        body = ask(QUESTION, add_generation_prompt=value, max_tokens=1, return_token_ids=True)
        assert prompt_of(body, tokenizer).endswith(opening) is value


def test_continuing_a_message_opens_no_answer(ask: Callable[..., Body]) -> None:
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "The capital of France"}]
    assert content_of(ask("", messages=messages, continue_final_message=True)) == " is Paris."


def test_special_tokens_are_added_to_what_the_template_made(
    running: RunningEngine, ask: Callable[..., Body], tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.tokenizers.hf import get_cached_tokenizer

    # The model's own tokenizer adds none.
    adding = copy.deepcopy(tokenizer)
    adding.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, 1)]
    )
    monkeypatch.setattr(serving(running).chat.online_renderer.renderer, "tokenizer", get_cached_tokenizer(adding))
    counts = [
        ask(QUESTION, max_tokens=1, **fields)["usage"]["prompt_tokens"]
        for fields in ({}, {"add_special_tokens": False}, {"add_special_tokens": True})
    ]
    assert counts == [37, 37, 38]


def test_metadata_come_back(ask: Callable[..., Body]) -> None:
    body = ask(QUESTION, metadata={"team": "a"}, user="ada", max_tokens=1, store=False, service_tier="auto")
    assert body["metadata"] == {"team": "a", "user": "ada"}


@pytest.mark.parametrize("role", ["developer", "system"])
def test_instructions_of_a_developer_are_those_of_the_system(
    ask: Callable[..., Body], tokenizer: Any, role: str
) -> None:
    messages = [{"role": role, "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    body = ask("", messages=messages, max_tokens=1, return_token_ids=True)
    assert prompt_of(body, tokenizer).startswith(f"{BEGIN}system\nBe brief.{END}")


@pytest.mark.parametrize(
    ("part", "named"),
    [
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            "the model takes no images, but text",
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            "the model takes no sound, but text",
        ),
        ({"type": "video_url", "video_url": {"url": "http://169.254.169.254/"}}, "the model takes no videos, but text"),
    ],
)
def test_parts_that_this_model_does_not_take_are_named(running: RunningEngine, part: Body, named: str) -> None:
    error = rejected(running, chat([{"type": "text", "text": QUESTION}, part]))
    assert error.error_type is RecordErrorType.UNSUPPORTED
    assert error.message == f"messages[0].content[1]: {named}; leave the part out"


@pytest.mark.parametrize("fields", [{"include_reasoning": False}, {"thinking_token_budget": 3}], ids=str)
def test_without_a_reasoning_parser_reasoning_can_not_be_told_apart(running: RunningEngine, fields: Body) -> None:
    error = rejected(running, chat(QUESTION, **fields))
    assert error.error_type is RecordErrorType.UNSUPPORTED
    assert "engine_args.reasoning_parser" in error.message


def test_a_penalty_makes_repetition_rarer(ask: Callable[..., Body]) -> None:
    plain = content_of(ask("Say no ten times.", max_tokens=24, min_tokens=24))
    for fields in ({"frequency_penalty": 2}, {"presence_penalty": 2}, {"repetition_penalty": 2}):
        assert len(set(content_of(ask("Say no ten times.", max_tokens=24, min_tokens=24, **fields)).split())) >= len(
            set(plain.split())
        )


def test_how_an_answer_ends(ask: Callable[..., Body], tokenizer: Any) -> None:
    (france,) = tokenizer.encode(" France")
    assert content_of(ask(QUESTION, stop_token_ids=[france], skip_special_tokens=True)).startswith("The capital of")
    assert ask(QUESTION, stop_token_ids=[france])["usage"]["completion_tokens"] == 4
    stopped = ask(QUESTION, stop=[" is"], include_stop_str_in_output=True)
    assert content_of(stopped) == "The capital of France is"
    assert ask(QUESTION, ignore_eos=True, max_tokens=20)["usage"]["completion_tokens"] == 20
    assert END in content_of(ask(QUESTION, ignore_eos=True, max_tokens=20, skip_special_tokens=False))
