"""What the stand-in engine answers to a record that asks for JSON of a schema: a value of it, by the prompt's hash.

A prompt that is a JSON object already is given back, so that a test says what the answer is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

MOST_ITEMS = 3
"""How long a list gets that may be longer."""


def structured_text(prompt: str, schema: Mapping[str, Any]) -> str:
    """A JSON document of the schema; the prompt itself if it is a JSON object."""
    try:
        if isinstance(json.loads(prompt), dict):
            return prompt
    except (ValueError, RecursionError):
        pass
    return json.dumps(_value(schema, schema, prompt, "#"), ensure_ascii=False)


def _value(part: Mapping[str, Any], root: Mapping[str, Any], prompt: str, path: str) -> Any:
    number = int.from_bytes(hashlib.sha256(f"{path} {prompt}".encode("utf-8", "surrogatepass")).digest()[:6])
    if "$ref" in part:
        return _value(_referred(part["$ref"], root), root, prompt, path)
    for combined in ("anyOf", "oneOf", "allOf"):
        if part.get(combined):
            return _value(part[combined][0], root, prompt, path)
    if "const" in part:
        return part["const"]
    if part.get("enum"):
        return part["enum"][number % len(part["enum"])]
    kind = part.get("type")
    match kind[0] if isinstance(kind, list) and kind else kind:
        case "object":
            properties = part.get("properties") or {}
            return {name: _value(inner, root, prompt, f"{path}/{name}") for name, inner in properties.items()}
        case "array":
            least = part.get("minItems", 1)
            size = max(least, min(part.get("maxItems", MOST_ITEMS), 1 + number % MOST_ITEMS))
            return [_value(part.get("items") or {}, root, prompt, f"{path}/{place}") for place in range(size)]
        case "integer" | "number":
            least = part.get("minimum", 0)
            most = part.get("maximum", least + 9)
            return least + number % max(1, int(most - least) + 1)
        case "boolean":
            return number % 2 == 0
        case "null":
            return None
    if part.get("format") in ("date-time", "date"):
        day = f"2024-{1 + number % 12:02}-{1 + number % 28:02}"
        return day if part["format"] == "date" else f"{day}T{number % 24:02}:00:00Z"
    return prompt[: part.get("maxLength", len(prompt))]


def _referred(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        found = found[step.replace("~1", "/").replace("~0", "~")]
    referred: Mapping[str, Any] = found
    return referred
