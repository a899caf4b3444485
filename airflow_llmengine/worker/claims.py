"""Claims: which chunks this attempt may work on, and which others do. Blocking; of one thread, but for what it says."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from airflow_llmengine.spec.job_state import Claim
from airflow_llmengine.storage.job_directory import ChunkFiles, JobScratch
from airflow_llmengine.worker.attempts import Attempts, HolderState
from airflow_llmengine.worker.process_identity import ProcessIdentity
from airflow_llmengine.worker.timing import Timing

AT_ONCE = 16
"""So many claims are written at the same time, where several are: a store takes its time over each, not over all."""


@dataclass(frozen=True, slots=True)
class HeldChunk:
    """A chunk that this attempt has claimed."""

    chunk: int
    fresh: bool
    """Whether nobody ever held it: then there is nothing of it."""
    deaths: int
    """How many earlier attempts died while they held it."""
    suspect: int | None = None
    """Index of the record that was alone in the engine when one of them died."""
    at_fault: int | None = None
    """Index of the record that was alone in the engine when two of them died."""


@dataclass(frozen=True, slots=True)
class _Held:
    number: int
    deaths: int
    suspect: int | None


class Claims:
    """What one attempt holds, and what it knows of the others' claims.

    Args:
        scratch: The job.
        replica: This replica's number.
        attempt: Names this attempt, as its heartbeat does.
        timing: Times and clock.
    """

    def __init__(self, scratch: JobScratch, *, replica: int, attempt: str, timing: Timing) -> None:
        self._scratch = scratch
        self._replica = replica
        self._attempt = attempt
        self._timing = timing
        self._process = ProcessIdentity.own()
        self._attempts = Attempts(timing)
        self._newest: dict[int, int] = {}
        self._read: dict[tuple[int, int], Claim] = {}
        self._held: dict[int, _Held] = {}
        self._noted: int | None = None
        """The chunk whose claim names a record that went through the engine by itself."""
        self._committed: dict[int, int] = {}
        self._refreshed = float("-inf")
        # Kept: to start threads for every few chunks costs more than to write the claims.
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="claims")
        self.files = ChunkFiles()
        """What is committed, as far as it is known here."""

    def refresh(self, *, if_older_than: float = 0.0) -> None:
        """List chunks and claims, and look at the heartbeats, unless that was done so many seconds ago."""
        if time.monotonic() - self._refreshed < if_older_than:
            return
        files = self._scratch.chunk_files()
        # A listing may be late; what was committed stays so.
        for known in (dict(self.files.rounds), self._committed.copy()):
            for chunk, round_number in known.items():
                files.rounds[chunk] = max(round_number, files.rounds.get(chunk, 0))
        self.files = files
        self._newest = self._scratch.claims()
        self._attempts.observe(self._scratch.read_heartbeats(), time.monotonic())
        self._refreshed = time.monotonic()

    def states(self, chunks: Iterable[int]) -> dict[int, HolderState | None]:
        """Who holds each of these chunks, as far as it is known; None: nobody."""
        return {chunk: self._state(chunk) for chunk in chunks}

    def holds(self, chunk: int) -> bool:
        """Whether this attempt works on the chunk."""
        return chunk in self._held

    def take_all(self, chunks: Sequence[int]) -> list[HeldChunk]:
        """Claim several chunks, by several threads; those that somebody holds or that are committed are left out."""
        if len(chunks) == 1:
            held = [self.take(chunks[0])]
        else:
            # Each of them touches only what is known of its own chunk.
            held = list(self._threads.map(self.take, chunks))
        return [one for one in held if one is not None]

    def take(self, chunk: int) -> HeldChunk | None:
        """Claim a chunk; None if somebody holds it, or it is committed."""
        if chunk in self.files.rounds or chunk in self._held:
            return None
        newest = self._newest.get(chunk)
        before = self._newest_claim(chunk)
        if self._holder_state(before) not in (None, "gone"):
            return None
        number = 0 if newest is None else newest + 1
        deaths = 0 if before is None else before.deaths + (not before.given_back)
        suspect, at_fault = _suspicion(before)
        if not self._scratch.create_claim(chunk, number, self._own_claim(deaths=deaths, suspect=suspect)):
            # Somebody was faster, or the listing late.
            self._newest[chunk] = number
            return None
        self._newest[chunk] = number
        self._held[chunk] = _Held(number, deaths, suspect)
        if number and self._scratch.has_chunk(chunk):
            # An earlier holder has committed it since the last look, or without learning of it before it gave it back.
            self.files.rounds.setdefault(chunk, 0)
            del self._held[chunk]
            return None
        return HeldChunk(chunk, fresh=number == 0, deaths=deaths, suspect=suspect, at_fault=at_fault)

    def take_round(self, chunk: int, round_number: int) -> bool:
        """Take it upon oneself to make a committed chunk again; each round is tried once, by whoever comes first."""
        return self._scratch.claim_round(chunk, round_number, self._own_claim())

    def note_alone(self, chunk: int, record: int) -> None:
        """Write down that a record goes through the engine by itself: if the process dies now, it was that one.

        And no other: what was noted before in another chunk's claim is taken back first.
        """
        if self._noted is not None and self._noted != chunk:
            self._note(self._noted, None)
        self._note(chunk, record)
        self._noted = chunk

    def committed(self, chunk: int, round_number: int = 0) -> None:
        """A chunk that this attempt held is committed."""
        self._committed[chunk] = self.files.rounds[chunk] = round_number
        self._held.pop(chunk, None)

    def give_back(self, *, died: bool = False) -> None:
        """Give back what is held and not committed, so that others need not wait for this attempt's silence.

        It is the end: nothing is claimed afterwards.

        Args:
            died: Whether the engine has died over it for good: that counts as the holder's death.
        """
        held = dict(self._held)
        self._held.clear()

        def give_one_back(chunk: int) -> None:
            mine = held[chunk]
            claim = self._own_claim(deaths=mine.deaths + died, suspect=mine.suspect, given_back=True)
            self._scratch.replace_claim(chunk, mine.number, claim)

        # They may be many, and the process have little time left.
        with self._threads as threads:
            list(threads.map(give_one_back, held))

    def _note(self, chunk: int, alone: int | None) -> None:
        held = self._held.get(chunk)
        if held is not None:
            claim = self._own_claim(deaths=held.deaths, suspect=held.suspect, alone=alone)
            self._scratch.replace_claim(chunk, held.number, claim)

    def _state(self, chunk: int) -> HolderState | None:
        if chunk in self._held:
            return "at work"
        return self._holder_state(self._newest_claim(chunk))

    def _holder_state(self, claim: Claim | None) -> HolderState | None:
        if claim is None or claim.given_back:
            return None
        return self._attempts.holder_state(claim, time.monotonic())

    def _newest_claim(self, chunk: int) -> Claim | None:
        number = self._newest.get(chunk)
        if number is None:
            return None
        claim = self._read.get((chunk, number))
        if claim is None or self._attempts.holder_state(claim, time.monotonic()) != "at work":
            # It may have been given back in the meantime, or a record been noted in it.
            claim = self._scratch.read_claim(chunk, number)
            if claim is not None:
                self._read[chunk, number] = claim
        return claim

    def _own_claim(
        self, *, deaths: int = 0, suspect: int | None = None, alone: int | None = None, given_back: bool = False
    ) -> Claim:
        return Claim(
            replica=self._replica,
            attempt=self._attempt,
            host=self._process.host,
            pid=self._process.pid,
            pid_namespace=self._process.pid_namespace,
            claimed=self._timing.wall_clock(),
            deaths=deaths,
            alone=alone,
            suspect=suspect,
            given_back=given_back,
        )


def _suspicion(before: Claim | None) -> tuple[int | None, int | None]:
    """The record that is now under suspicion, and the one that is at fault, by the claim of the last holder.

    A process may be killed for reasons of its own while any record is alone in its engine: twice the same one is no
    accident.
    """
    if before is None or before.given_back or before.alone is None:
        return (None if before is None else before.suspect), None
    return (None, before.alone) if before.alone == before.suspect else (before.alone, None)
