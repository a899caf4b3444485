"""From the text of an argument to its value; what can't be one is told by argparse."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from math import prod
from typing import Any

from airflow_llmengine.spec.cache_path import cache_path_refusals
from airflow_llmengine.spec.engine_args import parse_engine_args
from airflow_llmengine.spec.validation import RequestInvalidError


def count(least: int) -> Callable[[str], int]:
    """A whole number, ``least`` or more."""

    def whole_number(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is less than {least}")
        return number

    return whole_number


def rate(text: str) -> float:
    """A share, from 0 to 1."""
    try:
        share = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1") from None
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return share


def engine_args(text: str) -> dict[str, Any]:
    """Further arguments of the engine, as a JSON object."""
    try:
        return parse_engine_args(text)
    except RequestInvalidError as error:
        raise argparse.ArgumentTypeError("; ".join(map(str, error.refusals))) from None


def cache_path(text: str) -> str | None:
    """Where answers are kept; the empty text: nowhere."""
    refusals = cache_path_refusals(text) if text.strip() else []
    if refusals:
        raise argparse.ArgumentTypeError("; ".join(map(str, refusals)))
    return text if text.strip() else None


def size(text: str) -> int:
    """Bytes with their unit, such as ``50GB``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 500MB, 50GB or 20GiB")
    powers = range(["", "k", "m", "g", "t"].index(match[2].lower()))
    return round(float(match[1]) * prod(1024 if match[3] else 1000 for _power in powers))


def seconds(text: str) -> float:
    """An age with its unit, such as ``12h``, in seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age such as 90s, 30m, 12h or 7d")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]
