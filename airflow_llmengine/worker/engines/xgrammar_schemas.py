"""What xgrammar, with which vLLM enforces JSON Schemas by default, takes no notice of, and does not say so.

Found by trying each keyword: what is named here lets any answer pass, or any with which another keyword is content.
What xgrammar refuses, vLLM tells of by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_llmengine.spec.structured_output import schemas_in

_NEVER = (
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "if",
    "not",
    "uniqueItems",
)

_ALONE = ("$ref", "allOf", "anyOf", "oneOf")
"""Beside one of these, what else a schema demands is left out."""

_OF_ONE_VALUE = frozenset({"const", "enum"})
"""These are looked at before all others."""

_OF_NUMBERS = frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf"})
_OF_STRINGS = frozenset({"format", "maxLength", "minLength", "pattern"})
_OF_ARRAYS = frozenset({"maxItems", "minItems"})
_OF_OBJECTS = frozenset({"maxProperties", "minProperties", "patternProperties", "propertyNames", "required"})
_SHOW_AN_ARRAY = frozenset({"items", "prefixItems"})
_SHOW_AN_OBJECT = frozenset({"properties"})
_DEMANDS = (
    _OF_NUMBERS | _OF_STRINGS | _OF_ARRAYS | _OF_OBJECTS | _SHOW_AN_ARRAY | _SHOW_AN_OBJECT | {"additionalProperties"}
)

_LOOK_AROUND = re.compile(r"\(\?<?[=!]")


def not_enforced(schema: Mapping[str, Any]) -> set[str]:
    """The demands of a schema that xgrammar leaves out, each in a few words: keywords, and nothing of the user's."""
    return {words for part in schemas_in(schema) for words in _left_out(part)}


def _left_out(part: Mapping[str, Any]) -> Iterator[str]:
    yield from (keyword for keyword in _NEVER if part.get(keyword, False) is not False)
    reference = part.get("$ref")
    if isinstance(reference, str) and reference != "#" and not reference.startswith("#/"):
        yield "a $ref that is no path from the root (#/...)"
    if _LOOK_AROUND.search(str(part.get("pattern", ""))):
        yield "look-around in a pattern"
    if "format" in part and "pattern" in part:
        yield "pattern beside format"
    if _OF_ONE_VALUE & part.keys():
        return
    combining = [keyword for keyword in _ALONE if keyword in part]
    if combining:
        yield from (f"{keyword} beside {combining[0]}" for keyword in _DEMANDS & part.keys())
        yield from (f"{keyword} beside {combining[0]}" for keyword in combining[1:])
    elif "type" not in part:
        demands = _OF_NUMBERS | _OF_STRINGS
        if not _SHOW_AN_ARRAY & part.keys():
            demands |= _OF_ARRAYS
        if not _SHOW_AN_OBJECT & part.keys():
            demands |= _OF_OBJECTS
        yield from (f"{keyword} without type" for keyword in demands & part.keys())
