"""The rings: who may import whom, and that what has to run without Airflow does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WITHOUT_AIRFLOW = Path(__file__).resolve().parent / "without_airflow"
RUN_WITHOUT_AIRFLOW = ("airflow_llmengine.spec", "airflow_llmengine.storage", "airflow_llmengine.worker")


def lint_imports(checkout: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sysconfig.get_path("scripts")) / "lint-imports"
    return subprocess.run(
        [program, "--no-cache", "--no-logo"],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )


def without_airflow(*command: str | Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(WITHOUT_AIRFLOW), str(ROOT)))
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )


def test_the_contracts_are_kept() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copytree(ROOT / "airflow_llmengine", folder / "airflow_llmengine")
    return folder


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("spec/exit_codes.py", "import airflow_llmengine.storage"),
        ("spec/exit_codes.py", "import fsspec"),
        ("spec/exit_codes.py", "import airflow.sdk"),
        ("storage/__init__.py", "import airflow.models"),
        ("storage/__init__.py", "import airflow_llmengine.hooks"),
        ("storage/__init__.py", "import torch.nn"),
        ("worker/__init__.py", "import kubernetes.client"),
        ("worker/__init__.py", "import vllm"),
        ("worker/__init__.py", "import airflow_llmengine.operators"),
        ("worker/__init__.py", "import airflow_llmengine.kube"),
        ("storage/__init__.py", "import airflow_llmengine.kube"),
        ("kube/__init__.py", "import airflow.sdk"),
        ("kube/__init__.py", "import airflow_llmengine.storage"),
        ("kube/__init__.py", "import airflow_llmengine.exceptions"),
        ("hooks/__init__.py", "import airflow_llmengine.operators"),
        ("hooks/__init__.py", "import airflow_llmengine.worker.cli"),
        ("operators/__init__.py", "import transformers"),
        ("operators/__init__.py", "import airflow_llmengine.sensors"),
        ("triggers/__init__.py", "import airflow_llmengine.sensors"),
        ("storage/__init__.py", "import airflow_llmengine.triggers"),
    ],
)
def test_a_forbidden_import_breaks_a_contract_even_inside_a_function(
    checkout: Path, module: str, statement: str
) -> None:
    file = checkout / "airflow_llmengine" / module
    source = file.read_text()
    file.write_text(f"{source}\n\ndef offend() -> None:\n    {statement}\n")
    try:
        result = lint_imports(checkout)
    finally:
        file.write_text(source)
    assert result.returncode == 1, result.stdout
    assert "BROKEN" in result.stdout


def test_spec_storage_and_worker_import_without_airflow() -> None:
    result = without_airflow(WITHOUT_AIRFLOW / "import_all.py", *RUN_WITHOUT_AIRFLOW)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > len(RUN_WITHOUT_AIRFLOW)


def test_the_block_keeps_airflow_out() -> None:
    result = without_airflow("-c", "import airflow")
    assert "ModuleNotFoundError" in result.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_tests_of_spec_storage_and_worker_pass_without_airflow() -> None:
    folders = [str(ROOT / "tests" / name) for name in ("spec", "storage", "worker")]
    unmarked = "not (engine or slow or scheduler or kubernetes)"
    # Their code runs in an interpreter of its own, which has nothing but the standard library anyway.
    attempts = f"--ignore={ROOT / 'tests' / 'worker' / 'tools' / 'test_sandbox_attempts.py'}"
    result = without_airflow("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", unmarked, attempts, *folders)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
