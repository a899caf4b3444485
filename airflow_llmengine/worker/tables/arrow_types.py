"""Types of Arrow that are made of others: what they hold, and the same with something else in it."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow
from pyarrow import types


def inner_types(kind: pyarrow.DataType) -> list[pyarrow.DataType]:
    """What a type holds directly; nothing for one that is not made of others."""
    if types.is_dictionary(kind):
        return [kind.value_type]
    return [kind.field(place).type for place in range(kind.num_fields)]


def with_inner_fields(kind: pyarrow.DataType, change: Callable[[pyarrow.Field], pyarrow.Field]) -> pyarrow.DataType:
    """A list, struct or map with each of its fields changed; any other type as it is."""
    if types.is_struct(kind):
        return pyarrow.struct([change(field) for field in kind])
    if types.is_map(kind):
        return pyarrow.map_(change(kind.key_field).type, change(kind.item_field).type)
    if types.is_list(kind):
        return pyarrow.list_(change(kind.value_field))
    if types.is_large_list(kind):
        return pyarrow.large_list(change(kind.value_field))
    if types.is_fixed_size_list(kind):
        return pyarrow.list_(change(kind.value_field), kind.list_size)
    return kind
