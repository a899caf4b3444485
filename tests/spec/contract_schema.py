"""The contract's two schemas, and a judge that knows how the models differ from them on purpose.

Nothing here looks at the models: the judge is jsonschema with the contract's differences written as schemas.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
from hypothesis import strategies as st
from hypothesis_jsonschema import from_schema

Schema = dict[str, Any]

_FOLDER = Path(__file__).with_name("schemas")
REQUEST: Schema = json.loads((_FOLDER / "create_batch_completions_v1_request.schema.json").read_text())
COMPLETION: Schema = json.loads((_FOLDER / "completion_v2_request.schema.json").read_text())

_SCALARS = ("integer", "number", "boolean")
ABSENT = object()


def _is_finite_number(checker: Any, value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _reads_as(validator: Any, schema: Schema, value: Any, _: Schema) -> Iterator[jsonschema.ValidationError]:
    parsed = parsed_canonical(value)
    if parsed is ABSENT or not validator.evolve(schema=schema).is_valid(parsed):
        yield jsonschema.ValidationError("not the canonical string of such a value")


def parsed_canonical(value: Any) -> Any:
    """The number or boolean that a string spells as JSON or Python print it; ABSENT for any other value."""
    if not isinstance(value, str):
        return ABSENT
    if value in ("true", "True", "false", "False"):
        return value.lower() == "true"
    try:
        parsed = json.loads(value, parse_constant=lambda name: ABSENT)
    except ValueError:
        return ABSENT
    if isinstance(parsed, bool) or not isinstance(parsed, int | float) or json.dumps(parsed) != value:
        return ABSENT
    return parsed


_Judge = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    validators={"readsAs": _reads_as},
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("number", _is_finite_number),
)


class Contract:
    """One schema, and what the models must make of a value."""

    def __init__(self, schema: Schema, *, optional: tuple[str, ...] = ()) -> None:
        """``optional``: fields that the schema requires and the models don't."""
        self.schema = schema
        self.exact = _Judge(schema)
        required = [name for name in schema["required"] if name not in optional]
        self._differing = _Judge({**_with_differences(schema), "required": required})
        self.optional = optional

    def accepts(self, value: Any) -> bool:
        """Whether the model must take the value."""
        return is_interchangeable_json(value) and self._differing.is_valid(value)

    def meaning(self, value: Any) -> Any:
        """What an accepted value means, defaults filled in: what a dump of the whole model must equal."""
        return self._meaning(self.schema, value)

    def _meaning(self, schema: Schema, value: Any) -> Any:
        schema = self.resolved(schema)
        if "anyOf" in schema:
            branches = schema["anyOf"]
            exact = [branch for branch in branches if self.exact.evolve(schema=self.closed(branch)).is_valid(value)]
            fitting = [
                branch
                for branch in branches
                if self._differing.evolve(schema=_with_differences(branch)).is_valid(value)
            ]
            return self._meaning((exact or fitting)[0], value)
        if value is None or (isinstance(value, str) and schema.get("type") not in _SCALARS):
            return value
        if isinstance(value, str):
            return parsed_canonical(value)
        if isinstance(value, list):
            return [self._meaning(schema["items"], item) for item in value]
        if isinstance(value, dict):
            return self._object_meaning(schema, value)
        return value

    def _object_meaning(self, schema: Schema, value: dict[str, Any]) -> dict[str, Any]:
        additional = schema.get("additionalProperties")
        if additional is True:
            return value
        if additional is not None:
            return {key: self._meaning(additional, item) for key, item in value.items()}
        return {
            name: self._meaning(field, value[name]) if name in value else field.get("default")
            for name, field in schema["properties"].items()
        }

    def resolved(self, schema: Schema) -> Schema:
        """The schema that a reference leads to."""
        while "$ref" in schema:
            schema = self.schema["$defs"][schema["$ref"].rpartition("/")[2]]
        return schema

    def closed(self, schema: Schema) -> Schema:
        """The schema without unknown fields at its top."""
        schema = self.resolved(schema)
        known = "properties" in schema and "additionalProperties" not in schema
        return {**schema, "additionalProperties": False} if known else schema

    def instances(self) -> st.SearchStrategy[Any]:
        """Values that the schema accepts, with known fields only, any of them given or not."""
        return self._instances(self.schema)

    def _instances(self, schema: Schema) -> st.SearchStrategy[Any]:
        schema = self.resolved(schema)
        if "anyOf" in schema:
            return st.one_of([self._instances(branch) for branch in schema["anyOf"]])
        if "properties" in schema and "additionalProperties" not in schema:
            fields = {name: self._instances(field) for name, field in schema["properties"].items()}
            required = set(schema.get("required", ())) - set(self.optional if schema is self.schema else ())
            optional = {name: field for name, field in fields.items() if name not in required}
            return (
                st.sets(st.sampled_from(sorted(optional)), max_size=8).flatmap(
                    lambda names: st.fixed_dictionaries(
                        {name: fields[name] for name in [*sorted(required), *sorted(names)]}
                    )
                )
                if optional
                else st.fixed_dictionaries(fields)
            )
        return from_a_copy({**schema, "$defs": self.schema["$defs"]})

    def edges(self) -> Iterator[Any]:
        """For every field at every level: a small object that has it at each of its bounds, around them, and wrong."""
        return self._edges(self.schema)

    def _edges(self, schema: Schema) -> Iterator[Any]:
        schema = self.resolved(schema)
        least = self._least(schema)
        yield least
        for name, field in schema["properties"].items():
            yield {other: value for other, value in least.items() if other != name}
            for branch in self._branches(field):
                for value in [None, True, 1, 1.0, 1.5, "", "1", "true", [], ["a"], {}, {"a": 1}, *_around(branch)]:
                    yield {**least, name: value}
                if branch.get("properties"):
                    for value in self._edges(branch):
                        yield {**least, name: value}

    def _branches(self, schema: Schema) -> list[Schema]:
        schema = self.resolved(schema)
        return [
            leaf
            for branch in schema.get("anyOf", [schema])
            for leaf in (self._branches(branch) if branch != schema else [schema])
        ]

    def _least(self, schema: Schema) -> Any:
        """The smallest value that a schema accepts, or nearly so."""
        branch = self._branches(schema)[0]
        if "const" in branch:
            return branch["const"]
        if branch["type"] == "object":
            return {name: self._least(branch["properties"][name]) for name in branch.get("required", ())}
        return {"string": "x", "array": [], "boolean": False}.get(branch["type"], branch.get("minimum", 0))

    def field_names(self) -> list[str]:
        """Every name that a field has anywhere."""
        schemas = [self.schema, *self.schema["$defs"].values()]
        return sorted({name for schema in schemas for name in schema.get("properties", ())})


