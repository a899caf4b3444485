"""From a row to the record that a V2 input would have: a prompt or a chat, and sampling parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from airflow_llmengine.spec.results import RecordError, RecordErrorType
from airflow_llmengine.spec.table import Table
from airflow_llmengine.worker.readers.limits import MAX_RECORD_BYTES
from airflow_llmengine.worker.readers.values import ValueRefusedError, load_value
from airflow_llmengine.worker.records import RawRecord
from airflow_llmengine.worker.tables.cells import (
    EmptyNull,
    InnerNull,
    NoTextError,
    NullToTell,
    NullUsedError,
    as_parameter,
    is_null,
    nested,
)
from airflow_llmengine.worker.tables.row_files import Row, RowFault
from airflow_llmengine.worker.tables.row_templates import RowTemplate, RowTemplateError, shown, template_sources

_ON_NULL = "give table.on_null skip or empty, or fill it in"


class _RowError(Exception):
    def __init__(self, error_type: RecordErrorType, reason: str) -> None:
        super().__init__(reason)
        self.error_type = error_type
        self.reason = reason


class RowRecords:
    """Makes the records of one table.

    Args:
        table: How.
        columns: All columns of the input.

    Raises:
        InputInvalidError: A template is none, or names a column that is not there.
    """

    def __init__(self, table: Table, columns: Sequence[str]) -> None:
        self._table = table
        self._templates: list[RowTemplate] = []
        self._fill = self._filler(columns)
        self._same = {name: value for name, value in table.parameters.items() if value is not None}
        self._same.update(table.record_form())
        self._no_text = {parameter for parameter in table.parameter_columns if not _may_be_text(table, parameter)}
        """Parameters that are never text: of a column of text, such as one of CSV, they are what that spells."""
        self._on_null = table.on_null_effective
        self._null: InnerNull = EmptyNull() if self._on_null == "empty" else NullToTell()
        self.named_columns = sorted(frozenset().union(*(template.columns for template in self._templates)))
        """The columns that templates name: of a row without a value in one of them, ``on_null`` says what becomes."""
        whole_row = any(template.whole_row for template in self._templates)
        self._cells = list(columns) if whole_row else self.named_columns
        wanted = {*self._cells, *table.parameter_columns.values()}
        self.columns = [name for name in columns if name in wanted]
        """The columns that are read, in the input's order."""

    def record(self, index: int, location: str, row: Row | RowFault) -> RawRecord:
        """The record of one row, or the error that stands in its place.

        Args:
            index: The row's place in the whole input, from 0.
            location: Where a person finds it.
            row: Its cells of ``columns``.
        """
        if isinstance(row, RowFault):
            return _refused(index, location, row.error_type, row.reason)
        missing = next((name for name in self.named_columns if is_null(row.cells[name])), None)
        if missing is not None and self._on_null != "empty":
            return self._without_value(index, location, f"the column {shown(missing)}, which a template uses, is null")
        try:
            text = self._fill({name: self._cell(name, row.cells[name]) for name in self._cells})
            value = {**self._same, **self._parameters(row.cells), **text}
        except NullUsedError:
            return self._without_value(index, location, "a template uses a part of a cell that is null")
        except RowTemplateError as error:
            return _refused(index, location, error.error_type, str(error))
        except _RowError as error:
            return _refused(index, location, error.error_type, error.reason)
        try:
            size = _bytes_of(text)
        except UnicodeEncodeError:
            # Of cells it can't come: a template may write any character.
            reason = "a template makes one half of a surrogate pair, which is no text"
            return _refused(index, location, RecordErrorType.INVALID_UNICODE, reason)
        if size > MAX_RECORD_BYTES:
            reason = f"its prompt takes {size} bytes, and a record may take {MAX_RECORD_BYTES} at most"
            return _refused(index, location, RecordErrorType.RECORD_TOO_LARGE, reason)
        return RawRecord(index=index, location=location, value=value, size=size)

    def _filler(self, columns: Sequence[str]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """What makes a row's prompt or messages."""
        table = self._table
        templates = [RowTemplate(source, path, columns) for path, source in template_sources(table)]
        self._templates += templates
        if table.messages is None:
            return lambda cells: {"prompt": templates[0].render(cells)}
        contents = [(message.role, content) for message, content in zip(table.messages, templates, strict=True)]
        return lambda cells: {
            "messages": [{"role": role, "content": content.render(cells)} for role, content in contents]
        }

    def _cell(self, name: str, value: Any) -> Any:
        if is_null(value):
            return "" if name in self.named_columns else self._null
        return nested(value, self._null) if isinstance(value, dict | list) else value

    def _parameters(self, cells: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for parameter, column in self._table.parameter_columns.items():
            if is_null(cells[column]):
                continue
            try:
                value = as_parameter(cells[column])
                found[parameter] = _spelt(value) if isinstance(value, str) and parameter in self._no_text else value
            except NoTextError as error:
                raise _RowError(
                    RecordErrorType.INVALID_RECORD,
                    f"{parameter}: the column {shown(column)} holds {error}, which no parameter can be",
                ) from None
        return found

    def _without_value(self, index: int, location: str, reason: str) -> RawRecord:
        if self._on_null == "skip":
            return RawRecord(index=index, location=location, value=None, size=0, skipped=True)
        return _refused(index, location, RecordErrorType.INVALID_RECORD, f"{reason}; {_ON_NULL}")


def _may_be_text(table: Table, parameter: str) -> bool:
    """Whether a field of a record takes any text."""
    try:
        table.record_model.model_validate({**table.sample_text(), parameter: "text"})
    except ValidationError as error:
        return all(fault["loc"][:1] != (parameter,) for fault in error.errors())
    return True


def _spelt(text: str) -> Any:
    """The number, or whatever JSON it is, that a text spells; the text itself if it is none."""
    try:
        return load_value(text.encode())
    except ValueRefusedError:
        return text


def _refused(index: int, location: str, error_type: RecordErrorType, reason: str) -> RawRecord:
    # Chunks are cut by sizes, and must be cut alike whatever reads the file: so it is that of a prompt, or none.
    error = RecordError(type=error_type, message=f"{location}: {reason}", index=index)
    return RawRecord(index=index, location=location, value=None, size=0, error=error)


def _bytes_of(text: Mapping[str, Any]) -> int:
    texts = [text["prompt"]] if "prompt" in text else [message["content"] for message in text["messages"]]
    return sum(len(part.encode()) for part in texts)
