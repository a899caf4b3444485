"""What importing storage costs: the scheduler does it, and a reader's script."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"fsspec", "s3fs", "botocore", "aiobotocore", "tenacity", "asyncio"}


def imported_by(statement: str) -> set[str]:
    script = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name for name in ended.stdout.split() if "." not in name or name.startswith("airflow_llmengine.")}


def test_the_errors_bring_nothing_along() -> None:
    assert imported_by("import airflow_llmengine.storage.errors") <= {
        "__future__",
        "airflow_llmengine",
        "airflow_llmengine.storage",
        "airflow_llmengine.storage.errors",
    }


@pytest.mark.parametrize("module", ["filesystem", "inputs", "output"])
def test_stores_are_imported_when_they_are_used(module: str) -> None:
    assert not imported_by(f"import airflow_llmengine.storage.{module}") & (HEAVY | {"pydantic"})


def test_the_job_directory_needs_pydantic_only() -> None:
    assert not imported_by("import airflow_llmengine.storage.job_directory") & (HEAVY - {"asyncio"})


def test_local_files_need_no_fsspec() -> None:
    statement = "import airflow_llmengine.storage.filesystem as f; f.Storage().location('/nothing').exists()"
    assert not imported_by(statement) & {"fsspec", "s3fs", "botocore"}
