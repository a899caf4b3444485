"""The loop of code_evaluator on the real engine, with code that the model really wrote in the real sandbox.

The model is small, and writes code only as examples show it; what it makes up as the output is mostly wrong, so that it
shows whose output stands in the result. Decoding is greedy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from airflow_llmengine.spec.results import CompletionOutput
from airflow_llmengine.worker.engines.vllm_writing import VLLMWriter
from airflow_llmengine.worker.engines.writing import Written
from airflow_llmengine.worker.records import Record
from airflow_llmengine.worker.tools.code_evaluation import CodeEvaluator
from airflow_llmengine.worker.tools.sandbox import SandboxedPython
from tests.engine.conftest import RunningEngine
from tests.engine.records import MAX_MODEL_LEN, v1
from tests.worker.tools.authors import ScriptedRunner, evaluator, ran

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]


def example(question: str, code: str, output: str) -> str:
    return f"Question: {question}\n{ran(code, output)}Answer: {output}\n\n"


EXAMPLES = (
    example("What is 2 times 3?", "print(2 * 3)", "6")
    + example("What is 10 times 4?", "print(10 * 4)", "40")
    + example("What is 7 times 5?", "print(7 * 5)", "35")
)


def two_blocks(number: int) -> str:
    first, second = ran(f"x = {number}\nprint(x)", str(number)), ran("print(x + 1)", str(number + 1))
    return f"Question: Print {number} and {number + 1}.\n{first}{second}"


def product(one: int, other: int, **fields: Any) -> Record:
    question = f"Question: What is {one} times {other}?\n"
    return v1(EXAMPLES + question, **{"max_new_tokens": 60, "stop_sequences": ["\n\n"], **fields})


def outputs(running: RunningEngine, loop: CodeEvaluator, *records: Record) -> list[CompletionOutput]:
    """Answer records all at once."""

    async def ask(question: Callable[[Any], Awaitable[Any]]) -> Any:
        return await question(running.engine)

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(loop.complete(record, ask, nullcontext) for record in records))

    return [CompletionOutput.model_validate(answer.body) for answer in running.run(all_of_them())]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Written]:
    """What the model wrote, go by go."""
    written: list[Written] = []
    write = VLLMWriter.write

    async def note(self: VLLMWriter, record: Record, before: Sequence[int], **arguments: Any) -> Written:
        written.append(await write(self, record, before, **arguments))
        return written[-1]

    monkeypatch.setattr(VLLMWriter, "write", note)
    return written


def test_the_models_code_runs_and_it_goes_on_with_what_was_really_printed(
    running: RunningEngine, seen: list[Written]
) -> None:
    pairs = [(123, 457), (6, 7), (31, 17), (99, 99), (12, 12)]
    found = outputs(running, evaluator(SandboxedPython), *(product(*pair) for pair in pairs))
    for (one, other), output in zip(pairs, found, strict=True):
        right = str(one * other)
        assert output.text == ran(f"print({one} * {other})", right) + f"Answer: {right}"
    made_up = {written.text.rpartition("\n")[2] for written in seen if written.stop == "\n>>>\n"}
    assert not made_up & {str(one * other) for one, other in pairs}, "the model can't multiply"


def test_names_are_there_for_a_later_block_and_its_code_alone_runs(running: RunningEngine) -> None:
    prompt = two_blocks(1) + two_blocks(5) + "Question: Print 8 and 9.\n"
    record = v1(prompt, max_new_tokens=80, stop_sequences=["Question"])
    (kept,) = outputs(running, evaluator(SandboxedPython), record)
    assert kept.text == ran("x = 8\nprint(x)", "8") + ran("print(x + 1)", "9")
    (forgotten,) = outputs(running, evaluator(SandboxedPython, should_retry_on_error=False), record)
    assert forgotten.text.startswith(ran("x = 8\nprint(x)", "8") + "```python\nprint(x + 1)\n```\nTraceback (most")
    assert "NameError: name 'x' is not defined\n>>>\n" in forgotten.text


def test_tokens_are_those_of_the_text_and_inserted_ones_have_no_log_probability(
    running: RunningEngine, seen: list[Written]
) -> None:
    (output,) = outputs(running, evaluator(SandboxedPython), product(123, 457, return_token_log_probs=True))
    assert output.tokens is not None
    assert len(output.tokens) == output.num_completion_tokens
    assert "".join(token.token for token in output.tokens) == output.text + "\n\n"
    inserted = [place for place, token in enumerate(output.tokens) if token.log_prob is None]
    assert inserted == list(range(inserted[0], inserted[-1] + 1))
    assert "".join(output.tokens[place].token for place in inserted) == "56211\n>>>\n"
    assert output.num_prompt_tokens == len(seen[0].before)
    assert len(seen[1].before) == len(seen[0].before) + inserted[-1] + 1
    assert seen[1].before[: len(seen[0].before) + inserted[0]] == seen[0].before + seen[0].ids[: inserted[0]]


def test_it_ends_as_the_model_would_have_ended_had_it_written_all_of_that_itself(running: RunningEngine) -> None:
    record = product(31, 17)
    (output,) = outputs(running, evaluator(SandboxedPython), record)
    before = ran("print(31 * 17)", "527")
    rest = running.answer(v1(EXAMPLES + "Question: What is 31 times 17?\n" + before, stop_sequences=["\n\n"]))
    assert output.text == before + rest.body["text"]


@pytest.mark.parametrize(
    "printed", ["é漢🙂\n", "\n\n\n", "  indented\n\ttab\n\n", "<|im_end|>\n", "a\r\nb\x00\x1b[0m\n", "", "```\n"]
)
def test_what_the_model_goes_on_from_is_letter_for_letter_what_the_result_says(
    running: RunningEngine, seen: list[Written], printed: str
) -> None:
    (output,) = outputs(running, evaluator(ScriptedRunner(printed), max_iterations=1), product(6, 7))
    decode = running.engine.writer().decode
    before = ran("print(6 * 7)", printed.removesuffix("\n"))
    assert output.text == before + seen[1].text
    start = len(seen[0].before)
    assert decode(seen[1].before[start:], skip_special_tokens=False) == before


def test_an_output_is_cut_to_the_tokens_that_are_left(running: RunningEngine, seen: list[Written]) -> None:
    printed = "漢字 and more " * 100
    for most in range(40, 46):
        (output,) = outputs(running, evaluator(ScriptedRunner(printed)), product(6, 7, max_new_tokens=most))
        head = "```python\nprint(6 * 7)\n```\n"
        assert output.num_completion_tokens == most
        assert (head + printed).startswith(output.text)
        assert len(output.text) > len(head) + 20
    assert len(seen) == 6, "nothing was generated after an output that was cut"


def test_an_output_that_fills_the_context_ends_the_completion_and_is_no_error(
    running: RunningEngine, seen: list[Written]
) -> None:
    loop = evaluator(ScriptedRunner("word " * 2 * MAX_MODEL_LEN))
    (output,) = outputs(running, loop, product(6, 7, max_new_tokens=MAX_MODEL_LEN))
    assert output.num_prompt_tokens + output.num_completion_tokens == MAX_MODEL_LEN
    assert output.text.startswith("```python\nprint(6 * 7)\n```\nword word ")
    assert len(seen) == 1, "nothing was generated after it"


def test_penalties_count_what_stands_in_the_completion_from_earlier_rounds(running: RunningEngine) -> None:
    repeated = "7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7"
    free, penalized = (
        outputs(running, evaluator(ScriptedRunner(repeated), max_iterations=1), product(6, 7, **fields))[0]
        for fields in ({}, {"frequency_penalty": 0.9})
    )
    assert "7" in free.text.rpartition(">>>")[2]
    assert "7" not in penalized.text.rpartition(">>>")[2]
