"""What the order of records is worth to an engine's prefix cache, without an engine.

The cache is simulated as vLLM's: blocks of tokens, each found by all that stands before it; those of running requests
are held, others are kept until their place is needed, the least lately used first, and the end of a prompt before its
beginning. A token is four characters. Records go through the worker's own line-up, of its own extent.

    python benchmarks/bench_prefix_order.py [--scale 1]

The first table has the share of the prompts' tokens that the engine finds in its cache: as the records come, in the
worker's order, and the most that any order could reach, which is a cache without end. The second has what the order
costs of the worker's own time where it is of no use.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from airflow_llmengine.spec.completion import CompletionV2Request
from airflow_llmengine.worker.chunks import BYTES_PER_TOKEN, ChunkResults
from airflow_llmengine.worker.engines.base import PrefixCache
from airflow_llmengine.worker.engines.echo import EchoEngine
from airflow_llmengine.worker.look_ahead import LookAhead
from airflow_llmengine.worker.records import Record
from airflow_llmengine.worker.share import ChunkWork

BLOCK_TOKENS = 16
CHUNK_RECORDS = 64
CAPACITY = 64
"""Requests that run at once."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts, as they come, and how many tokens the cache has."""

    name: str
    prompts: Sequence[str]
    cache_tokens: int


def text(chance: random.Random, tokens: int) -> str:
    """So many tokens of text like no other."""
    return "".join(chance.choices("abcdefghijklmnopqrstuvwxyz ", k=tokens * BYTES_PER_TOKEN))


