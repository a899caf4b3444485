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

TIMEOUT = 0.3
"""Of attempts that never end, in seconds."""


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    surroundings = Surroundings(tmp_path)
    with surroundings.stand():
        yield surroundings


async def try_it(surroundings: Surroundings, attempt: Attempt, runner: SandboxedPython) -> list[str]:
    """Run the attempt; gives what is wrong afterwards."""
    faults = []
    try:
        named = await runner.run(surroundings.names, 30)
        if named.failed:
            faults.append(f"its names: {named.text}")
        patient = TIMEOUT if attempt.says == "TimeoutError" or not attempt.says else 30
        output = await runner.run(attempt.code, patient)
        faults += surroundings.faults(attempt, output)
        await runner.forget()
        after = await runner.run("import os\nos.listdir(), 6 * 7", 30)
        if after.failed or after.text != "([], 42)\n":
            faults.append(f"the next block gives {after.text}")
    finally:
        await runner.close()
    return [*faults, *surroundings.left_over(), *([output.text[-500:]] if faults else [])]


@pytest.mark.parametrize("name", ATTEMPTS)
def test_nothing_gets_out(surroundings: Surroundings, name: str) -> None:
    attempt = ATTEMPTS[name]
    if attempt.x86_only and os.uname().machine != "x86_64":
        pytest.skip("system calls of x86-64")
    assert asyncio.run(try_it(surroundings, attempt, SandboxedPython())) == []


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
    assert asyncio.run(try_it(surroundings, ATTEMPTS[name], runner)) == []
