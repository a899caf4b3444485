"""Templates of a table's rows: the author's Jinja, over cells that are data and are never rendered themselves.

A name that is neither a column nor the template's own is refused before anything is run.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from jinja2 import Template, TemplateSyntaxError, nodes
from jinja2.exceptions import UndefinedError
from jinja2.meta import find_undeclared_variables

from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.spec.table import TABLE, Table
from airflow_llmengine.spec.wire_faults import LONGEST_SHOWN
from airflow_llmengine.worker.readers.errors import InputInvalidError
from airflow_llmengine.worker.tables.cells import Cells, NoTextError, NullUsedError
from airflow_llmengine.worker.tables.template_environment import (
    TemplateEnvironment,
    TooLargeError,
    TooMuchError,
    bounded,
)

ROW = "row"
"""The name under which a template has all cells of the row."""

_OWN = "self"
"""What a template calls itself."""

_FILENAME = "<template>"
"""What Jinja calls a template that came as text."""


_TAGS: Mapping[type[nodes.Node], str] = {
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "from",
    nodes.Extends: "extends",
}
"""What reads another template."""


class RowTemplateError(Exception):
    """A template can't be rendered for a row; the message says why, without the row's cells."""

    def __init__(self, reason: str, error_type: RecordErrorType = RecordErrorType.INVALID_RECORD) -> None:
        super().__init__(reason)
        self.error_type = error_type
        """What the row's error is called."""


class RowTemplate:
    """One template.

    Args:
        source: Its text.
        path: What messages call it, for example ``table.prompt``.
        columns: The columns of the table.

    Raises:
        InputInvalidError: It is no template, or uses what is no column.
    """

    def __init__(self, source: str, path: str, columns: Collection[str]) -> None:
        self._path = path
        tree, self._template = _read(source, path)
        uses = _Uses.find(tree, columns)
        for name in sorted(uses.names):
            if name not in columns:
                raise InputInvalidError(f"{path} uses {shown(name)}, {no_such_column(name, columns)}")
        _refuse_ambiguous(tree, path, columns)
        self.columns = frozenset(uses.names)
        """The columns that it names."""
        self.whole_row = uses.whole_row
        """Whether it uses the row as a whole, and so perhaps any column."""

    def render(self, cells: Mapping[str, Any]) -> str:
        """The text for one row.

        Args:
            cells: By column, as ``cells`` makes them.

        Raises:
            NullUsedError: It writes a null that is within a list or a struct.
            RowTemplateError: It fails on this row.
        """
        error_type = RecordErrorType.INVALID_RECORD
        _ENVIRONMENT.begin()
        try:
            return self._template.render({**cells, ROW: Cells(cells)})
        except NullUsedError:
            raise
        except NoTextError as error:
            place, reason = _line(error), f"writes {error}, which is no text"
        except TooMuchError as error:
            place, reason = _line(error), str(error)
            if isinstance(error, TooLargeError):
                error_type = RecordErrorType.RECORD_TOO_LARGE
        except UndefinedError as error:
            place, reason = _line(error), "uses a part of a cell that is not there"
        except Exception as error:  # noqa: BLE001 - it may be anything, and its message may quote a cell
            place, reason = _line(error), f"fails on it ({type(error).__name__})"
        raise RowTemplateError(f"{self._path}{place} {reason}", error_type)


def require_templates(table: Table) -> None:
    """Make sure, whatever the columns are, that a table's templates can be read.

    Raises:
        InputInvalidError: One can't.
    """
    for path, source in template_sources(table):
        _read(source, path)


def template_sources(table: Table) -> list[tuple[str, str]]:
    """The templates of a prompt or of messages, each with what messages call it."""
    if table.messages is None:
        return [(f"{TABLE}.prompt", table.prompt or "")]
    return [(f"{TABLE}.messages[{place}].content", message.content) for place, message in enumerate(table.messages)]


