"""Records that ask the real engine the same: generated once, and each answered as if it had been asked for itself."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_llmengine.spec.check import validate_request
from airflow_llmengine.spec.exit_codes import ExitCode
from airflow_llmengine.spec.manifest import Manifest
from airflow_llmengine.storage.filesystem import Storage
from airflow_llmengine.worker.attempt import AttemptOptions, run_attempt
from airflow_llmengine.worker.engines.base import Answer
from airflow_llmengine.worker.records import Record
from airflow_llmengine.worker.stopping import Stop
from benchmarks.sides import KeptEngine
from tests.engine.conftest import RunningEngine
from tests.engine.records import CAPITAL, MAX_MODEL_LEN, completion, job
from tests.engine.test_chat_tools import COPYING

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

ASKED: tuple[dict[str, Any], ...] = (
    {"prompt": CAPITAL, "temperature": 0, "max_tokens": 4},
    {"prompt": CAPITAL, "temperature": 0.9, "seed": 7, "n": 2, "max_tokens": 4, "logprobs": 1},
    {**COPYING, "temperature": 0},
    {"prompt": CAPITAL, "use_beam_search": True, "n": 2, "max_tokens": 3},
    {"prompt": [1] * (MAX_MODEL_LEN + 1), "temperature": 0},
)
"""Greedy, seeded with several choices, a chat that calls a tool, beams, and one that the engine refuses."""

SAMPLED: dict[str, Any] = {"prompt": CAPITAL, "temperature": 2, "max_tokens": 16}


class CountingEngine(KeptEngine):
    """The shared engine, and how often it was asked for each record."""

    def __init__(self, running: RunningEngine) -> None:
        super().__init__(running.engine)
        self.asked: Counter[int] = Counter()

    async def complete(self, record: Record) -> Answer:
        self.asked[record.index] += 1
        return await super().complete(record)


def run(
    running: RunningEngine, model: Path, folder: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[Counter[int], list[dict[str, Any]], Manifest]:
    (folder / "in.json").write_text(text)
    output = folder / "out.json"
    paths = {"input_data_path": str(folder / "in.json"), "output_data_path": str(output)}
    request = validate_request({**job(model).given(), **paths})
    engine = CountingEngine(running)
    # The attempt's loop is the one in which the shared engine lives.
    monkeypatch.setattr("asyncio.run", running.run)
    running.run(engine.begin())
    options = AttemptOptions(owner="t", series="a")
    outcome = run_attempt(Storage(), request, options, Stop(), make_engine=lambda _request: engine)
    assert outcome.exit_code is ExitCode.DONE, outcome.message
    assert outcome.manifest is not None
    return engine.asked, json.loads(output.read_text()), outcome.manifest


def test_what_is_asked_twice_is_generated_once(
    running: RunningEngine, quickstart_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [*ASKED, *ASKED, SAMPLED, SAMPLED]
    asked, results, manifest = run(running, quickstart_model, tmp_path, json.dumps(records), monkeypatch)
    assert sorted(asked.elements()) == [0, 1, 2, 3, 4, 10, 11]
    assert (manifest.records, manifest.repeated, manifest.failed) == (12, 4, 2)

    for index, (first, second) in enumerate(zip(results[:4], results[5:9], strict=True)):
        # All but what its place gives it.
        assert {**first, "id": "", "choices": []} == {**second, "id": "", "choices": []}
        assert (first["id"][-2:], second["id"][-2:]) == (f"-{index}", f"-{index + 5}")
        if index != 2:
            assert first["choices"] == second["choices"]
    assert [len(result["choices"]) for result in results[:4]] == [1, 2, 1, 2]
    assert (
        results[0]["choices"][0]["text"] == running.answer(completion(CAPITAL, max_tokens=4)).body["choices"][0]["text"]
    )

    # A call is named by the record that it stands in.
    (calls, again) = (results[place]["choices"][0]["message"]["tool_calls"] for place in (2, 7))
    assert [call["function"] for call in calls] == [call["function"] for call in again]
    assert (calls[0]["id"], again[0]["id"]) == ("chatcmpl-tool-2-0-0", "chatcmpl-tool-7-0-0")

    refused, like_it = results[4]["error"], results[9]["error"]
    assert refused["type"] == like_it["type"] == "context_length_exceeded"
    assert (refused["message"].split(":")[0], like_it["message"].split(":")[0]) == (
        "element [4] of in.json",
        "element [9] of in.json",
    )
    # At such a temperature sixteen tokens are hardly ever the same, even if each was one of a dozen.
    assert results[10]["choices"] != results[11]["choices"]


def test_v1_prompts_that_are_the_same_are_generated_once(
    running: RunningEngine, quickstart_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = {
        "prompts": [CAPITAL, "Once", CAPITAL],
        "max_new_tokens": 4,
        "temperature": 0,
        "return_token_log_probs": True,
    }
    asked, results, manifest = run(running, quickstart_model, tmp_path, json.dumps(content), monkeypatch)
    assert sorted(asked) == [0, 1]
    assert results[0] == results[2] != results[1]
    assert len(results[0]["tokens"]) == 4
    assert (manifest.repeated, manifest.completion_tokens) == (1, 12)
