"""What holds for all tests: nothing of the machine that they run on changes what they see, or is changed by them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

PREPARE_MODEL = Path(__file__).resolve().parent.parent / "scripts" / "prepare_quickstart_model.py"

# Set before anything imports Airflow, which reads its home once, when it is first imported.
_AIRFLOW_HOME = Path(tempfile.mkdtemp(prefix="llmengine-tests-airflow-"))
os.environ["AIRFLOW_HOME"] = str(_AIRFLOW_HOME)
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__USAGE_DATA_COLLECTION__ENABLED"] = "False"

# Nobody's credentials or settings, and no store or hub but those that a test starts itself. What tests are told
# themselves (LLMENGINE_TEST_IMAGE) stays.
for _name in [name for name in os.environ if name.startswith(("AIRFLOW_CONN_", "AWS_", "LLMENGINE_"))]:
    if not _name.startswith("LLMENGINE_TEST_"):
        del os.environ[_name]
os.environ["AWS_CONFIG_FILE"] = os.environ["AWS_SHARED_CREDENTIALS_FILE"] = str(_AIRFLOW_HOME / "no-aws-configuration")
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["VLLM_NO_USAGE_STATS"] = "1"

# A busy machine of two cores is slow now and then, which is no failure. In CI a run is repeatable; elsewhere each run
# tries new examples.
settings.register_profile("llmengine", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True)
settings.load_profile("llmengine")


_ONE_AT_A_TIME = ("tests/engine/", "tests/kubernetes/")
"""Folders whose tests share what there is once: the session's engine, and the cluster's one node."""


class FolderScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Where tests run in several processes, keeps those in one that must not run beside one another."""

    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in _ONE_AT_A_TIME if nodeid.startswith(folder)), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FolderScheduling:
    """Take it in place of xdist's own: marks of ``xdist_group`` do not arrive under pytest 9.2."""
    return FolderScheduling(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a cluster where none is named. All of it is one line of the summary, since it is skipped here."""
    if item.get_closest_marker("kubernetes") is not None and not os.environ.get("KUBECONFIG"):
        pytest.skip("it needs a Kubernetes cluster: set KUBECONFIG to the kubeconfig of one that tests may use")


def pytest_unconfigure() -> None:
    """Remove what the session's Airflow left."""
    shutil.rmtree(_AIRFLOW_HOME, ignore_errors=True)


@pytest.fixture
def echo_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of this test, started as processes too, answer with the stand-in engine instead of a model."""
    monkeypatch.setenv("LLMENGINE_ENGINE", "echo")


@pytest.fixture(scope="session")
def quickstart_model() -> Path:
    """The quickstart's model; made if it is not there yet."""
    done = subprocess.run([sys.executable, str(PREPARE_MODEL)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())
