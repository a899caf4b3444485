"""An interpreter in a process of its own that the kernel shuts off from everything else."""

from __future__ import annotations

from airflow_llmengine.worker.tools.code_runner import CodeOutput, SandboxUnavailableError

__all__ = ["SandboxedPython", "require_sandbox"]


def require_sandbox() -> None:
    """See `code_runner.require_sandbox`."""
    raise SandboxUnavailableError("Model-written code can't be run yet.")


class SandboxedPython:
    """See `code_runner.CodeRunner`."""

    async def run(self, code: str, timeout_seconds: float) -> CodeOutput:
        """See `CodeRunner.run`."""
        raise SandboxUnavailableError("Model-written code can't be run yet.")

    async def forget(self) -> None:
        """See `CodeRunner.forget`."""

    async def close(self) -> None:
        """See `CodeRunner.close`."""
