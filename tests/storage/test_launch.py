"""Which generation of which job a launch works on, and what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.job_state import CancelRequest, InputEnd, JobHandle
from airflow_llmengine.spec.manifest import Manifest
from airflow_llmengine.storage.errors import StorageNotFoundError, StorageUnsupportedError
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.storage.job_directory import JobDirectory
from airflow_llmengine.storage.launch import Launch, LaunchRefusedError, launch_job, shown
from airflow_llmengine.storage.output import OutputWriter

NOW = 1_800_000_000.0


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}\n')
    return tmp_path


def launch(place: Path, **changes: Any) -> Launch:
    fields = changes.pop("fields", {})
    request = validate_request(
        {
            "input_data_path": str(place / "in.jsonl"),
            "output_data_path": str(place / "out.json"),
            "model_config": {"model": "m"},
            "max_runtime_sec": 600,
            **fields,
        }
    )
    options: dict[str, Any] = {"owner": "dag/task", "series": "s1", "now": NOW, **changes}
    return launch_job(Storage(), request, **options)


def finish(place: Path, handle: JobHandle, owner: str = "dag/task", output: bytes = b"[]\n") -> Manifest:
    """What ``collect`` does at the end, without a worker."""
    directory = JobDirectory(Storage(), str(place / "out.json"))
    directory.delete_manifest()
    with OutputWriter(directory.output) as writer:
        writer.write(output)
    written = writer.close()
    manifest = Manifest(
        output_data_path=handle.path,
        fingerprint=handle.fingerprint,
        generation=handle.generation,
        owner=owner,
        output_format="json",
        output_bytes=written.bytes,
        output_sha256=written.sha256,
        output_etag=written.etag,
        records=0,
        succeeded=0,
        failed=0,
        prompt_tokens=0,
        completion_tokens=0,
        model="m",
        engine="vllm",
        created=NOW,
        finished=NOW,
    )
    directory.write_manifest(manifest)
    directory.scratch(handle).delete()
    return manifest


def test_the_first_launch_is_generation_one_and_is_written_down(place: Path) -> None:
    launched = launch(place)
    assert (launched.handle.generation, launched.manifest, launched.resumed) == (1, None, False)
    assert launched.deadline == NOW + 600
    directory = JobDirectory(Storage(), str(place / "out.json"))
    current = directory.read_current()
    assert current is not None
    assert (current.fingerprint, current.generation) == (launched.handle.fingerprint, 1)
    job = directory.scratch(launched.handle).read_job()
    assert job is not None
    assert job.deadline == NOW + 600
    assert job.request["model_config"] == {"model": "m"}


def test_inline_prompts_are_not_written_down(place: Path) -> None:
    content = {"prompts": ["a private prompt"], "max_new_tokens": 4, "temperature": 0}
    request = validate_request(
        {"output_data_path": str(place / "out.json"), "model_config": {"model": "m"}, "content": content}
    )
    launch_job(Storage(), request, owner="dag/task", series="s1")
    for path in place.rglob("*"):
        assert path.is_dir() or b"a private prompt" not in path.read_bytes()


def test_a_retry_keeps_the_deadline_and_a_new_series_gets_a_new_one_and_keeps_the_chunks(place: Path) -> None:
    first = launch(place)
    retry = launch(place, now=NOW + 100)
    assert (retry.handle, retry.deadline, retry.created, retry.resumed) == (first.handle, NOW + 600, NOW, True)
    cleared = launch(place, now=NOW + 200, series="s2")
    assert (cleared.handle, cleared.deadline, cleared.created) == (first.handle, NOW + 800, NOW)


def test_a_used_up_budget_is_refused_before_anything_runs(place: Path) -> None:
    launch(place)
    with pytest.raises(LaunchRefusedError, match=r"max_runtime_sec \(600 s\).* is used up.*Clear the task"):
        launch(place, now=NOW + 600)
    assert launch(place, now=NOW + 600, series="s2").deadline == NOW + 1200


def test_a_cancelled_series_stays_cancelled_and_a_new_one_goes_on(place: Path) -> None:
    handle = launch(place).handle
    directory = JobDirectory(Storage(), str(place / "out.json"))
    directory.write_cancel(
        CancelRequest(fingerprint=handle.fingerprint, generation=1, reason="too dear", requested=NOW)
    )
    with pytest.raises(LaunchRefusedError, match="cancelled \\(too dear\\)"):
        launch(place)
    assert launch(place, series="s2").handle == handle
    assert directory.read_cancel() is None


def test_a_finished_job_is_answered_from_storage_after_a_clear_too(place: Path) -> None:
    manifest = finish(place, launch(place).handle)
    assert launch(place).manifest == manifest
    assert launch(place, series="s2", owner="another/task").manifest == manifest


def test_regenerate_makes_one_new_generation_a_series_and_its_retries_resume_it(place: Path) -> None:
    finish(place, launch(place).handle)
    second = launch(place, series="s2", if_done="regenerate")
    assert (second.handle.generation, second.manifest) == (2, None)
    assert launch(place, series="s2", if_done="regenerate").handle == second.handle
    manifest = finish(place, second.handle)
    assert launch(place, series="s2", if_done="regenerate").manifest == manifest
    assert launch(place, series="s3", if_done="regenerate").handle.generation == 3


def test_a_changed_request_or_input_is_another_job_and_the_old_output_stands(place: Path) -> None:
    first = launch(place)
    finish(place, first.handle)
    changed = launch(place, fields={"model_config": {"model": "other"}})
    assert changed.handle.fingerprint != first.handle.fingerprint
    assert JobDirectory(Storage(), str(place / "out.json")).valid_manifest() is not None
    (place / "in.jsonl").write_text('{"prompt": "b"}\n')
    assert launch(place).handle.fingerprint not in (first.handle.fingerprint, changed.handle.fingerprint)


@pytest.mark.parametrize(
    "fields",
    [
        {"data_parallelism": 8},
        {"max_runtime_sec": 60},
        {"labels": {"team": "a"}},
        {"priority": "high"},
        {"gpus": 4},
        {"model_config": {"model": "m", "num_shards": 4, "gpu_memory_utilization": 0.5, "max_num_seqs": 8}},
        {"model_config": {"model": "m", "trust_remote_code": False, "revision": None}},
    ],
)
def test_what_can_not_change_an_answer_goes_on_with_the_same_job(place: Path, fields: dict[str, Any]) -> None:
    assert launch(place, fields=fields).handle == launch(place).handle


@pytest.mark.parametrize(
    "fields",
    [
        {"model_config": {"model": "m", "revision": "v2"}},
        {"model_config": {"model": "m", "dtype": "float32"}},
        {"model_config": {"model": "m", "max_model_len": 512}},
        {"model_config": {"model": "m", "served_model_name": "n"}},
    ],
)
def test_what_can_change_an_answer_is_another_job(place: Path, fields: dict[str, Any]) -> None:
    assert launch(place, fields=fields).handle.fingerprint != launch(place).handle.fingerprint


def test_two_names_of_the_context_length_are_one_job(place: Path) -> None:
    one = launch(place, fields={"model_config": {"model": "m", "max_model_len": 512}})
    other = launch(place, fields={"model_config": {"model": "m", "max_context_length": 512}})
    assert one.handle == other.handle


def test_an_output_that_nothing_of_ours_wrote_is_refused_unless_told(place: Path) -> None:
    (place / "out.json").write_text("somebody's work")
    with pytest.raises(LaunchRefusedError, match=r"out\.json exists, and no job .* overwrite=True"):
        launch(place)
    assert not (place / "out.json.job").exists()
    assert launch(place, overwrite=True).handle.generation == 1


def test_an_output_changed_after_it_was_finished_is_refused(place: Path) -> None:
    finish(place, launch(place).handle)
    (place / "out.json").write_text("edited by hand")
    with pytest.raises(LaunchRefusedError, match="was changed, or lost its manifest, since"):
        launch(place)


def test_an_output_without_a_manifest_of_an_unfinished_job_is_ours(place: Path) -> None:
    """A crash between the output's writing and the manifest's."""
    handle = launch(place).handle
    JobDirectory(Storage(), str(place / "out.json")).scratch(handle).write_end(InputEnd(records=1, chunks=1))
    (place / "out.json").write_text("[]")
    assert launch(place).handle == handle


def test_another_tasks_output_is_refused_unless_told(place: Path) -> None:
    finish(place, launch(place, owner="dag/one").handle, owner="dag/one")
    changed = {"model_config": {"model": "other"}}
    with pytest.raises(LaunchRefusedError, match="belongs to dag/one, not to dag/two"):
        launch(place, owner="dag/two", fields=changed)
    assert launch(place, owner="dag/two", fields=changed, overwrite=True).handle.generation == 2


def test_what_a_sibling_made_of_something_else_is_not_replaced(place: Path) -> None:
    changed = {"model_config": {"model": "other"}}
    asked = []

    def is_sibling(series: str) -> bool:
        asked.append(series)
        return series == "s1"

    first = launch(place, is_sibling=is_sibling)
    assert asked == []
    for _ in ("at work", "done"):
        with pytest.raises(LaunchRefusedError, match="is the output of another mapped task of this run, too"):
            launch(place, series="s2", fields=changed, is_sibling=is_sibling)
        assert launch(place, series="s2", is_sibling=is_sibling).handle == first.handle, "the same job is no rival"
        manifest = finish(place, launch(place).handle)
    assert JobDirectory(Storage(), str(place / "out.json")).valid_manifest() == manifest
    assert launch(place, series="s2", fields=changed, is_sibling=is_sibling, overwrite=True).handle.generation == 2
    assert launch(place, series="s3", fields={"model_config": {"model": "m3"}}, is_sibling=is_sibling).manifest is None


@pytest.mark.parametrize("spelling", ["{place}/in.jsonl", "file://{place}/in.jsonl", "{place}/x/../in.jsonl"])
def test_output_equal_to_input_is_refused_however_it_is_spelt(place: Path, spelling: str) -> None:
    with pytest.raises((LaunchRefusedError, ValueError), match="input"):
        launch(place, fields={"output_data_path": spelling.format(place=place)})
    assert json.loads((place / "in.jsonl").read_text()) == {"prompt": "a"}


def test_an_output_among_the_inputs_is_refused(place: Path) -> None:
    (place / "data").mkdir()
    (place / "data" / "a.jsonl").write_text('{"prompt": "a"}\n')
    fields = {"input_data_path": str(place / "data"), "output_data_path": str(place / "data" / "a.jsonl")}
    with pytest.raises(ValueError, match="input_data_path"):
        launch(place, fields=fields)


def test_a_missing_input_is_one_sentence(place: Path) -> None:
    with pytest.raises(StorageNotFoundError, match=r"no input at .*missing\.jsonl"):
        launch(place, fields={"input_data_path": str(place / "missing.jsonl")})


def test_an_output_that_can_not_be_written_is_refused_at_launch(place: Path) -> None:
    blocked = place / "file"
    blocked.write_text("not a folder")
    with pytest.raises(StorageNotFoundError, match="a file stands where a folder should be"):
        launch(place, fields={"output_data_path": str(blocked / "out.json")})


@pytest.mark.parametrize(("kind", "said"), [("folder", "folder"), ("pipe", "pipe"), ("link", "link")])
def test_an_output_that_is_no_file_is_refused_and_left_alone(place: Path, kind: str, said: str) -> None:
    path = place / "out.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(place / "nowhere.json")
    before = path.lstat().st_mode
    for overwrite in (False, True):
        with pytest.raises((LaunchRefusedError, StorageUnsupportedError), match=said):
            launch(place, overwrite=overwrite)
    assert path.lstat().st_mode == before


def test_output_equal_to_input_is_refused_through_links(place: Path) -> None:
    (place / "linked").symlink_to(place)
    (place / "hard.jsonl").hardlink_to(place / "in.jsonl")
    for fields in (
        {"input_data_path": str(place / "linked" / "in.jsonl"), "output_data_path": str(place / "in.jsonl")},
        {"output_data_path": str(place / "hard.jsonl")},
    ):
        with pytest.raises(LaunchRefusedError, match="also read as input"):
            launch(place, fields=fields, overwrite=True)


def test_a_signed_urls_signature_is_not_kept(place: Path) -> None:
    request = validate_request(
        {
            "input_data_path": "https://host/in.jsonl?X-Amz-Signature=made-up",
            "output_data_path": str(place / "out.json"),
            "model_config": {"model": "m"},
        }
    )
    assert "made-up" not in str(shown(request))


def test_scratch_that_a_worker_left_between_its_last_two_steps_goes_with_the_next_launch(place: Path) -> None:
    launched = launch(place)
    directory = JobDirectory(Storage(), str(place / "out.json"))
    job = directory.scratch(launched.handle).read_job()
    assert job is not None
    finish(place, launched.handle)
    directory.scratch(launched.handle).write_job(job)
    assert launch(place, series="s2").manifest is not None
    assert directory.scratches() == []


def test_a_listing_that_is_late_does_not_hide_what_was_finished(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = launch(place)
    # It stands for an object store whose listings lag behind its objects.
    monkeypatch.setattr(JobDirectory, "scratches", lambda _directory: [])
    again = launch(place, series="s2")
    assert again.handle == launched.handle
    assert again.resumed
