"""``table``: a job whose records are the rows of a table, and whose results are columns of another.

It stands beside the wire contract, as ``engine_args`` does: ``input_data_path`` is then the table, and
``output_data_path`` the one that results. What its fields mean together is ``check_table``'s business.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.output_schema import ColumnType, closed, read_columns
from airflow_llmengine.spec.validation import Refusal, RequestInvalidError, parse_json, refusals_of
from airflow_llmengine.spec.wire_model import WireModel
from airflow_llmengine.spec.wire_types import FREE_OBJECT, TEXT, TEXT_LIST, TEXT_NOT_EMPTY, Choice, map_of

TABLE = "table"

DEFAULT_COMPLETION_COLUMN = "completion"

MOST_BYTES = 2**20
"""Of a table as JSON."""

MOST_LEVELS = 128
"""Of lists and objects in one another, in a table: what reads it goes down a level for each."""

TableFormat = Literal["parquet", "csv", "tsv", "arrow", "jsonl"]
"""How a table's files are written: ``arrow`` is Arrow's IPC format (file or stream, also called Feather)."""

FORMATS: tuple[TableFormat, ...] = ("parquet", "csv", "tsv", "arrow", "jsonl")

_ENDINGS: Mapping[str, TableFormat] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}

_SAMPLE = "text"

OnNull = Literal["error", "skip", "empty"]
"""What becomes of a row whose template uses a column in which it has no value."""

_ON_NULL: tuple[OnNull, ...] = ("error", "skip", "empty")


class TableMessage(WireModel):
    """One message of the chat that a row becomes."""

    role: Annotated[str, TEXT_NOT_EMPTY]
    """Whose it is: ``system``, ``user`` ...; no template."""
    content: Annotated[str, TEXT, Field(repr=False)]
    """Jinja template of its text, over the row's columns."""


