"""Structured output: which fields of a record ask for it, and what can't be right in them whatever the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.results import RecordErrorType, RecordFault
from airflow_llmengine.spec.sampling import ResponseFormatJsonSchema, ResponseFormatText

_INVALID = RecordErrorType.INVALID_RECORD

STRUCTURE_FIELDS = ("guided_choice", "guided_grammar", "guided_json", "guided_regex", "response_format")
"""Fields that may say what form the answer must have."""

BACKENDS = ("auto", "guidance", "lm-format-enforcer", "outlines", "xgrammar")
"""What ``guided_decoding_backend`` may name: vLLM's libraries for it."""

_OF_SCHEMAS = (
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "contains",
    "items",
    "oneOf",
    "prefixItems",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
)
"""Keywords of JSON Schema whose value is a schema, or a list of them."""

_OF_NAMED_SCHEMAS = ("$defs", "definitions", "patternProperties", "properties")
"""Keywords whose value has a schema under each name."""


def structure_fields(record: CompletionV2Request | ChatCompletionV2Request) -> list[str]:
    """The fields of a record that ask for structured output; ``response_format`` of type ``text`` does not."""
    return [
        name
        for name in STRUCTURE_FIELDS
        if (value := getattr(record, name)) is not None and not isinstance(value, ResponseFormatText)
    ]


def is_structured(record: CompletionV2Request | ChatCompletionV2Request) -> bool:
    """Whether the answer must have a form: one that a field names, or that of a tool call which is forced."""
    forced = isinstance(record, ChatCompletionV2Request) and record.tool_choice not in (None, "none", "auto")
    return forced or bool(structure_fields(record))


def answer_schema(record: CompletionV2Request | ChatCompletionV2Request) -> dict[str, Any] | None:
    """The JSON Schema that an answer must follow, by whichever field; None if there is none."""
    if record.guided_json is not None:
        return record.guided_json
    form = record.response_format
    return form.json_schema.schema_ if isinstance(form, ResponseFormatJsonSchema) else None


def schemas_in(schema: Any) -> Iterator[Mapping[str, Any]]:
    """A JSON Schema and all schemas that are in it."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            yield part
            waiting += [part[keyword] for keyword in _OF_SCHEMAS if keyword in part]
            for keyword in _OF_NAMED_SCHEMAS:
                named = part.get(keyword)
                if isinstance(named, dict):
                    waiting += named.values()


def structure_faults(record: CompletionV2Request | ChatCompletionV2Request) -> Iterator[RecordFault]:
    """What is wrong with the structure that a record asks for."""
    if record.guided_decoding_backend is not None and record.guided_decoding_backend not in BACKENDS:
        yield _INVALID, f"guided_decoding_backend: must be one of {', '.join(BACKENDS)}; leave it out"
    fields = structure_fields(record)
    for name in fields:
        yield from _RULES[name](record)
    if len(fields) > 1:
        yield _INVALID, f"{', '.join(fields)}: an answer can follow only one of them; give that one"
    if not fields:
        return
    # vLLM takes all of these, and then keeps to one of the two alone.
    if record.ignore_eos:
        yield _INVALID, f"ignore_eos: the text would go on after the end of {fields[0]}; give one of the two"
    if record.min_tokens:
        yield _INVALID, f"min_tokens: {fields[0]} may allow no answer that is so long; give one of the two"
    if record.max_tokens == 0 and record.echo and isinstance(record, CompletionV2Request):
        yield _INVALID, f"max_tokens: is 0, so that nothing is written that {fields[0]} could be about; give at least 1"


def _choice(record: Any) -> Iterator[RecordFault]:
    if not any(record.guided_choice):
        yield _INVALID, "guided_choice: holds nothing to choose; give the strings that the answer may be"


def _grammar(record: Any) -> Iterator[RecordFault]:
    if not record.guided_grammar.strip():
        yield _INVALID, "guided_grammar: is empty; give rules, or leave it out"


def _regex(record: Any) -> Iterator[RecordFault]:
    if not record.guided_regex:
        yield _INVALID, "guided_regex: is empty, and so would be the answer; leave it out"


def _json(record: Any) -> Iterator[RecordFault]:
    yield from _references("guided_json", record.guided_json)


def _response_format(record: Any) -> Iterator[RecordFault]:
    form = record.response_format
    if isinstance(form, ResponseFormatJsonSchema):
        if form.json_schema.schema_ is None:
            yield _INVALID, "response_format.json_schema: has no schema; give one, or ask for the type json_object"
        yield from _references("response_format.json_schema.schema", form.json_schema.schema_)


def _references(path: str, schema: Any) -> Iterator[RecordFault]:
    if any(isinstance(part.get("$ref"), str) and not part["$ref"].startswith("#") for part in schemas_in(schema)):
        yield (
            _INVALID,
            f"{path}: has a $ref to something outside of the schema, which nobody fetches; put that under $defs",
        )


_RULES: Mapping[str, Callable[[Any], Iterator[RecordFault]]] = {
    "guided_choice": _choice,
    "guided_grammar": _grammar,
    "guided_json": _json,
    "guided_regex": _regex,
    "response_format": _response_format,
}
