"""The models agree with the contract's schemas in both directions, the three deliberate differences aside.

hypothesis-jsonschema makes instances, which are then spoiled; jsonschema judges; the model must agree. A longer run:
``SCHEMA_AGREEMENT_EXAMPLES=2000 pytest tests/spec/test_agreement.py`` judges some 50 000 values.
"""

from __future__ import annotations

import json
import os
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.spec.request import CreateBatchCompletionsV1Request
from airflow_llmengine.spec.validation import refusals_of
from airflow_llmengine.spec.wire_model import WireModel
from tests.spec.contract_schema import COMPLETION, REQUEST, Contract, from_a_copy, same, spoiled

EXAMPLES = int(os.environ.get("SCHEMA_AGREEMENT_EXAMPLES", "40"))
SPOILED_EACH = 12

CONTRACTS: list[tuple[type[WireModel], Contract]] = [
    (CreateBatchCompletionsV1Request, Contract(REQUEST)),
    (CompletionV2Request, Contract(COMPLETION, optional=("model",))),
]

both = pytest.mark.parametrize(("model", "contract"), CONTRACTS, ids=["request", "completion"])
examples = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))


def agree(model: type[WireModel], contract: Contract, value: Any) -> bool:
    """Assert that the model takes the value if and only if it must, and then with the right values."""
    accepted = contract.accepts(value)
    refusal = None
    try:
        read = model.model_validate(value)
    except ValidationError as error:
        refusal = error
    if refusal is not None:
        assert not accepted, f"rejected {value!r}: {refusal}"
        lines = [str(refusal) for refusal in refusals_of(refusal, model)]
        assert lines, value
        assert all(line and line.isprintable() for line in lines), lines
        return False
    assert accepted, f"accepted {value!r}"
    assert same(whole(read), contract.meaning(value))
    round_trip(model, read)
    # Ties the judge, who knows the differences, to the schema as it stands.
    assert contract.exact.is_valid(dict.fromkeys(contract.optional, "the job's") | read.given())
    return True


def whole(read: WireModel) -> dict[str, Any]:
    """All values of a model by their wire names, defaults included."""
    return {
        field.alias or name: whole(value) if isinstance(value := getattr(read, name), WireModel) else value
        for name, field in type(read).model_fields.items()
    }


def round_trip(model: type[WireModel], read: WireModel) -> None:
    """Assert that a dump holds what was given and nothing else, and reads back as the same."""
    dumped = read.given()
    assert same(json.loads(json.dumps(dumped)), dumped)
    assert same(read.model_dump(mode="json", by_alias=True, exclude_unset=True), dumped)
    again = model.model_validate(dumped)
    assert again == read
    assert again.model_fields_set == read.model_fields_set
    assert same(again.given(), dumped)


@both
def test_instances_of_the_schema_are_taken_with_equal_values_and_defaults(
    model: type[WireModel], contract: Contract
) -> None:
    @examples
    @given(contract.instances())
    def check(value: Any) -> None:
        assert agree(model, contract, value)
        assert same(model.model_validate(value).given(), value)

    check()


@both
def test_spoiled_instances_are_judged_as_the_schema_judges_them(model: type[WireModel], contract: Contract) -> None:
    names = [*contract.field_names(), "unknown", "model_cfg", "schema_", "promt", "", "a\nb", "\ud800"]
    counts = {True: 0, False: 0}

    @examples
    @given(contract.instances(), st.integers(0, 2**32))
    def check(value: Any, seed: int) -> None:
        random = Random(seed)
        for _ in range(SPOILED_EACH):
            counts[agree(model, contract, spoiled(value, random, names))] += 1

    check()
    assert min(counts.values()) > EXAMPLES, f"too one-sided to show much: {counts}"


@both
def test_any_object_is_judged_as_the_schema_judges_it(model: type[WireModel], contract: Contract) -> None:
    """The schema is open and so mostly brings unknown fields; what is left without them must be taken."""

    @settings(examples, max_examples=max(5, EXAMPLES // 20))
    @given(from_a_copy(contract.schema))
    def check(value: Any) -> None:
        agree(model, contract, value)
        agree(model, contract, {name: field for name, field in value.items() if name in contract.schema["properties"]})

    check()


@both
def test_every_field_is_judged_as_the_schema_judges_it_at_its_bounds(
    model: type[WireModel], contract: Contract
) -> None:
    judged = [agree(model, contract, value) for value in contract.edges()]
    assert min(judged.count(True), judged.count(False)) > 100


@both
@pytest.mark.parametrize("value", [None, [], "{}", 1, True, {}])
def test_what_is_no_object_is_rejected(model: type[WireModel], contract: Contract, value: Any) -> None:
    assert not agree(model, contract, value)


@both
def test_fields_are_those_of_the_schema(model: type[WireModel], contract: Contract) -> None:
    assert {field.alias or name for name, field in model.model_fields.items()} == set(contract.schema["properties"])


@both
def test_nested_fields_stand_in_the_order_of_the_schema(model: type[WireModel], contract: Contract) -> None:
    definitions = contract.schema["$defs"]
    seen = 0
    for nested in WireModel.__subclasses__():
        if nested.__name__ in definitions:
            names = [field.alias or name for name, field in nested.model_fields.items()]
            assert names == list(definitions[nested.__name__]["properties"])
            seen += 1
    assert seen >= 3
