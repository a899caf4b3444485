"""The benchmark's arithmetic: pairs, ratios, and how full an engine was."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.fullness import fullness
from benchmarks.ratios import Comparison, Pairs, Turn, rows
from benchmarks.sides import Measured
from benchmarks.workloads import BLOCK_TOKENS, WORKLOADS, documents, duplicates, read_texts, short_answers

OURS, THEIRS = Turn("worker", "prompts"), Turn("generate", "prompts")


def measured(seconds: float, *, tokens: int = 16, cached: int = 0) -> Measured:
    return Measured(
        seconds=seconds, records=2, generated=2, prompt_tokens=100, cached_tokens=cached, completion_tokens=tokens
    )


def pairs_of(*seconds: tuple[float | None, float | None]) -> Pairs:
    """Pairs in which ours and theirs took so long; None: the side was gone."""
    pairs = Pairs(short_answers(2 / 288), [Comparison(OURS, THEIRS)])
    for ours, theirs in seconds:
        took = {OURS: ours, THEIRS: theirs}

        def take(turn: Turn, took: dict[Turn, float | None] = took) -> Measured | None:
            found = took[turn]
            return None if found is None else measured(found, cached=25 if turn == OURS else 0)

        pairs.run(take)
    return pairs


def test_a_ratio_is_of_runs_of_the_same_pair_and_says_how_many_times_as_fast_ours_was() -> None:
    pairs = pairs_of((1.0, 2.0), (2.0, 3.0), (4.0, 4.0))
    (row,) = rows(pairs)
    assert (
        row == "| short answers | worker / LLM.generate | 3 | 2.00 / 3.00 | **1.500** | 1.000 | 2.000 | 25% / 0% | - |"
    )


def test_a_side_that_is_gone_leaves_the_pairs_before() -> None:
    (row,) = rows(pairs_of((1.0, 2.0), (9.0, None), (None, 7.0)))
    assert "| 1 | 1.00 / 2.00 | **2.000** | 2.000 | 2.000 |" in row
    assert "| 0 |" in rows(pairs_of((1.0, None)))[0]


def test_sides_go_first_in_turn() -> None:
    gone: list[str] = []
    pairs = Pairs(short_answers(2 / 288), [Comparison(OURS, THEIRS)])
    for _ in range(3):
        pairs.run(lambda turn: gone.append(turn.side))
    assert gone == ["generate", "worker", "worker", "generate", "generate", "worker"]


def test_runs_that_did_other_work_are_not_compared() -> None:
    pairs = Pairs(short_answers(2 / 288), [Comparison(OURS, THEIRS)])
    pairs.run(lambda turn: measured(1.0))
    pairs.check()
    pairs.run(lambda turn: measured(1.0, tokens=15))
    with pytest.raises(AssertionError, match="records and tokens"):
        pairs.check()


@pytest.mark.parametrize("name", WORKLOADS)
def test_prompts_and_chats_of_a_workload_ask_the_same(name: str, tmp_path: Path) -> None:
    workload = WORKLOADS[name](0.25)
    files = workload.write(tmp_path)
    prompts = read_texts(files["prompts"])
    chats = [(messages[0]["content"], most) for messages, most in read_texts(files["chats"])]
    assert prompts == chats == [(item.text, item.max_tokens) for item in workload.items]


def test_forty_per_cent_are_duplicates() -> None:
    assert duplicates(1).unique_share == 0.6


@pytest.mark.parametrize("scale", [1, 4])
def test_documents_are_four_times_the_cache_and_each_is_asked_about_eight_times(scale: float) -> None:
    workload = documents(scale)
    texts = {item.text.split("\n")[0] for item in workload.items}
    assert len(workload.items) == 8 * len(texts)
    assert workload.unique_share == 1
    # No tokenizer makes fewer tokens than words of these.
    words = sum(len(text.split()) for text in texts)
    assert words >= 4 * (workload.settings["num_gpu_blocks_override"] - 1) * BLOCK_TOKENS


def test_an_engine_is_full_while_as_many_run_as_could() -> None:
    # Ten records, four places: two steps to begin with, one in which a place was empty, and the last two records.
    steps = [[0.0, 1, 0, 0], [0.1, 4, 4, 4], [0.2, 3, 3, 3], [0.3, 3, 1, 0], [0.4, 2, 2, 0]]
    found = fullness(steps, records=10, capacity=4)
    assert (found.until_full, found.steps, found.not_full, found.least) == (1, 4, 1, 0.75)


def test_an_engine_that_never_was_full_was_not() -> None:
    found = fullness([[0.0, 1, 0, 1], [0.1, 2, 1, 1]], records=10, capacity=4)
    assert (found.until_full, found.steps, found.least) == (2, 0, 0.0)
