"""How much the code of one completion may use, and what the rest of the sandbox is told with it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["DEFAULT_LIMITS", "MAX_CODE_BYTES", "SandboxLimits"]

MIB = 1024 * 1024

MAX_CODE_BYTES = MIB
"""The longest code that is run, in bytes of UTF-8."""


class SandboxLimits(NamedTuple):
    """Limits of one interpreter. Wall and CPU time are given with each run.

    Attributes:
        memory_bytes: Address space, so that what it holds in memory is never more.
        file_bytes: Size of one file, also one with holes.
        scratch_bytes: All files of the scratch folder together. Looked at several times a second, and what files that
            were removed still hold is seen by nobody: `open_files` times `file_bytes` bound that.
        scratch_files: Number of files in the scratch folder, looked at as often.
        open_files: File descriptors, the interpreter's own five included.
        output_bytes: What one run may print, in bytes of UTF-8; who prints more is ended.
        landlock_abi: The newest version of Landlock that is used; tests make a kernel older by it.
    """

    memory_bytes: int = 512 * MIB
    file_bytes: int = 16 * MIB
    scratch_bytes: int = 64 * MIB
    scratch_files: int = 256
    open_files: int = 32
    output_bytes: int = 64 * 1024
    landlock_abi: int = 7

    def to_argument(self) -> str:
        """As one argument of a command."""
        return ",".join(map(str, self))

    @classmethod
    def from_argument(cls, text: str) -> SandboxLimits:
        """From `to_argument`."""
        return cls(*map(int, text.split(",")))


DEFAULT_LIMITS = SandboxLimits()
"""What a completion's code may use."""
