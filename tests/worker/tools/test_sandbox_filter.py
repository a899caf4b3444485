"""The filter of system calls on both architectures, of which this machine is one: run here as the kernel runs it."""

from __future__ import annotations

import os
import re
import signal
import struct

import pytest

from airflow_llmengine.worker.tools import sandbox_seccomp as seccomp
from tests.worker.tools.attempts import ATTEMPTS

PID = 4711
MACHINES = ["x86_64", "aarch64"]
REFUSED = [
    match.groups()
    for attempt in ATTEMPTS.values()
    if (match := re.search(r"\('x86_64', 'aarch64'\), \((\d+), (\d+)\)", attempt.code))
]
"""Numbers of the system calls that attempts make, on either architecture."""


def decide(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What the filter says to a system call."""
    values = [each & 0xFFFF_FFFF_FFFF_FFFF for each in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    data = struct.pack(
        "<IIQ6Q", number, seccomp.AUDIT_ARCHITECTURES[machine] if architecture is None else architecture, 0, *values
    )
    program = seccomp.system_call_filter(machine, PID)
    accumulator = position = 0
    while True:
        code, value, if_true, if_false = program[position]
        position += 1
        if code == seccomp.RETURN:
            return value
        if code == seccomp.LOAD:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif code == seccomp.KEEP_BITS:
            accumulator &= value
        else:
            true = {
                seccomp.JUMP_EQUAL: accumulator == value,
                seccomp.JUMP_AT_LEAST: accumulator >= value,
                seccomp.JUMP_BIT: bool(accumulator & value),
            }[code]
            position += if_true if true else if_false


REFUSAL = seccomp.ERROR | seccomp.EPERM


@pytest.mark.parametrize("column", [0, 1], ids=MACHINES)
def test_what_attempts_call_is_refused(column: int) -> None:
    assert len(REFUSED) > 30
    numbers = [int(pair[column]) for pair in REFUSED]
    assert {decide(MACHINES[column], number) for number in numbers} == {REFUSAL}


@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_not_known_is_refused(machine: str) -> None:
    assert {decide(machine, number) for number in range(500, 1000)} == {REFUSAL}


@pytest.mark.parametrize("machine", MACHINES)
def test_other_architectures_end_the_process(machine: str) -> None:
    assert decide(machine, 0, architecture=0x40000003) == seccomp.KILL_PROCESS
    assert decide(machine, 0x4000_0000) == seccomp.KILL_PROCESS


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_that_depend_on_their_arguments(machine: str) -> None:
    numbers = {name: pair[MACHINES.index(machine)] for name, (pair, _) in seccomp._rules(PID).items()}

    def allowed(name: str, *arguments: int) -> bool:
        number = numbers[name]
        assert number is not None
        return decide(machine, number, *arguments) == seccomp.ALLOW

    for flags, expected in {
        os.O_RDONLY: True,
        os.O_WRONLY | os.O_CREAT | os.O_TRUNC: True,
        os.O_RDWR | os.O_TRUNC: True,
        os.O_RDONLY | os.O_CLOEXEC: True,
        os.O_RDONLY | os.O_TRUNC: False,
        3: False,
        3 | os.O_TRUNC: False,
        os.O_PATH: False,
        os.O_RDWR | 0o20000000: False,
    }.items():
        assert allowed("openat", -100, 0, flags) is expected
    assert allowed("kill", PID, signal.SIGTERM)
    assert allowed("tgkill", PID, PID, signal.SIGABRT)
    for other in (PID + 1, 1, 0, -1, -PID):
        assert not allowed("kill", other, signal.SIGTERM)
        assert not allowed("tgkill", other, PID, signal.SIGTERM)
    assert allowed("prlimit64", 0, 7, 0, 1)
    for new_limit in (1, 1 << 32, 1 << 63):
        assert not allowed("prlimit64", 0, 7, new_limit, 1)
    assert allowed("fcntl", 1, 4)
    # A command is an int: the kernel does not look at the upper half, and neither may the filter.
    assert not allowed("fcntl", 1, 8)
    assert not allowed("fcntl", 1, 8 | 1 << 32)
    assert not allowed("ioctl", 1, 0x8901)
    assert allowed("mmap", 0, 4096, 7, 0x22)
    assert not allowed("mmap", 0, 4096, 7, 0x22 | 0x40000)
    assert allowed("rt_sigaction", signal.SIGALRM)
    assert not allowed("rt_sigaction", signal.SIGXCPU)
    assert decide(machine, numbers["clone3"] or 0) == seccomp.ERROR | seccomp.ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_each_number_is_there_once(machine: str) -> None:
    column = MACHINES.index(machine)
    numbers = [*seccomp._allowed(column), *(pair[column] for pair, _ in seccomp._rules(PID).values())]
    given = [number for number in numbers if number is not None]
    assert len(given) == len(set(given)) > 60