def _read(source: str, path: str) -> tuple[nodes.Template, Template]:
    """A template's tree, in which no name is Jinja's own, and the template."""
    try:
        tree = _WITHOUT_GLOBALS.parse(source)
        template: Template = _ENVIRONMENT.from_string(bounded(_ENVIRONMENT.parse(source), _ENVIRONMENT))
    except TemplateSyntaxError as error:
        raise InputInvalidError(f"{path} is no template: line {error.lineno}: {error.message}") from None
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        # Of the Python that Jinja makes of it, which has limits of its own.
        raise InputInvalidError(
            f"{path} is no template that can be run: it is nested too deeply, or has a number of thousands of digits"
        ) from None
    other = next(tree.find_all(tuple(_TAGS)), None)
    if other is not None:
        raise InputInvalidError(
            f"{path} has {{% {_TAGS[type(other)]} %}}, and there are no other templates: write it out"
        )
    return tree, template


def shown(name: str) -> str:
    """A name in a message."""
    return ascii(name if len(name) <= LONGEST_SHOWN else name[:LONGEST_SHOWN] + "...")


def no_such_column(name: str, columns: Collection[str]) -> str:
    """The end of a sentence about a name that is no column, with the name that is probably meant."""
    near = get_close_matches(name, columns, n=1)
    if near:
        return f"which is no column of the input: did you mean {shown(near[0])}?"
    known = ", ".join(map(shown, list(columns)[:20])) + (", ..." if len(columns) > 20 else "")
    return f"which is no column of the input; it has {known or 'none'}."


def _refuse_ambiguous(tree: nodes.Template, path: str, columns: Collection[str]) -> None:
    """Refuse names that mean something else in Jinja than the columns of these names."""
    found: dict[str, str] = {}
    for node in tree.find_all(nodes.Name):
        # Jinja makes Python of a template, and Python spells names in this form.
        other = found.setdefault(unicodedata.normalize("NFKC", node.name), node.name)
        if other != node.name:
            raise InputInvalidError(
                f"{path} uses {shown(other)} and {shown(node.name)}, which Jinja takes for one name: write "
                f"row[{shown(node.name)}]"
            )
        if node.name == _OWN and _OWN in columns:
            raise InputInvalidError(f"{path} uses {_OWN}, which is the template itself: write row['{_OWN}']")


@dataclass
class _Uses:
    """What a template uses, as its text alone tells."""

    names: set[str]
    whole_row: bool

    @classmethod
    def find(cls, tree: nodes.Template, columns: Collection[str]) -> _Uses:
        undeclared = find_undeclared_variables(tree)
        names = {name for name in undeclared - {ROW} if name in columns or name not in _ENVIRONMENT.globals}
        whole_row = False
        if ROW in undeclared:
            named = 0
            for node in tree.find_all((nodes.Getattr, nodes.Getitem)):
                name = _cell_of_row(node)
                if name is not None:
                    names.add(name)
                    named += 1
            whole_row = named < sum(node.name == ROW for node in tree.find_all(nodes.Name))
        return cls(names, whole_row)


def _cell_of_row(node: nodes.Node) -> str | None:
    """The column in ``row.column`` or ``row["column"]``."""
    if not isinstance(node, nodes.Getattr | nodes.Getitem) or not isinstance(node.node, nodes.Name):
        return None
    if node.node.name != ROW:
        return None
    if isinstance(node, nodes.Getattr):
        return node.attr
    return node.arg.value if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str) else None


def _line(error: Exception) -> str:
    """In which line of its template an exception was raised, as the end of a path; nothing where that is not known."""
    line = 0
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == _FILENAME:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return f" (line {line})" if line else ""


_ENVIRONMENT = TemplateEnvironment()

_WITHOUT_GLOBALS = TemplateEnvironment()
"""Jinja says of a name that is one of its own only that it is declared; it may be a column all the same."""
_WITHOUT_GLOBALS.globals.clear()
