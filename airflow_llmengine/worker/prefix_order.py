"""The order in which records that begin alike are next to one another, and what it is worth. Pure.

An engine that caches prefixes computes what several prompts begin with once, if it meets them before it has to forget.
Prompts in the order of their text meet: that order goes through the tree of all prefixes branch by branch, which no
other order can better as long as one branch fits into the cache.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice, pairwise
from typing import Any, Generic, TypeVar

from airflow_llmengine.spec.chat import ChatCompletionV2Request
from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.worker.chunks import BYTES_PER_TOKEN
from airflow_llmengine.worker.engines.base import PrefixCache
from airflow_llmengine.worker.records import PromptRecord, Record

T = TypeVar("T")

Key = tuple[Any, ...]
"""What a prompt is sorted by. First a number, which keeps kinds apart, then its pieces, in the order in which an engine
reads them: texts, or token ids as bytes."""

_TEXT, _IDS, _CHAT = range(3)

BYTES_PER_ID = 8
"""As which a token's id stands in a key."""


def prompt_key(record: Record) -> Key | None:
    """What a record's prompt is sorted by; None: its order is of no use.

    That is so of records of pooling models, and of those with images, sound or video, or with log probabilities of the
    prompt, for which vLLM computes all of it.
    """
    request = record.request
    if isinstance(request, PromptRecord):
        return (_TEXT, request.prompt)
    if isinstance(request, CompletionV2Request):
        if request.echo and request.logprobs is not None:
            return None
        return _completion_key(request.prompt)
    if isinstance(request, ChatCompletionV2Request):
        return None if request.prompt_logprobs is not None else _chat_key(request)
    return None


def _completion_key(prompt: Any) -> Key | None:
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        # Of several prompts, which are in the engine at the same time, the first.
        prompt = prompt[0]
    if isinstance(prompt, str):
        return (_TEXT, prompt)
    try:
        return (_IDS, array("q", prompt).tobytes())
    except (TypeError, OverflowError):
        return None


def _chat_key(request: ChatCompletionV2Request) -> Key | None:
    """What a model's template writes first stands first: its own settings, then tools, then the conversation."""
    settings = [
        value if isinstance(value, str) else json.dumps(value)
        for value in (request.chat_template, request.chat_template_kwargs, request.documents, request.tools)
        if value
    ]
    pieces = []
    for message in request.messages:
        texts = _texts(message)
        if texts is None:
            return None
        pieces += texts
    return (_CHAT, len(settings), *settings, *pieces)


def _texts(message: Mapping[str, Any]) -> list[str] | None:
    content = message.get("content")
    if content is None:
        content = ""
    texts = [str(message.get("role"))]
    if isinstance(content, str):
        texts.append(content)
    elif isinstance(content, list):
        for part in content:
            text = part.get("text") if isinstance(part, dict) else part
            if not isinstance(text, str):
                return None
            texts.append(text)
    else:
        return None
    return texts


def tokens_of(key: Key) -> int:
    """About how many tokens a prompt has."""
    return sum(_tokens(piece) for piece in key if not isinstance(piece, int))


def shared_tokens(one: Key, other: Key) -> int:
    """About how many tokens two prompts have in common at their beginning."""
    tokens = 0
    for a, b in zip(one, other, strict=False):
        if a == b:
            tokens += 0 if isinstance(a, int) else _tokens(a)
        else:
            return tokens if isinstance(a, int) else tokens + _tokens(a[: _common_length(a, b)])
    return tokens


def _tokens(piece: str | bytes) -> int:
    return len(piece) // (BYTES_PER_TOKEN if isinstance(piece, str) else BYTES_PER_ID)


def _common_length(a: Any, b: Any) -> int:
    """How far two strings are the same: by halves, as comparing is faster than looking."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def worth_of_order(records: Iterable[Record], cache: PrefixCache, *, least: float = 0.0) -> float:
    """Which part of their prompts' tokens need not be computed if these records are sorted, and must be as they come.

    Args:
        records: As they come.
        cache: The engine's. As they come, a prompt finds what it has in common with those that the cache holds; sorted,
            what it has in common with any.
        least: Less than this part is told as nothing, which is found out sooner.
    """
    keys = [key for key in map(prompt_key, records) if key is not None]
    sizes = [tokens_of(key) for key in keys]
    total = sum(sizes)
    # In order each stands beside the one with which it has most in common.
    found_sorted = sum(_shared_blocks(one, other, cache) for one, other in pairwise(sorted(keys)))
    if not found_sorted or found_sorted < least * total:
        return 0.0
    worth = (found_sorted - _found_as_they_come(keys, sizes, cache)) / total
    return worth if worth >= least else 0.0


def _found_as_they_come(keys: Iterable[Key], sizes: Iterable[int], cache: PrefixCache) -> int:
    found = held_tokens = 0
    held: list[Key] = []
    order: deque[tuple[Key, int]] = deque()
    for key, tokens in zip(keys, sizes, strict=True):
        place = bisect_left(held, key)
        found += max((_shared_blocks(key, other, cache) for other in held[max(0, place - 1) : place + 1]), default=0)
        held.insert(place, key)
        order.append((key, tokens))
        held_tokens += tokens
        while held_tokens > cache.tokens and len(order) > 1:
            gone, gone_tokens = order.popleft()
            del held[bisect_left(held, gone)]
            held_tokens -= gone_tokens
    return found


def _shared_blocks(one: Key, other: Key, cache: PrefixCache) -> int:
    """Tokens of whole blocks that two prompts have in common."""
    for a, b in zip(one, other, strict=False):
        if a != b:
            if isinstance(a, int) or a[: cache.block_tokens] != b[: cache.block_tokens]:
                # Most often: less than a block, and no need to count.
                break
            return shared_tokens(one, other) // cache.block_tokens * cache.block_tokens
        if not isinstance(a, int):
            return shared_tokens(one, other) // cache.block_tokens * cache.block_tokens
    return 0


class Sweep(Generic[T]):
    """Goes through entries in the order of their keys, again and again, while new ones come.

    What comes in time for the sweep that is going on joins it, and what comes too late waits for the next. As many may
    join a sweep as it began with: then an entry waits for no more than two sweeps, whatever comes.
    """

    def __init__(self) -> None:
        self._now: list[tuple[Key, int, T]] = []
        self._place = 0
        self._next: list[tuple[Key, int, T]] = []
        self._may_join = 0
        self._last: tuple[Key, int] | None = None
        """The entry that was given last in this sweep."""

    def __len__(self) -> int:
        return len(self._now) - self._place + len(self._next)

    def add(self, key: Key, index: int, entry: T) -> None:
        """Take in an entry; ``index`` is its own alone, and orders those of the same key."""
        item = (key, index, entry)
        if self._may_join and self._last is not None and (key, index) > self._last:
            self._may_join -= 1
            insort(self._now, item, lo=self._place)
        else:
            insort(self._next, item)

    def pop(self) -> T:
        """The next entry. There must be one."""
        if self._place == len(self._now):
            self._now, self._next = self._next, []
            self._place = 0
            self._may_join = len(self._now)
        key, index, entry = self._now[self._place]
        self._last = key, index
        self._place += 1
        if self._place >= 4096:
            # What is gone is not kept.
            del self._now[: self._place]
            self._place = 0
        return entry

    def __iter__(self) -> Iterator[T]:
        """Those that are left, in no order that matters."""
        for _key, _index, entry in chain(islice(self._now, self._place, None), self._next):
            yield entry

    def clear(self) -> None:
        """Forget those that are left."""
        self._now, self._next, self._place, self._may_join = [], [], 0, 0
