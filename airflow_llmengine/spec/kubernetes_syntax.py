"""What Kubernetes takes for names, labels and quantities. Nothing here needs Kubernetes.

The rules are those of the API server's own validation: ``metav1`` label keys and values, DNS-1123 subdomains, and
``resource.Quantity``. Each ``…_fault`` returns why a text is refused, or None.
"""

from __future__ import annotations

import re
from decimal import Decimal

_LONGEST_LABEL = 63
_LONGEST_SUBDOMAIN = 253

_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*", re.ASCII)
_LABEL_RULE = "may hold only letters, digits, '-', '_' and '.', and must start and end with a letter or digit"

_BINARY = {suffix: Decimal(1024) ** power for power, suffix in enumerate(["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"], 1)}
_DECIMAL = {
    suffix: Decimal(1000) ** power for power, suffix in enumerate(["n", "u", "m", "", "k", "M", "G", "T", "P", "E"], -3)
}
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?P<suffix>[A-Za-z]*|[eE][+-]?[0-9]{1,3})", re.ASCII
)
_LOOSE_QUANTITY = re.compile(
    r"\s*(?P<number>[0-9]+(?:[.,][0-9]+)?)\s*(?P<letter>[kmgtpe])i?(?:b|bytes?)?\s*", re.ASCII | re.IGNORECASE
)
_LONGEST_QUANTITY = 64

LARGEST_QUANTITY = Decimal(2**63 - 1)
"""What Kubernetes can count."""


def label_key_fault(key: str) -> str | None:
    """Why a label's key is refused: an optional DNS prefix and ``/``, then a name of at most 63 characters."""
    prefix, slash, name = key.rpartition("/")
    if slash:
        fault = subdomain_fault(prefix)
        if fault:
            return f"has a part before the '/' that {fault}"
    if not name:
        return "is empty" if not slash else "has no name after the '/'"
    return _label_fault(name)


def label_value_fault(value: str) -> str | None:
    """Why a label's value is refused: at most 63 characters, or empty."""
    return _label_fault(value) if value else None


def subdomain_fault(name: str) -> str | None:
    """Why a name is refused where Kubernetes asks for a DNS-1123 subdomain, as for most objects."""
    if not name:
        return "is empty"
    if len(name) > _LONGEST_SUBDOMAIN:
        return f"has {len(name)} characters; {_LONGEST_SUBDOMAIN} are allowed"
    if not _SUBDOMAIN.fullmatch(name):
        return (
            "may hold only lower-case letters, digits, '-' and '.', and must start and end with a letter or digit, "
            "as must each part between dots"
        )
    return None


def _label_fault(text: str) -> str | None:
    if len(text) > _LONGEST_LABEL:
        return f"has {len(text)} characters; {_LONGEST_LABEL} are allowed"
    return None if _LABEL.fullmatch(text) else _LABEL_RULE


def suggested_label(text: str) -> str | None:
    """The nearest text that is a label value, if anything of it can be one: ``Data & AI`` → ``Data-AI``."""
    kept = re.sub(r"[^A-Za-z0-9._-]+", "-", text)
    kept = re.sub(r"-{2,}", "-", kept)[:_LONGEST_LABEL].strip("-_.")
    return kept or None


def parse_quantity(text: str) -> Decimal | None:
    """What a quantity such as ``500m`` or ``16Gi`` counts to, in cores or bytes; None where it is no quantity."""
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST_QUANTITY else None
    if match is None:
        return None
    number, suffix = Decimal(match["number"]), match["suffix"]
    if suffix in _BINARY:
        return number * _BINARY[suffix]
    if suffix in _DECIMAL:
        return number * _DECIMAL[suffix]
    if suffix[1:]:
        try:
            return number.scaleb(int(suffix[1:]))
        except (ValueError, ArithmeticError):
            return None
    return None


def is_binary_quantity(text: str) -> bool:
    """Whether it counts in powers of 1024, which only bytes do."""
    return text.endswith(tuple(_BINARY))


def suggested_quantity(text: str) -> str | None:
    """How bytes that were written as people write them would be a quantity: ``16gb`` → ``16Gi``."""
    match = _LOOSE_QUANTITY.fullmatch(text)
    return f"{match['number'].replace(',', '.')}{match['letter'].upper()}i" if match else None
