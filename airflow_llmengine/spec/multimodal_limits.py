"""Reading ``limit_mm_per_prompt``: a string in the contract, an object in today's vLLM."""

from __future__ import annotations

import json
import re
from typing import Any

_ITEM = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*([0-9]{1,9})\s*", re.ASCII)


def multimodal_limits(text: str) -> dict[str, Any]:
    """The most items of each kind in one prompt; empty where the text is.

    Args:
        text: ``image=2,video=1``, or a JSON object; there the value may be an object with what else vLLM takes of a
            kind, such as ``{"video": {"count": 1, "num_frames": 32}}``.

    Raises:
        ValueError: It is neither; the message is a clause that says so.
    """
    if not text.strip():
        return {}
    if text.lstrip().startswith("{"):
        try:
            limits = json.loads(text)
        except (ValueError, RecursionError):
            raise ValueError("is not valid JSON") from None
        for kind, limit in limits.items():
            if not (_is_count(limit) or (isinstance(limit, dict) and _is_count(limit.get("count", 0)))):
                raise ValueError(f"gives no number of items, 0 or more, for {kind[:30]!a}")
        return dict(limits)
    found = [_ITEM.fullmatch(part) for part in text.split(",")]
    items = [(match[1], int(match[2])) for match in found if match is not None]
    if len(items) < len(found):
        raise ValueError("is neither a list such as image=2,video=1 nor a JSON object")
    if len(dict(items)) < len(items):
        raise ValueError("names a kind twice")
    return dict(items)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
