"""What a pod runs to try to get out of the sandbox; prints what was wrong, as JSON: nothing, as it should be."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

from airflow_llmengine.worker.tools.sandbox import SandboxedPython, require_sandbox
from tests.worker.tools.attempts import ATTEMPTS
from tests.worker.tools.surroundings import Surroundings

AT_ONCE = 4


async def main() -> dict[str, list[str]]:
    """Try everything; gives what was wrong, by attempt."""
    wrong: dict[str, list[str]] = {}
    waiting = list(ATTEMPTS.items())
    surroundings = Surroundings(Path(tempfile.mkdtemp()))
    with surroundings.stand():

        async def try_some() -> None:
            runner = SandboxedPython()
            while waiting:
                name, attempt = waiting.pop()
                if faults := await surroundings.try_it(attempt, runner):
                    wrong[name] = faults
                await runner.forget()
            await runner.close()

        await asyncio.gather(*(try_some() for _ in range(AT_ONCE)))
        if left_over := surroundings.left_over():
            wrong["left over"] = left_over
    return wrong


if __name__ == "__main__":
    require_sandbox()
    print(json.dumps({"attempts": len(ATTEMPTS), "wrong": asyncio.run(main())}))  # noqa: T201
