"""Between characters of a text and the tokens that make it: a text may be cut where no token ends."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

_NOT_WHOLE = "\ufffd"


def tokens_before(decode: Callable[[Sequence[int]], str], ids: Sequence[int], text: str, end: int) -> tuple[int, int]:
    """How many of the first tokens lie wholly before a place in their text.

    Args:
        decode: From tokens to their text.
        ids: The tokens.
        text: Their text, or the beginning of it; up to ``end`` at least.
        end: The place, in characters of ``text``.

    Returns:
        The number of tokens, the fewest that make the same characters, and the number of these characters. Where the
        tokens' text becomes another one, as with tokenizers that tidy up, only the tokens before that are counted.
    """
    # What stands first in a text may be decoded without the white space that it has within a text.
    dropped = 0 if decode(ids).startswith(text[:end]) else len(text[:1]) if text[:1].isspace() else 0

    def length(count: int) -> int:
        return len(decode(ids[:count])) + dropped if count else 0

    count = bisect_right(range(len(ids) + 1), end, key=length) - 1
    while count and not _is_beginning(decode(ids[:count]), text[dropped:end]):
        count -= 1
    while count and decode(ids[: count - 1]) == decode(ids[:count]):
        count -= 1
    return count, length(count)


def text_before(decode: Callable[[Sequence[int]], str], ids: Sequence[int], count: int, text: str) -> str:
    """The beginning of a text that its first ``count`` tokens make; as they decode, where that is no part of it."""
    if count >= len(ids):
        return text
    decoded = decode(ids[:count]).rstrip(_NOT_WHOLE)
    for beginning in (decoded, text[:1] + decoded):
        if text.startswith(beginning):
            return beginning
    return decoded


def _is_beginning(decoded: str, text: str) -> bool:
    return text.startswith(decoded) and not decoded.endswith(_NOT_WHOLE)
