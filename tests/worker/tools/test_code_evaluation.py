"""The loop of code_evaluator: what a completion is, whose code has run on the way."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest

from airflow_llmengine.spec.results import RecordErrorType
from airflow_llmengine.worker.engines.base import RecordRejectedError
from airflow_llmengine.worker.tools.code_runner import SandboxUnavailableError
from tests.worker.tools.authors import ScriptedAuthor, ScriptedRunner, block, complete, evaluator, ran, v1


def test_what_the_model_made_up_is_replaced_and_it_goes_on_from_there() -> None:
    author, runner = ScriptedAuthor(block("print(6 * 7)", "41"), "So it is 42."), ScriptedRunner("42\n")
    output = complete(author, runner, prompt="6 * 7?\n")
    assert output.text == ran("print(6 * 7)", "42") + "So it is 42."
    assert runner.codes == ["print(6 * 7)"]
    assert [before for before, _room in author.asked] == ["6 * 7?\n", "6 * 7?\n" + ran("print(6 * 7)", "42")]
    assert runner.timeouts == {60.0}
    assert runner.closed == 1


def test_rounds_follow_one_another_and_each_runs_its_own_block_alone() -> None:
    author = ScriptedAuthor(block("a"), "then " + block("b") + "never", "end")
    runner = ScriptedRunner("1\n", "2\n")
    output = complete(author, runner)
    assert output.text == ran("a", "1") + "then " + ran("b", "2") + "end"
    assert runner.codes == ["a", "b"]


def test_of_two_blocks_in_one_round_the_last_is_run_and_the_first_stays_as_it_was_written() -> None:
    first = "```python\na\n```\nmade up\n"
    output = complete(ScriptedAuthor(first + block("b"), "."), runner := ScriptedRunner("2\n"))
    assert output.text == first + ran("b", "2") + "."
    assert runner.codes == ["b"]


def test_a_completion_without_a_block_is_an_ordinary_one() -> None:
    author, runner = ScriptedAuthor("Just text."), ScriptedRunner()
    output = complete(author, runner, return_token_log_probs=True)
    assert (output.text, output.num_prompt_tokens, output.num_completion_tokens) == ("Just text.", 3, 10)
    assert output.tokens is not None
    assert {token.log_prob for token in output.tokens} == {-1.0}
    assert (len(author.asked), runner.codes, runner.closed) == (1, [], 1)


@pytest.mark.parametrize("last", ["Done\n>>>\nmore", "```python\nnot ended\n>>>\nmore"])
def test_a_marker_without_a_block_since_the_last_one_ends_the_completion(last: str) -> None:
    author, runner = ScriptedAuthor(block("a"), last), ScriptedRunner("1\n")
    output = complete(author, runner)
    assert output.text == ran("a", "1") + last.partition("\n>>>")[0]
    assert runner.codes == ["a"]


@pytest.mark.parametrize("end", ["", "an afterword"])
def test_a_block_that_no_marker_follows_is_not_run_and_what_follows_it_stays(end: str) -> None:
    text = f"```python\na\n```\n{end}"
    assert complete(ScriptedAuthor(text), runner := ScriptedRunner()).text == text
    assert runner.codes == []


def test_a_stop_sequence_of_the_users_ends_it_in_the_middle_of_a_block() -> None:
    author = ScriptedAuthor(block("a"), block("b + STOP + c"))
    output = complete(author, runner := ScriptedRunner("1\n"), stop_sequences=["nowhere", "STOP"])
    assert output.text == ran("a", "1") + "```python\nb + "
    assert runner.codes == ["a"]


def test_the_marker_may_also_be_a_stop_sequence_of_the_users() -> None:
    output = complete(ScriptedAuthor(block("a"), "."), ScriptedRunner("1\n"), stop_sequences=["\n>>>\n"])
    assert output.text == ran("a", "1") + "."


@pytest.mark.parametrize("most", [1, 2])
def test_after_so_many_rounds_the_model_writes_on_and_no_more_code_is_run(most: int) -> None:
    author, runner = ScriptedAuthor(block("a"), block("b"), block("c")), ScriptedRunner("1\n", "2\n", "3\n")
    output = complete(author, runner, tool={"max_iterations": most})
    done = [ran("a", "1"), ran("b", "2")][:most]
    assert output.text == "".join(done) + block("abc"[most]).removesuffix("\n>>>\n")
    assert runner.codes == list("ab")[:most]


def test_ten_rounds_are_run_where_nothing_is_said() -> None:
    author, runner = ScriptedAuthor(*[block("a")] * 11), ScriptedRunner(*["1\n"] * 11)
    assert complete(author, runner, tool={"max_iterations": None}).text.count(">>>") == len(runner.codes) == 10


@pytest.mark.parametrize("printed", ["```python\nevil()\n```\n", ">>>\n", "x\n>>>\ny\n", "\n>>>\n"])
def test_nothing_in_an_output_is_taken_for_the_models_own(printed: str) -> None:
    author = ScriptedAuthor(block("a"), "end\n>>>\n")
    output = complete(author, runner := ScriptedRunner(printed))
    assert output.text == ran("a", printed.removesuffix("\n")) + "end"
    assert runner.codes == ["a"]


def test_inserted_tokens_are_counted_and_have_no_log_probability() -> None:
    author = ScriptedAuthor(block("a"), "ok")
    output = complete(author, ScriptedRunner("12\n"), return_token_log_probs=True)
    kept, inserted = "```python\na\n```\n", "12\n>>>\n"
    assert output.tokens is not None
    assert [(token.token, token.log_prob) for token in output.tokens] == [
        *((one, -1.0) for one in kept),
        *((one, None) for one in inserted),
        *((one, -1.0) for one in "ok"),
    ]
    assert output.num_completion_tokens == len(output.tokens)
    assert output.num_prompt_tokens == len("Q: ")
    assert [room for _before, room in author.asked] == [1000, 1000 - len(kept + inserted)]


HEAD = "```python\na\n```\n"
ROUND = block("a", "m")


@pytest.mark.parametrize("left", range(1, 9))
def test_an_output_is_cut_to_what_is_left_of_the_tokens_and_then_the_completion_ends(left: int) -> None:
    most, printed = len(HEAD) + left, "123\n"
    long_enough = most >= len(ROUND)
    output = complete(ScriptedAuthor(ROUND, "x" * 100), runner := ScriptedRunner(printed), max_new_tokens=most)
    whole = ran("a", "123") + "x" * 100 if long_enough else ROUND
    assert output.text == whole[:most]
    assert output.num_completion_tokens == most
    assert runner.codes == ["a"] * long_enough


def test_an_output_that_fills_the_tokens_exactly_ends_the_completion() -> None:
    author = ScriptedAuthor(ROUND)
    output = complete(author, ScriptedRunner("1\n"), max_new_tokens=len(ROUND))
    assert output.text == ran("a", "1")
    assert output.num_completion_tokens == len(ROUND)
    assert len(author.asked) == 1


def test_an_insertion_that_reaches_the_context_ends_the_completion_and_is_no_error() -> None:
    author = ScriptedAuthor(ROUND, context_length=len("Q: ") + len(ROUND) + 2)
    output = complete(author, ScriptedRunner("0123456789\n"))
    assert output.text == HEAD + "0123456789"[: len("m\n>>>\n") + 2]
    author = ScriptedAuthor(ROUND, "abc", context_length=len("Q: ") + len(ROUND) + 2)
    assert complete(author, ScriptedRunner("1\n")).text == ran("a", "1") + "ab"


def test_half_of_a_character_that_the_last_token_leaves_is_no_part_of_the_text() -> None:
    class Bytes(ScriptedAuthor):
        """Each byte is a token."""

        def encode(self, text: str, *, after: str) -> list[int]:
            return list(text.encode())

        def decode(self, ids: Any, *, skip_special_tokens: bool = False) -> str:
            return bytes(ids).decode(errors="replace")

    output = complete(Bytes(ROUND), ScriptedRunner("é漢漢漢漢\n"), max_new_tokens=len(HEAD) + 7)
    assert output.text == HEAD + "é漢"
    assert output.num_completion_tokens == len(HEAD) + 7


def test_a_token_that_also_holds_what_is_replaced_is_replaced_with_it() -> None:
    class Pairs(ScriptedAuthor):
        """Two characters are a token."""

        def encode(self, text: str, *, after: str) -> list[int]:
            return [int.from_bytes(text[at : at + 2].encode(), "big") for at in range(0, len(text), 2)]

        def decode(self, ids: Any, *, skip_special_tokens: bool = False) -> str:
            return "".join(one.to_bytes(2, "big").lstrip(b"\0").decode() for one in ids)

    assert len(HEAD) % 2 == 0
    author = Pairs("." + block("a", "m"), "ok")
    output = complete(author, ScriptedRunner("12\n"))
    assert output.text == "." + ran("a", "12") + "ok"
    # 8 whole tokens and the line break of the fence with what was printed, "\n12\n>>>\n", in 4 more.
    assert output.num_completion_tokens == 8 + 4 + 1


def test_code_that_fails_has_its_error_in_the_outputs_place_and_the_model_goes_on() -> None:
    error = "Traceback (most recent call last):\nZeroDivisionError: division by zero\n"
    output = complete(ScriptedAuthor(block("1 / 0"), "Sorry."), ScriptedRunner(error))
    assert output.text == ran("1 / 0", error.removesuffix("\n")) + "Sorry."


@pytest.mark.parametrize(("keeps", "forgotten"), [(None, 0), (True, 0), (False, 2)])
def test_names_are_kept_for_later_blocks_unless_they_are_not_wanted(keeps: bool | None, forgotten: int) -> None:
    runner = ScriptedRunner("1\n", "2\n")
    complete(ScriptedAuthor(block("a"), block("b"), "."), runner, tool={"should_retry_on_error": keeps})
    assert (runner.forgotten, runner.closed) == (forgotten, 1)


def test_a_run_may_take_as_long_as_the_job_says() -> None:
    complete(ScriptedAuthor(block("a"), "."), runner := ScriptedRunner("1\n"), tool={"execution_timeout_seconds": 7})
    assert runner.timeouts == {7.0}


def test_code_that_can_not_be_run_just_now_costs_the_record_and_may_be_tried_again() -> None:
    runner = ScriptedRunner(SandboxUnavailableError("no process can be started"))
    with pytest.raises(RecordRejectedError, match="can't be run just now: no process can be started") as caught:
        complete(ScriptedAuthor(block("a")), runner)
    assert caught.value.error_type is RecordErrorType.INTERNAL
    assert caught.value.error_type.transient
    assert runner.closed == 1


def test_a_record_that_is_given_up_leaves_no_interpreter_and_no_place_taken() -> None:
    async def main() -> None:
        running = asyncio.Event()
        runners: list[ScriptedRunner] = []

        class Endless(ScriptedRunner):
            async def run(self, code: str, timeout_seconds: float) -> Any:
                running.set()
                await asyncio.Event().wait()

        def make() -> ScriptedRunner:
            runners.append(ScriptedRunner("1\n") if runners else Endless())
            return runners[-1]

        async def ask(question: Any) -> Any:
            return await question(authors.pop())

        loop = evaluator(make, most=1)
        authors = [ScriptedAuthor(block("a"))]
        task = asyncio.create_task(loop.complete(v1(), ask, nullcontext))
        await running.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        author = ScriptedAuthor(block("b"), "end")
        authors = [author, author]
        answer = await asyncio.wait_for(loop.complete(v1(), ask, nullcontext), 10)
        assert answer.body["text"] == ran("b", "1") + "end"
        assert [runner.closed for runner in runners] == [1, 1]

    asyncio.run(main())


def test_a_stop_sequence_of_the_users_after_a_block_ends_it_and_the_block_is_not_run() -> None:
    author = ScriptedAuthor("```python\na\n```\nmade up STOP\n>>>\n")
    assert complete(author, runner := ScriptedRunner(), stop_sequences=["STOP"]).text == "```python\na\n```\nmade up "
    assert runner.codes == []
