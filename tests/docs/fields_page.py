"""docs/fields.md: every field of the contract, made from the models and from the tables of what becomes of each.

A field's meaning is the docstring below it, which is read from the source: Python keeps none of them.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from pydantic.fields import FieldInfo

from airflow_llmengine.spec import engine_fields, record_fields
from airflow_llmengine.spec.batch_line import BatchLine
from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.embedding import EmbeddingRequest
from airflow_llmengine.spec.engine_fields import FIELD_OF, EngineField
from airflow_llmengine.spec.record_fields import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    CONTENT_FIELDS,
    EMBEDDING_FIELDS,
    FROM_THE_GENERATION_CONFIG,
    RERANK_FIELDS,
    SCORE_FIELDS,
    RecordField,
)
from airflow_llmengine.spec.request import (
    CreateBatchCompletionsV1ModelConfig,
    CreateBatchCompletionsV1Request,
    CreateBatchCompletionsV1RequestContent,
    ToolConfig,
)
from airflow_llmengine.spec.sampling import JsonSchema, SamplingFields
from airflow_llmengine.spec.scoring import PAIRS, RerankRequest, ScoreRequest
from airflow_llmengine.spec.table import Table, TableMessage
from airflow_llmengine.spec.wire_model import WireModel
from airflow_llmengine.spec.wire_types import Choice, WireType
from tests.docs.pages import DOCS

PAGE = DOCS / "fields.md"

_WIRE_NAME = " On the wire "
"""How a docstring goes on that tells why the Python name is another."""

_NAME = re.compile(r"(?<![\w#])[a-z]+(?:_[a-z0-9]+)+(?!\w|\.md)")

_HEAD = """\
# Every field

Made by `tests/docs/test_fields_page.py` from the code that reads the fields; `make docs` writes it anew.

No field is accepted and then ignored. It takes effect as its row says, or it is refused: a field of the job or of the
model before anything is launched, a field of a record by an error in the record's place. An unknown field is refused in
the same way, and a message names the nearest known one.

A field that may be null is one that was not given when it is. Numbers and booleans may be written as strings (`"4"`,
`"true"`), as Airflow renders templates.
"""

JOB = {
    "input_data_path": "read by the workers, a folder or prefix at any depth: [The request](request.md#input)",
    "output_data_path": "JSON lines if it ends in `.jsonl`, else one JSON array: [The request](request.md#output)",
    "labels": "labels of pods, secrets and whatever else a job has in Kubernetes",
    "data_parallelism": "workers, each with a pod or process of its own: [Task group](task_group.md)",
    "max_runtime_sec": "one budget, also over retries: [Retries](retries.md)",
    "priority": "`priorityClassName` of the pods, and with Kueue of the workload",
    "tool_config": "[below](#tool_config)",
    "cpus": "`requests` and `limits` of each worker's container: [Sizing](sizing.md)",
    "gpus": "the resource of the GPU platform in each worker's container: [Sizing](sizing.md)",
    "memory": "`requests` and `limits` of each worker's container: [Sizing](sizing.md)",
    "gpu_type": "node labels and the resource's name: [GPU platforms](gpu_platforms.md)",
    "storage": "`ephemeral-storage` of each worker's container",
    "nodes_per_worker": "pods of one replica, one if it is not given: [Replicas on several nodes](multi_node.md)",
    "content": "[below](#content)",
    "model_config": "[below](#model_config)",
}
"""What becomes of the job's own fields."""

JSON_SCHEMA = {
    "name": "passed on",
    "description": "passed on",
    "schema": "the answer follows it",
    "strict": "nothing: the answer always follows the schema to the letter",
}
"""What becomes of the fields below ``response_format.json_schema``."""

TOOL = {
    "name": "`code_evaluator`, and nothing else: [Code that runs while the model writes](code_evaluator.md)",
    "max_iterations": "at least 1; after that the model writes on without",
    "execution_timeout_seconds": "at least 1; the error of a longer run stands in the output's place",
    "should_retry_on_error": "one interpreter for all blocks of a completion, or a new one for each",
}
"""What becomes of a tool's fields."""

SCORES = (
    "The body of a line for `/v1/score`. One pair of sides is required: "
    + ", ".join(f"`{first}` with `{second}`" for first, second in PAIRS)
    + "."
)
"""What is said of a score before its table."""

