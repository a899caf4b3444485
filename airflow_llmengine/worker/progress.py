"""How far a replica is: counted once, told to the log, to the heartbeat and to the final summary."""

from __future__ import annotations

import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from airflow_llmengine.spec.job_state import Heartbeat, ReplicaPhase
from airflow_llmengine.worker.chunks import ChunkResults, Finished
from airflow_llmengine.worker.process_identity import ProcessIdentity

RATE_WINDOW_SECONDS = 60.0
"""Speeds are told over the last so many seconds."""


@dataclass(slots=True)
class Progress:
    """Counters of one attempt of one replica."""

    replica: int
    replicas: int
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Names this attempt among those of its replica."""
    wall_clock: Callable[[], float] = time.time
    phase: ReplicaPhase = "starting"
    doing: str | None = None
    """In a few words, what takes long just now; None: what ``phase`` says."""
    total: int | None = None
    """Records of the whole input, once known."""
    already: int = 0
    """Records of this replica's share that were found finished."""
    done: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    truncated: int = 0
    """Records of this attempt whose structured output was cut by ``max_tokens``."""
    skipped: int = 0
    """Rows of this attempt of which there was nothing to ask."""
    repeated: int = 0
    """Records of this attempt that were answered by another record's answer of it."""
    cached: int = 0
    """Records of this attempt that were answered by an answer of an earlier run."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    generated_tokens: int = 0
    """Those of ``completion_tokens`` that the engine made, and did not only stand in answers that there were."""
    committed: set[int] = field(default_factory=set)
    records_committed: int = 0
    """In all attempts of this replica, like the failures among them."""
    failures_committed: Counter[str] = field(default_factory=Counter)
    records_open: int = 0
    """Finished, in chunks that are not committed yet, like the failures among them."""
    failures_open: Counter[str] = field(default_factory=Counter)
    failures_elsewhere: Counter[str] = field(default_factory=Counter)
    """Failed records that other replicas tell of."""
    loading_seconds: float = 0.0
    generating_seconds: float = 0.0
    started: float = 0.0
    _samples: deque[tuple[float, int, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        """Begin now."""
        self.started = self.wall_clock()

    @property
    def failed(self) -> int:
        """Failed records of this attempt."""
        return self.failures.total()

    @property
    def failed_in_all(self) -> int:
        """Failed records of the job, as far as replicas have told."""
        if not (self.failures_committed or self.failures_open or self.failures_elsewhere):
            # Mostly; it is asked for every record.
            return 0
        return self.failures_committed.total() + self.failures_open.total() + self.failures_elsewhere.total()

    @property
    def failures_in_all(self) -> Counter[str]:
        """The same by error type."""
        return self.failures_committed + self.failures_open + self.failures_elsewhere

    def say_doing(self, words: str) -> None:
        """Show, in each heartbeat from now on, what takes long; the empty string: nothing does any more."""
        self.doing = words or None

    def go_on_from(self, earlier: Heartbeat) -> None:
        """Take over what earlier attempts of this replica have committed."""
        self.records_committed = earlier.records_committed
        self.failures_committed = Counter(earlier.failures_committed)

    def count(self, result: Finished) -> None:
        """Count one record that this attempt finished."""
        self.done += 1
        self.records_open += 1
        if result.error_type is not None:
            self.failures[result.error_type] += 1
            self.failures_open[result.error_type] += 1
        self.truncated += result.truncated
        self.skipped += result.skipped
        self.repeated += result.repeated
        self.cached += result.cached
        self.prompt_tokens += result.prompt_tokens
        self.completion_tokens += result.completion_tokens
        if not (result.repeated or result.cached):
            self.generated_tokens += result.completion_tokens

    def restore(self, results: Iterable[Finished]) -> None:
        """Count the records of an open chunk that an earlier attempt finished."""
        for result in results:
            self.already += 1
            self.records_open += 1
            if result.error_type is not None:
                self.failures_open[result.error_type] += 1

    def replaces(self, results: ChunkResults) -> None:
        """A committed chunk is made again: what was found good in it is not in work a second time."""
        self.records_open += len(results.finished)
        self.failures_open.update(
            result.error_type for result in results.finished.values() if result.error_type is not None
        )

    def commit(self, results: ChunkResults, *, first: bool) -> None:
        """A chunk stands; ``first``: by this attempt's doing, so that each chunk is counted by one replica alone."""
        self.committed.add(results.number)
        self.records_open -= len(results.finished)
        self.failures_open -= Counter(
            result.error_type for result in results.finished.values() if result.error_type is not None
        )
        if not first:
            return
        self.failures_committed += results.failures
        if results.round_number:
            replaced = (result.error_type for result in results.standing.values() if result.error_type is not None)
            self.failures_committed -= Counter(replaced)
        else:
            self.records_committed += results.size

    def rates(self) -> tuple[float, float]:
        """Records and generated tokens a second, over the last minute."""
        now = time.monotonic()
        self._samples.append((now, self.done, self.generated_tokens))
        while len(self._samples) > 2 and now - self._samples[0][0] > RATE_WINDOW_SECONDS:
            self._samples.popleft()
        then, done, tokens = self._samples[0]
        seconds = now - then
        if seconds <= 0:
            return 0.0, 0.0
        return (self.done - done) / seconds, (self.generated_tokens - tokens) / seconds

    def line(self) -> str:
        """One line for a person: done/total, speeds, time to go, failures."""
        records_per_second, tokens_per_second = self.rates()
        done = self.already + self.done
        # Other replicas' shares are not seen from here: the mean share is told.
        share = None if self.total is None else -(-self.total // self.replicas)
        parts = [f"{done}/{share if share is not None else '?'} records"]
        if self.replicas > 1:
            parts[0] += f" (replica {self.replica} of {self.replicas})"
        parts.append(f"{records_per_second:.1f} records/s")
        parts.append(f"{tokens_per_second:.0f} tokens/s")
        if share is not None and records_per_second > 0:
            parts.append(f"ETA {_duration(max(0, share - done) / records_per_second)}")
        parts.append(f"{self.failed} failed")
        if self.truncated:
            parts.append(f"{self.truncated} truncated by max_tokens")
        if self.skipped:
            parts.append(f"{self.skipped} skipped")
        if self.repeated:
            parts.append(f"{self.repeated} repeated")
        if self.cached:
            parts.append(f"{self.cached} cached")
        return ", ".join(parts)

    def summary(self) -> str:
        """The last line of an attempt: records, failures by type, tokens, seconds, speed."""
        speed = self.generated_tokens / self.generating_seconds if self.generating_seconds else 0.0
        failures = ", ".join(f"{count} {name}" for name, count in self.failures.most_common()) or "none"
        further = f", truncated by max_tokens: {self.truncated}" if self.truncated else ""
        further += f", skipped: {self.skipped}" if self.skipped else ""
        further += f", repeated: {self.repeated}" if self.repeated else ""
        further += f", cached: {self.cached}" if self.cached else ""
        return (
            f"{self.done} records in this attempt ({self.already} found finished), failed: {failures}{further}; "
            f"tokens in {self.prompt_tokens}, out {self.completion_tokens}; "
            f"loading {self.loading_seconds:.1f} s, generating {self.generating_seconds:.1f} s, {speed:.0f} tokens/s"
        )

    def heartbeat(self, message: str | None = None, stop_reason: str | None = None) -> Heartbeat:
        """The replica's sign of life."""
        records_per_second, tokens_per_second = self.rates()
        process = ProcessIdentity.own()
        return Heartbeat(
            replica=self.replica,
            replicas=self.replicas,
            attempt=self.attempt,
            phase=self.phase,
            host=process.host,
            pid=process.pid,
            pid_namespace=process.pid_namespace,
            started=self.started,
            updated=self.wall_clock(),
            records_total=self.total,
            records_done=self.done,
            records_failed=self.failed,
            failures=dict(self.failures),
            records_truncated=self.truncated,
            records_skipped=self.skipped,
            records_repeated=self.repeated,
            records_cached=self.cached,
            records_committed=self.records_committed,
            failures_committed=dict(self.failures_committed),
            records_open=self.records_open,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            records_per_second=round(records_per_second, 3),
            tokens_per_second=round(tokens_per_second, 3),
            chunks_committed=list(ranges(self.committed)),
            message=message or self.doing,
            stop_reason=stop_reason,
        )


def ranges(numbers: Iterable[int]) -> Iterable[tuple[int, int]]:
    """Whole numbers as closed ranges, in order: ``{1, 2, 3, 7}`` is ``(1, 3), (7, 7)``."""
    first = last = None
    for number in sorted(numbers):
        if first is None or last is None:
            first = last = number
        elif number == last + 1:
            last = number
        else:
            yield first, last
            first = last = number
    if first is not None and last is not None:
        yield first, last


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
