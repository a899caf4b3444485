"""What the schema can't say about a chat record: its parts, its tools, and what of the API vLLM does not serve.

What depends on the model, such as whether it takes images, only the engine can tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.content_parts import MEDIA_PARTS, media_parts, part_fault
from airflow_llmengine.spec.results import RecordErrorType, RecordFault
from airflow_llmengine.spec.sampling import ResponseFormatText
from airflow_llmengine.spec.wire_faults import MOST_SHOWN, path_step

_INVALID = RecordErrorType.INVALID_RECORD
_UNSUPPORTED = RecordErrorType.UNSUPPORTED


@dataclass(frozen=True, slots=True)
class Unserved:
    """A field of the API's chat request that vLLM does not serve."""

    sentence: str
    """Why it is refused, and what to do instead."""
    asks_for_nothing: tuple[Any, ...] = ()
    """The values that are no reason to refuse a record, as what they ask for happens anyway."""


UNSERVED: Mapping[str, Unserved] = {
    "audio": Unserved("the answer is text; leave it out"),
    "function_call": Unserved("is an older form of tool_choice; give that", ("none",)),
    "functions": Unserved("is an older form of tools; give those", ([],)),
    "modalities": Unserved("the answer is text, and nothing else; leave it out", (["text"],)),
    "moderation": Unserved("nothing judges prompts or answers here; leave it out", ({},)),
    "prediction": Unserved("vLLM takes no predicted output; leave it out"),
    "prompt_cache_key": Unserved("vLLM finds by itself which prompts begin alike; leave it out"),
    "prompt_cache_options": Unserved("vLLM finds by itself which prompts begin alike; leave it out", ({},)),
    "prompt_cache_retention": Unserved(
        "vLLM's cache of prompts lives as long as its engine; leave it out", ("in_memory", "in-memory")
    ),
    "safety_identifier": Unserved("nobody is told; leave it out, or give user, which comes back with the result"),
    "service_tier": Unserved("the engine serves all records alike; leave it out", ("auto", "default")),
    "store": Unserved("nothing is kept but the output; leave it out", (False,)),
    "verbosity": Unserved("no model of vLLM's reads it; say it in a message", ("medium",)),
    "web_search_options": Unserved("a batch searches no web; leave it out"),
}
"""Refused unless the value asks for nothing; then it does not reach vLLM either."""


def chat_faults(record: ChatCompletionV2Request) -> Iterator[RecordFault]:
    """What is wrong with a chat record, beyond its schema and beyond what it shares with completions."""
    if not record.messages:
        yield RecordErrorType.EMPTY_PROMPT, "messages: is empty"
    yield from islice(_part_faults(record), MOST_SHOWN)
    yield from _media_faults(record)
    yield from _tool_faults(record)
    yield from _length_faults(record)
    yield from _template_faults(record)
    if record.top_logprobs and not record.logprobs:
        yield _INVALID, "top_logprobs: is given without logprobs; give logprobs: true too"
    if record.truncate_prompt_tokens == 0:
        yield _INVALID, "truncate_prompt_tokens: is 0, which leaves nothing; give at least 1, or -1 for what fits"
    if record.truncation_side is not None and record.truncate_prompt_tokens is None:
        yield _INVALID, "truncation_side: has no effect without truncate_prompt_tokens; give both, or neither"
    if record.metadata and record.user not in (None, record.metadata.get("user", record.user)):
        yield _INVALID, "metadata.user: differs from user, which comes back under the same name; give one of the two"
    for name, unserved in UNSERVED.items():
        if record.is_given(name) and getattr(record, name) not in unserved.asks_for_nothing:
            yield _UNSUPPORTED, f"{name}: {unserved.sentence}"