class Table(WireModel):
    """How rows become records, and results columns.

    In a template, a column is there under its name, and under ``row["its name"]`` whatever the name is.
    """

    prompt: Annotated[str | None, TEXT, Field(repr=False)] = None
    """Jinja template of a completion's prompt. Exactly one of this and ``messages``."""
    messages: list[TableMessage] | None = Field(default=None, repr=False)
    """The messages of a chat. Exactly one of this and ``prompt``."""
    parameters: Annotated[dict[str, Any], FREE_OBJECT] = Field(default_factory=dict)
    """Fields of a V2 record, such as ``max_tokens``, for all rows."""
    parameter_columns: Annotated[dict[str, str], map_of(TEXT)] = Field(default_factory=dict)
    """Fields of a V2 record by the column that has a row's value; where that is null, ``parameters`` says it."""
    on_null: Annotated[OnNull | None, Choice(_ON_NULL)] = "error"
    """A row with a null or NaN in a column that a template uses: a row error (``error``), a row without a completion
    that is not counted as failed (``skip``), or a row with an empty text there (``empty``)."""
    columns: Annotated[list[str] | None, TEXT_LIST] = None
    """The input's columns that the output keeps; null: all, an empty list: none."""
    completion_column: Annotated[str | None, TEXT_NOT_EMPTY] = None
    """Where the completion's text goes: ``completion`` by default, and with ``output_schema`` nowhere by default."""
    output_schema: Annotated[dict[str, Any] | None, FREE_OBJECT] = None
    """JSON Schema of an object, which the completion follows, and whose properties become columns."""
    error_column: Annotated[str | None, TEXT_NOT_EMPTY] = None
    """Where the message of a row's error goes; null: nowhere."""
    finish_reason_column: Annotated[str | None, TEXT_NOT_EMPTY] = None
    """Where it goes why the completion ended: ``stop``, ``length`` ...; null: nowhere."""
    prompt_tokens_column: Annotated[str | None, TEXT_NOT_EMPTY] = None
    """Where the number of the prompt's tokens goes; null: nowhere."""
    completion_tokens_column: Annotated[str | None, TEXT_NOT_EMPTY] = None
    """Where the number of the completion's tokens goes; null: nowhere."""
    input_format: Annotated[TableFormat | None, Choice(FORMATS)] = None
    """How the input's files are written; null: as the ending of their names says."""
    output_format: Annotated[TableFormat | None, Choice(FORMATS)] = None
    """How the output is written; null: as the ending of its name says, and Parquet in a directory."""
    partitioning: Annotated[Literal["hive"] | None, Choice(("hive",))] = None
    """``hive``: folders of the input named ``column=value`` are columns, and an output that is a directory has them
    too; null: they are names like others."""

    @property
    def written_completion_column(self) -> str | None:
        """The column of the completion's text; None if the output has none."""
        if self.completion_column is not None:
            return self.completion_column
        return DEFAULT_COMPLETION_COLUMN if self.output_schema is None else None

    @property
    def on_null_effective(self) -> OnNull:
        """``on_null``, or its default where it is null."""
        return self.on_null or "error"

    @property
    def made_columns(self) -> list[tuple[str, str]]:
        """The columns that the output has after the input's, in order: the field that makes each, and its name."""
        made = []
        if self.written_completion_column is not None:
            made.append(("completion_column", self.written_completion_column))
        made += [("output_schema", name) for name in self.schema_columns]
        for field in ("error_column", "finish_reason_column", "prompt_tokens_column", "completion_tokens_column"):
            if (name := getattr(self, field)) is not None:
                made.append((field, name))
        return made

    def record_form(self) -> dict[str, Any]:
        """The fields by which a row's record asks for an answer that follows ``output_schema``; none without one."""
        if self.output_schema is None:
            return {}
        form = {"name": "row", "schema": closed(self.output_schema), "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": form}}

    @property
    def record_model(self) -> type[CompletionV2Request | ChatCompletionV2Request]:
        """What the record of a row is."""
        return CompletionV2Request if self.messages is None else ChatCompletionV2Request

    def sample_text(self) -> dict[str, Any]:
        """Stands for what a template makes of a row, where the rest of a record is looked at."""
        if self.messages is None:
            return {"prompt": _SAMPLE}
        return {"messages": [{"role": message.role, "content": _SAMPLE} for message in self.messages]}

    def format_of_output(self, output_data_path: str) -> TableFormat | None:
        """How the output is written; None if neither this nor the name of its file says it."""
        in_folder: TableFormat = "parquet"
        return self.output_format or (in_folder if output_data_path.endswith("/") else format_of_name(output_data_path))

    @property
    def schema_columns(self) -> dict[str, ColumnType]:
        """The columns that ``output_schema`` makes, and their types; none without one."""
        return {} if self.output_schema is None else read_columns(self.output_schema)[0]


def format_of_name(path: str) -> TableFormat | None:
    """What the ending of a file's name says of its format; None if it says nothing."""
    return _ENDINGS.get(posixpath.splitext(path)[1].lower())


def parse_table(value: Any) -> Table | None:
    """Read a table from an object or its JSON text; None and an empty text are none at all.

    Raises:
        RequestInvalidError: With everything that is wrong, by the schema; ``check_table`` goes beyond.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, Table):
        return value
    if isinstance(value, str | bytes):
        value = parse_json(value, "the table")
    if _is_deeper(value, MOST_LEVELS):
        raise RequestInvalidError([Refusal(TABLE, f"is nested more than {MOST_LEVELS} levels deep", "make it flatter")])
    try:
        return Table.model_validate(value)
    except ValidationError as error:
        refusals = [_below_table(refusal) for refusal in refusals_of(error, Table)]
    raise RequestInvalidError(refusals)


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether there are more lists and objects in one another than so many."""
    here = [value]
    for _level in range(levels + 1):
        inner: list[Any] = []
        for part in here:
            if isinstance(part, Mapping):
                inner += part.values()
            elif isinstance(part, list | tuple):
                inner += part
        if not inner:
            return False
        here = inner
    return True


def _below_table(refusal: Refusal) -> Refusal:
    path = f"{TABLE}.{refusal.path}" if refusal.path else TABLE
    return Refusal(path, refusal.reason, refusal.remedy, refusal.error_type)
