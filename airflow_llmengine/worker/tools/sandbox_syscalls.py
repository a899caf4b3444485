"""System calls from Python that Python itself has no function for."""

from __future__ import annotations

import ctypes
import os

__all__ = ["check", "libc", "prctl", "system_call"]

libc = ctypes.CDLL(None, use_errno=True)
"""The C library of this process."""


def prctl(option: int, *arguments: int) -> int:
    """``prctl`` of the C library; arguments that are not given are zero, as the kernel wants them."""
    given = [*arguments, 0, 0, 0, 0][:4]
    return check(libc.prctl(ctypes.c_int(option), *map(ctypes.c_ulong, given)))


def system_call(number: int, *arguments: object) -> int:
    """A system call; whole numbers are passed in full width, and all else as ctypes does.

    Raises:
        OSError: It failed.
    """
    passed = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return check(libc.syscall(ctypes.c_long(number), *passed))


def check(result: int) -> int:
    """What a call of the C library returned, if it did not fail.

    Raises:
        OSError: It failed.
    """
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
