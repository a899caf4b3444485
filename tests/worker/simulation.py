"""Many replicas in simulated time, scheduled by the worker's own code: `cut`, `is_own` and `outlook`.

An engine is modelled as a GPU that is kept busy: it writes a fixed number of tokens a second, shared evenly by the
sequences that run, at most ``capacity`` at once; the worker keeps a few more in hand. What is left out: the time that
storage and loading take, and that the last few sequences of a real engine don't make up the full speed.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import mean

from airflow_llmengine.spec.job_state import PinnedInput
from airflow_llmengine.worker.attempts import HolderState
from airflow_llmengine.worker.chunks import DEFAULT_CHUNK_RECORDS, DEFAULT_CHUNK_TOKENS, chunk_share, cut
from airflow_llmengine.worker.line_up import CHUNKS_AHEAD
from airflow_llmengine.worker.records import RawRecord
from airflow_llmengine.worker.schedule import is_own, outlook
from airflow_llmengine.worker.share import HELD_PART


def lognormal_lengths(records: int, *, sigma: float, seed: int) -> list[float]:
    """How long each record takes, of mean 1."""
    chance = random.Random(seed)
    mu = -sigma * sigma / 2
    return [chance.lognormvariate(mu, sigma) for _ in range(records)]


def cut_chunks(records: int, replicas: int) -> list[range]:
    """The records of each chunk, as the worker cuts them in a job that so many replicas begin."""
    pinned = PinnedInput(
        input_identity="sha256:1",
        input_format="json_lines",
        chunk_records=DEFAULT_CHUNK_RECORDS,
        chunk_share=chunk_share(replicas),
        chunk_tokens=DEFAULT_CHUNK_TOKENS,
    )
    raw = (RawRecord(index=index, location="", value={"prompt": "x"}, size=400) for index in range(records))
    return [
        range(chunk.records[0].index, chunk.records[-1].index + 1) for chunk in cut(raw, pinned=pinned, content=None)
    ]


@dataclass
class SimulatedReplica:
    number: int
    starts: float
    work: Iterator[int]
    """Chunks in the order in which it takes them; a chunk is claimed when it is drawn."""
    now: float = 0.0
    shared: float = 0.0
    """Work that each running sequence has been given so far."""
    running: list[tuple[float, int]] = field(default_factory=list)
    """By the share at which it ends: the records that run."""
    waiting: deque[int] = field(default_factory=deque)
    """Records in the engine that don't run yet."""
    lined_up: deque[deque[int]] = field(default_factory=deque)
    """Chunks that are claimed already, with what is left of them."""
    read: int = 0
    """How far it has read the input for its own share."""
    helping: bool = False
    """Whether its own share is done: then it claims nothing before there is room for it."""
    exhausted: bool = False


class Simulation:
    """One job. ``run`` gives the time at which each replica has ended; a replica's speed is 1."""

    def __init__(
        self, lengths: Sequence[float], chunks: Sequence[range], *, starts: Sequence[float], capacity: int
    ) -> None:
        self.lengths = lengths
        self.chunks = chunks
        self.replicas = len(starts)
        self.capacity = capacity
        self.window = capacity + max(8, capacity // 4)
        self.claimed: set[int] = set()
        self.open: dict[int, None] = dict.fromkeys(range(len(chunks)))
        self.left = [len(chunk) for chunk in chunks]
        self.chunk_of = [number for number, chunk in enumerate(chunks) for _ in chunk]
        self.generated = 0

    def run(self, starts: Sequence[float]) -> list[float]:
        replicas = [SimulatedReplica(number, start, iter(()), now=start) for number, start in enumerate(starts)]
        for replica in replicas:
            replica.work = self._take(replica)
        events: list[tuple[float, int]] = [(start, number) for number, start in enumerate(starts)]
        heapq.heapify(events)
        ends = list(starts)
        while events:
            now, number = heapq.heappop(events)
            replica = replicas[number]
            self._advance(replica, now)
            self._fill(replica)
            if replica.running:
                ends_at, _record = replica.running[0]
                heapq.heappush(events, (now + (ends_at - replica.shared) * len(replica.running), number))
            else:
                ends[number] = now
        return ends

    def _advance(self, replica: SimulatedReplica, now: float) -> None:
        if replica.running:
            replica.shared += (now - replica.now) / len(replica.running)
            while replica.running and replica.running[0][0] <= replica.shared + 1e-12:
                _ends_at, record = heapq.heappop(replica.running)
                self.generated += 1
                self.left[self.chunk_of[record]] -= 1
                if not self.left[self.chunk_of[record]]:
                    self.open.pop(self.chunk_of[record], None)
        replica.now = now

    def _fill(self, replica: SimulatedReplica) -> None:
        while len(replica.running) + len(replica.waiting) < self.window:
            if not replica.lined_up:
                self._draw(replica)
                if not replica.lined_up:
                    break
            replica.waiting.append(replica.lined_up[0].popleft())
            if not replica.lined_up[0]:
                replica.lined_up.popleft()
            self._claim_ahead(replica)
        while replica.waiting and len(replica.running) < self.capacity:
            record = replica.waiting.popleft()
            heapq.heappush(replica.running, (replica.shared + self.lengths[record], record))

    def _claim_ahead(self, replica: SimulatedReplica) -> None:
        """As much as `LineUp` wants and `Share.may_hold` lets it, when nothing is sorted."""
        while not replica.helping and not replica.exhausted:
            may_hold = (len(self.lengths) - replica.read) // self.replicas // HELD_PART
            if len(replica.lined_up) >= CHUNKS_AHEAD and sum(map(len, replica.lined_up)) >= may_hold:
                return
            self._draw(replica)

    def _draw(self, replica: SimulatedReplica) -> None:
        chunk = next(replica.work, None)
        if chunk is None:
            replica.exhausted = True
        else:
            replica.lined_up.append(deque(self.chunks[chunk]))

    def _take(self, replica: SimulatedReplica) -> Iterator[int]:
        """As `Share` does: one's own chunks, then what the outlook says is free, until nothing is."""
        for chunk in range(len(self.chunks)):
            if is_own(chunk, replica.number, self.replicas) and chunk not in self.claimed:
                self.claimed.add(chunk)
                replica.read = self.chunks[chunk].stop
                yield chunk
        replica.helping = True
        while True:
            states: dict[int, HolderState | None] = {
                chunk: "at work" if chunk in self.claimed else None for chunk in self.open
            }
            found = outlook(states, chunks=len(self.chunks), replica=replica.number, replicas=self.replicas)
            if found.decision != "help":
                return
            for chunk in found.free:
                if chunk not in self.claimed:
                    self.claimed.add(chunk)
                    yield chunk


def overhang(ends: Sequence[float], begin: float = 0.0) -> float:
    """How much later than the mean the last replica ends, as a part of the whole time."""
    return (max(ends) - mean(ends)) / (mean(ends) - begin)
