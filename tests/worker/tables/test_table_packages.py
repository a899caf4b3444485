"""What reads tables is there only where it is needed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.worker.readers import InputInvalidError
from tests.worker.tables.table_inputs import opened
from tests.worker.tables.table_jobs import write_parquet


def test_a_job_without_a_table_imports_neither_pyarrow_nor_jinja() -> None:
    code = (
        "import sys, airflow_llmengine.worker.cli, airflow_llmengine.worker.attempt\n"
        "print(*sorted({'jinja2', 'numpy', 'pyarrow'} & sys.modules.keys()))"
    )
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert output.split() == []


@pytest.mark.parametrize("package", ["jinja2", "pyarrow"])
def test_a_package_that_is_missing_is_told_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    write_parquet(tmp_path / "t.parquet", {"text": ["a"]})
    find_spec = importlib.util.find_spec

    def without(name: str, *arguments: Any) -> Any:
        return None if name == package else find_spec(name, *arguments)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(InputInvalidError, match=rf"needs the package {package}.*airflow-llmengine\[parquet\]"):
        opened(tmp_path / "t.parquet")