def workloads(scale: float) -> Iterator[Workload]:
    """Those that share in different ways."""
    chance = random.Random(7)
    count = int(400 * scale)
    documents = [text(chance, 400) for _ in range(count)]
    questions = [f"{document}{text(chance, 20)}" for document in documents for _ in range(8)]
    cache = count * 400 // 4
    shuffled = chance.sample(questions, len(questions))
    yield Workload("documents with eight questions, shuffled", shuffled, cache)
    yield Workload("the same, the cache a quarter as large", shuffled, cache // 4)
    yield Workload("the same, in order", questions, cache)
    yield Workload("the same, shuffled, all in the cache", shuffled, cache * 8)
    near = sorted(range(len(questions)), key=lambda place: place + chance.uniform(0, 400))
    yield Workload("the same, moved by up to 400 places", [questions[place] for place in near], cache // 4)
    instructions = [text(chance, 200) for _ in range(10)]
    tree = [f"{chance.choice(instructions)}{document}{text(chance, 20)}" for document in documents for _ in range(4)]
    yield Workload("ten instructions, documents, four questions, shuffled", chance.sample(tree, len(tree)), cache)
    rules = text(chance, 300)
    yield Workload("one long instruction, nothing else", [rules + text(chance, 100) for _ in range(8 * count)], cache)
    yield Workload("nothing in common", [text(chance, 100) for _ in range(8 * count)], cache)


class SimulatedCache:
    """vLLM's, of whole blocks."""

    def __init__(self, tokens: int) -> None:
        self._free_blocks = tokens // BLOCK_TOKENS
        self._held: dict[int, int] = {}
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._running: deque[list[int]] = deque()
        self.tokens = 0
        self.found = 0

    def run(self, prompt: str) -> None:
        """Begin with a prompt; where there is no room for it, the oldest ends."""
        blocks = block_hashes(prompt)
        while self._running and (len(self._running) >= CAPACITY or not self._fits(blocks)):
            self._end()
        tokens = len(prompt) // BYTES_PER_TOKEN
        self.tokens += tokens
        found = 0
        for block in blocks:
            if block not in self._held and block not in self._kept:
                break
            found += BLOCK_TOKENS
        self.found += min(found, tokens - 1)
        # First those that are found, so that they are not what has to go.
        for block in blocks[: found // BLOCK_TOKENS]:
            if self._kept.pop(block, 0) is None:
                self._held[block] = 0
            self._held[block] += 1
        for block in blocks[found // BLOCK_TOKENS :]:
            if self._free_blocks:
                self._free_blocks -= 1
            else:
                self._kept.popitem(last=False)
            self._held[block] = 1
        self._running.append(blocks)

    def _fits(self, blocks: Sequence[int]) -> bool:
        new = sum(block not in self._held and block not in self._kept for block in blocks)
        taken = sum(block in self._kept for block in blocks)
        return new <= self._free_blocks + len(self._kept) - taken

    def _end(self) -> None:
        for block in reversed(self._running.popleft()):
            self._held[block] -= 1
            if not self._held[block]:
                del self._held[block]
                self._kept[block] = None


def block_hashes(prompt: str) -> list[int]:
    """Each whole block of a prompt, with all that stands before it."""
    size = BLOCK_TOKENS * BYTES_PER_TOKEN
    hashes: list[int] = []
    for start in range(0, len(prompt) - size + 1, size):
        hashes.append(hash((hashes[-1] if hashes else 0, prompt[start : start + size])))
    return hashes


class SizedEngine(EchoEngine):
    """Says how large its prefix cache is; answers nothing."""

    def __init__(self, tokens: int | None) -> None:
        self._tokens = tokens

    def prefix_cache(self) -> PrefixCache | None:
        """See ``CachesPrefixes``."""
        return None if self._tokens is None else PrefixCache(tokens=self._tokens, block_tokens=BLOCK_TOKENS)


def chunks_of(prompts: Sequence[str]) -> list[ChunkWork]:
    """The prompts as records, in chunks."""
    records = [
        Record(index, f"line {index + 1}", CompletionV2Request(prompt=prompt), size=len(prompt))
        for index, prompt in enumerate(prompts)
    ]
    return [
        ChunkWork(
            ChunkResults(number, start, len(records[start : start + CHUNK_RECORDS])),
            records[start : start + CHUNK_RECORDS],
        )
        for number, start in enumerate(range(0, len(records), CHUNK_RECORDS))
    ]


async def go_through(chunks: Sequence[ChunkWork], cache_tokens: int | None, each: Callable[[Record], None]) -> None:
    """Take all records from a line-up that is filled while the engine loads, and goes on being filled."""
    coming = deque(chunks)

    async def claim(at_once: int) -> list[ChunkWork]:
        await asyncio.sleep(0)
        return [coming.popleft() for _ in range(min(at_once, len(coming)))]

    engine = SizedEngine(cache_tokens)
    ahead = LookAhead(claim, helping=lambda: False, may_hold=lambda: None, changed=lambda: None)
    ahead.look_far(engine)
    ahead.begin()
    await ahead.arrange(engine)
    while True:
        taken = ahead.take()
        if taken is not None:
            each(taken[0])
        elif ahead.ended:
            return
        await asyncio.sleep(0)


def found_in(prompts: Sequence[str], cache_tokens: int) -> float:
    """The share of the prompts' tokens that is found in this order."""
    cache = SimulatedCache(cache_tokens)
    for prompt in prompts:
        cache.run(prompt)
    return cache.found / cache.tokens


def worker_order(workload: Workload) -> list[str]:
    """The prompts as the worker gives them to an engine."""
    order: list[int] = []
    asyncio.run(
        go_through(chunks_of(workload.prompts), workload.cache_tokens, lambda record: order.append(record.index))
    )
    return [workload.prompts[index] for index in order]


def most_found(prompts: Sequence[str]) -> float:
    """What a cache without end finds, in any order: the token trie has each block once."""
    seen: set[int] = set()
    tokens = found = 0
    for prompt in prompts:
        blocks = block_hashes(prompt)
        tokens += len(prompt) // BYTES_PER_TOKEN
        found += sum(block in seen for block in blocks) * BLOCK_TOKENS
        seen.update(blocks)
    return found / tokens


def seconds_of(prompts: Sequence[str], cache_tokens: int | None) -> float:
    """Processor seconds of this process for going through the prompts."""
    chunks = chunks_of(prompts)
    before = time.process_time()
    asyncio.run(go_through(chunks, cache_tokens, lambda _record: None))
    return time.process_time() - before


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="how many times as many records (default 1)")
    scale = parser.parse_args().scale
    print(f"{'found in the prefix cache':<58}{'records':>9}{'as they come':>14}{'worker':>9}{'at most':>9}")
    for workload in workloads(scale):
        as_they_come = found_in(workload.prompts, workload.cache_tokens)
        worker = found_in(worker_order(workload), workload.cache_tokens)
        most = most_found(workload.prompts)
        print(f"{workload.name:<58}{len(workload.prompts):>9}{as_they_come:>14.1%}{worker:>9.1%}{most:>9.1%}")
    print()
    print(f"{'microseconds a record where nothing is shared':<58}{'records':>9}{'no cache':>14}{'cache':>9}{'more':>9}")
    chance = random.Random(8)
    for tokens in (15, 100, 1000):
        prompts = [text(chance, tokens) for _ in range(int(20_000 * scale))]
        without, with_cache = (
            min(seconds_of(prompts, cache) for _ in range(3)) / len(prompts) * 1e6 for cache in (None, 20_000)
        )
        more = with_cache - without
        print(f"prompts of {tokens:<47}{len(prompts):>9}{without:>14.1f}{with_cache:>9.1f}{more:>9.1f}")


if __name__ == "__main__":
    main()