TABLE = {
    "prompt": "`prompt` of the record of each row: [Templates](tables.md#templates)",
    "messages": "`messages` of the record of each row: [Templates](tables.md#templates)",
    "parameters": "fields of the record of each row, as in [Completions and chats](#completions-and-chats); refused "
    "are those whose results have no column, and what the table says by itself",
    "parameter_columns": "fields of a row's record; a value that the field can't have is the row's error",
    "on_null": "[Rows without a value](tables.md#rows-without-a-value)",
    "columns": "what is read of the input where the output is put together; their types and order are the input's",
    "completion_column": "a column of text",
    "output_schema": "`response_format` of the record of each row, with all properties required and no others allowed; "
    "columns: [Typed columns](tables.md#typed-columns)",
    "error_column": "a column of text: type and message; null where there is none",
    "finish_reason_column": "a column of text",
    "prompt_tokens_column": "a column of 64-bit integers",
    "completion_tokens_column": "a column of 64-bit integers",
    "input_format": "[The input](tables.md#the-input)",
    "output_format": "[The output](tables.md#the-output)",
    "partitioning": "[Partitions](tables.md#partitions)",
}
"""What becomes of a table's fields."""

MESSAGE = {
    "role": "`role` of the message",
    "content": "`content` of the message",
}
"""What becomes of the fields of a table's message."""

LINE = {
    "custom_id": "`custom_id` of the result line",
    "method": "nothing is sent: the engine is asked in the worker's own process",
    "url": "decides which of the tables on this page the body is read by",
    "body": "a record",
}
"""What becomes of the fields of a batch file's line."""


@dataclass(frozen=True, slots=True)
class Section:
    """One table."""

    heading: str
    text: str
    model: type[WireModel]
    becomes: Callable[[str], str]
    """From a field's wire name to the last cell of its row."""
    meaning: Callable[[str], str | None] = lambda _name: None
    """From a field's wire name to its meaning, where another place than its docstring says more."""
    without: frozenset[str] = frozenset()
    """Fields that another table has."""
    generation_config: Mapping[str, RecordField] = field(default_factory=dict)
    """Fields among which the model's generation config decides some."""


def of(sentences: Mapping[str, str]) -> Callable[[str], str]:
    """What the sentences say."""
    return sentences.__getitem__


def of_engine(name: str) -> str:
    """What becomes of a field of ``model_config``."""
    known = FIELD_OF[name]
    if known.becomes is engine_fields.Becomes.REFUSED:
        return f"**refused**: {known.sentence}. Instead: {known.remedy}"
    sentence = "" if _is_same(known) else known.sentence
    return ": ".join(filter(None, (f"`{known.argument}`" if known.argument else "", sentence)))


def meaning_of_engine(name: str) -> str | None:
    """What the table of engine fields says of a field that becomes the argument of the same name."""
    return _sentence(FIELD_OF[name].sentence) if _is_same(FIELD_OF[name]) else None


def _is_same(known: EngineField) -> bool:
    return known.becomes is engine_fields.Becomes.ARGUMENT and not known.is_renamed


def of_record(fields: Mapping[str, RecordField]) -> Callable[[str], str]:
    """What becomes of a record's fields."""

    def becomes(name: str) -> str:
        known = fields[name]
        if known.becomes is record_fields.Becomes.REFUSED:
            return f"**error**: {known.sentence}"
        return ": ".join(filter(None, (f"`{known.field}`" if known.field else "", known.sentence)))

    return becomes


SECTIONS = (
    Section("The job", "", CreateBatchCompletionsV1Request, of(JOB)),
    Section(
        "model_config",
        "The last column is the argument of `vllm serve`. What is not given is not passed: vLLM's own default stands. "
        "`llmengine-batch` and the operator take any other argument of vLLM's in `engine_args`.",
        CreateBatchCompletionsV1ModelConfig,
        of_engine,
        meaning_of_engine,
    ),
    Section(
        "content",
        "V1: prompts in the request, or in a file that is one such object. The last column is the field of vLLM's "
        "completion request.",
        CreateBatchCompletionsV1RequestContent,
        of_record(CONTENT_FIELDS),
        generation_config=CONTENT_FIELDS,
    ),
    Section("tool_config", "V1 only.", ToolConfig, of(TOOL)),
    Section(
        "Completions and chats",
        "What both kinds of V2 records have. Here and below, the last column is the field of vLLM's own request. *The "
        "model's* default is that of its `generation_config.json`, as with `vllm serve`.",
        SamplingFields,
        of_record(COMPLETION_FIELDS),
        generation_config=COMPLETION_FIELDS,
    ),
    Section(
        "json_schema",
        "In a `response_format` whose `type` is `json_schema`.",
        JsonSchema,
        of(JSON_SCHEMA),
    ),
    Section(
        "Completions",
        "And what a record with `prompt` has besides.",
        CompletionV2Request,
        of_record(COMPLETION_FIELDS),
        without=frozenset(SamplingFields.model_fields),
    ),
    Section(
        "Chats",
        "And what a record with `messages` has besides.",
        ChatCompletionV2Request,
        of_record(CHAT_FIELDS),
        without=frozenset(SamplingFields.model_fields),
        generation_config=CHAT_FIELDS,
    ),
    Section(
        "table",
        "No part of the request, but an argument beside it: [Tables](tables.md).",
        Table,
        of(TABLE),
    ),
    Section("Messages of a table", "In `messages` of a table.", TableMessage, of(MESSAGE)),
    Section("Lines of an OpenAI batch file", "", BatchLine, of(LINE)),
    Section("Embeddings", "The body of a line for `/v1/embeddings`.", EmbeddingRequest, of_record(EMBEDDING_FIELDS)),
    Section("Scores", SCORES, ScoreRequest, of_record(SCORE_FIELDS)),
    Section("Rerankings", "The body of a line for `/v1/rerank`.", RerankRequest, of_record(RERANK_FIELDS)),
)


