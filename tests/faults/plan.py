"""Fault plans: everything that goes wrong in one run, made from one seed.

A plan is data. Nothing random happens after it is made, so that its seed brings the same plan back; what threads make
of it in time may differ from run to run, as with the faults themselves.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

InputFormat = Literal["lines", "array", "batch lines", "content file", "content"]
Store = Literal["local", "memory", "s3"]

Operation = Literal["create", "replace", "read", "list", "delete", "stat", "write", "probe", "any"]
"""What is asked of a store. ``write`` is the output's own; ``probe`` the trial whether commits are possible."""

FileKind = Literal[
    "claim",
    "chunk",
    "part",
    "mark",
    "heartbeat",
    "current",
    "cancel",
    "job",
    "input",
    "model",
    "end",
    "output",
    "manifest",
    "source",
    "folder",
    "any",
]

StorageFaultKind = Literal["503", "timeout", "io error", "denied", "disk full", "delay", "torn write", "answer lost"]
"""``503``, ``timeout`` and ``delay`` are over after a while. A ``torn write`` is one over which the process is killed
with half of the file written. With ``answer lost`` the store does what it is asked, and the caller sees a timeout."""

TRANSIENT_KINDS = ("503", "timeout", "delay", "answer lost")
MANY = 10**6
"""Times that a fault happens which is not over before its attempt is."""


@dataclass(frozen=True, slots=True)
class StorageFault:
    """One kind of calls of one attempt goes wrong, from the nth on."""

    operation: Operation
    file: FileKind
    kind: StorageFaultKind
    nth: int = 0
    """How many such calls go well before."""
    times: int = 1
    """How many in a row go wrong; a few are mended by trying again, a storm is not."""

    def __str__(self) -> str:
        times = "for good" if self.times >= MANY else f"x{self.times}"
        return f"{self.kind} {times} at {self.operation} of {self.file}, from call {self.nth}"


EngineFaultKind = Literal["kills engine", "kills process", "internal", "slow"]


@dataclass(frozen=True, slots=True)
class EngineFault:
    """One record does something to the engine."""

    record: int
    kind: EngineFaultKind
    times: int
    """How often it does so before it is answered as any other."""

    def __str__(self) -> str:
        return f"record {self.record}: {self.kind}{'' if self.times >= MANY else f' x{self.times}'}"


EndKind = Literal["SIGTERM", "SIGKILL", "freeze"]
TriggerKind = Literal["seconds", "answers", "before call", "after call"]


@dataclass(frozen=True, slots=True)
class Trigger:
    """When something happens."""

    kind: TriggerKind
    """``seconds`` after the attempt's start; ``answers`` of the attempt's engine; a ``call`` of the attempt to storage,
    counted from its start: before the store hears of it, or after it did what it was asked."""
    number: float

    def __str__(self) -> str:
        return f"{self.number:g} {self.kind}" if self.kind in ("seconds", "answers") else f"{self.kind} {self.number:g}"


@dataclass(frozen=True, slots=True)
class ProcessFault:
    """What happens to the process of one attempt."""

    kind: EndKind
    at: Trigger
    grace_seconds: float = 2.0
    """After SIGTERM: how long it may live."""
    wakes_after: float | None = None
    """After a freeze: seconds; None: only when the whole job is over."""

    def __str__(self) -> str:
        more = f" grace {self.grace_seconds:g} s" if self.kind == "SIGTERM" else ""
        if self.kind == "freeze":
            more = f" until {'the end' if self.wakes_after is None else f'{self.wakes_after:g} s later'}"
        return f"{self.kind} at {self.at}{more}"


@dataclass(frozen=True, slots=True)
class AttemptPlan:
    """One attempt of one replica, and all that happens to it."""

    replica: int
    starts_after: float = 0.0
    """Seconds after the stage's start."""
    process: ProcessFault | None = None
    storage: tuple[StorageFault, ...] = ()
    clock_offset: float = 0.0
    """Seconds by which its wall clock is wrong."""
    clock_jump: tuple[float, float] | None = None
    """After so many seconds it jumps by so many."""
    listing_lag: float = 0.0
    """Seconds after which its listings show a new file."""

    def __str__(self) -> str:
        said = [f"r{self.replica}"]
        if self.starts_after:
            said.append(f"+{self.starts_after:g}s")
        if self.process is not None:
            said.append(str(self.process))
        said.extend(str(fault) for fault in self.storage)
        if self.clock_offset:
            said.append(f"clock {self.clock_offset:+g}s")
        if self.clock_jump is not None:
            said.append(f"clock jumps {self.clock_jump[1]:+g}s at {self.clock_jump[0]:g}s")
        if self.listing_lag:
            said.append(f"listings {self.listing_lag:g}s late")
        return " ".join(said)


