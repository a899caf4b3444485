"""How a process gives up everything but to compute: in which order, and how it sees that it worked.

Runs in the interpreter's process, a moment before it reads the first code.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from airflow_llmengine.worker.tools.sandbox_landlock import DIRECTORY_ACCESS, Access, landlock_abi, restrict_files
from airflow_llmengine.worker.tools.sandbox_limits import SandboxLimits
from airflow_llmengine.worker.tools.sandbox_seccomp import UnknownArchitectureError, filter_system_calls
from airflow_llmengine.worker.tools.sandbox_syscalls import check, libc, prctl

__all__ = ["CanNotSealError", "end_with_parent", "hide_memory", "nobody_if_possible", "seal"]

NOBODY = 65534
"""The user and the group that own nothing, by convention; as root, code runs as them if it can."""

# From linux/prctl.h, linux/capability.h.
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 1, 4, 38, 47, 4
CAPABILITY_VERSION_3 = 0x20080522
# CAP_CHOWN, DAC_OVERRIDE, KILL, SETGID, SETUID: to give code another user, and to remain its master.
CAPABILITIES_OVER_OTHERS = (0, 1, 5, 6, 7)

AF_UNIX, SOCK_STREAM = 1, 1

SCRATCH_ACCESS = (
    Access.READ_FILE | Access.WRITE_FILE | Access.READ_DIR | Access.MAKE_REG | Access.REMOVE_FILE | Access.TRUNCATE
)
"""No folders, links, pipes or sockets: so the folder is flat, and what is in it is quickly counted and removed."""

NOT_STANDARD_LIBRARY = frozenset({"site-packages", "dist-packages"})

LOADER_FOLDERS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
# What extension modules of the standard library are linked against.
SHARED_LIBRARIES = (
    *("libbz2.", "libc.", "libcrypto.", "libdl.", "libexpat.", "libffi.", "libgcc_s.", "liblzma.", "libm."),
    *("libmpdec.", "libncurses", "libpthread.", "libreadline.", "librt.", "libsqlite3.", "libssl.", "libtinfo."),
    *("libutil.", "libuuid.", "libz.", "libzstd."),
)


class CanNotSealError(Exception):
    """Code can't be shut off here; the text is one sentence: what is missing, and what to do."""