def _part_faults(record: ChatCompletionV2Request) -> Iterator[RecordFault]:
    for place, message in enumerate(record.messages):
        content = message.get("content")
        for part_place, part in enumerate(content if isinstance(content, list) else ()):
            fault = part_fault(part) if isinstance(part, dict) else None
            if fault is not None:
                kind = _UNSUPPORTED if fault.unsupported else _INVALID
                yield kind, f"messages[{place}].content[{part_place}]{fault.at}: {fault.reason}"


def _media_faults(record: ChatCompletionV2Request) -> Iterator[RecordFault]:
    for name in ("media_io_kwargs", "mm_processor_kwargs"):
        if getattr(record, name) and not any(media_parts(record.messages)):
            yield _INVALID, f"{name}: is for images, sound and videos, and the messages have none; leave it out"
    for name, options in (record.media_io_kwargs or {}).items():
        if name not in MEDIA_PARTS.values() or not isinstance(options, dict):
            yield _INVALID, "media_io_kwargs: must be objects under image, audio or video"
            break


def _tool_faults(record: ChatCompletionV2Request) -> Iterator[RecordFault]:
    names = []
    for place, tool in enumerate(record.tools or ()):
        function = tool.get("function")
        if tool.get("type", "function") != "function":
            yield _UNSUPPORTED, f"tools[{place}].type: must be function, the only kind of tool that vLLM serves"
        elif not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            yield _INVALID, f"tools[{place}].function: must be an object with a name"
        else:
            names.append(function["name"])
    if record.tools == []:
        yield _INVALID, "tools: is empty; give at least one, or leave it out"
    choice = record.tool_choice
    if choice in (None, "none"):
        return
    if not record.tools:
        yield _INVALID, "tool_choice: there are no tools to choose from; give tools, or leave it out"
    if isinstance(choice, dict):
        chosen = choice.get("function")
        if choice.get("type", "function") != "function" or not isinstance(chosen, dict):
            yield _INVALID, 'tool_choice: must be written {"type": "function", "function": {"name": ...}}'
        elif record.tools and names and chosen.get("name") not in names:
            yield _INVALID, "tool_choice: names none of the tools"
    if choice != "auto":
        structured = [name for name in _STRUCTURE if _asks_for_structure(record, name)]
        if structured:
            # vLLM would drop it, and say so in its log alone.
            yield _INVALID, f"tool_choice: forces a tool call, and {structured[0]} another form; give one of the two"


_STRUCTURE = ("response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar")


def _asks_for_structure(record: ChatCompletionV2Request, name: str) -> bool:
    return record.is_given(name) and not isinstance(getattr(record, name), ResponseFormatText)


def _length_faults(record: ChatCompletionV2Request) -> Iterator[RecordFault]:
    if record.max_completion_tokens == 0:
        yield _INVALID, "max_completion_tokens: is 0, which asks for nothing; give at least 1"
    if record.max_completion_tokens is not None and record.max_tokens not in (None, record.max_completion_tokens):
        yield _INVALID, "max_completion_tokens: differs from max_tokens, which means the same; give one of the two"


_NOT_OF_THE_TEMPLATE = ("add_generation_prompt", "chat_template", "continue_final_message", "tokenize", "tools")
"""What vLLM or a field of the record sets, whatever ``chat_template_kwargs`` say."""


def _template_faults(record: ChatCompletionV2Request) -> Iterator[RecordFault]:
    if record.continue_final_message and record.is_given("add_generation_prompt") and record.add_generation_prompt:
        reason = "the answer goes on with a message or opens one; give add_generation_prompt: false, or neither"
        yield _INVALID, f"continue_final_message: {reason}"
    for name in _NOT_OF_THE_TEMPLATE:
        if name in (record.chat_template_kwargs or {}):
            remedy = "leave it out" if name == "tokenize" else f"give the record's own field {name}"
            yield _INVALID, f"chat_template_kwargs{path_step(name)}: is none of the template's own values; {remedy}"
    for place, document in enumerate(record.documents or ()):
        if not all(isinstance(value, str) for value in document.values()):
            yield _INVALID, f"documents[{place}]: must hold strings alone"
            break
