"""Code that tries to get out of the sandbox: nothing gets through, and the next block is none the worse."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_llmengine.worker.tools.sandbox import SandboxedPython
from airflow_llmengine.worker.tools.sandbox_limits import DEFAULT_LIMITS
from tests.worker.tools.attempts import ATTEMPTS, Attempt
from tests.worker.tools.sandboxes import needs_sandbox
from tests.worker.tools.surroundings import Surroundings

pytestmark = needs_sandbox


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    surroundings = Surroundings(tmp_path)
    with surroundings.stand():
        yield surroundings


def faults(surroundings: Surroundings, attempt: Attempt, runner: SandboxedPython) -> list[str]:
    """What is wrong after an attempt."""

    async def main() -> list[str]:
        try:
            return await surroundings.try_it(attempt, runner)
        finally:
            await runner.close()

    return [*asyncio.run(main()), *surroundings.left_over()]


@pytest.mark.parametrize("name", ATTEMPTS)
def test_nothing_gets_out(surroundings: Surroundings, name: str) -> None:
    attempt = ATTEMPTS[name]
    if attempt.x86_only and os.uname().machine != "x86_64":
        pytest.skip("system calls of x86-64")
    assert faults(surroundings, attempt, SandboxedPython()) == []


OLD_KERNELS = [
    name
    for name in ATTEMPTS
    if name.startswith(
        ("kill", "signal", "tcp", "abstract", "truncate", "rename", "symbolic", "hard", "path", "nameless")
    )
]
"""What later versions of Landlock hold by themselves."""


@pytest.mark.parametrize("name", OLD_KERNELS)
def test_nothing_gets_out_where_landlock_is_of_its_first_version(surroundings: Surroundings, name: str) -> None:
    runner = SandboxedPython(DEFAULT_LIMITS._replace(landlock_abi=1))
    assert faults(surroundings, ATTEMPTS[name], runner) == []
