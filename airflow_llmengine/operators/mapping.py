"""Dynamic task mapping of an operator whose arguments hold the user's text.

Airflow writes what ``partial()`` and ``expand()`` are given into the serialized DAG. So the text is wrapped before
Airflow sees it, as the operator's own constructor does for a task that is not mapped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.definitions.mappedoperator import OperatorPartial

from airflow_llmengine.operators.request_arguments import REQUEST_FIELDS, GatheredRequest, protect
from airflow_llmengine.operators.table_argument import protect_table

if TYPE_CHECKING:
    from airflow.sdk.definitions._internal.expandinput import OperatorExpandArgument, OperatorExpandKwargsArgument
    from airflow.sdk.definitions.mappedoperator import MappedOperator


class VerbatimPartial(OperatorPartial):
    """What ``partial()`` gives: wraps the user's text in what the operator is then expanded over."""

    @classmethod
    def of(cls, partial: OperatorPartial) -> VerbatimPartial:
        """The same partial, wrapping."""
        # Airflow warns of a partial that nobody expands; this one is taken over.
        partial._expand_called = True  # noqa: SLF001
        return cls(operator_class=partial.operator_class, kwargs=partial.kwargs, params=partial.params)

    def expand(self, **mapped_kwargs: OperatorExpandArgument) -> MappedOperator:
        """Map over literal lists and XComs."""
        shared = self.kwargs.get("request")
        twice = sorted(mapped_kwargs.keys() & shared.keys()) if isinstance(shared, Mapping) else []
        if twice:
            self._expand_called = True
            raise TypeError(f"{', '.join(twice)} was given to partial() already, and can't be mapped over too")
        return super().expand(**{name: _protect_each(name, values) for name, values in mapped_kwargs.items()})

    def expand_kwargs(self, kwargs: OperatorExpandKwargsArgument, *, strict: bool = True) -> MappedOperator:
        """Map over a literal list of arguments, or an XCom."""
        if isinstance(kwargs, Sequence):
            kwargs = [_protect_arguments(item) if isinstance(item, Mapping) else item for item in kwargs]
        return super().expand_kwargs(kwargs, strict=strict)


def gather(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments of ``partial()`` with the request's fields gathered in one, their text wrapped.

    Gathered, because Airflow makes the tasks whose XComs a field holds upstream of this one only if the field is a
    template field, and ``request`` is.
    """
    fields = {name: arguments.pop(name) for name in REQUEST_FIELDS if name in arguments}
    if "table" in arguments:
        arguments["table"] = protect_table(arguments["table"])
    if "request" in arguments:
        if fields:
            raise TypeError(f"request and {', '.join(fields)} were both given: give the one or the others")
        if isinstance(arguments["request"], Mapping):
            arguments["request"] = protect(arguments["request"])
    elif fields:
        arguments["request"] = GatheredRequest(protect(fields))
    return arguments


def _protect_each(name: str, values: Any) -> Any:
    if isinstance(values, list | tuple):
        return [_protect_arguments({name: value})[name] for value in values]
    return values


def _protect_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    protected = protect(arguments)
    if isinstance(protected.get("request"), Mapping):
        protected["request"] = protect(protected["request"])
    if "table" in protected:
        protected["table"] = protect_table(protected["table"])
    return protected