def page() -> str:
    """The page, as the code says now."""
    return "\n".join([_HEAD, *(block for section in SECTIONS for block in _section(section))])


def wire_fields(section: Section) -> dict[str, FieldInfo]:
    """The fields of a table, by their names on the wire."""
    return {
        info.alias or name: info for name, info in section.model.model_fields.items() if name not in section.without
    }


def _section(section: Section) -> Iterator[str]:
    yield f"## {section.heading}\n"
    if section.text:
        yield textwrap.fill(section.text, 120, break_long_words=False, break_on_hyphens=False) + "\n"
    yield "| field | meaning | may be | default | becomes |\n|---|---|---|---|---|"
    meanings = _meanings(section.model)
    for name, info in wire_fields(section).items():
        meaning = section.meaning(name) or meanings[name].partition(_WIRE_NAME)[0]
        cells = (
            f"`{name}`",
            _as_markdown(meaning),
            _as_markdown(_type(info)),
            _default(name, info, section),
            _as_markdown(section.becomes(name)),
        )
        yield "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
    yield ""


def _meanings(model: type[WireModel]) -> dict[str, str]:
    """The first paragraph of the docstring below each field, of the class and of those that it builds on."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, WireModel) and base is not WireModel:
            found |= dict(_docstrings(base))
    names = {name: info.alias or name for name, info in model.model_fields.items()}
    return {names[name]: text for name, text in found.items() if name in names}


def _docstrings(model: type[WireModel]) -> Iterator[tuple[str, str]]:
    (definition,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(definition, ast.ClassDef)
    for line, below in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(below, ast.Expr):
            text = ast.literal_eval(below.value)
            yield line.target.id, " ".join(text.partition("\n\n")[0].split())


def _type(info: FieldInfo) -> str:
    """What a value may be, in the words of the message that refuses another."""
    if list[TableMessage] in get_args(info.annotation):
        return "a list of objects"
    for read in info.metadata:
        if isinstance(read, Choice):
            return ("one of " if len(read.values) > 1 else "") + ", ".join(f"`{value}`" for value in read.values)
        if isinstance(read, WireType):
            return _expected(read.schema)
    return "an object"


def _expected(schema: Any) -> str:
    if schema["type"] == "dict":
        return f"an object; each value {_expected(schema['values_schema'])}"
    if schema["type"] == "custom-error":
        return str(schema["custom_error_context"]["expected"])
    return _expected(schema["schema"])


def _default(name: str, info: FieldInfo, section: Section) -> str:
    if info.is_required():
        return "required"
    value = info.get_default(call_default_factory=True)
    written = "" if value in (None, {}) else f"`{json.dumps(value)}`"
    if name in section.generation_config and section.generation_config[name].field in FROM_THE_GENERATION_CONFIG:
        return f"the model's, else {written}" if written else "the model's"
    return written


def _as_markdown(text: str) -> str:
    """Names of fields and arguments in the marks of code, where they are not yet; links are left alone."""
    parts = text.replace("``", "`").split("`")
    # What is between marks has an odd place.
    parts[::2] = [_NAME.sub(r"`\g<0>`", part) for part in parts[::2]]
    return "".join(part if place % 2 == 0 else f"`{part}`" for place, part in enumerate(parts))


def _sentence(clause: str) -> str:
    return f"{clause[0].upper()}{clause[1:]}."
