"""``table`` as an argument: what Airflow renders of it, and what it must not touch.

Every leaf is a template, except what is letter for letter the author's: ``prompt`` and ``messages``, which are Jinja
over the columns of a row and not over a task's context, a ``chat_template``, and ``output_schema``. XComArgs are
resolved everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_llmengine.exceptions import RequestRefusedError
from airflow_llmengine.operators.request_arguments import TEMPLATE_MARKS, Verbatim, has_template

LETTER_FOR_LETTER = ("prompt", "messages", "output_schema")
"""Fields of a table that Airflow does not render."""


def protect_table(table: Any) -> Any:
    """The table with the author's own text wrapped, and a model in it as its schema. What is wrapped already stays so.

    Args:
        table: An object, its JSON text, a template or an XComArg that gives either, or None.

    Raises:
        RequestRefusedError: Its JSON text is none, or a class that is no pydantic model is its ``output_schema``.
    """
    if isinstance(table, str):
        table = _parsed(table)
    if not isinstance(table, Mapping):
        return table
    protected = dict(table)
    if isinstance(protected.get("output_schema"), type):
        protected["output_schema"] = _schema_of(protected["output_schema"])
    for name in LETTER_FOR_LETTER:
        _wrap(protected, name)
    parameters = protected.get("parameters")
    if isinstance(parameters, Mapping) and parameters.get("chat_template") is not None:
        protected["parameters"] = dict(parameters)
        _wrap(protected["parameters"], "chat_template")
    return protected


def rendered_table(rendered: Any, written: Any) -> Any:
    """The table as it is used, once Airflow has rendered it.

    What an XCom brought holds the author's text, too. A field whose template gives an empty text or ``None`` is not
    given: a column would be called so.

    Args:
        rendered: The table, rendered.
        written: What it was rendered from.
    """
    if not isinstance(rendered, Mapping):
        return rendered
    templates = {name for name, value in written.items() if has_template(value)} if isinstance(written, Mapping) else ()
    kept = {name: value for name, value in rendered.items() if not (name in templates and value in ("", "None"))}
    return protect_table(kept)


def _wrap(fields: dict[str, Any], name: str) -> None:
    value = fields.get(name)
    if value is not None and not isinstance(value, Verbatim):
        fields[name] = Verbatim(value, private=False)


def _parsed(text: str) -> Any:
    """JSON text as what it says: as a whole it would be a template, and so would the author's text in it."""
    if not text.strip() or text.lstrip().startswith(TEMPLATE_MARKS):
        return text
    from airflow_llmengine.spec.validation import RequestInvalidError, parse_json

    try:
        return parse_json(text, "the table")
    except RequestInvalidError as error:
        raise RequestRefusedError(f"The table can't be used so:\n{error}") from None


def _schema_of(model: type) -> dict[str, Any]:
    """The JSON Schema of a pydantic model: a serialized DAG can't hold the class itself."""
    schema = getattr(model, "model_json_schema", None)
    if schema is None:
        raise RequestRefusedError(
            f"table.output_schema is the class {model.__name__}, which is no pydantic model: let it be one, or give a "
            "JSON Schema."
        )
    from pydantic.errors import PydanticUserError

    try:
        made: dict[str, Any] = schema()
    except PydanticUserError as error:
        raise RequestRefusedError(
            f"table.output_schema: the model {model.__name__} has no JSON Schema ({error.message}). Leave such fields "
            "out, or give a JSON Schema."
        ) from None
    return made