EventKind = Literal["cancel", "clear", "replace input", "swap input", "other job"]


@dataclass(frozen=True, slots=True)
class Event:
    """What somebody else does to the job while a stage runs."""

    kind: EventKind
    """``clear``: a new series is launched while the old attempts end. ``swap input``: it is replaced, and put back a
    moment later. ``other job``: another model's, at the same output path."""
    after_answers: int
    """Of all attempts of the stage together."""

    def __str__(self) -> str:
        return f"{self.kind} after {self.after_answers} answers"


@dataclass(frozen=True, slots=True)
class Stage:
    """One try of the whole job, as a task or a task group makes it."""

    replicas: int
    attempts: tuple[AttemptPlan, ...]
    launched: bool
    """Whether a task of its own launches the job first, as with a task group; else each worker does."""
    new_series: bool = False
    """Whether it is a clear or a new run, and not a retry."""
    regenerate: bool = False
    event: Event | None = None
    launcher: AttemptPlan = AttemptPlan(0)
    collector: AttemptPlan = AttemptPlan(0)

    @property
    def storage_faults(self) -> tuple[StorageFault, ...]:
        """Those of all its attempts."""
        return tuple(fault for plan in (*self.attempts, self.launcher, self.collector) for fault in plan.storage)

    def __str__(self) -> str:
        said = [f"{self.replicas} replicas{' launched' if self.launched else ''}"]
        if self.new_series:
            said.append("new series")
        if self.regenerate:
            said.append("regenerate")
        if self.event is not None:
            said.append(str(self.event))
        twice = {a.replica for a in self.attempts if sum(b.replica == a.replica for b in self.attempts) > 1}
        said.extend(str(a) for a in self.attempts if a != AttemptPlan(a.replica) or a.replica in twice)
        missing = set(range(self.replicas)) - {attempt.replica for attempt in self.attempts}
        if missing:
            said.append(f"never started: {sorted(missing)}")
        said.extend(
            f"{name}: {plan}"
            for name, plan in (("launch", self.launcher), ("collect", self.collector))
            if plan != AttemptPlan(0)
        )
        return "; ".join(said)


