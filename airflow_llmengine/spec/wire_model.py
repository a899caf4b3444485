"""What the models of the wire contract have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict


class WireModel(BaseModel):
    """An object of the wire contract.

    Given and defaulted are different things: ``model_fields_set`` holds the fields that were given, and what a field
    means may depend on it. An unknown field is an error. The models are frozen: a job's request does not change.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, protected_namespaces=())

    private_text: ClassVar[bool] = False
    """Whether strings in it may be the user's text, which no message and no ``repr`` shows."""

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Called by pydantic for ``repr`` and ``str``: of private text, the numbers and flags that were given."""
        for name, value in super().__repr_args__():
            shown = isinstance(value, int | float) and name in self.model_fields_set
            if shown or not self.private_text:
                yield name, value

    def given(self) -> dict[str, Any]:
        """Dump only what was given, nulls included, by wire names, as JSON-able values.

        The dump of a dump's model is equal. Lists and free objects are not copied: don't change them.
        """
        given = self.model_fields_set
        return {
            field.alias or name: _json_value(getattr(self, name))
            for name, field in type(self).model_fields.items()
            if name in given
        }

    def is_given(self, name: str) -> bool:
        """Whether the field (by its Python name) was given a value. Null means "not given"."""
        return name in self.model_fields_set and getattr(self, name) is not None

    def effective(self, name: str) -> Any:
        """The field's value (by its Python name), or its default where it is null, which means "not given"."""
        value = getattr(self, name)
        return type(self).model_fields[name].get_default(call_default_factory=True) if value is None else value


def given_fields(fields: Mapping[str, Any], model: WireModel) -> dict[str, Any]:
    """The fields that say something: null means "not given", and a default that is spelled out changes nothing."""
    defaults = {
        field.alias or name: field.get_default(call_default_factory=True)
        for name, field in type(model).model_fields.items()
        if not field.is_required()
    }
    return {
        name: value
        for name, value in fields.items()
        if value is not None and not (name in defaults and defaults[name] == value)
    }


def _json_value(value: Any) -> Any:
    if isinstance(value, WireModel):
        return value.given()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list) and value and isinstance(value[0], WireModel):
        return [item.given() for item in value]
    return value
