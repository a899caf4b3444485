"""A record's structured output as vLLM's requests ask for it, and what vLLM has against it. Needs no vLLM."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.spec.structured_output import answer_schema, structure_fields
from airflow_llmengine.worker.engines.base import RecordRejectedError
from airflow_llmengine.worker.engines.xgrammar_schemas import not_enforced

STRUCTURE_LIBRARY = "xgrammar"
"""What enforces structure where the engine is not set to another library.

Left to itself (``auto``), vLLM checks each record against the library that suits it best, and then compiles all records
with the one that the first record of its life needed: what is enforced would depend on which record came first.
"""

_NAMES = {
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json": "json",
    "guided_regex": "regex",
}
"""Fields of records, as keys of ``structured_outputs``."""

_ABOUT_STRUCTURE = re.compile(r"grammar|regex|schema|structured|choice", re.IGNORECASE)

_SOURCE_PLACE = re.compile(r"\[[\d:]+\] \S+:\d+: ")
"""The time, and the place in the library's source, with which it begins its sentences."""

_UNSUPPORTED_FEATURES = "features not supported by xgrammar"


def structured_outputs(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Replace a record's ``guided_*`` fields by ``structured_outputs``; ``response_format`` is vLLM's already."""
    structure = {_NAMES[name]: value for name, value in fields.items() if name in _NAMES}
    others = {name: value for name, value in fields.items() if name not in _NAMES}
    return {**others, "structured_outputs": structure} if structure else others


def require_followed(record: CompletionV2Request | ChatCompletionV2Request, library: str) -> None:
    """Make sure that what a record asks for is what it would get.

    Args:
        record: The record.
        library: The ``backend`` in the engine's ``structured_outputs_config``.

    Raises:
        RecordRejectedError: It names another library, or a schema of which this one would leave out a part.
    """
    wanted = record.guided_decoding_backend
    if wanted not in (None, "auto", library):
        raise RecordRejectedError(
            RecordErrorType.UNSUPPORTED,
            f"guided_decoding_backend: is a setting of the whole engine, and there {library}; leave it out, or set "
            f"the backend of structured_outputs_config in engine_args to {wanted}",
        )
    if library == STRUCTURE_LIBRARY and (schema := answer_schema(record)) is not None:
        left_out = sorted(not_enforced(schema))
        if left_out:
            raise RecordRejectedError(
                RecordErrorType.UNSUPPORTED,
                f"{structure_fields(record)[0]}: {STRUCTURE_LIBRARY}, by which vLLM enforces schemas, takes no notice "
                f"of {', '.join(left_out)}; write the schema without",
            )


def structure_fault(message: str, body: Mapping[str, Any]) -> str | None:
    """What vLLM says about the structure that a request asks for, with the field in front; None: it says nothing of it.

    Args:
        message: vLLM's words.
        body: The request that vLLM was sent.
    """
    name = _field(body)
    if name is None or not _ABOUT_STRUCTURE.search(message):
        return None
    said = _SOURCE_PLACE.sub("", message).strip()
    if _UNSUPPORTED_FEATURES in said:
        said = (
            f"the schema has keywords that {STRUCTURE_LIBRARY}, with which vLLM enforces it, does not know in this "
            "place; write it without them, or set another backend of structured_outputs_config in engine_args"
        )
    return f"{name}: {said}"


def failed_on_structure(body: Mapping[str, Any]) -> str | None:
    """What to say where vLLM gave up on a request with a structure, which its log alone explains; None: it has none."""
    name = _field(body)
    if name is None:
        return None
    return f"{name}: vLLM can't compile it, or found no token that goes on with it; its own log lines say which"


def structure_texts(body: Mapping[str, Any]) -> Iterator[Any]:
    """What of a request's structure is the user's own text."""
    for value in body.get("structured_outputs", {}).values():
        # JSON is told in its own words: what is wrong with a schema is not told without them.
        if not isinstance(value, dict):
            yield value


def _field(body: Mapping[str, Any]) -> str | None:
    for name, key in _NAMES.items():
        if key in body.get("structured_outputs", {}):
            return name
    if body.get("response_format", {}).get("type", "text") != "text":
        return "response_format"
    return "tools" if body.get("tool_choice") not in (None, "none", "auto") else None
