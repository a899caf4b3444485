"""Which files a process can still open: Landlock, the kernel's module by which a process gives up its own rights.

Numbers are those of the kernel's interface (``linux/landlock.h``). A process may do this without any privilege, and
what is given up never comes back. Landlock says nothing of what is already open, of files' attributes (``stat``,
``chmod``), nor, before its later versions, of truncation, TCP, signals and abstract sockets: the filter of system calls
does.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from enum import IntFlag

from airflow_llmengine.worker.tools.sandbox_syscalls import system_call

__all__ = ["DIRECTORY_ACCESS", "Access", "landlock_abi", "restrict_files"]

# The same on all architectures.
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_FLAG = 1
RULE_PATH_BENEATH = 1
NO_LOG_FLAG = 1


class Access(IntFlag):
    """Rights to files and directories."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15


DIRECTORY_ACCESS = ~(Access.EXECUTE | Access.WRITE_FILE | Access.READ_FILE | Access.TRUNCATE | Access.IOCTL_DEV)
"""Rights that a file which is no directory can't have."""

FIRST_VERSION_RIGHTS = 13
RIGHTS_SINCE = {2: Access.REFER, 3: Access.TRUNCATE, 5: Access.IOCTL_DEV}
NETWORK_VERSION, SCOPE_VERSION, LOG_VERSION = 4, 6, 7
BIND_AND_CONNECT_TCP = 0b11
ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def landlock_abi() -> int:
    """The version of Landlock that this kernel has, from 1.

    Raises:
        OSError: It has none, it is switched off, or the system call is refused.
    """
    return system_call(CREATE_RULESET, None, 0, VERSION_FLAG)


def restrict_files(allowed: Iterable[tuple[str, Access]], *, abi: int) -> None:
    """Give up all access to files but the given, and all that Landlock can hold of network, signals and sockets.

    The process must have given up new privileges before (``PR_SET_NO_NEW_PRIVS``).

    Args:
        allowed: Paths, and the rights to them and to all below them. What isn't there is left out.
        abi: The version of Landlock, at most `landlock_abi`.

    Raises:
        OSError: The kernel refused it.
    """
    handled = Access((1 << FIRST_VERSION_RIGHTS) - 1)
    for version, right in RIGHTS_SINCE.items():
        if abi >= version:
            handled |= right
    rules = _Ruleset(
        handled,
        BIND_AND_CONNECT_TCP if abi >= NETWORK_VERSION else 0,
        ABSTRACT_SOCKETS_AND_SIGNALS if abi >= SCOPE_VERSION else 0,
    )
    # A kernel takes a longer structure than it knows only if the rest is zero, which it is then.
    ruleset = system_call(CREATE_RULESET, ctypes.byref(rules), ctypes.sizeof(rules), 0)
    # Code that tries all it can must not fill the node's audit log.
    flags = NO_LOG_FLAG if abi >= LOG_VERSION else 0
    try:
        for path, access in allowed:
            _allow(ruleset, path, access & handled)
        system_call(RESTRICT_SELF, ruleset, flags)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, access: Access) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return
    try:
        rule = _PathBeneath(access, parent)
        system_call(ADD_RULE, ruleset, RULE_PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(parent)
