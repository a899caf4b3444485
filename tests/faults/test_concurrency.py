"""Several at work on one job, in the ways that go wrong most easily: a plan for each, and all invariants hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.storage.filesystem import Storage
from tests.faults import runner
from tests.faults.faulty_storage import QUICK, kind_of
from tests.faults.invariants import check
from tests.faults.plan import (
    MANY,
    AttemptPlan,
    EngineFault,
    Event,
    Plan,
    ProcessFault,
    Stage,
    StorageFault,
    Trigger,
    TriggerKind,
    make_plan,
)
from tests.faults.runner import Run, Runner

pytestmark = pytest.mark.slow

RECORDS = 60
JOB = replace(
    make_plan(0),
    records=RECORDS,
    input_format="lines",
    bad=frozenset(),
    chunk_records=4,
    output_lines=False,
    capacity=2,
    seconds_per_record=0.005,
    max_runtime_sec=None,
    engine=(),
    engine_dies_after=None,
    stages=(),
    last_replicas=1,
)


def replicas(number: int, *changed: AttemptPlan, **fields: object) -> Stage:
    """A stage of launched replicas, some of which have something happen to them."""
    plans = {plan.replica: plan for plan in changed}
    attempts = tuple(plans.get(replica, AttemptPlan(replica)) for replica in range(number))
    return replace(Stage(number, attempts, launched=True), **fields)  # type: ignore[arg-type]


def run_whole(plan: Plan, folder: Path) -> Run:
    """Run a plan; no invariant is broken."""
    run = Runner(plan, str(folder), Storage(retry=QUICK), check)()
    assert not run.broken, run.broken
    return run


@pytest.fixture
def nobody_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is silent for a second is not taken for dead: a busy machine may do nothing for so long."""
    monkeypatch.setattr(runner, "SILENCE_SECONDS", 30.0)


def outcomes(run: Run, name: str) -> list[ExitCode | None]:
    return [
        attempt.process.exit_code if attempt.outcome is None else attempt.outcome.exit_code
        for attempt in run.attempts
        if attempt.name.startswith(name)
    ]


def messages(run: Run, name: str) -> str:
    return "\n".join(a.outcome.message for a in run.attempts if a.outcome is not None and a.name.startswith(name))


def answers(run: Run) -> Counter[int]:
    return Counter(generation.record for generation in run.world.generations if generation.answered)


def test_two_jobs_on_one_output_path_leave_one_whole_output(tmp_path: Path) -> None:
    plan = replace(JOB, stages=(replicas(2, event=Event("other job", 12)),))
    run = run_whole(plan, tmp_path)
    assert run.world.fired["other job"] == 1
    assert ExitCode.PARTIAL in outcomes(run, "replica")
    assert "another launch took over" in messages(run, "replica")
    assert outcomes(run, "other job") == [ExitCode.DONE]


@pytest.mark.usefixtures("nobody_dies")
def test_two_attempts_of_one_replica_generate_nothing_twice_that_the_first_saved(tmp_path: Path) -> None:
    stage = replicas(2)
    stage = replace(stage, attempts=(*stage.attempts, AttemptPlan(0, starts_after=0.1)))
    run = run_whole(replace(JOB, seconds_per_record=0.15, stages=(stage,)), tmp_path)
    # Which has no last word where its time to save is over first.
    assert ExitCode.PARTIAL in outcomes(run, "replica 0")
    # The later one has what the earlier one had saved; what was in flight is lost.
    assert answers(run).total() <= RECORDS + 2 * JOB.capacity
    assert outcomes(run, "collect")[0] is ExitCode.DONE


@pytest.mark.usefixtures("nobody_dies")
@pytest.mark.parametrize("count", [2, 4, 8])
def test_replicas_that_finish_at_the_same_instant_make_one_output(tmp_path: Path, count: int) -> None:
    """Without a launcher's collect, too: each of several single attempts puts the output together itself."""
    attempts = tuple(AttemptPlan(0) for _ in range(count))
    alone = replace(JOB, records=8, stages=(Stage(1, attempts, launched=False),))
    assert set(outcomes(run_whole(alone, tmp_path / "alone"), "replica")) <= {ExitCode.DONE, ExitCode.PARTIAL}
    # As many chunks as replicas, all of which begin at once and take the same time.
    together = replace(JOB, records=count * 4, chunk_records=4, stages=(replicas(count),))
    run = run_whole(together, tmp_path / "together")
    assert set(outcomes(run, "replica")) == {ExitCode.DONE}
    assert answers(run).total() == count * 4