@dataclass(frozen=True, slots=True)
class Plan:
    """One run: a job, what goes wrong with it, and after all of it one plain retry."""

    seed: int
    store: Store
    records: int
    input_format: InputFormat
    bad: frozenset[int]
    """Records that are none."""
    chunk_records: int
    output_lines: bool
    capacity: int
    """Records that an engine works on at once."""
    seconds_per_record: float
    max_runtime_sec: int | None
    engine: tuple[EngineFault, ...]
    engine_dies_after: int | None
    """Answers after which an engine dies of itself, again and again."""
    stages: tuple[Stage, ...]
    last_replicas: int
    """Replicas of the plain retry."""
    max_error_rate: float | None = None
    asks_for_echo: bool = False
    """Whether records ask for their prompt in front of the answer: a real model says nonces only so."""
    distinct: int | None = None
    """Of the records, so many ask for something of their own; the others repeat them in turn. None: all of them."""

    def first_like(self, index: int) -> int:
        """The first record that asks the same as this one; perhaps itself."""
        return index if self.distinct is None else index % self.distinct

    def __str__(self) -> str:
        job = (
            f"seed {self.seed} on {self.store}: {self.records} records ({self.input_format}, {len(self.bad)} bad), "
            f"chunks of {self.chunk_records}, capacity {self.capacity}, {self.seconds_per_record:g} s each"
        )
        if self.max_runtime_sec is not None:
            job += f", deadline {self.max_runtime_sec} s"
        if self.engine_dies_after is not None:
            job += f", engines die after {self.engine_dies_after} answers"
        if self.distinct is not None:
            job += f", {self.distinct} of them distinct"
        for fault in self.engine:
            job += f", {fault}"
        stages = " | ".join(str(stage) for stage in self.stages)
        return f"{job}\n    {stages} | retry with {self.last_replicas}"

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of fault in it, for the summary of a campaign."""
        found = {fault.kind for fault in self.engine} | ({"engine dies"} if self.engine_dies_after else set())
        found |= {"deadline"} if self.max_runtime_sec is not None else set()
        found |= {"records repeat"} if self.distinct is not None else set()
        for stage in self.stages:
            found |= {"never starts"} if {a.replica for a in stage.attempts} != set(range(stage.replicas)) else set()
            found |= {"two attempts of one replica"} if len(stage.attempts) > stage.replicas else set()
            found |= set() if stage.event is None else {stage.event.kind}
            for attempt in (*stage.attempts, stage.launcher, stage.collector):
                found |= {fault.kind for fault in attempt.storage}
                found |= {"listing lags"} if attempt.listing_lag else set()
                found |= {"clock"} if attempt.clock_offset or attempt.clock_jump else set()
                found |= set() if attempt.process is None else {attempt.process.kind}
        return frozenset(found)


def make_plan(seed: int, store: Store = "local") -> Plan:
    """The plan of a seed."""
    return _PlanMaker(seed, store).plan()


class _PlanMaker:
    def __init__(self, seed: int, store: Store) -> None:
        self._seed = seed
        self._store = store
        # A store's name is a part of it, so that the same seed tries something else on another store.
        self._chance = random.Random(f"{store}/{seed}")
        # A request to moto's server takes milliseconds, and a record a few requests.
        self._most_records = 48 if store == "s3" else 160

    def plan(self) -> Plan:
        chance = self._chance
        records = chance.choice([0, 1, 1, 2, 3, 7]) if chance.random() < 0.15 else chance.randint(4, self._most_records)
        input_format: InputFormat = chance.choice(["lines", "lines", "array", "batch lines", "content file", "content"])
        bad: frozenset[int] = frozenset()
        if input_format in ("lines", "array", "batch lines") and records > 1 and chance.random() < 0.4:
            bad = frozenset(chance.sample(range(records), chance.randint(1, max(1, records // 5))))
        stages = [self._stage(records, number) for number in range(chance.choice([1, 1, 2, 2, 3, 4]))]
        if chance.random() < 0.1:
            stages = [self._kill_everything(stage, records) for stage in stages]
        plan = Plan(
            seed=self._seed,
            store=self._store,
            records=records,
            input_format=input_format,
            bad=bad,
            chunk_records=chance.randint(1, 16),
            output_lines=chance.random() < 0.3,
            capacity=chance.choice([1, 2, 4, 8]),
            seconds_per_record=chance.choice([0.0, 0.001, 0.003, 0.01]),
            max_runtime_sec=1 if chance.random() < 0.05 else None,
            engine=self._engine_faults(records, bad),
            engine_dies_after=chance.randint(3, 60) if chance.random() < 0.08 else None,
            stages=tuple(stages),
            last_replicas=chance.choice([1, 1, 2, 3]),
        )
        # The last that is drawn, so that what a seed meant before there were repeated records it means still.
        repeating = replace(plan, distinct=chance.randint(1, records)) if records and chance.random() < 0.3 else plan
        like_victims = {repeating.first_like(fault.record) for fault in plan.engine}
        # As below: there is a record that is always answered, and none that asks the same brings its engine down.
        is_safe = any(repeating.first_like(index) not in like_victims for index in range(records) if index not in bad)
        return repeating if is_safe else plan

    def _engine_faults(self, records: int, bad: frozenset[int]) -> tuple[EngineFault, ...]:
        chance = self._chance
        good = sorted(set(range(records)) - bad)
        # At least one record is always answered: a job whose every record fails is no job that a retry completes.
        victims = chance.sample(good, min(len(good) - 1, chance.choice([0, 0, 0, 1, 1, 2, 4]))) if len(good) > 1 else []
        faults = []
        for record in sorted(victims):
            kind: EngineFaultKind = chance.choices(_ENGINE_KINDS, weights=[3, 1, 3, 2])[0]
            times = {
                "kills engine": chance.choice([1, 2, 3, MANY]),
                "kills process": chance.choice([1, 2, 3, MANY]),
                "internal": chance.choice([1, 1, 2, MANY]),
                "slow": MANY,
            }[kind]
            faults.append(EngineFault(record, kind, times))
        # A record that kills its whole process for ever takes one attempt each time that it is tried; with several of
        # them no single retry completes the job, and none is promised to.
        killers = [fault for fault in faults if fault.kind == "kills process" and fault.times > 1]
        return tuple(
            replace(fault, times=1) if fault in killers and (len(killers) > 1 or fault.times > 3) else fault
            for fault in faults
        )

    def _stage(self, records: int, number: int) -> Stage:
        chance = self._chance
        # An earlier stage may have done the job; then only a new generation has anything to do.
        regenerate = chance.random() < (0.5 if number else 0.1)
        replicas = chance.choice([1, 1, 1, 2, 2, 3, 4])
        attempts = [self._attempt(replica, records) for replica in range(replicas)]
        if replicas > 1 and chance.random() < 0.15:
            del attempts[chance.randrange(len(attempts))]
        if chance.random() < 0.12:
            again = chance.choice(attempts)
            attempts.append(AttemptPlan(again.replica, starts_after=chance.choice([0.0, 0.05, 0.2])))
        event = None
        if chance.random() < 0.2:
            kind: EventKind = chance.choice(["cancel", "clear", "clear", "replace input", "swap input", "other job"])
            event = Event(kind, chance.randint(0, max(1, records)))
        return Stage(
            replicas=replicas,
            attempts=tuple(attempts),
            launched=replicas > 1 and chance.random() < 0.7,
            new_series=regenerate or chance.random() < 0.2,
            regenerate=regenerate,
            event=event,
            launcher=self._attempt(0, records, quiet=0.8),
            collector=self._attempt(0, records, quiet=0.5),
        )

    def _attempt(self, replica: int, records: int, *, quiet: float = 0.25) -> AttemptPlan:
        chance = self._chance
        if chance.random() < quiet:
            return AttemptPlan(replica)
        process = None
        if chance.random() < 0.5:
            kind: EndKind = chance.choices(_END_KINDS, weights=[3, 5, 2])[0]
            process = ProcessFault(
                kind,
                self._trigger(records),
                grace_seconds=chance.choice([0.1, 1.0, 5.0]),
                wakes_after=chance.choice([0.1, 0.7, 1.5, None]),
            )
        faults = [self._storage_fault() for _ in range(chance.choice([0, 1, 1, 2, 3, 5]))]
        jump = None
        if chance.random() < 0.1:
            jump = (round(chance.uniform(0, 0.5), 2), float(chance.choice([-36000, -3600, -90, 90, 3600, 36000])))
        return AttemptPlan(
            replica,
            starts_after=chance.choice([0.0, 0.0, 0.0, 0.05, 0.3]),
            process=process,
            storage=tuple(faults),
            clock_offset=float(chance.choice([-7200, -30, 30, 7200])) if chance.random() < 0.1 else 0.0,
            clock_jump=jump,
            listing_lag=chance.choice([0.05, 0.3, 1.0]) if chance.random() < 0.1 else 0.0,
        )

    def _trigger(self, records: int) -> Trigger:
        chance = self._chance
        kind: TriggerKind = chance.choice(["seconds", "answers", "before call", "after call"])
        if kind == "seconds":
            return Trigger(kind, round(chance.uniform(0, 0.6), 3))
        if kind == "answers":
            return Trigger(kind, chance.randint(0, max(1, records // 2)))
        return Trigger(kind, chance.randint(1, 120))

    def _storage_fault(self) -> StorageFault:
        chance = self._chance
        kind: StorageFaultKind = chance.choices(_KINDS, weights=_WEIGHTS)[0]
        only_writes = kind in ("torn write", "answer lost", "disk full")
        operation, files = chance.choice(_WRITES if only_writes else _PLACES)
        times = chance.choice([1, 1, 2, 3, 5, 20])
        if kind in ("io error", "denied", "disk full"):
            times = chance.choice([1, 1, 3, MANY])
        elif kind in ("torn write", "answer lost"):
            # An answer that is lost as often as the call is tried again is lost for good.
            times = chance.choice([1, 1, 5])
        nth = chance.choice([0, 0, 0, 1, 2, 4, 8, 16])
        return StorageFault(operation, chance.choice(files), kind, nth=nth, times=times)

    def _kill_everything(self, stage: Stage, records: int) -> Stage:
        """SIGKILL for each attempt of a stage, as when a machine or a whole cluster goes."""
        return replace(
            stage,
            attempts=tuple(
                replace(attempt, process=ProcessFault("SIGKILL", self._trigger(records))) for attempt in stage.attempts
            ),
        )


_PLACES: Sequence[tuple[Operation, Sequence[FileKind]]] = (
    ("create", ("claim", "chunk", "chunk", "part", "mark", "input", "model", "end")),
    ("create", ("claim", "chunk", "part")),
    ("replace", ("heartbeat", "current", "job", "manifest")),
    ("read", ("source", "current", "heartbeat", "claim", "chunk", "part", "input", "job", "end", "manifest", "cancel")),
    ("list", ("folder",)),
    ("delete", ("claim", "manifest", "cancel", "folder")),
    ("stat", ("chunk", "output", "source")),
    ("write", ("output",)),
    ("probe", ("any",)),
    ("any", ("any",)),
)
_WRITES = tuple(place for place in _PLACES if place[0] in ("create", "replace", "write"))
_ENGINE_KINDS: Sequence[EngineFaultKind] = ("kills engine", "kills process", "internal", "slow")
_END_KINDS: Sequence[EndKind] = ("SIGTERM", "SIGKILL", "freeze")
_KINDS: Sequence[StorageFaultKind] = (
    "503",
    "timeout",
    "io error",
    "denied",
    "disk full",
    "delay",
    "torn write",
    "answer lost",
)
_WEIGHTS = (5, 3, 2, 1, 2, 3, 3, 5)
