"""Which process this is, and whether another one is still there."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A worker process, as claims and heartbeats name it."""

    host: str
    pid: int
    pid_namespace: str | None

    @classmethod
    def own(cls) -> ProcessIdentity:
        """This process."""
        return cls(socket.gethostname(), os.getpid(), _pid_namespace())

    def is_seen_to_be_gone(self) -> bool:
        """Whether this process can see that the other one has ended; False also where it can't look."""
        if self.pid_namespace is None or (self.host, self.pid_namespace) != (socket.gethostname(), _pid_namespace()):
            return False
        return not Path(f"/proc/{self.pid}").exists()


def _pid_namespace() -> str | None:
    """Names the set of processes that can see one another; other machines may use the same number."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None
