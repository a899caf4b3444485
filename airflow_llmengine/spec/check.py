"""What the schema can't say about a request: the contract's second layer. That of records is ``check_record``.

Each rule looks at one matter and yields what it refuses; ``check`` gathers them all. A field that is null counts as not
given, and a default never contradicts what was given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from airflow_llmengine.spec.check_model import model_refusals
from airflow_llmengine.spec.check_paths import path_refusals
from airflow_llmengine.spec.check_table import table_refusals
from airflow_llmengine.spec.check_tool import tool_refusals
from airflow_llmengine.spec.kubernetes_syntax import (
    LARGEST_QUANTITY,
    is_binary_quantity,
    label_key_fault,
    label_value_fault,
    parse_quantity,
    subdomain_fault,
    suggested_label,
    suggested_quantity,
)
from airflow_llmengine.spec.replica_nodes import nodes_refusal
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.table import Table
from airflow_llmengine.spec.validation import Refusal, RequestInvalidError, parse_request
from airflow_llmengine.spec.wire_faults import LONGEST_SHOWN, exceeds_64_bits, path_step, shown_number
from airflow_llmengine.spec.wire_model import WireModel

_SMALLEST_CPUS = Decimal("0.001")
_SMALLEST_BYTES = Decimal(2**20)
_QUANTITIES = ("cpus", "memory", "storage")


def validate_request(
    data: Mapping[str, Any] | str | bytes, table: Table | None = None
) -> CreateBatchCompletionsV1Request:
    """Read a request and check all of it: schema first, then, if that is right, what goes beyond.

    Args:
        data: The request, or its JSON text.
        table: How rows become its records, if it has a table.

    Raises:
        RequestInvalidError: With everything that is wrong.
    """
    request = parse_request(data)
    refusals = check(request, table)
    if refusals:
        raise RequestInvalidError(refusals)
    return request


def check(request: CreateBatchCompletionsV1Request, table: Table | None = None) -> list[Refusal]:
    """Say everything for which a request must not be launched, with its table if it has one, beyond its schema."""
    return [
        *path_refusals(request, table),
        *_label_refusals("labels", request.labels),
        *_priority_refusals(request),
        *tool_refusals(request),
        *_hardware_refusals(request),
        *_content_refusals(request),
        *_size_refusals(request),
        *model_refusals(request),
        *_label_refusals("model_config.labels", request.model_cfg.labels),
        *(() if table is None else table_refusals(table, request)),
    ]


def _label_refusals(field: str, labels: Mapping[str, str]) -> Iterator[Refusal]:
    for key, value in labels.items():
        path = field + path_step(key)
        key_fault = label_key_fault(key)
        if key_fault:
            yield Refusal(path, f"the key {_quoted(key)} {key_fault}", "use another key")
        value_fault = label_value_fault(value)
        if value_fault:
            suggestion = suggested_label(value)
            remedy = f"write it for example as {_quoted(suggestion)}" if suggestion else "use another value"
            yield Refusal(path, f"the value {_quoted(value)} {value_fault}", remedy)


def _quoted(text: str) -> str:
    return ascii(text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "...")


def _priority_refusals(request: CreateBatchCompletionsV1Request) -> Iterator[Refusal]:
    fault = None if request.priority is None else subdomain_fault(request.priority)
    if fault:
        yield Refusal("priority", f"{_quoted(request.priority or '')} {fault}", "name a PriorityClass of the cluster")


def _hardware_refusals(request: CreateBatchCompletionsV1Request) -> Iterator[Refusal]:
    for name in _QUANTITIES:
        yield from _quantity_refusals(name, getattr(request, name))
    if request.gpus is not None and request.gpus < 1:
        reason = f"must be at least 1, not {shown_number(request.gpus)}"
        if request.gpu_type is not None:
            reason += f", with a gpu_type of {request.gpu_type}"
        yield Refusal("gpus", reason, "leave it out to have it inferred from the model")
    if request.nodes_per_worker is not None and request.nodes_per_worker < 1:
        yield Refusal("nodes_per_worker", f"must be at least 1, not {shown_number(request.nodes_per_worker)}")
    elif (refusal := nodes_refusal(request)) is not None:
        yield refusal


def _quantity_refusals(field: str, value: str | float | None) -> Iterator[Refusal]:
    if value is None:
        return
    of_bytes = field != "cpus"
    example = "16Gi" if of_bytes else "4 or 500m"
    amount = parse_quantity(value) if isinstance(value, str) else Decimal(value)
    if amount is None:
        suggestion = suggested_quantity(str(value)) if of_bytes else None
        remedy = f"write {suggestion}" if suggestion else f"write it as a number with a suffix, for example {example}"
        yield Refusal(field, f"{_shown(value)} is not a Kubernetes quantity", remedy)
    elif not of_bytes and isinstance(value, str) and is_binary_quantity(value):
        yield Refusal(field, f"{_quoted(value)} is a number of bytes; CPUs are counted in cores", f"write {example}")
    elif amount <= 0:
        yield Refusal(field, f"must be more than 0, not {_shown(value)}", f"write for example {example}")
    elif amount > LARGEST_QUANTITY:
        yield Refusal(field, f"{_shown(value)} is more than Kubernetes can count", f"write for example {example}")
    elif of_bytes and amount < _SMALLEST_BYTES:
        yield Refusal(field, f"{_shown(value)} is less than 1Mi of bytes", f"give the unit, for example {example}")
    elif not of_bytes and amount < _SMALLEST_CPUS:
        yield Refusal(field, f"{_shown(value)} is less than 1m, the least that Kubernetes counts", f"write {example}")


def _shown(value: str | float) -> str:
    return _quoted(value) if isinstance(value, str) else shown_number(value)


def _content_refusals(request: CreateBatchCompletionsV1Request) -> Iterator[Refusal]:
    if request.content is not None and request.content.max_new_tokens < 1:
        reason = f"must be at least 1, not {shown_number(request.content.max_new_tokens)}"
        yield Refusal("content.max_new_tokens", reason)


def _size_refusals(request: CreateBatchCompletionsV1Request) -> Iterator[Refusal]:
    """Numbers that nothing can hold: JSON knows no bound."""
    parts: list[tuple[str, WireModel | None]] = [
        ("", request),
        ("content.", request.content),
        ("model_config.", request.model_cfg),
        ("tool_config.", request.tool_config),
    ]
    for path, part in parts:
        for name in () if part is None else type(part).model_fields:
            if name not in _QUANTITIES and exceeds_64_bits(getattr(part, name)):
                yield Refusal(path + name, "is a whole number of more than 64 bits", "give a smaller one")