def from_a_copy(schema: Schema) -> st.SearchStrategy[Any]:
    """What hypothesis-jsonschema makes of a schema. It changes the schema that it is given."""
    return from_schema(deepcopy(schema))


def _with_differences(schema: Any) -> Any:
    """A schema that also takes canonical strings, and takes no unknown fields."""
    if isinstance(schema, list):
        return [_with_differences(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") in _SCALARS:
        return {"anyOf": [schema, {"readsAs": schema}]}
    changed = {key: value if key in ("default", "enum") else _with_differences(value) for key, value in schema.items()}
    if schema.get("type") == "object" and "additionalProperties" not in schema:
        changed["properties"] = {name: _with_differences(field) for name, field in schema["properties"].items()}
        changed["additionalProperties"] = False
    return changed


def _around(schema: Schema) -> Iterator[Any]:
    """Values at a schema's bounds and just outside, and its choices."""
    yield from schema.get("enum", ())
    for bound in {schema[key] for key in ("minimum", "maximum", "exclusiveMinimum") if key in schema}:
        yield from (int(bound) - 1, int(bound), bound, int(bound) + 1, bound - 0.5, bound + 0.5, str(int(bound)))
    for length in {schema[key] for key in ("minItems", "maxItems") if key in schema}:
        yield from (["a"] * (length - 1), ["a"] * length, ["a"] * (length + 1), [1] * (length - 1), [1] * length)


def is_interchangeable_json(value: Any) -> bool:
    """Whether JSON text in UTF-8 can carry the value: finite numbers, strings as keys, and no lone surrogates."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError):
        return False
    return same(json.loads(text), value)


_VALUES: list[Any] = [
    *(None, True, False, "", "x", "text", "json_object", [], {}, [1], ["a"], [[1]], [[]], [1, "a"], [True], [None]),
    *(-3, -2, -1, 0, 1, 2, 3, 5, 6, 20, 21, 64, 65, 128, 129, 172_800, 172_801, 2**70, -(2**70)),
    *(-2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 1.5, 2.0, 1e300, 1e-300, math.nextafter(1, 2), math.nextafter(2, 3), 4.0),
    *(math.nan, math.inf, -math.inf),
    *("4", "-1", "0", "65", "4.0", "4.5", "0.5", "1e-05", "1e+300", "true", "True", "false", "False"),
    *(" 4", "4 ", "+4", "04", "4_0", "4.", ".5", "1e3", "0.50", "-0", "0x4", "٤", "NaN", "Infinity", "nan", "1e999"),
    *("TRUE", "yes", "on", "null", "None", "\ud800", ["a", "b\ud800"], {"a": "\udfff"}, {"\ud800": 1}, {"a": math.nan}),
    *({"a": 1}, {"type": "text"}, {"type": "x"}, {"5": 1}, {"5": "1"}, {"5": 1.5}, {"a": "b"}, ["a"] * 4, ["a"] * 5),
    *(b"x", (1,), {1: 2}),
]


def spoiled(value: Any, random: Random, names: list[str]) -> Any:
    """The value with one to three changes at random places."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        value = _changed_once(value, random, random.choice(_VALUES), random.choice(names))
    return value


def _changed_once(value: Any, random: Random, replacement: Any, name: str) -> Any:
    """Go down to some place; there replace the value, spell it as a string, or drop, add or rename a field."""
    if isinstance(value, dict) and value and random.random() < 0.85:
        value = dict(value)
        key = random.choice(sorted(value, key=repr))
        action = random.random()
        if action < 0.1:
            del value[key]
        elif action < 0.2:
            value[name] = replacement
        elif action < 0.25:
            value[str(key) + "s"] = value[key]
        else:
            value[key] = _changed_once(value[key], random, replacement, name)
        return value
    if isinstance(value, list) and value and random.random() < 0.7:
        place = random.randrange(len(value))
        return [*value[:place], _changed_once(value[place], random, replacement, name), *value[place + 1 :]]
    if isinstance(value, int | float) and random.random() < 0.5:
        return json.dumps(value) if random.random() < 0.5 else str(value)
    return replacement


def same(a: Any, b: Any) -> bool:
    """Equal, and a boolean never equal to a number."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)
