"""What the attempts of one run share: who generated what, who wrote what, and each attempt's stand-in for a process.

Attempts run as threads of one process, so that a thousand runs take minutes. What stands for the signals:

- SIGKILL: from that moment on every call of the attempt to its storage or its engine raises ``Killed``, which no
  ``except Exception`` catches, and nothing of it reaches storage any more; its threads end of that. The kernel finishes
  what it was asked before, and so does a call that is under way.
- SIGSTOP, or a machine that hangs: every call to storage or engine waits until the attempt is woken.
- SIGTERM: what the worker's own signal handler does: a request to its ``Stop``.

Real processes under real signals are in ``test_processes.py``.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.worker.stopping import Stop, StopReason
from tests.faults.plan import AttemptPlan, ProcessFault

POLL_SECONDS = 0.005


class Killed(BaseException):
    """This attempt's process is no more."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that a store has done."""

    began: float
    ended: float
    attempt: str
    operation: str
    """``create`` (that was the first), ``replace``, ``delete``, ``delete_tree``, ``write`` (of the output)."""
    path: str
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Generation:
    """An engine has begun to work on a record."""

    began: float
    attempt: str
    record: int
    answered: bool


@dataclass
class World:
    """Everything that is observed of one run, and what is left of the engine's faults."""

    effects: list[Effect] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)
    engine_faults_left: Counter[int] = field(default_factory=Counter)
    """By record: how often it misbehaves yet."""
    fired: Counter[str] = field(default_factory=Counter)
    """Faults that came about, by kind."""
    fired_at: set[tuple[str, str]] = field(default_factory=set)
    """Storage faults that came about: operation and kind of file."""
    kills: int = 0
    """Attempts that were killed, or whose engine died."""
    on_answer: Callable[[], None] = lambda: None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def effect(self, effect: Effect) -> None:
        with self._lock:
            self.effects.append(effect)

    def generated(self, generation: Generation) -> None:
        with self._lock:
            self.generations.append(generation)
        if generation.answered:
            self.on_answer()

    def misbehaves(self, record: int) -> bool:
        """Whether the record does so once more."""
        with self._lock:
            left = self.engine_faults_left[record]
            self.engine_faults_left[record] = max(0, left - 1)
            return left > 0

    def fire(self, kind: str) -> None:
        with self._lock:
            self.fired[kind] += 1

    @property
    def answers(self) -> int:
        with self._lock:
            return sum(generation.answered for generation in self.generations)


class Process:
    """Stands for the process of one attempt; see the module.

    Args:
        name: Names the attempt within the run.
        plan: What happens to it.
        world: The run.
    """

    def __init__(self, name: str, plan: AttemptPlan, world: World) -> None:
        self.name = name
        self.world = world
        self.fault: ProcessFault | None = plan.process
        self.stop = Stop(self._end)
        self.exit_code: ExitCode | None = None
        """Set when the worker ended its own process."""
        self.started = time.monotonic()
        self.frozen_at: float | None = None
        self._killed = threading.Event()
        self._awake = threading.Event()
        self._awake.set()
        self._calls = 0
        self._answers = 0
        self._lock = threading.Lock()

    @property
    def is_killed(self) -> bool:
        return self._killed.is_set()

    @property
    def is_frozen(self) -> bool:
        return not self._awake.is_set()

    def kill(self) -> None:
        if not self._killed.is_set():
            self._killed.set()
            self._awake.set()
            self.world.kills += 1

    def wake(self) -> None:
        self._awake.set()

    def before_call(self) -> int:
        """A call to storage begins; gives its number."""
        with self._lock:
            self._calls += 1
            number = self._calls
        self._happens("before call", number)
        self.require_life()
        return number

    def after_call(self, number: int) -> None:
        """The store has done what it was asked; its answer is on the way."""
        self._happens("after call", number)
        self.require_life()

    def answered(self) -> None:
        """The engine has answered one more record."""
        with self._lock:
            self._answers += 1
            number = self._answers
        self._happens("answers", number)

    def tick(self) -> None:
        """Let happen what happens at a time."""
        self._happens("seconds", time.monotonic() - self.started)
        fault = self.fault
        if (
            self.frozen_at is not None
            and fault is not None
            and fault.wakes_after is not None
            and time.monotonic() - self.frozen_at >= fault.wakes_after
        ):
            self.wake()

    def require_life(self) -> None:
        """Raise if the process is dead; wait if it is frozen."""
        self._awake.wait()
        if self._killed.is_set():
            raise Killed

    async def require_life_async(self) -> None:
        """The same in an event loop, whose thread other calls need."""
        while not self._awake.is_set():  # noqa: ASYNC110 - it is set by other threads
            await asyncio.sleep(POLL_SECONDS)
        if self._killed.is_set():
            raise Killed

    def _happens(self, kind: str, number: float) -> None:
        fault = self.fault
        if fault is None or fault.at.kind != kind or number < fault.at.number:
            return
        with self._lock:
            if self.frozen_at is not None or self._killed.is_set() or self.stop.is_requested():
                return
            if fault.kind == "freeze":
                self.frozen_at = time.monotonic()
        self.world.fire(fault.kind)
        if fault.kind == "SIGKILL":
            self.kill()
        elif fault.kind == "freeze":
            self._awake.clear()
        else:
            self.stop.request(
                StopReason.TERMINATED, "got SIGTERM; what is finished is kept", seconds=0.9 * fault.grace_seconds
            )

    def _end(self, exit_code: ExitCode) -> None:
        """The worker's watchdog ends its process."""
        self.exit_code = exit_code
        self.kill()
