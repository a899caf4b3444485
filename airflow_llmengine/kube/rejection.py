"""From the API server's answer to a pod that it does not take to what is wrong with it, in one sentence for people.

The server has a status code and a reason for each, but quota, permissions, admission and a missing PriorityClass are
all "403 Forbidden", and only words tell them apart. Some of its words quote the pod, and with it environment
variables: those are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from airflow_llmengine.kube.observed_pod import JSON, quoted

Kind = Literal[
    "quota",
    "beyond_quota",
    "forbidden",
    "unauthorized",
    "admission",
    "invalid",
    "namespace_missing",
    "priority_class_missing",
    "service_account_missing",
    "conflict",
    "unavailable",
    "other",
]
"""Why a pod is not taken.

``quota``: there is no room in a quota just now. ``beyond_quota``: there never will be, for it asks for more than all of
it, or does not say what it takes. ``forbidden``: RBAC does not permit it. ``admission``: a rule of the cluster is
against it: PodSecurity, a LimitRange, a webhook. ``conflict``: the name is taken, or two things happened at once.
``unavailable``: the server, or a webhook that it has to ask, can't answer now.
"""

_MAY_PASS = frozenset({"quota", "conflict", "unavailable"})

SHORTEST_HIDDEN = 4
"""Characters below which a value says nothing, and may be part of any word."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a pod is not taken."""

    kind: Kind
    sentence: str
    """For people. Quotes no value of the pod's environment."""

    @property
    def retry_helps(self) -> bool:
        """Whether the same pod may be taken later."""
        return self.kind in _MAY_PASS


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the API server said."""

    status: int
    """The HTTP status; 0: there was no answer."""
    message: str
    reason: str
    kind: str
    """What ``name`` is the name of, which need not be what was to be made."""
    name: str
    causes: tuple[JSON, ...]

    @property
    def it(self) -> str:
        """What was to be made."""
        return "Secret" if self.kind.lower().startswith("secret") else "pod"


def rejection(status: int | None, body: str | bytes | None, *, hidden: Iterable[str] = ()) -> Rejection:
    """Say why the API server does not take a pod, or a Secret for one.

    Args:
        status: The HTTP status; 0 or None: there was no answer.
        body: What came with it, a ``Status`` as JSON or anything.
        hidden: Values that must not be quoted, whoever quotes them: those of environment variables, which a webhook
            might name. Shorter ones than ``SHORTEST_HIDDEN`` are not looked for.
    """
    answer = _read(status or 0, body, hidden)
    found = _quota(answer) or _missing(answer) or _permission(answer) or _admission(answer) or _invalid(answer)
    return (
        found or _unavailable(answer) or Rejection("other", _with(f"The API server answered {answer.status}", answer))
    )


def _read(status: int, body: str | bytes | None, hidden: Iterable[str]) -> _Answer:
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body or ""
    for value in sorted({value for value in hidden if len(value) >= SHORTEST_HIDDEN}, key=len, reverse=True):
        text = text.replace(json.dumps(value)[1:-1], "***")
    try:
        said = json.loads(text)
    except ValueError:
        # A proxy's page, for example; nobody knows what it quotes.
        said = None
    said = said if isinstance(said, dict) else {}
    details = said.get("details") or {}
    return _Answer(
        status=status,
        message=str(said.get("message") or ""),
        reason=str(said.get("reason") or ""),
        kind=str(details.get("kind") or ""),
        name=str(details.get("name") or ""),
        causes=tuple(details.get("causes") or ()),
    )


# 403: a quota

_EXCEEDED = re.compile(
    r"exceeded quota: (?P<name>\S+), requested: (?P<requested>.+?), used: (?P<used>.+?), limited: (?P<limited>.+)"
)


def _quota(answer: _Answer) -> Rejection | None:
    if said := _EXCEEDED.search(answer.message):
        requested, used, limited = (_amounts(said[part]) for part in ("requested", "used", "limited"))
        asked = ", ".join(
            f"{resource}: asked for {amount}, used {used.get(resource, '0')} of {limited.get(resource, '?')}"
            for resource, amount in requested.items()
        )
        if any(_number(amount) > _number(limited.get(resource, "")) for resource, amount in requested.items()):
            return Rejection(
                "beyond_quota", f"The {answer.it} asks for more than the whole of the quota {said['name']} ({asked})."
            )
        return Rejection("quota", f"The quota {said['name']} leaves no room for the {answer.it} ({asked}).")
    if said := re.search(r"failed quota: (\S+): must specify (.+)", answer.message):
        return Rejection("beyond_quota", f"The quota {said[1]} wants the {answer.it} to state {quoted(said[2])}")
    return None


def _amounts(text: str) -> dict[str, str]:
    """``requests.nvidia.com/gpu=8,limits.memory=10Gi`` by resource."""
    return {resource: amount for resource, _, amount in (part.partition("=") for part in text.split(","))}


def _number(quantity: str) -> float:
    """A quantity as the API server writes it; what is none of those is beyond all."""
    found = re.fullmatch(r"([0-9.]+)(m|[kMGTPE]|[KMGTPE]i)?", quantity)
    if found is None:
        return float("inf")
    unit = found[2] or ""
    if unit == "m":
        return float(found[1]) / 1000
    power = "kMGTPE".index(unit[0].replace("K", "k")) + 1 if unit else 0
    return float(found[1]) * float((1024 if unit.endswith("i") else 1000) ** power)


# 401, 403, 404: what is missing, or not permitted


def _missing(answer: _Answer) -> Rejection | None:
    if said := re.search(r"no PriorityClass with name (\S+) was found", answer.message):
        return Rejection("priority_class_missing", f"There is no PriorityClass {said[1]} in the cluster.")
    if said := re.search(r'serviceaccount "([^"]*)" not found', answer.message):
        return Rejection("service_account_missing", f"There is no service account {said[1]} in the namespace.")
    if answer.status == 404 and answer.kind == "namespaces":
        return Rejection("namespace_missing", f"There is no namespace {answer.name} in the cluster.")
    if said := re.search(r"in namespace (\S+) because it is being terminated", answer.message):
        return Rejection("namespace_missing", f"The namespace {said[1]} is being deleted.")
    return None


def _permission(answer: _Answer) -> Rejection | None:
    if answer.status == 401:
        return Rejection("unauthorized", "The API server does not accept the credentials that it was given.")
    said = re.search(r'User "([^"]*)" cannot (\w+) resource "([^"]*)"', answer.message)
    if answer.status != 403 or said is None:
        return None
    namespace = re.search(r'in the namespace "([^"]*)"', answer.message)
    where = f"in the namespace {namespace[1]}" if namespace else "in the cluster"
    return Rejection("forbidden", f"{said[1]} may not {said[2]} {said[3]} {where}.")


# Rules of the cluster


def _admission(answer: _Answer) -> Rejection | None:
    message = answer.message
    if "failed calling webhook" in message:
        return Rejection("unavailable", _with("A webhook that the cluster has to ask did not answer", answer))
    if said := re.search(r'admission webhook "([^"]*)" denied the request:?(.*)', message, re.DOTALL):
        refusal, why = f"The webhook {said[1]} does not admit the {answer.it}", said[2]
    elif said := re.search(r"ValidatingAdmissionPolicy '([^']*)'.*? denied request:(.*)", message, re.DOTALL):
        refusal, why = f"The policy {said[1]} does not admit the {answer.it}", said[2]
    elif said := re.search(r"violates PodSecurity (.*)", message, re.DOTALL):
        refusal, why = f"The namespace's PodSecurity level does not admit the {answer.it}", said[1]
    elif answer.status == 403:
        refusal, why = f"The cluster does not admit the {answer.it}", message.partition("is forbidden:")[2] or message
    else:
        return None
    return Rejection("admission", f"{refusal}: {quoted(why.strip() or 'no reason given')}")


# 400, 422: fields


def _invalid(answer: _Answer) -> Rejection | None:
    if answer.status not in (400, 422):
        return None
    if not answer.causes:
        return Rejection("invalid", _with(f"The {answer.it} is invalid", answer))
    said = "; ".join(f"{cause.get('field')}: {_without_value(cause)}" for cause in answer.causes[:5])
    return Rejection("invalid", f"The {answer.it} is invalid: {quoted(said)}")


_SIMPLE_VALUE = re.compile(r'\w+ value: (?P<value>"(?:[^"\\]|\\.)*"|[\w.+-]+)(?P<rest>: .*|$)', re.DOTALL)
_HARMLESS_FIELD = re.compile(
    r"\.resources\b|\.?name$|Name$|^metadata\.(labels|namespace)|restartPolicy$|PullPolicy$|Seconds$|mountPath$"
)


def _without_value(cause: JSON) -> str:
    """What is wrong with a field; its value only where that is harmless, for it may hold the request, or a secret."""
    message = str(cause.get("message") or "")
    what, separator, _ = message.partition(" value: ")
    if not separator:
        return what
    simple = _SIMPLE_VALUE.match(message)
    if simple is None:
        # It quotes a whole object, and where that ends nobody can tell.
        return f"{what} value"
    return message if _HARMLESS_FIELD.search(str(cause.get("field") or "")) else f"{what} value{simple['rest']}"


# What may pass


def _unavailable(answer: _Answer) -> Rejection | None:
    if answer.status == 409:
        return Rejection("conflict", _with(f"The {answer.it} could not be made just then", answer))
    if answer.status in (0, 408, 429) or answer.status >= 500:
        came = f"{answer.status} {answer.reason}".rstrip() if answer.status else "no answer"
        return Rejection("unavailable", f"The Kubernetes API can't serve just now ({came}).")
    return None


def _with(statement: str, answer: _Answer) -> str:
    """A statement, and the server's reason without what it quotes of a body that it could not read."""
    message = answer.message.partition(", error found in")[0]
    message = re.sub(r"cannot unmarshal (\w+) \S+ into", r"cannot unmarshal \1 into", message)
    return f"{statement}: {quoted(message or answer.reason or 'no reason given')}"
