"""What a chat record may ask of a running engine, and what becomes of vLLM's answer to it; no vLLM is needed."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.engines.base import RecordRejectedError
from airflow_llmengine.worker.engines.vllm_chat import ChatAbilities, finish_chat, values_read

PLAIN = "{% for message in messages %}{{ message.content }}{% endfor %}"
TEXT_MODEL = ChatAbilities()
EYES = ChatAbilities(media=frozenset({"image"}), media_hosts=frozenset({"images.example"}))
CALLING = ChatAbilities(parses_tool_calls=True)
REASONING = ChatAbilities(parses_reasoning=True)


def image(url: str) -> dict[str, Any]:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": url}}]
    return {"messages": [{"role": "system", "content": "b"}, {"role": "user", "content": parts}]}


def refusal(abilities: ChatAbilities, template: str | None = PLAIN, **body: Any) -> str | None:
    body.setdefault("messages", [{"role": "user", "content": "a"}])
    try:
        abilities.require(body, lambda: template)
    except RecordRejectedError as error:
        return error.message if error.error_type is RecordErrorType.UNSUPPORTED else None
    return None


@pytest.mark.parametrize(
    ("abilities", "part", "said"),
    [
        (
            TEXT_MODEL,
            {"type": "image_url", "image_url": {"url": "data:,"}},
            "messages[0].content[0]: the model takes no images, but text; leave the part out",
        ),
        (
            EYES,
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            "messages[0].content[0]: the model takes no sound, but text and images; leave the part out",
        ),
        (
            EYES,
            {"type": "video_url", "video_url": {"url": "data:,"}},
            "messages[0].content[0]: the model takes no videos, but text and images; leave the part out",
        ),
    ],
)
def test_media_that_the_model_does_not_take_are_named(abilities: ChatAbilities, part: Any, said: str) -> None:
    assert refusal(abilities, messages=[{"role": "user", "content": [part]}]) == said


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data/",
        "https://elsewhere.example/a.png",
        "https://images.example@169.254.169.254/",
        "https://images.example.elsewhere.example/",
        "http://[::1]/",
        "//images.example/a.png",
        "ftp://images.example/a.png",
        "file:///etc/passwd",
        "FILE:/etc/passwd",
        "/etc/passwd",
        "http://[",
        "",
    ],
)
def test_nothing_is_fetched_but_from_where_the_job_says(url: str) -> None:
    said = refusal(EYES, **image(url))
    assert said is not None
    assert said.startswith("messages[1].content[1]: ")
    assert url == "" or url not in said


@pytest.mark.parametrize("url", ["data:image/png;base64,AAAA", "DATA:,", "https://images.example:8443/a.png?b#c"])
def test_data_and_the_hosts_that_the_job_lists_are_read(url: str) -> None:
    assert refusal(EYES, **image(url)) is None


def test_local_files_are_vllms_business_once_there_is_a_folder_for_them() -> None:
    assert refusal(ChatAbilities(media=frozenset({"image"}), reads_local_media=True), **image("file:///x/a")) is None


@pytest.mark.parametrize(
    ("field", "value", "named", "trusting"),
    [
        ("chat_template", "{{ 1 }}", "engine_args.trust_request_chat_template", ChatAbilities(trusts_templates=True)),
        ("mm_processor_kwargs", {"a": 1}, "model_config.mm_proc", ChatAbilities(trusts_media_arguments=True)),
        ("media_io_kwargs", {"image": {}}, "engine_args.media_io_kwargs", ChatAbilities(trusts_media_arguments=True)),
    ],
)
def test_a_record_brings_no_program_unless_the_job_says_so(
    field: str, value: Any, named: str, trusting: ChatAbilities
) -> None:
    said = refusal(TEXT_MODEL, **{field: value})
    assert said is not None
    assert said.startswith(f"{field}: this job's records bring none; ")
    assert named in said
    assert refusal(trusting, **{field: value}) is None


@pytest.mark.parametrize(
    ("fields", "read_by"),
    [
        ({"documents": [{"text": "a"}]}, "{{ documents }}"),
        ({"reasoning_effort": "low"}, "{% if reasoning_effort == 'low' %}a{% endif %}"),
        ({"reasoning_effort": "low"}, "{{ enable_thinking }}"),
        ({"chat_template_kwargs": {"style": "short"}}, "{% generation %}{{ style|default('') }}{% endgeneration %}"),
    ],
)
def test_what_the_template_does_not_read_is_refused(fields: dict[str, Any], read_by: str) -> None:
    said = refusal(TEXT_MODEL, **fields)
    assert said is not None
    assert said.startswith(next(iter(fields)))
    assert "the chat template does not read it" in said
    assert refusal(TEXT_MODEL, read_by, **fields) is None
    # Where vLLM has no template, or it is none, it has the word.
    assert refusal(TEXT_MODEL, None, **fields) is None
    assert refusal(TEXT_MODEL, "{{", **fields) is None


@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}, {"tool_choice": "none"}], ids=str)
def test_tools_that_the_template_does_not_show_are_refused(choice: dict[str, Any]) -> None:
    tools = [{"type": "function", "function": {"name": "clock"}}]
    said = refusal(CALLING, tools=tools, **choice)
    assert said is not None
    assert said.startswith("tools: the chat template does not show them to the model; ")
    assert refusal(CALLING, "{% for tool in tools %}{% endfor %}", tools=tools, **choice) is None
    assert refusal(CALLING, None, tools=tools, **choice) is None


def test_a_call_that_the_model_must_make_needs_no_template_that_shows_tools() -> None:
    tools = [{"type": "function", "function": {"name": "clock"}}]
    for choice in ("required", {"type": "function", "function": {"name": "clock"}}):
        assert refusal(CALLING, tools=tools, tool_choice=choice) is None
    # Without a parser of calls, vLLM says that there is none.
    assert refusal(TEXT_MODEL, tools=tools) is None


def test_only_what_the_template_does_not_read_is_named() -> None:
    said = refusal(TEXT_MODEL, "{{ style }}", chat_template_kwargs={"style": 1, "a b": 2})
    assert said == 'chat_template_kwargs["a b"]: the chat template does not read it; leave it out'


def test_values_that_a_template_sets_itself_are_none_that_it_reads() -> None:
    assert values_read("{% set a = b %}{{ a }}{% for c in d %}{% continue %}{{ c }}{% endfor %}") == frozenset(
        {"b", "d"}
    )
    assert values_read("{%- generation -%}{{ a }}{%- endgeneration -%}") == frozenset({"a"})


@pytest.mark.parametrize("fields", [{"include_reasoning": False}, {"thinking_token_budget": 5}])
def test_reasoning_fields_need_a_reasoning_parser(fields: dict[str, Any]) -> None:
    said = refusal(TEXT_MODEL, **fields)
    assert said is not None
    assert said.startswith(next(iter(fields)))
    assert said.endswith("give engine_args.reasoning_parser")
    assert refusal(REASONING, **fields) is None


def test_a_reasoning_parser_may_read_what_the_template_does_not() -> None:
    assert refusal(REASONING, chat_template_kwargs={"thinking": True}, reasoning_effort="low") is None
    assert refusal(TEXT_MODEL, include_reasoning=True) is None


def test_reasoning_that_is_left_out_is_not_shown_by_log_probabilities() -> None:
    said = refusal(REASONING, include_reasoning=False, logprobs=True)
    assert said is not None
    assert said.startswith("logprobs: ")


def response(*calls: str, **fields: Any) -> dict[str, Any]:
    message = {"role": "assistant", "tool_calls": [{"id": call, "function": {}} for call in calls]}
    return {"choices": [{"index": 1, "message": message}], **fields}


def chat(**fields: Any) -> ChatCompletionV2Request:
    return ChatCompletionV2Request.model_validate({"messages": [], **fields})


def test_names_of_tool_calls_that_are_drawn_by_lot_are_left_out() -> None:
    answer = response("chatcmpl-tool-95ac9cfd00d79469", "chatcmpl-tool-0", "functions.clock:0", "a1B2c3D4e")
    finish_chat(answer, chat())
    assert [call["id"] for call in answer["choices"][0]["message"]["tool_calls"]] == [
        "",
        "",
        "functions.clock:0",
        "a1B2c3D4e",
    ]


def test_log_probabilities_of_the_prompt_come_only_if_asked_for() -> None:
    answer = response(prompt_logprobs=[None])
    finish_chat(answer, chat())
    assert "prompt_logprobs" not in answer
    asked = response(prompt_logprobs=[None])
    finish_chat(asked, chat(prompt_logprobs=0))
    assert asked["prompt_logprobs"] == [None]