@pytest.mark.usefixtures("nobody_dies")
def test_a_replica_that_never_starts_holds_nobody_up(tmp_path: Path) -> None:
    stage = replicas(3)
    run = run_whole(replace(JOB, stages=(replace(stage, attempts=stage.attempts[:2]),)), tmp_path)
    assert outcomes(run, "collect")[0] is ExitCode.DONE
    assert answers(run).total() == RECORDS


def test_a_replica_that_is_killed_is_helped_with(tmp_path: Path) -> None:
    """Where the others have work for a while: what they see is a heartbeat that stands still between two looks."""
    records = 2 * RECORDS
    killed = AttemptPlan(1, process=ProcessFault("SIGKILL", Trigger("answers", 6)))
    run = run_whole(replace(JOB, records=records, seconds_per_record=0.05, stages=(replicas(3, killed),)), tmp_path)
    assert outcomes(run, "collect")[0] is ExitCode.DONE
    assert answers(run).total() <= records + 2 * JOB.chunk_records


@pytest.mark.parametrize("regenerate", [False, True])
def test_a_clear_while_the_old_attempts_end(tmp_path: Path, regenerate: bool) -> None:
    stage = replicas(2, event=Event("clear", 15), regenerate=regenerate)
    run = run_whole(replace(JOB, stages=(stage,)), tmp_path)
    assert outcomes(run, "cleared replica") == [ExitCode.DONE] * 2
    assert set(outcomes(run, "replica")) <= {ExitCode.PARTIAL, ExitCode.DONE}
    manifest = run.directory.valid_manifest()
    assert manifest is not None
    assert manifest.generation == (2 if regenerate else 1)


@pytest.mark.parametrize("kind", ["replace input", "swap input"])
def test_an_input_that_is_replaced_in_mid_run_is_noticed(tmp_path: Path, kind: str) -> None:
    event = Event("swap input" if kind == "swap input" else "replace input", 10)
    run = run_whole(replace(JOB, stages=(replicas(2, event=event),)), tmp_path)
    assert outcomes(run, "replica 1")[0] is ExitCode.BAD_REQUEST
    assert "was changed while the job read it" in messages(run, "replica 1")
    assert outcomes(run, "collect")[0] is not ExitCode.DONE


@pytest.mark.parametrize("wakes_after", [1.5, None])
def test_a_zombie_wastes_work_and_corrupts_nothing(tmp_path: Path, wakes_after: float | None) -> None:
    """It wakes when others have taken its chunks over, or after the job is done."""
    frozen = ProcessFault("freeze", Trigger("answers", 5), wakes_after=wakes_after)
    stages = (replicas(2, AttemptPlan(1, process=frozen)),)
    run = run_whole(replace(JOB, seconds_per_record=0.05, stages=stages), tmp_path)
    assert run.zombies == (wakes_after is None)
    assert outcomes(run, "collect")[0] is ExitCode.DONE
    assert run.directory.valid_manifest() is not None


@pytest.mark.parametrize("kind", ["before call", "after call"])
def test_a_kill_at_each_step_of_a_small_job(tmp_path: Path, kind: TriggerKind) -> None:
    """From the first look at the input to the last deletion of scratch: every fourth step, to save time."""
    small = replace(JOB, records=5, chunk_records=2, seconds_per_record=0.0)
    for call in range(1, 200, 4):
        killed = AttemptPlan(0, process=ProcessFault("SIGKILL", Trigger(kind, call)))
        plan = replace(small, stages=(Stage(1, (killed,), launched=False),))
        run = run_whole(plan, tmp_path / str(call))
        if not run.world.kills:
            break
    assert 40 < call < 199


