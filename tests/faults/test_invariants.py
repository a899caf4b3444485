"""The invariants themselves: each is broken once, so that it is known to be looked at."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.chunks import ChunkResults, Finished
from tests.faults.faulty_storage import QUICK
from tests.faults.invariants import check
from tests.faults.plan import AttemptPlan, Plan, Stage, make_plan
from tests.faults.runner import Run, Runner
from tests.faults.world import Effect, Generation

CALM = replace(
    make_plan(0),
    records=12,
    input_format="lines",
    bad=frozenset({5}),
    chunk_records=4,
    output_lines=False,
    capacity=2,
    seconds_per_record=0.0,
    max_runtime_sec=None,
    engine=(),
    engine_dies_after=None,
    stages=(Stage(1, (AttemptPlan(0),), launched=False),),
    last_replicas=1,
)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run in which nothing went wrong."""
    done = run_calmly(CALM, tmp_path)
    assert not done.broken
    assert (done.generated, done.least) == (11, 11)
    return done


def run_calmly(plan: Plan, folder: Path) -> Run:
    return Runner(plan, str(folder), Storage(retry=QUICK), check)()


def output(run: Run) -> Path:
    return Path(run.output)


def test_a_truncated_output_is_noticed(run: Run) -> None:
    output(run).write_bytes(output(run).read_bytes()[:-40])
    assert said(run, "the output is not whole")


def test_answers_that_changed_places_are_noticed(run: Run) -> None:
    elements = json.loads(output(run).read_text())
    elements[2], elements[3] = elements[3], elements[2]
    output(run).write_text(json.dumps(elements))
    assert said(run, "element 2 belongs to another record")


def test_an_element_too_few_is_noticed(run: Run) -> None:
    output(run).write_text(json.dumps(json.loads(output(run).read_text())[:-1]))
    assert said(run, "11 elements for 12 records")


def test_an_undue_error_is_noticed(run: Run) -> None:
    elements = json.loads(output(run).read_text())
    elements[0] = {"error": {"type": "internal", "message": "m", "index": 0}}
    output(run).write_text(json.dumps(elements))
    assert said(run, "element 0 has an error that it should not have")


def test_a_manifest_that_counts_wrongly_is_noticed(run: Run) -> None:
    path = Path(f"{run.output}.manifest.json")
    path.write_text(path.read_text().replace('"failed": 1', '"failed": 2'))
    assert said(run, "the manifest says failed 2, and it is 1")


def test_a_foreign_file_is_noticed(run: Run) -> None:
    Path(f"{run.output}.job/notes.txt").write_text("x")
    assert said(run, r"notes\.txt is foreign")


def test_what_a_writer_left_is_noticed(run: Run) -> None:
    (Path(run.folder) / ".llmengine-0.tmp").write_text("x")
    assert said(run, "was left by a writer")


def test_a_scratch_that_is_left_is_noticed(run: Run) -> None:
    folder = Path(f"{run.output}.job") / run.directory.valid_manifest().handle.scratch_name  # type: ignore[union-attr]
    (folder / "replicas").mkdir(parents=True)
    (folder / "replicas" / "0.json").write_text("{}")
    assert said(run, "scratch is left after success")


def chunk_effect(run: Run) -> Effect:
    return next(effect for effect in run.world.effects if re.search(r"/chunks/000/00000001\.jsonl$", effect.path))


def test_a_chunk_that_is_replaced_is_noticed(run: Run) -> None:
    run.world.effects.insert(-4, replace(chunk_effect(run), operation="replace", attempt="somebody"))
    assert said(run, "somebody made a replace of .* which is committed once")


def test_a_chunk_that_is_created_twice_is_noticed(run: Run) -> None:
    first = chunk_effect(run)
    again = replace(first, began=first.ended + 0.001, ended=first.ended + 0.002, attempt="somebody")
    run.world.effects.insert(run.world.effects.index(first) + 1, again)
    assert said(run, "somebody created .* over what replica 0 #1 created")


@pytest.mark.parametrize(
    ("attempt", "indices", "noticed"),
    [("replica 0 #1", [4, 5], False), ("replica 0 #1", [5, 6], True), ("somebody", [4, 5], True)],
)
def test_a_part_that_is_replaced_by_less_or_by_somebody_else_is_noticed(
    run: Run, attempt: str, indices: list[int], noticed: bool
) -> None:
    chunk = chunk_effect(run)
    part = replace(chunk, path=chunk.path.replace(".jsonl", ".part-0.jsonl"), data=part_of([4]))
    later = replace(part, operation="replace", attempt=attempt, data=part_of(indices))
    at = run.world.effects.index(chunk)
    run.world.effects[at:at] = [part, later]
    assert bool(said(run, "put something else in the place of")) is noticed


def part_of(indices: list[int]) -> bytes:
    results = ChunkResults(1, 4, 4, finished={index: Finished(b'{"text":"x"}') for index in indices})
    part = results.encode_part()
    assert part is not None
    return part


def test_a_record_that_is_generated_again_is_noticed(run: Run) -> None:
    first = chunk_effect(run)
    claim = next(effect for effect in run.world.effects if effect.path.endswith("/claims/000/00000001"))
    later = first.ended + 0.0001
    run.world.effects.append(replace(claim, attempt="somebody", began=later, ended=later))
    run.world.generated(Generation(later, "somebody", 4, answered=True))
    assert said(run, "somebody generated record 4 of chunk 1 again, which replica 0 #1 had committed before")


def test_a_record_that_is_generated_without_a_claim_is_noticed(run: Run) -> None:
    run.world.generated(Generation(time.monotonic(), "somebody", 4, answered=True))
    assert said(run, "somebody generated record 4 without any claim")


@pytest.mark.parametrize(
    "message",
    ["ValueError: bad", "Traceback (most recent call last)", "OSError(28, 'x') went wrong", "", "[Errno 2] x y"],
)
def test_an_exception_as_the_message_is_noticed(run: Run, message: str) -> None:
    outcome = run.attempts[0].outcome
    assert outcome is not None
    run.attempts[0].outcome = replace(outcome, message=message)
    assert said(run, "replica 0 #1 says:")


def test_an_attempt_that_raises_is_noticed(run: Run) -> None:
    run.attempts[0].error = "Traceback\nKeyError: 'x'"
    assert said(run, "replica 0 #1 raised")


def said(run: Run, pattern: str) -> list[str]:
    return [broken for broken in check(run, "after the retry") if re.search(pattern, broken)]


def test_a_run_in_which_nothing_went_wrong_is_whole(run: Run) -> None:
    assert not check(run, "after the retry")
