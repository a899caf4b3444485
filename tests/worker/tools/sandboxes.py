"""Whether this machine can have sandboxes."""

from __future__ import annotations

import pytest

from airflow_llmengine.worker.tools.code_runner import SandboxUnavailableError
from airflow_llmengine.worker.tools.sandbox import require_sandbox


def what_is_missing() -> str:
    """What the machine lacks for a sandbox; empty where it lacks nothing."""
    try:
        require_sandbox()
    except SandboxUnavailableError as error:
        return str(error)
    return ""


needs_sandbox = pytest.mark.skipif(bool(what_is_missing()), reason=what_is_missing())
