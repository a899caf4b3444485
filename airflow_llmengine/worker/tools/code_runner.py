"""What runs the code in a completion: one interpreter for each completion, shut off from everything else.

Where it really runs is `sandbox.py`; this module is what the loop of generation and runs needs of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["CodeOutput", "CodeRunner", "SandboxUnavailableError"]


class SandboxUnavailableError(Exception):
    """This machine can't shut code off; its text is one sentence: what the kernel or the pod lacks, and what to do."""


@dataclass(frozen=True)
class CodeOutput:
    """What one run printed.

    Attributes:
        text: What the code printed, on both streams in order; where it failed, followed by the error as Python would
            print it. Valid Unicode without lone surrogates, of bounded length, and as untrusted as the code itself.
        failed: True where the code raised, exited with an error, or was ended: by a limit or because it took too long.
    """

    text: str
    failed: bool


class CodeRunner(Protocol):
    """The interpreter of one completion. Names that one run defines are there for the next, until `forget`."""

    async def run(self, code: str, timeout_seconds: float) -> CodeOutput:
        """Run one block of code.

        Whatever the code does is an output: an error, a crash, a limit, the timeout. After a crash, a limit or the
        timeout the next run begins with a new interpreter, without the earlier names.

        Args:
            code: Python source. A last line that is an expression and prints nothing counts as printed.
            timeout_seconds: Wall time of this run, in seconds; the interpreter's own start is not counted.

        Returns:
            What was printed, and whether it failed.

        Raises:
            SandboxUnavailableError: The interpreter can't be started here, which `sandbox.require_sandbox` tells
                beforehand, or what watches over it was ended from outside. The next run begins anew.
        """
        ...

    async def forget(self) -> None:
        """Let later code see none of the names and files of earlier code. Cheap: nothing starts before it is needed."""
        ...

    async def close(self) -> None:
        """End the interpreter and remove all that it left; harmless when repeated, and complete when cancelled."""
        ...
