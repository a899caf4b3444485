"""System calls from Python that Python itself has no function for."""

from __future__ import annotations

import ctypes
import os

__all__ = ["check", "libc"]

libc = ctypes.CDLL(None, use_errno=True)
"""The C library of this process."""


def check(result: int) -> int:
    """What a call of the C library returned, if it did not fail.

    Raises:
        OSError: It failed.
    """
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
