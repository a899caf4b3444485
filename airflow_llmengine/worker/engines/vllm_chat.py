"""What a chat record may ask of the engine that runs, and what is made of vLLM's answer to it. Needs no vLLM.

vLLM leaves aside what a model's template does not read, with no more than a line in its log; here it is the record's
error. What it fetches for a record, and whether a record may bring a program (a template is one), is the job's to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.content_parts import MEDIA_PARTS, media_parts, media_url
from airflow_llmengine.spec.results import RecordErrorType, RecordFault
from airflow_llmengine.spec.wire_faults import path_step
from airflow_llmengine.worker.engines.base import RecordRejectedError

_UNSUPPORTED = RecordErrorType.UNSUPPORTED

_GENERATION_TAG = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")
"""A tag of transformers' own, which marks what the model has said."""

_RANDOM_ID = re.compile(r"chatcmpl-tool-[0-9a-f]+")
"""How vLLM names the calls of a parser that does not name them itself."""

_NAMES = {"image": "images", "audio": "sound", "video": "videos"}


@dataclass(frozen=True, slots=True)
class ChatAbilities:
    """What the running engine can do with chats, and what the job lets records ask of it."""

    media: frozenset[str] = frozenset()
    """Of image, audio and video, what the model takes."""
    media_hosts: frozenset[str] = frozenset()
    """Hosts from which media may be fetched."""
    reads_local_media: bool = False
    """Whether there is a folder from which media may be read."""
    trusts_templates: bool = False
    """Whether a record may bring a template."""
    trusts_media_arguments: bool = False
    """Whether a record may say how its media are processed."""
    parses_reasoning: bool = False
    """Whether reasoning is told from the answer."""

    parses_tool_calls: bool = False
    """Whether calls that the model may make are told from the answer."""

    def require(self, body: Mapping[str, Any], template: Callable[[], str | None]) -> None:
        """Make sure that a request's fields have the effect that they ask for.

        Args:
            body: The request.
            template: Finds the chat template that writes it; None where vLLM writes such chats otherwise.

        Raises:
            RecordRejectedError: A field would have none, or asks for what the job does not let a record ask for.
        """
        faults = [*self._media_faults(body), *self._trust_faults(body), *self._reasoning_faults(body)]
        if not faults and _FOR_TEMPLATES & body.keys():
            faults = [*self._template_faults(body, template())]
        if faults:
            raise RecordRejectedError(faults[0][0], "; ".join(sentence for _, sentence in faults))

    def _media_faults(self, body: Mapping[str, Any]) -> Iterator[RecordFault]:
        for path, part in media_parts(body["messages"]):
            medium = MEDIA_PARTS[part["type"]]
            if medium not in self.media:
                taken = " and ".join(("text", *(_NAMES[name] for name in sorted(self.media))))
                yield _UNSUPPORTED, f"{path}: the model takes no {_NAMES[medium]}, but {taken}; leave the part out"
            elif (url := media_url(part)) is not None and (reason := self._not_fetched(url)) is not None:
                yield _UNSUPPORTED, f"{path}: {reason}"

    def _not_fetched(self, url: str) -> str | None:
        """Why a URL is not fetched. What stands there is another's, and may be a machine's own credentials."""
        try:
            parts = urlsplit(url)
            scheme, host = parts.scheme.lower(), parts.hostname
        except ValueError:
            return "its URL is none"
        if scheme == "data":
            return None
        if scheme == "file":
            return None if self.reads_local_media else _NO_LOCAL_MEDIA
        if scheme in ("http", "https"):
            return None if host in self.media_hosts else _NO_SUCH_HOST
        return "its URL must be one of data, https, http or file"

    def _trust_faults(self, body: Mapping[str, Any]) -> Iterator[RecordFault]:
        if "chat_template" in body and not self.trusts_templates:
            remedy = "give it as model_config.chat_template, or allow them: engine_args.trust_request_chat_template"
            yield _UNSUPPORTED, f"chat_template: this job's records bring none; {remedy}"
        for name in ("media_io_kwargs", "mm_processor_kwargs"):
            if body.get(name) and not self.trusts_media_arguments:
                remedy = f"give it as {_FOR_ALL[name]}, or allow them: engine_args.trust_request_mm_kwargs"
                yield _UNSUPPORTED, f"{name}: this job's records bring none; {remedy}"

    def _reasoning_faults(self, body: Mapping[str, Any]) -> Iterator[RecordFault]:
        if not self.parses_reasoning:
            for name in ("include_reasoning", "thinking_token_budget"):
                if body.get(name, True) is not True:
                    reason = "reasoning is not told from the answer; give engine_args.reasoning_parser"
                    yield _UNSUPPORTED, f"{name}: {reason}"
        elif body.get("include_reasoning") is False and body.get("logprobs"):
            yield _UNSUPPORTED, "logprobs: would show the reasoning that include_reasoning leaves out; leave it out"

    def _template_faults(self, body: Mapping[str, Any], template: str | None) -> Iterator[RecordFault]:
        reads = None if template is None else values_read(template)
        if reads is None:
            return
        if body.get("documents") and "documents" not in reads:
            yield _UNSUPPORTED, f"documents: {_NOT_READ}"
        # A call that the model must make is held to the tools, whether it sees them or not.
        choices = (None, "auto", "none") if self.parses_tool_calls else ("none",)
        if body.get("tools") and "tools" not in reads and body.get("tool_choice") in choices:
            yield _UNSUPPORTED, f"tools: {_NO_TOOLS_SHOWN}"
        if self.parses_reasoning:
            # A parser may read them, too.
            return
        if body.get("reasoning_effort") and not reads & {"reasoning_effort", "enable_thinking"}:
            yield _UNSUPPORTED, f"reasoning_effort: {_NOT_READ}"
        for name in body.get("chat_template_kwargs", {}):
            if name not in reads:
                yield _UNSUPPORTED, f"chat_template_kwargs{path_step(name)}: {_NOT_READ}"


