"""Which system calls a process can still make: a seccomp filter, a program that the kernel runs before each call.

What isn't named here is refused with "Operation not permitted": sockets of any kind, new processes and threads, new
programs, signals to others, changes of attributes, keys, namespaces, io_uring, and what kernels will have tomorrow. A
call by the numbers of another architecture (32 bit, x32) ends the process: the same number means something else there.

A filter sees numbers and no memory, so what a path is about is Landlock's.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from collections.abc import Sequence
from typing import NamedTuple

from airflow_llmengine.worker.tools.sandbox_syscalls import prctl

__all__ = ["UnknownArchitectureError", "filter_system_calls"]


class UnknownArchitectureError(Exception):
    """System calls have other numbers on each architecture, and those of this one are not known."""


TABLE = """
# What is open.
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, lseek 8 62, close 3 57,
close_range 436 436, dup 32 23, dup2 33 -, dup3 292 24, fstat 5 80, ftruncate 77 46,
fsync 74 82, fdatasync 75 83, fstatfs 138 44, getdents64 217 61,
fadvise64 221 223, poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72,
# Paths: Landlock decides which.
stat 4 -, lstat 6 -, newfstatat 262 79, statx 332 291, access 21 -, faccessat 269 48, faccessat2 439 439,
readlink 89 -, readlinkat 267 78, getcwd 79 17, chdir 80 49, fchdir 81 50, unlink 87 -, unlinkat 263 35,
rename 82 -, renameat 264 38, renameat2 316 276, statfs 137 43, umask 95 166,
# Memory.
munmap 11 215, mprotect 10 226, mremap 25 216, madvise 28 233, brk 12 214, msync 26 227, futex 202 98,
# Its own signals.
rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136, rt_sigsuspend 130 133, rt_sigtimedwait 128 137,
sigaltstack 131 132, pause 34 -, alarm 37 -, setitimer 38 103, getitimer 36 102, restart_syscall 219 128,
# Who and what it is.
getpid 39 172, getppid 110 173, gettid 186 178, getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177,
getresuid 118 148, getresgid 120 150, getgroups 115 158, getpgid 121 155, getpgrp 111 -, getsid 124 156,
getpriority 140 141, sched_yield 24 124, sched_getaffinity 204 123, getrlimit 97 163, getrusage 98 165,
times 100 153, sysinfo 99 179, uname 63 160, getcpu 309 168,
# Time and chance.
clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115, nanosleep 35 101, gettimeofday 96 169,
time 201 -, getrandom 318 278,
# The end.
exit 60 93, exit_group 231 94,
"""
"""What is allowed whatever the arguments: name, number on x86-64, number on aarch64 (or ``-``: not there)."""

# From linux/audit.h and linux/seccomp.h.
AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000
ALLOW, KILL_PROCESS, ERROR = 0x7FFF0000, 0x80000000, 0x00050000
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2

# From linux/bpf_common.h: load a word, jump if equal, if greater or equal, if a bit is set; keep some bits; return.
LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_BIT, KEEP_BITS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
NUMBER_OFFSET, ARCHITECTURE_OFFSET, ARGUMENTS_OFFSET = 0, 4, 16

EPERM, ENOSYS = 1, 38
O_TRUNC, O_PATH, O_TMPFILE, O_ACCMODE = 0o1000, 0o10000000, 0o20000000, 3
MAP_ANONYMOUS, MAP_HUGETLB = 0x20, 0x40000
# F_DUPFD to F_SETFL, F_GETLK, F_SETLK (for SQLite), F_DUPFD_CLOEXEC; nothing that says who gets a signal.
FCNTL_COMMANDS = (0, 1, 2, 3, 4, 5, 6, 1030)
# TCGETS and TIOCGWINSZ (is it a terminal?), FIONREAD, FIONBIO, FIONCLEX, FIOCLEX.
IOCTL_COMMANDS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)


class _Instruction(NamedTuple):
    code: int
    value: int
    if_true: int = 0
    if_false: int = 0

    def pack(self) -> bytes:
        return struct.pack("=HBBI", self.code, self.if_true, self.if_false, self.value)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def filter_system_calls() -> None:
    """Give up all system calls but those of an interpreter that computes; for good.

    The process must have given up new privileges before (``PR_SET_NO_NEW_PRIVS``).

    Raises:
        UnknownArchitectureError: This module doesn't know this machine's system calls.
        OSError: The kernel refused the filter.
    """
    instructions = system_call_filter(os.uname().machine, os.getpid())
    code = b"".join(instruction.pack() for instruction in instructions)
    program = _Program(len(instructions), code)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(program))


def system_call_filter(machine: str, pid: int) -> list[_Instruction]:
    """The filter of one process.

    Args:
        machine: The architecture, as ``uname -m`` names it.
        pid: The process, which may send signals to itself.

    Raises:
        UnknownArchitectureError: System calls of that architecture are not known.
    """
    if machine not in AUDIT_ARCHITECTURES:
        raise UnknownArchitectureError(machine)
    column = list(AUDIT_ARCHITECTURES).index(machine)
    instructions = [
        _Instruction(LOAD, ARCHITECTURE_OFFSET),
        _Instruction(JUMP_EQUAL, AUDIT_ARCHITECTURES[machine], if_true=1),
        _Instruction(RETURN, KILL_PROCESS),
        _Instruction(LOAD, NUMBER_OFFSET),
        _Instruction(JUMP_AT_LEAST, X32_BIT, if_false=1),
        _Instruction(RETURN, KILL_PROCESS),
    ]
    for number in _allowed(column):
        instructions += _for_call(number, [_Instruction(RETURN, ALLOW)])
    for numbers, rule in _rules(pid).values():
        if (conditional := numbers[column]) is not None:
            instructions += _for_call(conditional, rule)
    return [*instructions, _refuse()]


def _rules(pid: int) -> dict[str, tuple[tuple[int | None, int | None], list[_Instruction]]]:
    """System calls that depend on their arguments, the first of which is number 0."""
    return {
        "open": ((2, None), _open(1)),
        "openat": ((257, 56), _open(2)),
        "fcntl": ((72, 25), _one_of(1, FCNTL_COMMANDS)),
        "ioctl": ((16, 29), _one_of(1, IOCTL_COMMANDS)),
        # To itself only: not to others, nor to a group (0, or negative).
        "kill": ((62, 129), _one_of(0, (pid,))),
        "tgkill": ((234, 131), _one_of(0, (pid,))),
        # What ends it when its CPU time is over is not to be ignored.
        "rt_sigaction": ((13, 134), _none_of(0, (int(signal.SIGXCPU),))),
        # No files: one page of a removed file would keep all of it, and nobody counts such files.
        # Huge pages are taken from a stock that all share.
        "mmap": ((9, 222), _memory_alone(3)),
        # To read limits, not to change them: the third argument, 64 bits, is a null pointer.
        "prlimit64": (
            (302, 261),
            [
                _argument(2),
                _Instruction(JUMP_EQUAL, 0, if_false=3),
                _argument(2, upper=True),
                _Instruction(JUMP_EQUAL, 0, if_false=1),
                _Instruction(RETURN, ALLOW),
                _refuse(),
            ],
        ),
        # Its arguments are in memory, where no filter sees them; the C library then takes clone, which is refused.
        "clone3": ((435, 435), [_refuse(ENOSYS)]),
    }


def _allowed(column: int) -> list[int]:
    lines = [line for line in TABLE.splitlines() if not line.startswith("#")]
    numbers = [entry.split()[1 + column] for line in lines for entry in line.split(",") if entry.strip()]
    return [int(number) for number in numbers if number != "-"]


def _for_call(number: int, rule: Sequence[_Instruction]) -> list[_Instruction]:
    return [_Instruction(JUMP_EQUAL, number, if_false=len(rule)), *rule]


def _refuse(error: int = EPERM) -> _Instruction:
    return _Instruction(RETURN, ERROR | error)


def _argument(index: int, *, upper: bool = False) -> _Instruction:
    """Load half of an argument; both architectures are little-endian. An int is in the lower half, as in the kernel."""
    return _Instruction(LOAD, ARGUMENTS_OFFSET + 8 * index + (4 if upper else 0))


def _one_of(index: int, values: Sequence[int]) -> list[_Instruction]:
    tests = []
    for value in values:
        tests += [_Instruction(JUMP_EQUAL, value, if_false=1), _Instruction(RETURN, ALLOW)]
    return [_argument(index), *tests, _refuse()]


def _none_of(index: int, values: Sequence[int]) -> list[_Instruction]:
    tests = []
    for value in values:
        tests += [_Instruction(JUMP_EQUAL, value, if_false=1), _refuse()]
    return [_argument(index), *tests, _Instruction(RETURN, ALLOW)]


def _memory_alone(flags: int) -> list[_Instruction]:
    return [
        _argument(flags),
        _Instruction(JUMP_BIT, MAP_HUGETLB, if_true=2),
        _Instruction(JUMP_BIT, MAP_ANONYMOUS, if_false=1),
        _Instruction(RETURN, ALLOW),
        _refuse(),
    ]


def _open(flags: int) -> list[_Instruction]:
    """Files that Landlock checks: opened to be read or written, and truncated only by those who may write.

    A file opened as a mere path, or in the kernel's nameless fourth mode, is not checked at all; truncation only by
    later versions. A file without a name would be missed when files are counted.
    """
    return [
        _argument(flags),
        _Instruction(JUMP_BIT, O_PATH | O_TMPFILE, if_true=8),
        _Instruction(KEEP_BITS, O_ACCMODE),
        _Instruction(JUMP_EQUAL, O_ACCMODE, if_true=6),
        _argument(flags),
        _Instruction(JUMP_BIT, O_TRUNC, if_false=3),
        _Instruction(KEEP_BITS, O_ACCMODE),
        _Instruction(JUMP_EQUAL, os.O_RDONLY, if_true=2),
        _Instruction(RETURN, ALLOW),
        _Instruction(RETURN, ALLOW),
        _refuse(),
    ]
