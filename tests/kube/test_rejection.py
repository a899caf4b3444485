"""Why an API server does not take a pod.

``rejections.json`` holds a server's answers; those with ``scripted`` were written after the source of that version, all
others are what a real cluster gave, with other names.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from airflow_llmengine.kube.rejection import Kind, Rejection, rejection

ANSWERS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("rejections.json").read_text())

EXPECTED: dict[str, tuple[Kind, str]] = {
    "quota": (
        "quota",
        "The quota gpus leaves no room for the pod (requests.nvidia.com/gpu: asked for 2, used 3 of 4).",
    ),
    "quota_of_two": (
        "quota",
        (
            "The quota team leaves no room for the pod (limits.memory: asked for 64Gi, used 1000Gi of 1Ti, "
            "pods: asked for 1, used 20 of 20)."
        ),
    ),
    "beyond_quota": (
        "beyond_quota",
        "The pod asks for more than the whole of the quota gpus (requests.nvidia.com/gpu: asked for 8, used 0 of 4).",
    ),
    "quota_wants_limits": ("beyond_quota", "The quota team wants the pod to state limits.memory for: base."),
    "not_permitted": (
        "forbidden",
        "system:serviceaccount:airflow:worker may not create pods in the namespace batch.",
    ),
    "secret_not_permitted": (
        "forbidden",
        "system:serviceaccount:airflow:worker may not create secrets in the namespace batch.",
    ),
    "unauthorized": ("unauthorized", "The API server does not accept the credentials that it was given."),
    "limit_range": (
        "admission",
        "The cluster does not admit the pod: maximum memory usage per Container is 8Gi, but limit is 9Gi.",
    ),
    "pod_security": (
        "admission",
        (
            'The namespace\'s PodSecurity level does not admit the pod: "restricted:latest": seccompProfile (pod or '
            'container "base" must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost").'
        ),
    ),
    "webhook": (
        "admission",
        (
            "The webhook validation.gatekeeper.sh does not admit the pod: [allowed-repos] container <base> has "
            "an invalid image repo <registry.example.com/llmengine:1>."
        ),
    ),
    "webhook_quotes_a_variable": (
        "admission",
        (
            "The webhook no-tokens.example.com does not admit the pod: variable TOKEN has the value ***, which "
            "looks like a token."
        ),
    ),
    "policy": ("admission", "The policy owners does not admit the pod: every pod needs the label owner."),
    "request_above_limit": (
        "invalid",
        (
            'The pod is invalid: spec.containers[0].resources.requests: Invalid value: "2Gi": must be less than '
            "or equal to memory limit."
        ),
    ),
    "variable_name": (
        "invalid",
        'The pod is invalid: spec.containers[0].env[0].name: Invalid value: "1 TOKEN": a valid environment variable',
    ),
    "variable_with_two_values": (
        "invalid",
        (
            "The pod is invalid: spec.containers[0].env[0].valueFrom: Invalid value: may not be specified when "
            "`value` is not empty."
        ),
    ),
    "variable_value_quoted": (
        "invalid",
        "The pod is invalid: spec.containers[0].env[0].value: Invalid value: too long.",
    ),
    "object_quoted": ("invalid", "The pod is invalid: spec: Invalid value."),
    "quantity": ("invalid", "The pod is invalid: "),
    "variable_that_is_a_number": ("invalid", "The pod is invalid: "),
    "variable_that_is_a_number_in_1_33": ("invalid", "The pod is invalid: "),
    "pod_name": ("invalid", 'The pod is invalid: metadata.name: Invalid value: "INV_Name": a lowercase RFC 1123'),
    "label": ("invalid", 'The pod is invalid: metadata.labels: Invalid value: "a b": name part must consist of'),
    "namespace_missing": ("namespace_missing", "There is no namespace bacth in the cluster."),
    "namespace_ends": ("namespace_missing", "The namespace batch is being deleted."),
    "priority_class_missing": ("priority_class_missing", "There is no PriorityClass urgent in the cluster."),
    "service_account_missing": (
        "service_account_missing",
        "There is no service account llmengine in the namespace.",
    ),
    "name_taken": ("conflict", 'The pod could not be made just then: pods "llmengine-7x3k" already exists.'),
    "quota_updated_meanwhile": ("conflict", "The pod could not be made just then: Operation cannot be fulfilled on"),
    "too_many_requests": ("unavailable", "The Kubernetes API can't serve just now (429 TooManyRequests)."),
    "overloaded": ("unavailable", "The Kubernetes API can't serve just now (503 ServiceUnavailable)."),
    "token_of_the_service_account_is_not_there_yet": (
        "unavailable",
        "The Kubernetes API can't serve just now (500 ServerTimeout).",
    ),
    "webhook_away": ("unavailable", "A webhook that the cluster has to ask did not answer: Internal error occurred: "),
}

SECRETS = ("hf_secret_value", "8675309", "12345")


def rejected(name: str) -> Rejection:
    answer = ANSWERS[name]
    return rejection(answer["status"], json.dumps(answer["body"]), hidden=["hf_secret_value"])


@pytest.mark.parametrize("name", ANSWERS)
def test_every_answer_is_told_in_one_sentence(name: str) -> None:
    found = rejected(name)
    kind, sentence = EXPECTED[name]
    assert found.kind == kind
    assert found.sentence.startswith(sentence)
    assert found.sentence.endswith(".")
    assert found.sentence.isprintable()
    assert found.retry_helps == (kind in ("quota", "conflict", "unavailable"))
    assert not any(secret in found.sentence for secret in SECRETS)


def test_no_answer_and_no_kind_is_forgotten() -> None:
    assert ANSWERS.keys() == EXPECTED.keys()
    assert {kind for kind, _ in EXPECTED.values()} | {"other"} == set(get_args(Kind))


@pytest.mark.parametrize("name", ["variable_value_quoted", "object_quoted", "variable_that_is_a_number_in_1_33"])
def test_fields_that_may_hold_secrets_are_not_quoted_even_when_nobody_says_what_is_secret(name: str) -> None:
    answer = ANSWERS[name]
    assert any(secret in json.dumps(answer["body"]) for secret in SECRETS)
    assert not any(secret in rejection(answer["status"], json.dumps(answer["body"])).sentence for secret in SECRETS)


def test_a_secret_with_characters_that_json_escapes_is_found() -> None:
    body = {"message": 'admission webhook "w" denied the request: no "quoted\\value" here'}
    assert "***" in rejection(403, json.dumps(body), hidden=['"quoted\\value"']).sentence


def test_short_values_leave_the_message_legible() -> None:
    found = rejection(403, json.dumps(ANSWERS["quota"]["body"]), hidden=["1", "gpu", "a"])
    assert found.sentence == EXPECTED["quota"][1]


@pytest.mark.parametrize(
    ("quantity", "limited", "kind"),
    [
        ("1500m", "1", "beyond_quota"),
        ("500m", "1", "quota"),
        ("10Gi", "10G", "beyond_quota"),
        ("10G", "10Gi", "quota"),
        ("1Ti", "1000Gi", "beyond_quota"),
        ("900Gi", "1Ti", "quota"),
        ("1", "1", "quota"),
        ("odd", "1", "beyond_quota"),
        ("1", "odd", "quota"),
    ],
)
def test_what_can_never_fit_is_told_from_what_does_not_fit_now(quantity: str, limited: str, kind: Kind) -> None:
    message = f"exceeded quota: q, requested: r={quantity}, used: r=0, limited: r={limited}"
    assert rejection(403, json.dumps({"message": message})).kind == kind


@pytest.mark.parametrize("body", [None, "", b"<html>502 Bad Gateway: secret</html>", b"\xff\xfe", "[]", '"text"'])
@pytest.mark.parametrize("status", [None, 0, 418, 429, 500, 502])
def test_any_answer_at_all_is_told(body: Any, status: int | None) -> None:
    found = rejection(status, body)
    assert found.kind == ("other" if status == 418 else "unavailable")
    assert "secret" not in found.sentence
    assert found.sentence.endswith(".")