def test_a_kill_at_each_step_at_which_a_new_output_takes_the_old_ones_place(tmp_path: Path) -> None:
    """At no moment does the old manifest stand beside the new output."""
    small = replace(JOB, records=4, chunk_records=4, seconds_per_record=0.0)
    for call in range(30, 200):
        # Its clock is another, so that the new output's bytes are others than the old one's.
        killed = AttemptPlan(0, process=ProcessFault("SIGKILL", Trigger("after call", call)), clock_offset=100.0)
        again = Stage(1, (killed,), launched=False, new_series=True, regenerate=True)
        run = run_whole(
            replace(small, stages=(Stage(1, (AttemptPlan(0),), launched=False), again)), tmp_path / str(call)
        )
        if not run.world.kills:
            break
    assert 31 < call < 199


def test_a_record_that_kills_every_process_is_found_out(tmp_path: Path) -> None:
    plan = replace(JOB, engine=(EngineFault(17, "kills process", MANY),), last_replicas=1)
    run = run_whole(plan, tmp_path)
    manifest = run.directory.valid_manifest()
    assert manifest is not None
    assert manifest.failures == {"engine_crash": 1}


def test_records_that_kill_every_engine_are_found_out_in_one_attempt(tmp_path: Path) -> None:
    plan = replace(JOB, engine=(EngineFault(17, "kills engine", MANY), EngineFault(40, "kills engine", MANY)))
    run = run_whole(plan, tmp_path)
    manifest = run.directory.valid_manifest()
    assert manifest is not None
    assert manifest.failures == {"engine_crash": 2}
    assert run.last is not None
    assert run.last.name == "replica 0 #1"


def test_transient_errors_are_made_again_by_the_next_attempt(tmp_path: Path) -> None:
    engine = (EngineFault(3, "internal", 1), EngineFault(30, "internal", MANY))
    # The collect fails, so that there is another attempt.
    full = AttemptPlan(0, storage=(StorageFault("write", "output", "disk full", times=MANY),))
    run = run_whole(replace(JOB, engine=engine, stages=(Stage(1, (full,), launched=False),)), tmp_path)
    assert outcomes(run, "replica 0")[0] is ExitCode.STORAGE_UNREACHABLE
    manifest = run.directory.valid_manifest()
    assert manifest is not None
    assert manifest.failures == {"internal": 1}
    assert set(answers(run).values()) == {1}


def test_a_commit_whose_answer_is_lost_for_good_is_not_made_again(tmp_path: Path) -> None:
    lost = AttemptPlan(0, storage=(StorageFault("create", "chunk", "answer lost", nth=3, times=MANY),))
    run = run_whole(replace(JOB, stages=(replicas(2, lost),)), tmp_path)
    assert outcomes(run, "replica 0")[0] is ExitCode.STORAGE_UNREACHABLE
    assert answers(run).total() <= RECORDS + 3 * JOB.chunk_records
    chunks = Counter(e.path for e in run.world.effects if e.operation == "create" and kind_of(e.path) == "chunk")
    assert set(chunks.values()) == {1}


@pytest.mark.usefixtures("nobody_dies")
def test_clocks_that_are_hours_apart_and_jump_change_nothing(tmp_path: Path) -> None:
    ahead = AttemptPlan(0, clock_offset=7200, clock_jump=(0.05, -36000))
    behind = AttemptPlan(1, clock_offset=-7200, clock_jump=(0.05, 36000))
    run = run_whole(replace(JOB, stages=(replicas(2, ahead, behind),)), tmp_path)
    assert outcomes(run, "replica") == [ExitCode.DONE] * 2 + [ExitCode.DONE] * (len(outcomes(run, "replica")) - 2)
    assert answers(run).total() == RECORDS


@pytest.mark.usefixtures("nobody_dies")
def test_listings_that_lag_cost_no_record(tmp_path: Path) -> None:
    late = [AttemptPlan(replica, listing_lag=1.0) for replica in range(3)]
    run = run_whole(replace(JOB, stages=(replicas(3, *late),)), tmp_path)
    assert outcomes(run, "collect")[0] is ExitCode.DONE
    assert answers(run).total() == RECORDS


def test_a_deadline_keeps_what_is_finished(tmp_path: Path) -> None:
    records = 100
    plan = replace(JOB, records=records, seconds_per_record=0.2, max_runtime_sec=3)
    run = run_whole(replace(plan, stages=(replicas(2),)), tmp_path)
    assert set(outcomes(run, "replica")[:2]) == {ExitCode.PARTIAL}
    assert "max_runtime_sec" in messages(run, "replica 0 #1")
    assert answers(run).total() <= records + 2 * 2 * JOB.capacity
