"""Kubernetes' own rules, as its API server applies them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from airflow_llmengine.spec.kubernetes_syntax import (
    label_key_fault,
    label_value_fault,
    parse_quantity,
    subdomain_fault,
    suggested_label,
    suggested_quantity,
)


@pytest.mark.parametrize("key", ["a", "A1", "app.kubernetes.io/name", "a_b.c-d", "x" * 63, "a.b/" + "x" * 63, "1"])
def test_label_keys_that_pass(key: str) -> None:
    assert label_key_fault(key) is None


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        ("", "is empty"),
        ("/a", "is empty"),
        ("a/", "has no name after the '/'"),
        ("a b", "may hold only"),
        ("-a", "may hold only"),
        ("a.", "may hold only"),
        ("a\n", "may hold only"),
        ("é", "may hold only"),
        ("x" * 64, "has 64 characters; 63 are allowed"),
        ("Example.com/a", "has a part before the '/' that may hold only lower-case"),
        ("a/b/c", "has a part before the '/'"),
        ("a" * 254 + "/b", "has a part before the '/' that has 254 characters; 253 are allowed"),
    ],
)
def test_label_keys_that_are_refused(key: str, fault: str) -> None:
    assert fault in (label_key_fault(key) or "")


@pytest.mark.parametrize("value", ["", "a", "Data-AI", "a.b_c-d", "x" * 63, "2024"])
def test_label_values_that_pass(value: str) -> None:
    assert label_value_fault(value) is None


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("Data & AI", "may hold only"),
        ("x" * 70, "has 70 characters; 63 are allowed"),
        ("_a", "may hold only"),
        ("a/b", "may hold only"),
        (" ", "may hold only"),
        ("a\n", "may hold only"),
    ],
)
def test_label_values_that_are_refused(value: str, fault: str) -> None:
    assert fault in (label_value_fault(value) or "")


@pytest.mark.parametrize("text", ["Data & AI", "x" * 70, "_a_", "müller/söhne", "a" * 62 + "-b", "--"])
def test_a_suggested_label_passes(text: str) -> None:
    suggestion = suggested_label(text)
    assert suggestion is None or (suggestion and label_value_fault(suggestion) is None)


def test_there_is_no_suggestion_where_nothing_is_left() -> None:
    assert suggested_label("&") is None


@pytest.mark.parametrize("name", ["high", "gpu-high", "a.b", "0", "x" * 253])
def test_subdomains_that_pass(name: str) -> None:
    assert subdomain_fault(name) is None


@pytest.mark.parametrize("name", ["", "High", "a_b", "-a", "a-", "a..b", ".a", "a.-b", "x" * 254, "a\n"])
def test_subdomains_that_are_refused(name: str) -> None:
    assert subdomain_fault(name)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("16Gi", 16 * 2**30),
        ("0.5Gi", 2**29),
        ("1Ki", 1024),
        ("2Ei", 2 * 2**60),
        ("500m", Decimal("0.5")),
        ("4", 4),
        ("4.", 4),
        (".5", Decimal("0.5")),
        ("+1", 1),
        ("-1", -1),
        ("1k", 1000),
        ("1E", 10**18),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1e-3", Decimal("0.001")),
        ("100n", Decimal("1e-7")),
    ],
)
def test_quantities_that_pass(text: str, amount: Decimal | int) -> None:
    assert parse_quantity(text) == amount


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Gi",
        "16gb",
        "16GB",
        "16GiB",
        "16 Gi",
        "16K",
        "16gi",
        "1e",
        "1e1.5",
        "0x10",
        "1_0",
        "nan",
        "٤",
        "4\n",
        "9" * 99,
    ],
)
def test_quantities_that_are_refused(text: str) -> None:
    assert parse_quantity(text) is None


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        ("16gb", "16Gi"),
        ("16GB", "16Gi"),
        ("16GiB", "16Gi"),
        ("16 Gi", "16Gi"),
        ("1,5 tb", "1.5Ti"),
        ("512mb", "512Mi"),
        ("64K", "64Ki"),
        ("much", None),
        ("16", None),
    ],
)
def test_what_people_write_is_answered_with_what_kubernetes_takes(text: str, suggestion: str | None) -> None:
    assert suggested_quantity(text) == suggestion
    assert suggestion is None or parse_quantity(suggestion)