_FOR_TEMPLATES = frozenset({"documents", "reasoning_effort", "chat_template_kwargs", "tools"})
_NOT_READ = "the chat template does not read it; leave it out"
_NO_TOOLS_SHOWN = (
    "the chat template does not show them to the model; use a model or a chat_template that does, or say in "
    "tool_choice which one it must call"
)
_NO_LOCAL_MEDIA = "files are read only from the folder that engine_args.allowed_local_media_path names"
_NO_SUCH_HOST = "media are fetched only from the hosts that engine_args.allowed_media_domains lists; give them as data"
_FOR_ALL = {
    "media_io_kwargs": "engine_args.media_io_kwargs",
    "mm_processor_kwargs": "model_config.mm_processor_kwargs",
}


@lru_cache(maxsize=256)
def values_read(template: str) -> frozenset[str] | None:
    """The names of the values that a chat template reads; None if it is no template."""
    from jinja2 import TemplateError, meta
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def plain(tag: re.Match[str]) -> str:
        return f"{{%{tag[1]} {'endif' if tag[2] else 'if true'} {tag[3]}%}}"

    try:
        parsed = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"]).parse(
            _GENERATION_TAG.sub(plain, template)
        )
        return frozenset(meta.find_undeclared_variables(parsed))
    except TemplateError:
        # vLLM says what is wrong with it.
        return None


def finish_chat(response: dict[str, Any], request: ChatCompletionV2Request) -> None:
    """Leave out of a response what was not asked for, and the names of its tool calls that are drawn by lot.

    Args:
        response: The response object, dumped without nulls; changed in place.
        request: The record that it answers.
    """
    if request.prompt_logprobs is None:
        # With echo they come unasked.
        response.pop("prompt_logprobs", None)
    for choice in response["choices"]:
        for call in choice["message"].get("tool_calls", ()):
            if _RANDOM_ID.fullmatch(call["id"]):
                call["id"] = ""
