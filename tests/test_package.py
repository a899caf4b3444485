"""What is built and installed: the wheel, its metadata and its entry points."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

import airflow_llmengine

ROOT = Path(__file__).resolve().parent.parent
DISTRIBUTION = "airflow-llmengine"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("*.whl")
    assert built.name.startswith(f"airflow_llmengine-{airflow_llmengine.__version__}-py3-none-any")
    return zipfile.ZipFile(built)


def test_the_wheel_holds_the_package_its_type_marker_and_its_licence(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "airflow_llmengine").rglob("*.py")}
    assert modules <= names
    assert "airflow_llmengine/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_wheel_holds_nothing_but_the_package(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert tops == {"airflow_llmengine", f"airflow_llmengine-{airflow_llmengine.__version__}.dist-info"}


def test_an_image_without_airflow_can_install_it(wheel: zipfile.ZipFile) -> None:
    (metadata,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    required = re.findall(r"^Requires-Dist: ([\w.-]+)(.*)$", wheel.read(metadata).decode(), flags=re.MULTILINE)
    core = {name for name, condition in required if "extra ==" not in condition}
    assert core == {"fsspec", "pydantic", "tenacity", "typing-extensions", "zstandard"}


def test_the_installed_entry_points_resolve() -> None:
    entry_points = distribution(DISTRIBUTION).entry_points
    assert {(point.group, point.name) for point in entry_points} == {
        ("console_scripts", "llmengine-batch"),
        ("apache_airflow_provider", "provider_info"),
        ("airflow.plugins", "llmengine"),
        ("airflow_llmengine.engines", "vllm"),
        ("airflow_llmengine.engines", "echo"),
        ("vllm.general_plugins", "airflow_llmengine_end_with_parent"),
    }
    for point in entry_points:
        assert callable(point.load()), point


def test_loading_an_entry_point_loads_no_model_library() -> None:
    code = (
        "import sys; from importlib.metadata import distribution\n"
        f"for point in distribution({DISTRIBUTION!r}).entry_points: point.load()\n"
        "print(sorted({'torch', 'transformers', 'vllm'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "[]"


def test_the_version_is_the_newest_in_the_changelog() -> None:
    versions = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert versions[0] == airflow_llmengine.__version__
    assert distribution(DISTRIBUTION).version == airflow_llmengine.__version__