def end_with_parent(parent: int, ending: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent ends; at once if that has happened already."""
    prctl(PR_SET_PDEATHSIG, ending)
    if os.getppid() != parent:
        os.kill(os.getpid(), ending)


def hide_memory() -> None:
    """Let no other process of the same user read this one's memory or environment, nor trace it."""
    prctl(PR_SET_DUMPABLE, 0)


def nobody_if_possible() -> int | None:
    """The user as which code is to run, if this process is root and remains able to count and to kill: else None.

    Not where the interpreter's own library is closed to others, such as below ``/root``; nor where root has been left
    without the capabilities. Code runs as this process's user then, without any capability.
    """
    if os.geteuid() != 0:
        return None
    status = Path("/proc/self/status").read_text(encoding="ascii")
    effective = int(next(line for line in status.splitlines() if line.startswith("CapEff:")).split()[1], 16)
    if any(not effective >> number & 1 for number in CAPABILITIES_OVER_OTHERS):
        return None
    library = Path(os.__file__).resolve()
    open_to_all = all(folder.stat().st_mode & 0o001 for folder in library.parents) and library.stat().st_mode & 0o004
    return NOBODY if open_to_all else None


def seal(limits: SandboxLimits, *, library: Sequence[str], user: int | None, parent: int) -> None:
    """Give up everything but to compute, in the present folder, which is the scratch folder; for good.

    Args:
        limits: What may be used.
        library: Folders of the interpreter's own library.
        user: Whose rights to take, from `nobody_if_possible`.
        parent: The process with which this one ends.

    Raises:
        CanNotSealError: The kernel or the pod lacks what is needed.
    """
    os.umask(0o077)
    # The engine comes first, when time is short, and stays, when memory is.
    os.setpriority(os.PRIO_PROCESS, 0, 19)
    prctl(PR_SET_DUMPABLE, 1)  # Otherwise that file is root's.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    try:
        _drop_privileges(user)
        hide_memory()
        end_with_parent(parent, signal.SIGKILL)
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        abi = min(_landlock_abi(), limits.landlock_abi)
        restrict_files(_allowed_files(library), abi=abi)
    except OSError as error:
        raise CanNotSealError(f"Code can't be shut off from files: {error.strerror}.") from error
    _set_limits(limits)
    try:
        filter_system_calls()
    except UnknownArchitectureError as error:
        raise CanNotSealError(f"Code can be shut off on x86_64 and aarch64 only, and this is {error}.") from error
    except OSError as error:
        raise CanNotSealError(
            f"The kernel refuses filters of system calls ({error.strerror}): it needs seccomp, and the pod a profile"
            f" that lets it be used, as RuntimeDefault does."
        ) from error
    _verify()


def _landlock_abi() -> int:
    try:
        return landlock_abi()
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            reason = "is switched off: add landlock to the kernel's parameter lsm on that node"
        else:
            reason = (
                "can't be used: take a node with Linux 5.13 or newer, and a container runtime whose seccomp profile"
                " RuntimeDefault lets landlock_create_ruleset through"
            )
        raise CanNotSealError(
            f"The kernel's Landlock, which shuts code off from files, {reason} ({error.strerror})."
        ) from error


def _drop_privileges(user: int | None) -> None:
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    # Another user has none. Who remains root remains the owner of root's files, and nothing more.
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    check(libc.capset(ctypes.byref(header), ctypes.byref(none)))


def _allowed_files(library: Sequence[str]) -> Iterator[tuple[str, Access]]:
    read = Access.READ_FILE | Access.READ_DIR
    yield ".", SCRATCH_ACCESS
    yield os.devnull, Access.READ_FILE | Access.WRITE_FILE
    # Entry by entry: what is installed beside it stays closed, even the names.
    for folder in library:
        for entry in os.scandir(folder):
            if entry.name not in NOT_STANDARD_LIBRARY and not entry.is_symlink():
                yield entry.path, read if entry.is_dir() else read & ~DIRECTORY_ACCESS
    yield "/etc/ld.so.cache", Access.READ_FILE
    for loader_folder in LOADER_FOLDERS:
        for folder in (loader_folder, f"{loader_folder}/{os.uname().machine}-linux-gnu"):
            with contextlib.suppress(OSError):
                for entry in os.scandir(folder):
                    if entry.name.startswith(SHARED_LIBRARIES) and ".so" in entry.name:
                        yield entry.path, Access.READ_FILE


def _set_limits(limits: SandboxLimits) -> None:
    for kind, most in {
        resource.RLIMIT_AS: limits.memory_bytes,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_NICE: 0,
        # Nothing of root's, and no help to a user of whom other processes run: the filter refuses new ones.
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_RTPRIO: 0,
        # Of all processes of the user together: who has that many already can queue no more.
        resource.RLIMIT_SIGPENDING: 64,
    }.items():
        _soft, hard = resource.getrlimit(kind)
        # Where the pod's own limit is lower, that one holds: nobody but root may raise it.
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (limit, limit))


def _verify() -> None:
    """See that what was given up is gone: a kernel that only says so is none to rely on.

    Raises:
        CanNotSealError: Something is left.
    """
    attempts: dict[str, Callable[[], object]] = {
        "read the root folder": lambda: os.open("/", os.O_RDONLY),
        "read its own environment": lambda: os.open("/proc/self/environ", os.O_RDONLY),
        "make a socket": lambda: check(libc.socket(AF_UNIX, SOCK_STREAM, 0)),
        "start a process": _fork,
        "change a file's mode": lambda: Path().chmod(0o700),
        "change its limits": lambda: resource.setrlimit(resource.RLIMIT_CPU, (1, 1)),
    }
    for what, attempt in attempts.items():
        try:
            attempt()
        except (OSError, ValueError):
            continue
        raise CanNotSealError(f"Code could still {what} after the kernel had agreed to shut it off: use another node.")


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)
