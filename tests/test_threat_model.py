"""Every line of the threat model has its test, so that the page can't claim what nothing shows."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "threat_model.md").read_text()

NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


def test_every_threat_names_a_test() -> None:
    threats = [line for line in PAGE.partition("## Threats")[2].splitlines() if line.startswith("| ")]
    rows = [line for line in threats if not line.startswith("| Threat |")]
    assert len(rows) > 30
    assert [row for row in rows if "::test_" not in row.split(" | ")[2]] == []
    assert PAGE.count("::") - PAGE.count("x::s3") - PAGE.count("reference://::") == len(
        re.findall(r"`tests/[\w/]+\.py::\w+`", PAGE)
    ), "a test is named in another way"


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[name for _path, name in NAMED])
def test_every_test_that_the_page_names_is_there(path: str, name: str) -> None:
    assert Path(path).name.startswith("test_")
    tree = ast.parse((ROOT / path).read_text())
    assert name.startswith("test_")
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.slow
def test_pytest_collects_every_test_that_the_page_names() -> None:
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *(f"{path}::{name}" for path, name in NAMED)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert collected.returncode == 0, collected.stdout[-2000:]
