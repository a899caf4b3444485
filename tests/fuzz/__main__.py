"""The long campaign behind ``make fuzz``: ``python -m tests.fuzz SECONDS``, so many for each target."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOUND = ROOT / ".fuzz"
"""Corpora of the coverage-guided fuzzers, and what they found."""

TARGETS = ("files", "values", "requests", "state", "chunks")


def main(seconds: int) -> int:
    """Fuzz every target; 1 if anything was found."""
    failed = []
    if importlib.util.find_spec("atheris") is None:
        print("without atheris, which has no wheel for every machine (pip install atheris): hypothesis alone")
    else:
        for target in TARGETS:
            print(f"== {target}, coverage-guided", flush=True)
            command = [sys.executable, "-m", "tests.fuzz.coverage_guided", target, str(seconds), str(FOUND)]
            if subprocess.run(command, cwd=ROOT).returncode:
                failed.append(target)
    ends_at = time.monotonic() + seconds * len(TARGETS)
    while not failed and time.monotonic() < ends_at:
        # Each run tries other examples; what it finds is printed with what reproduces it.
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "tests/fuzz"]
        environment = {name: value for name, value in os.environ.items() if name != "CI"} | {"FUZZ_EXAMPLES": "1000"}
        if subprocess.run(command, cwd=ROOT, env=environment).returncode:
            failed.append("hypothesis")
    print(f"found something: {', '.join(failed)}; see above, and {FOUND}" if failed else "nothing found")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1])))
