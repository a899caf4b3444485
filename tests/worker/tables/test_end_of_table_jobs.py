"""The end of a job whose output is a folder, cut short between any two steps: the old output, the new one, or neither.

A process that is killed does nothing more, not even clean up. So from one step on, every step fails.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.job_directory import JobDirectory
from airflow_llmengine.storage.local import LocalBackend
from airflow_llmengine.worker.attempt import AttemptOutcome
from airflow_llmengine.worker.engines.echo import EchoEngine
from tests.worker.tables.table_jobs import PROMPT, TableJob, files_below, write_parquet


class KilledError(BaseException):
    """Stands for the process's end."""


class Steps:
    """Counts what is done to files, and lets nothing be done after so many steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.taken = 0
        self.last = 10**9
        for name in ("creator", "replace", "move", "delete", "delete_tree", "open_write"):
            self._guard(LocalBackend, name)

    def _guard(self, owner: type, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def guarded(backend: LocalBackend, *arguments: Any, **options: Any) -> Any:
            self._step()
            made = original(backend, *arguments, **options)
            if name == "open_write":
                made.commit, made.discard = self._before(made.commit, made), self._before(made.discard, made)
            return made

        self._monkeypatch.setattr(owner, name, guarded)

    def _before(self, function: Callable[[], Any], made: Any) -> Callable[[], Any]:
        def guarded() -> Any:
            try:
                self._step()
            except KilledError:
                made._file.close()
                raise
            return function()

        return guarded

    def _step(self) -> None:
        if self.taken >= self.last:
            raise KilledError
        self.taken += 1

    @contextmanager
    def killed_after(self, steps: int) -> Iterator[None]:
        """Run a block that gets only so far."""
        self.taken, self.last = 0, steps
        try:
            yield
        except KilledError:
            pass
        finally:
            self.last = 10**9


class WithoutAnswers(EchoEngine):
    """All that has to be generated was, before the kill."""

    async def start(self) -> None:
        raise AssertionError("nothing was left to generate")


OLD = {"p=1/a.parquet": ["old one"], "p=1/gone.parquet": ["old two"], "p=2/gone.parquet": ["old three"]}
NEW = {"p=1/a.parquet": ["new one"], "p=1/b.parquet": ["new two", "new three"], "p=3/c.parquet": ["new four"]}


def write_input(folder: Path, files: dict[str, list[str]]) -> None:
    for path in folder.rglob("*.parquet"):
        path.unlink()
    for name, texts in files.items():
        write_parquet(folder / name, {"text": texts})


def completions(folder: Path) -> dict[str, list[str]]:
    return {
        str(path.relative_to(folder)): pyarrow.parquet.ParquetFile(path).read()["completion"].to_pylist()
        for path in sorted(folder.rglob("*.parquet"))
    }


def job_in(folder: Path) -> TableJob:
    return TableJob(f"{folder}/in/", f"{folder}/out/", {**PROMPT, "partitioning": "hive"})


def generate(folder: Path) -> None:
    """Have a job with an old output, whose new one is generated and not put together yet."""
    job = job_in(folder)
    write_input(folder / "in", OLD)
    job.done()
    write_input(folder / "in", NEW)
    for replica in (0, 1):
        assert job.run(replica=replica, replicas=2).exit_code is ExitCode.DONE


@pytest.mark.slow
def test_a_kill_between_any_two_steps_leaves_the_old_or_the_new_or_a_job_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate(tmp_path / "generated")
    steps = Steps(monkeypatch)
    found: set[str] = set()
    number = 0
    while "new" not in found:
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "generated", folder)
        with steps.killed_after(number):
            job_in(folder).collect()
        manifest = JobDirectory(Storage(), f"{folder}/out").valid_manifest()
        state = "neither" if manifest is None else "new" if manifest.records == 4 else "old"
        if state != "neither":
            assert completions(folder / "out") == (OLD if state == "old" else NEW), number
        found.add(state)
        manifest = job_in(folder).done(WithoutAnswers)
        assert manifest.records == 4
        assert completions(folder / "out") == NEW
        assert JobDirectory(Storage(), f"{folder}/out").valid_manifest() == manifest
        assert files_below(folder / "out") == sorted(NEW)
        assert files_below(folder / "out.job") == ["current.json"]
        number += 1
    assert found >= {"old", "neither", "new"}
    # Files are written aside, moved, deleted; documents, too.
    assert number > 15, number


@pytest.mark.parametrize("target", ["out/", "out.parquet"])
def test_of_two_that_put_the_output_together_at_once_the_later_one_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    write_input(tmp_path / "in", NEW)
    job = TableJob(f"{tmp_path}/in/", f"{tmp_path}/{target}", PROMPT)
    for replica in (0, 1):
        assert job.run(replica=replica, replicas=2).exit_code is ExitCode.DONE
    others: list[AttemptOutcome] = []
    delete_manifest = JobDirectory.delete_manifest

    def first_the_other(directory: JobDirectory) -> None:
        monkeypatch.setattr(JobDirectory, "delete_manifest", delete_manifest)
        # From here on this one has no chunks, and no files aside.
        others.append(job.collect())
        delete_manifest(directory)

    monkeypatch.setattr(JobDirectory, "delete_manifest", first_the_other)
    outcome = job.collect()
    (other,) = others
    assert (outcome.exit_code, other.exit_code) == (ExitCode.DONE, ExitCode.DONE), outcome.message
    assert outcome.manifest is not None
    assert other.manifest is not None
    assert outcome.manifest.model_copy(update={"finished": other.manifest.finished}) == other.manifest
    assert JobDirectory(Storage(), str(tmp_path / target).rstrip("/")).valid_manifest() == outcome.manifest
    assert files_below(tmp_path / f"{target.rstrip('/')}.job") == ["current.json"]
    assert completions(tmp_path / "out") == (NEW if target == "out/" else {})
